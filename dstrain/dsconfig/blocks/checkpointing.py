"""Checkpoints, activation checkpointing and disk access."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import PositiveInt, made_by
from dstrain.dsconfig.blocks.notes import BYTES, NOT_NULL, AnyCase, Condition

_CALLED = Condition("the model calls deepspeed.checkpointing.checkpoint()")


class ActivationCheckpointing(Block):
    """Compute activations again in backward instead of keeping them.

    Only models that call `deepspeed.checkpointing.checkpoint()` look at this; transformers' own switch does not.
    """

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/activation_checkpointing/config.py",
        partition_activations=27,
        number_checkpoints=30,
        contiguous_memory_optimization=33,
        synchronize_checkpoint_boundary=36,
        profile=39,
        cpu_checkpointing=42,
    )

    partition_activations: Annotated[bool, _CALLED] = False
    """Split saved activations over the model-parallel ranks."""
    number_checkpoints: Annotated[PositiveInt | None, _CALLED] = None
    """How many checkpoints a forward pass makes; needed by contiguous_memory_optimization."""
    contiguous_memory_optimization: Annotated[bool, _CALLED] = False
    """Keep saved activations in one buffer; needs partition_activations."""
    synchronize_checkpoint_boundary: Annotated[bool, _CALLED] = False
    """Wait for the device at each checkpoint."""
    profile: Annotated[bool, _CALLED] = False
    """Time forward and backward of each checkpoint."""
    cpu_checkpointing: Annotated[bool, _CALLED] = False
    """Keep saved activations in host memory; needs partition_activations."""


class Aio(Block):
    """Asynchronous disk access, for NVMe offloading."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/swap_tensor/constants.py",
        block_size=10,
        queue_depth=11,
        intra_op_parallelism=12,
        single_submit=13,
        overlap_events=14,
        use_gds=15,
    )

    block_size: Annotated[PositiveInt, BYTES] = 1_048_576
    """How much one request reads or writes."""
    queue_depth: PositiveInt = 8
    """How many requests wait at the device at once."""
    intra_op_parallelism: PositiveInt = 1
    """How many threads work on one read or write (the old name was thread_count)."""
    single_submit: bool = False
    """Submit requests one by one."""
    overlap_events: bool = True
    """Submit the next requests while earlier ones run."""
    use_gds: bool = False
    """Move data straight between GPU and disk (GPUDirect Storage; CUDA only)."""


class CheckpointWriter(Block):
    """The fast checkpoint engine. In 0.19.8 what it writes cannot be resumed with torch 2.6 or newer."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/model_checkpointing/constants.py",
        type=25,
        io_buffer_size=27,
        io_buffer_double=28,
        show_statistics=29,
        data_parallel=30,
        decoupled=26,
        io_multiplier=31,
    )

    type: Annotated[Literal["MOCK", "PYTHON", "FAST"], AnyCase()] = "FAST"
    """Who writes: "fast" needs the async_io op; "mock" writes empty files."""
    io_buffer_size: Annotated[PositiveInt, BYTES] = 67_108_864
    """The size of the write buffer."""
    io_buffer_double: bool = True
    """Use two buffers, one filled while the other is written."""
    show_statistics: bool = False
    """Print the speed of each write."""
    data_parallel: Annotated[Literal["REPLICA", "SOCKET", "MACHINE"] | None, AnyCase()] = None
    """Over which ranks the write is spread."""
    decoupled: bool = False
    """Write in a process of its own while training goes on."""
    io_multiplier: PositiveInt = 1
    """How many times each file is written, for measurements."""


class ParallelWrite(Block):
    """Which ranks write."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/config.py", pipeline_stage=400)

    pipeline_stage: bool = False
    """Let the data-parallel ranks share the layers of a pipeline stage."""


class Checkpoint(Block):
    """How checkpoints are written and read."""

    reads: ClassVar[Mapping[str, str]] = {
        **read_at("runtime/config.py", tag_validation=388, load_universal=549, use_node_local_storage=552),
        **read_at("runtime/model_checkpointing/config.py", checkpoint_serialization=69),
    }

    tag_validation: Annotated[Literal["IGNORE", "WARN", "FAIL"], AnyCase()] = "WARN"
    """What happens when ranks disagree on the tag of a checkpoint."""
    load_universal: bool = False
    """Load a universal checkpoint (made by ds_to_universal), which fits any number of ranks."""
    use_node_local_storage: bool = False
    """Each node writes to a disk of its own."""
    parallel_write: Annotated[ParallelWrite, NOT_NULL] = made_by(ParallelWrite)
    """Which ranks write."""
    checkpoint_serialization: bool = True
    """Write torch's zip format; false writes the old one."""
    writer: CheckpointWriter | None = None
    """The fast checkpoint engine; its mere presence switches it on."""
