"""Floor 2: the DeepSpeed configuration as typed blocks that keep unknown keys and the place of every key."""
