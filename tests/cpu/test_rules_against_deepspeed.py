"""The rules against DeepSpeed itself: what they call an error fails there, what they let pass runs there."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepspeed_oracle import Oracle
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Finding, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules import RULES, lint, optimizers
from dstrain.rules.examples import configuration, patched

pytestmark = pytest.mark.cpu

# Where DeepSpeed 0.19.8 fails on the example that fires.
CONFIG = ["DS201", "DS202", "DS203", "DS306", "DS317", "DS401", "DS420", "DS421", "DS431", "DS436", "DS713", "DS804"]
INITIALIZE = [
    "DS207",
    "DS303",
    "DS313",
    "DS315",
    "DS316",
    "DS318",
    "DS330",
    "DS430",
    "DS433",
    "DS435",
    "DS501",
    "DS502",
    "DS503",
    "DS505",
    "DS506",
    "DS510",
    "DS512",
    "DS513",
    "DS601",
    "DS602",
    "DS604",
    "DS605",
    "DS610",
    "DS613",
    "DS706",
    "DS801",
    "DS805",
    "DS205",
]
STEP = ["DS412", "DS504", "DS750"]
# Errors that DeepSpeed lets through and trains wrong on, or that one CPU rank and a plain model cannot show.
SILENT = ["DS301", "DS402", "DS603", "DS606", "DS612", "DS701"]
NEEDS_MORE = {
    "DS204": "several ranks",
    "DS312": "several ranks",
    "DS305": "NVMe swapping, an op that is compiled",
    "DS511": "fp16, which DeepSpeed refuses on the CPU",
    "DS709": "several ranks",
    "DS711": "a mixture-of-experts model",
    "DS802": "accelerators",
    "DS808": "transformers",
    "DS809": "a frozen model",
}
# Quiet examples that this machine cannot run to the end, with how far they come.
QUIET_UNTIL = {
    "DS205": ("initialize", "Mesh should not be bigger"),
    "DS303": ("compile", "pin_memory"),
    "DS306": ("compile", "cpu_adam"),
    "DS330": ("compile", "cpu_adam"),
    "DS420": ("initialize", "fp16 is not supported"),
    "DS421": ("initialize", "fp16 is not supported"),
    "DS430": ("compile", "cpu_adam"),
    "DS801": ("initialize", "fp16 is not supported"),
    "DS804": ("config", "GDS currently only supported for CUDA"),
    "DS805": ("initialize", "SuperOffload only supports NVIDIA"),
}
# Rules about the very optimizer that is built: these examples are run as they are.
FIRES_AS_WRITTEN, QUIET_AS_WRITTEN = {"DS504", "DS510"}, {"DS306", "DS330", "DS430"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    process = Oracle()
    yield process
    process.close()


def prepared(example: dict[str, Any], *, as_written: bool = False) -> dict[str, Any]:
    """A configuration of an example that needs no compiled op: torch's Adam in place of the fused one."""
    config = copy.deepcopy(configuration(example))
    optimizer = config.setdefault("optimizer", {"type": "AdamW", "params": {"lr": 1e-3}})
    name = str(optimizer.get("type", "")).lower()
    if not as_written and name in ("adam", "adamw", "muon") and isinstance(optimizer.get("params"), dict):
        optimizer["params"].setdefault("torch_adam", True)
    return config


def errors_of(config: dict[str, Any]) -> list[Finding]:
    report = lint(doc=Document("ds_config.json", config), mode=Mode.DEEPSPEED, world=WorldFacts())
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


def test_every_error_rule_has_its_place() -> None:
    placed = [*CONFIG, *INITIALIZE, *STEP, *SILENT, *NEEDS_MORE]
    known = {entry.id for entry in RULES.values() if entry.severity is Severity.ERROR and "DS200" < entry.id < "DS900"}
    assert len(placed) == len(set(placed))
    assert known == set(placed)


@pytest.mark.parametrize(
    ("identity", "at"),
    [(i, at) for at, ids in (("config", CONFIG), ("initialize", INITIALIZE), ("step", STEP)) for i in ids],
)
def test_what_fires_fails_in_deepspeed(oracle: Oracle, identity: str, at: str) -> None:
    config = prepared(dict(RULES[identity].fires), as_written=identity in FIRES_AS_WRITTEN)
    answer = oracle.ask(config)
    assert answer["at"] == at, answer


