"""dstrain: a DeepSpeed-first training toolkit. Importing it loads neither torch nor deepspeed."""

from __future__ import annotations

__version__ = "0.1.0"
