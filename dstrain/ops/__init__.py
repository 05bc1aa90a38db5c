"""Floor 7: DeepSpeed's compiled ops: a catalogue, a cache of our own, builds under a lock, loading, verification."""