@pytest.mark.parametrize("identity", [*CONFIG, *INITIALIZE, *STEP, *SILENT])
def test_what_is_quiet_runs_in_deepspeed(oracle: Oracle, identity: str) -> None:
    answer = oracle.ask(prepared(dict(RULES[identity].quiet), as_written=identity in QUIET_AS_WRITTEN))
    at, text = QUIET_UNTIL.get(identity, ("ok", ""))
    assert answer["at"] == at, answer
    assert text in answer.get("error", "")


@pytest.mark.parametrize("identity", SILENT)
def test_silent_faults_are_silent_in_deepspeed(oracle: Oracle, identity: str) -> None:
    assert oracle.ask(prepared(dict(RULES[identity].fires)))["at"] == "ok"


def test_clipping_is_on_when_unset(oracle: Oracle) -> None:
    assert oracle.ask(prepared(dict(RULES["DS410"].fires)))["clipping"] == 1.0


def test_decay_schedule_ignores_the_optimizers_lr(oracle: Oracle) -> None:
    config = prepared(dict(RULES["DS606"].fires))
    config["scheduler"]["params"] |= {"warmup_num_steps": 2, "warmup_type": "linear"}
    assert config["optimizer"]["params"]["lr"] == 1e-4
    assert max(oracle.ask(config)["lrs"]) > 9e-4


def test_scheduler_wins_over_the_optimizers_lr(oracle: Oracle) -> None:
    config = prepared(dict(RULES["DS607"].fires))
    config["scheduler"]["params"] |= {"warmup_num_steps": 2}
    assert oracle.ask(config)["lrs"][-1] == pytest.approx(5e-4)


def test_logarithmic_warmup_starts_at_zero(oracle: Oracle) -> None:
    lrs = oracle.ask(prepared(dict(RULES["DS608"].fires)))["lrs"]
    assert lrs[0] == 0.0
    assert lrs[1] > 0.0


def test_tensor_parallel_stays_off_without_autotp_size(oracle: Oracle) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"tp": {"tp_size": 2}}}
    assert oracle.ask(prepared(config))["autotp_size"] == 0


def test_parameter_tables_are_those_of_the_installed_packages() -> None:
    torch = pytest.importorskip("torch")
    for name, table in optimizers.TORCH.items():
        found = set(inspect.signature(getattr(torch.optim, name).__init__).parameters) - {"self", "params"}
        assert found == table, name
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    own = {"max_grad_norm", "torch_adam", "adam_w_mode", "adamw_mode", "fp32_optimizer_states"}
    for name, more, built in (
        ("AdamW", {}, FusedAdam),
        ("AdamW", offload, DeepSpeedCPUAdam),
        ("AdamW", {"params": {"torch_adam": True}}, torch.optim.AdamW),
        ("Lamb", {}, FusedLamb),
        ("Lion", {}, FusedLion),
        ("Lion", offload, DeepSpeedCPULion),
        ("Adagrad", offload, DeepSpeedCPUAdagrad),
        ("Adagrad", {}, torch.optim.Adagrad),
    ):
        optimizer = {"type": name, "params": more.get("params", {})}
        known = optimizers.accepted(Document("<dict>", {"optimizer": optimizer, **more}))
        found = set(inspect.signature(built.__init__).parameters) - {"self", "params", "model_params"}
        assert known is not None
        assert found - own == known - own, (name, built)


def test_scheduler_tables_are_those_of_the_installed_packages() -> None:
    lr_schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    torch_schedulers = pytest.importorskip("torch.optim.lr_scheduler")
    for name, table in [*optimizers.SCHEDULERS.items(), *optimizers.TORCH_SCHEDULERS.items()]:
        module = lr_schedules if name in optimizers.SCHEDULERS else torch_schedulers
        signature = inspect.signature(getattr(module, name).__init__).parameters
        assert set(signature) - {"self", "optimizer"} == table, name
        needed = {key for key, value in signature.items() if value.default is value.empty} - {"self", "optimizer"}
        assert needed == set(optimizers.REQUIRED.get(name, ())), name


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


