"""Every compiled op of DeepSpeed 0.19.8, by accelerator: what needs it, what it needs, and what torch has instead.

A test holds this table against the builders of the installed DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dstrain.core.errors import OpError
from dstrain.core.nearest import did_you_mean

_BOTH = frozenset({"cpu", "cuda"})
_CPU = frozenset({"cpu"})
_CUDA = frozenset({"cuda"})


@dataclass(frozen=True, slots=True)
class Op:
    """One op.

    Args:
        name: DeepSpeed's name for it: the library's and the Python module's name.
        builder: the class in `deepspeed.ops.op_builder` that compiles it.
        accelerators: DeepSpeed accelerators that have it.
        needed_by: the settings that make DeepSpeed load it.
        system: what must be installed beside a C++ compiler (and nvcc, for ops with CUDA sources).
        substitute: what a plan uses when it is not built; None means that the plan cannot run without it.
        optional: DeepSpeed itself goes on without it, whatever the plan says.
        requires: ops that must be loaded first.
        cpu_s: seconds of compilation on one core, as measured on a small machine; None where it was not measured.
    """

    name: str
    builder: str
    accelerators: frozenset[str]
    needed_by: str
    system: tuple[str, ...] = ()
    substitute: str | None = None
    optional: bool = False
    requires: tuple[str, ...] = ()
    cpu_s: int | None = None


_OPS = (
    Op("fused_adam", "FusedAdamBuilder", _BOTH, "optimizer.type Adam or AdamW without offload",
       substitute="torch.optim.Adam/AdamW (optimizer.params.torch_adam)", cpu_s=197),
    Op("cpu_adam", "CPUAdamBuilder", _BOTH, "offload_optimizer with Adam or AdamW; zenflow",
       substitute="torch.optim.Adam/AdamW (optimizer.params.torch_adam)", cpu_s=174),
    Op("cpu_adagrad", "CPUAdagradBuilder", _BOTH, "offload_optimizer with Adagrad", cpu_s=97),
    Op("cpu_lion", "CPULionBuilder", _BOTH, "offload_optimizer with Lion", cpu_s=170),
    Op("fused_lion", "FusedLionBuilder", _CUDA, "optimizer.type Lion without offload"),
    Op("fused_lamb", "FusedLambBuilder", _CUDA, "optimizer.type Lamb"),
    Op("pin_memory", "PinMemoryBuilder", _BOTH, "async_io, and pinned buffers of offload to NVMe"),
    Op("async_io", "AsyncIOBuilder", _BOTH, "offload to nvme; checkpoint.writer of type fast", ("libaio",),
       requires=("pin_memory",), cpu_s=735),
    Op("gds", "GDSBuilder", _CUDA, "aio.use_gds", ("libaio", "cufile"), requires=("pin_memory",)),
    Op("deepspeed_shm_comm", "ShareMemCommBuilder", _CPU, "faster all-reduce between ranks of one host on CPU",
       substitute="gloo", optional=True, cpu_s=137),
    Op("deepspeed_ccl_comm", "CCLCommBuilder", _CPU, "communication through oneCCL", ("oneCCL (CCL_ROOT)",),
       substitute="gloo", optional=True),
    Op("quantizer", "QuantizerBuilder", _CUDA, "zero_quantized_weights, zero_quantized_gradients, weight_quantization"),
    Op("fp_quantizer", "FPQuantizerBuilder", _CUDA, "fp6/fp8/fp12 weight quantization", ("triton",)),
    Op("dc", "DeepCompileBuilder", _CUDA, "compile.deepcompile"),
    Op("random_ltd", "RandomLTDBuilder", _CUDA, "data_efficiency.data_routing.random_ltd"),
    Op("transformer", "TransformerBuilder", _CUDA, "DeepSpeedTransformerLayer in the model"),
    Op("stochastic_transformer", "StochasticTransformerBuilder", _CUDA, "DeepSpeedTransformerLayer, stochastic mode"),
    Op("evoformer_attn", "EvoformerAttnBuilder", _CUDA, "DS4Sci_EvoformerAttention in the model",
       ("CUTLASS (CUTLASS_PATH)",)),
    Op("spatial_inference", "SpatialInferenceBuilder", _CUDA, "inference of diffusion models"),
    Op("transformer_inference", "InferenceBuilder", _CUDA, "deepspeed.init_inference with kernel injection"),
    Op("inference_core_ops", "InferenceCoreBuilder", _CUDA, "inference engine v2"),
    Op("cutlass_ops", "InferenceCutlassBuilder", _CUDA, "inference engine v2, mixture of experts", ("dskernels",)),
    Op("ragged_ops", "RaggedUtilsBuilder", _CUDA, "inference engine v2"),
    Op("ragged_device_ops", "RaggedOpsBuilder", _CUDA, "inference engine v2", ("dskernels",)),
    Op("utils", "UtilsBuilder", _CUDA, "flattening of tensors in old releases", substitute="torch._utils",
    optional=True),
)  # fmt: skip

CATALOGUE: Mapping[str, Op] = {op.name: op for op in _OPS}

# Built by `ops build --all`: what training can need. The rest serves inference, or models written for it.
TRAINING = frozenset(
    {
        "fused_adam", "fused_lamb", "fused_lion", "cpu_adam", "cpu_adagrad", "cpu_lion",
        "pin_memory", "async_io", "deepspeed_shm_comm", "quantizer",
    }
)  # fmt: skip


def get(name: str) -> Op:
    """The op of that name.

    Raises:
        OpError: there is none; the nearest name is offered.
    """
    if name not in CATALOGUE:
        hint = did_you_mean(name, CATALOGUE)
        raise OpError(f"there is no DeepSpeed op '{name}'", fix=hint or "dstrain ops list")
    return CATALOGUE[name]


def available(accelerator: str) -> list[Op]:
    """The ops that DeepSpeed has for an accelerator, in the order of the catalogue."""
    return [op for op in _OPS if accelerator in op.accelerators]


def with_required(names: Iterable[str]) -> list[str]:
    """`names` and what they require, each once, required ones first."""
    order: list[str] = []
    for name in names:
        for wanted in (*get(name).requires, name):
            if wanted not in order:
                order.append(wanted)
    return order
