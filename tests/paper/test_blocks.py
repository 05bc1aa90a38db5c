"""The typed blocks, the catalogue and the reading of values."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dstrain.core.docstrings import attribute_docstrings
from dstrain.dsconfig.blocks.base import Block, fields_of
from dstrain.dsconfig.blocks.optimizers import OPTIMIZERS, optimizer_params
from dstrain.dsconfig.blocks.root import DSConfig
from dstrain.dsconfig.blocks.schedulers import SCHEDULERS
from dstrain.dsconfig.blocks.zero import ZeroOptimization
from dstrain.dsconfig.canonical import canonical
from dstrain.dsconfig.catalogue import KEYS, REMOVED, by_last_name, info_of
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import FORGOTTEN
from dstrain.dsconfig.values import READ, Fit, ValueType, read

pytestmark = pytest.mark.paper


def test_unknown_keys_are_kept_at_every_depth() -> None:
    config = DSConfig.model_validate({"mine": 1, "zero_optimization": {"yours": {"a": [1]}, "stage": 1}})
    assert config.model_extra == {"mine": 1}
    assert config.zero_optimization.model_extra == {"yours": {"a": [1]}}
    assert config.model_dump()["zero_optimization"]["yours"] == {"a": [1]}


@pytest.mark.parametrize(("written", "meant"), [("5e8", 500_000_000), (5e8, 500_000_000), ("4", 4), (4.0, 4)])
def test_integers_are_read_as_people_write_them(written: object, meant: int) -> None:
    value = ZeroOptimization.model_validate({"reduce_bucket_size": written}).reduce_bucket_size
    assert value == meant
    assert type(value) is int


@pytest.mark.parametrize("written", [0.5, "many", True, None, [1], 0, -3])
def test_what_is_no_bucket_size_is_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        ZeroOptimization.model_validate({"reduce_bucket_size": written})


def test_auto_means_the_default_as_it_does_to_deepspeed() -> None:
    config = DSConfig.model_validate({"train_batch_size": "auto", "zero_optimization": {"stage": "auto"}})
    assert config.train_batch_size is None
    assert config.zero_optimization.stage == 0
    assert DSConfig.model_validate({"pipeline": {"stages": "auto"}}).pipeline.stages == "auto"


def test_second_spellings_reach_the_field() -> None:
    assert ZeroOptimization.model_validate({"prefetch_bucket_size": 7}).stage3_prefetch_bucket_size == 7


def test_params_are_typed_by_the_type_beside_them() -> None:
    config = DSConfig.model_validate({"optimizer": {"type": "ADAMW", "params": {"lr": "1e-4", "extra": 1}}})
    assert config.optimizer is not None
    params = config.optimizer.params
    assert isinstance(params, OPTIMIZERS["AdamW"])
    assert params.lr == 1e-4
    assert params.model_extra == {"extra": 1}
    assert config.model_dump()["optimizer"]["params"]["betas"] == [0.9, 0.999]


def test_torch_names_are_exact_and_deepspeed_names_are_not() -> None:
    assert optimizer_params("SGD") is OPTIMIZERS["SGD"]
    assert optimizer_params("sgd") is not OPTIMIZERS["SGD"]
    assert optimizer_params("lIoN") is OPTIMIZERS["Lion"]


def test_the_catalogue_has_the_whole_tree() -> None:
    assert len(KEYS) > 440
    assert "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.<metric>.difficulty_type" in KEYS
    assert not set(REMOVED) & set(KEYS)


def test_every_key_is_explained_in_one_line() -> None:
    bad = [key for key, info in KEYS.items() if not info.help.endswith(".") or len(info.help) >= 140]
    assert bad == []
    assert all(info.type_text and info.default_text for info in KEYS.values())


def test_defaults_are_allowed_by_their_own_types() -> None:
    wrong = [
        key
        for key, info in KEYS.items()
        if info.field.section is None and not info.field.required and info.default is not None
        if read(info.field.type, info.default).fit is not Fit.EXACT
    ]
    assert wrong == []


def test_notes_reach_the_catalogue() -> None:
    assert KEYS["zero_optimization.sub_group_size"].stages == (3,)
    assert KEYS["zero_optimization.round_robin_gradients"].stages == (1, 2)
    buffers = KEYS["zero_optimization.offload_param.buffer_count"]
    assert buffers.only_with == "zero_optimization.offload_param.device = nvme"
    assert KEYS["zero_optimization.reduce_bucket_size"].unit == "elements"
    assert KEYS["disable_allgather"].dead
    assert KEYS["zero_optimization.cpu_offload"].replaced_by == "zero_optimization.offload_optimizer"
    assert KEYS["zero_optimization.stage"].strict
    assert not KEYS["gradient_clipping"].strict
    assert KEYS["zero_optimization.stage"].read_at == "runtime/zero/config.py:95"


def test_other_spellings_and_free_names_are_found() -> None:
    found = info_of("zero_optimization.max_live_parameters")
    assert found is not None
    assert found.key == "zero_optimization.stage3_max_live_parameters"
    metric = "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.seqlen.schedule_type"
    assert info_of(metric) is not None
    assert info_of("zero_optimization.nothing") is None


def test_what_people_remember_leads_to_keys_that_exist() -> None:
    assert [target for target in FORGOTTEN.values() if target not in KEYS] == []
    assert [old for old in FORGOTTEN if old in KEYS] == []


def test_names_are_indexed_by_their_last_part() -> None:
    assert by_last_name()["stage"] == ("zero_optimization.stage",)
    assert "zero_optimization.stage3_prefetch_bucket_size" in by_last_name()["prefetch_bucket_size"]


def test_docstrings_of_inherited_fields_are_found() -> None:
    docs = attribute_docstrings(OPTIMIZERS["AdamW"])
    assert "learning rate" in docs["lr"]
    assert "torch" in docs["torch_adam"]


def test_canonical_writes_what_is_meant_and_drops_nothing_else() -> None:
    data = {
        "train_batch_size": "8",
        "wall_clock_breakdown": "false",
        "mine": None,
        "gradient_clipping": "auto",
        "zero_optimization": {"prefetch_bucket_size": "5e7", "stage": 2.0, "offload_optimizer": {"device": "CPU"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10.0, "other": "x"}},
        "fp16": None,
    }
    assert canonical(Document("<dict>", data)) == {
        "train_batch_size": 8,
        "wall_clock_breakdown": False,
        "mine": None,
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
        },
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "other": "x"}},
    }


@given(st.integers(min_value=-(10**12), max_value=10**12))
def test_every_way_to_write_an_integer_reads_the_same(number: int) -> None:
    for written in (number, float(number), str(number), f"{number:_}", repr(float(number)), f"{float(number):.15e}"):
        assert read(ValueType(("int",)), written).value == number


@given(
    st.sampled_from([info.field for info in KEYS.values() if info.field.section is None]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_reading_never_raises_and_is_stable(field: object, value: object) -> None:
    kind = field.type  # type: ignore[attr-defined]
    reading = read(kind, value)
    if reading.fit in READ and "any" not in kind.kinds:
        assert read(kind, reading.value).fit is Fit.EXACT


def _blocks(block: type[Block]) -> list[type[Block]]:
    inner = [field.section for field in fields_of(block).values() if field.section is not None]
    return [block, *(found for section in inner for found in _blocks(section))]


def test_every_block_builds_and_says_what_it_is() -> None:
    for block in {*_blocks(DSConfig), *OPTIMIZERS.values(), *SCHEDULERS.values()}:
        assert block.__doc__, block
        assert block.model_validate({}).model_extra == {}, block
        assert set(block.reads) <= set(fields_of(block)), f"{block} gives a place for a key that it does not have"


def test_importing_the_check_loads_neither_pydantic_nor_torch() -> None:
    code = "import sys, dstrain.dsconfig.check as c; print(sorted({'pydantic','torch','deepspeed'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