def _section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


_BOOL = st.booleans()
_DEVICE = _section(
    device=st.sampled_from(["none", "cpu"]), pin_memory=st.just(False), ratio=st.sampled_from([1.0, 0.5])
)
_ZERO = _section(
    stage=st.sampled_from([0, 1, 2, 3, "2", True, "auto"]),
    overlap_comm=_BOOL,
    reduce_scatter=_BOOL,
    contiguous_gradients=_BOOL,
    reduce_bucket_size=st.sampled_from([1000, 5e8, "auto"]),
    allgather_bucket_size=st.sampled_from([1000, 1001, 5e8]),
    compute_grad_norm=st.sampled_from([True, True, True, False]),
    elastic_checkpoint=_BOOL,
    legacy_stage1=st.sampled_from([False, False, True]),
    round_robin_gradients=_BOOL,
    sub_group_size=st.sampled_from([0, 100, 1e9]),
    zero_hpz_partition_size=st.sampled_from([1, 2]),
    offload_optimizer=_DEVICE,
    offload_param=_section(device=st.sampled_from(["none", "cpu"]), pin_memory=st.just(False)),
    stage3_gather_16bit_weights_on_model_save=_BOOL,
    stage3_prefetch_bucket_size=st.sampled_from([0, 1e3, "1000"]),
    ignore_unused_parameters=_BOOL,
    cpu_offload=_BOOL,
    zenflow=_section(
        topk_ratio=st.sampled_from([0.1, 1.0]),
        select_strategy=st.sampled_from(["auto", "step", "epoch"]),
        select_interval=st.sampled_from(["auto", 2, 4]),
        update_interval=st.sampled_from(["auto", 0, 4]),
    ),
)
_OPTIMIZER = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Adam", "AdamW", "adamw"]),
            "params": st.fixed_dictionaries(
                {"torch_adam": st.just(True)},
                optional={
                    "lr": st.sampled_from([1e-3, -1e-3, 0]),
                    "betas": st.sampled_from([[0.9, 0.99], [0.9], [0.9, 1.5]]),
                    "eps": st.just(1e-8),
                    "weight_decay": st.sampled_from([0, 0.1, -0.1]),
                    "amsgrad": _BOOL,
                    "adam_w_mode": _BOOL,
                    "bias_correction": _BOOL,
                    "wieght_decay": st.just(0.1),
                },
            ),
        }
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["SGD", "sgd", "Adagrad", "RMSprop", "Adamax", "OneBitAdam", "NAdam"])},
        optional={"params": _section(lr=st.just(1e-3), momentum=st.just(0.9), weight_decay=st.just(0.1))},
    ),
)
_SCHEDULER = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest", "CosineAnnealingLR", "Warmup"]
        )
    },
    optional={
        "params": _section(
            warmup_min_lr=st.just(0),
            warmup_max_lr=st.sampled_from([1e-3, -1]),
            warmup_num_steps=st.sampled_from([0, 1, 10, 10.0, "10"]),
            warmup_type=st.sampled_from(["log", "linear", "cosine"]),
            total_num_steps=st.sampled_from([5, 100]),
            cycle_min_lr=st.just(0.0),
            cycle_max_lr=st.just(1e-3),
            T_max=st.just(10),
        )
    },
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "train_batch_size": st.sampled_from([1, 4, 6, 10]),
        "train_micro_batch_size_per_gpu": st.sampled_from([0, 1, 2, 4]),
        "gradient_accumulation_steps": st.sampled_from([1, 2, 3]),
        "gradient_clipping": st.sampled_from([0, 1.0, -1, "1.0", None, "auto"]),
        "steps_per_print": st.sampled_from([0, 10]),
        "prescale_gradients": _BOOL,
        "gradient_predivide_factor": st.sampled_from([1.0, 2.0]),
        "gradient_allreduce_op": st.sampled_from(["mean", "sum"]),
        "managed_gradient_accumulation": _BOOL,
        "communication_data_type": st.sampled_from(["fp32", "fp16"]),
        "zero_allow_untested_optimizer": _BOOL,
        "zero_optimization": st.one_of(_ZERO, _BOOL),
        "bf16": _section(enabled=_BOOL, bf16_master_weights_and_grads=_BOOL, bf16_optimizer_states=_BOOL),
        "fp16": _section(enabled=st.just(False), loss_scale=st.sampled_from([0, 128, "dynamic"])),
        "torch_autocast": _section(enabled=st.just(False), dtype=st.just("bfloat16")),
        "data_types": _section(
            grad_accum_dtype=st.sampled_from(["fp32", "bf16", "float99"]),
            param_dtype=st.sampled_from(["fp32", "bf16"]),
            keep_in_fp32_modules=st.sampled_from(["auto", ["norm"], "norm"]),
        ),
        "optimizer": _OPTIMIZER,
        "scheduler": _SCHEDULER,
        "checkpoint": _section(writer=st.just({"type": "python"}), load_universal=_BOOL),
        "tensor_parallel": _section(tp=st.just({"tp_size": 2})),
        "data_efficiency": _section(
            enabled=_BOOL,
            data_sampling=_section(enabled=_BOOL, curriculum_learning=_section(enabled=_BOOL)),
        ),
        "activation_checkpointing": _section(partition_activations=_BOOL, contiguous_memory_optimization=_BOOL),
        "communication_type": st.just("fp32"),
        "compile": _section(deepcompile=_BOOL),
        "csv_monitor": _section(enabled=st.just(False), job_name=st.just("job")),
        "comms_logger": _section(enabled=st.just(False), prof_all=_BOOL, prof_ops=st.just(["all_reduce"])),
        "flops_profiler": _section(enabled=st.sampled_from([False, "false"]), profile_step=st.just(1)),
        "sequence_parallel_size": st.sampled_from([1, 2]),
        "log_level": st.sampled_from(["info", "loud"]),
        "timers": st.just({"throughput": {"enabled": False}}),
        "amp": st.just({"enabled": False}),
        "aio": _section(block_size=st.sampled_from([1048576, "1MB"])),
        "wall_clock_breakdown": _BOOL,
    },
)
_RELAXED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]


