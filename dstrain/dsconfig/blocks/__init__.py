"""The typed blocks of DeepSpeed 0.19.8 (`DSConfig` in `root.py` is the whole)."""
