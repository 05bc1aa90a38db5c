"""Names outside torch that a DeepSpeed shard needs when it is opened; no other one is ever looked up."""

from __future__ import annotations

import pickle
import re

SHARD_GLOBALS = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
"""Found by opening what 0.19.8 writes at stages 0 to 3 in fp32, bf16 and fp16: optimizer shards only.

All four hold plain values; none runs code when it is made.
"""

MASTER_NAMES = "dstrain_master_names"
"""Key of the model file at stage 0 in 16 bit: names of the fp32 weights, in the groups that the optimizer has."""

SHARD_FAULTS = (Exception,)
"""What to catch around one `torch.load`: on a damaged file torch 2.13 raises whatever its unpickler trips over
(`struct.error`, `IndexError`, `EOFError`, …), beside `UnpicklingError` for what is not on the allow list."""


def shard_fault(error: BaseException) -> str:
    """One line on why a shard was not opened, to follow the name of the file."""
    if isinstance(error, pickle.UnpicklingError):
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if asked:
            return f"was not opened: it asks for {asked[1]}, which no shard needs; nothing of it was run"
        return "was not opened: it holds something else than weights and plain values, or is damaged"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"cannot be read as a checkpoint file: {lines[0][:160]}"