@settings(max_examples=120, deadline=None, suppress_health_check=_RELAXED, derandomize=True)
@given(config=CONFIGS)
def test_clean_configurations_construct(oracle: Oracle, config: dict[str, Any]) -> None:
    """Without an error of ours, DeepSpeedConfig constructs; where it does not, we had an error."""
    clean = not errors_of(config)
    answer = oracle.ask(config, "config")
    if clean:
        assert answer["at"] == "ok", answer
    if answer["at"] != "ok":
        assert not clean, answer


@settings(max_examples=25, deadline=None, suppress_health_check=_RELAXED, derandomize=True)
@given(config=CONFIGS, optimizer=_OPTIMIZER)
def test_clean_configurations_train(oracle: Oracle, config: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Without an error of ours, `initialize` works and three steps run. Faults are mended by our own patches first."""
    config = mended({"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer, **config})
    assume(not errors_of(config))
    answer = oracle.ask(config)
    assert answer["at"] in ("ok", "compile"), answer


@settings(max_examples=25, deadline=None, suppress_health_check=_RELAXED, derandomize=True)
@given(config=CONFIGS, optimizer=_OPTIMIZER)
def test_errors_are_real(oracle: Oracle, config: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Where DeepSpeed runs three steps, what we call an error is one of the faults that it passes in silence."""
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer, **config}
    found = {finding.id for finding in errors_of(config)}
    assume(found)
    answer = oracle.ask(config)
    if found & set(CONFIG):
        assert answer["at"] == "config", (found, answer)
    if answer["at"] == "ok":
        assert found <= {*SILENT, *NEEDS_MORE} | {identity for identity in found if identity < "DS200"}, found


def mended(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration after the patches of its errors, a few rounds."""
    for _ in range(6):
        errors = [finding for finding in errors_of(config) if finding.patch]
        if not errors:
            break
        config = patched(config, errors[0].patch)
    return config


def test_the_oracle_is_the_real_deepspeed(oracle: Oracle) -> None:
    assert oracle.ask({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2})["at"] == "config"
    assert Path(inspect.getfile(Oracle)).name == "deepspeed_oracle.py"
