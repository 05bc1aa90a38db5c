"""Resolution: one RunPlan out of arguments, file and facts; every value with a source, and no "auto" left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstrain.args import TrainingArguments
from dstrain.core.facts import DataFacts, HostFacts, ModelFacts, WorldFacts
from dstrain.dsconfig.document import Document
from dstrain.resolve import Resolution, resolve

pytestmark = pytest.mark.paper
HOST = HostFacts(supports_bf16=True, supports_fp16=True)


def plan_of(config: dict[str, Any] | None, world: int = 1, rows: int = 64, host: HostFacts = HOST, **args: Any) -> Any:
    resolution = resolution_of(config, world, rows, host, **args)
    assert resolution.plan is not None, [finding.message for finding in resolution.findings]
    return resolution.plan


def resolution_of(
    config: dict[str, Any] | None, world: int = 1, rows: int = 64, host: HostFacts = HOST, **args: Any
) -> Resolution:
    if config is not None:
        args["deepspeed"] = config
    return resolve(
        TrainingArguments(**args),
        None if config is None else Document("ds.json", config),
        world=WorldFacts(world_size=world),
        host=host,
        model=ModelFacts("Net", 1000, 1000, hidden_size=32),
        data=DataFacts(train_rows=rows),
    )


@pytest.mark.parametrize(
    ("config", "args", "world", "expected"),
    [
        ({}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}, 2, (2, 3, 12)),
        ({"train_batch_size": 12}, {"per_device_train_batch_size": 2}, 2, (2, 3, 12)),
        ({"train_batch_size": 16}, {}, 2, (8, 1, 16)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, {}, 2, (2, 4, 16)),
        ({"train_micro_batch_size_per_gpu": "4", "gradient_accumulation_steps": "2"}, {}, 1, (4, 2, 8)),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}, {}, 1, (8, 1, 8)),
    ],
)
def test_batch_triangle(config: dict[str, Any], args: dict[str, Any], world: int, expected: tuple[int, ...]) -> None:
    plan = plan_of(config, world, **args)
    assert (plan.batch.micro_rows, plan.batch.accumulation, plan.batch.global_rows) == expected
    assert plan.deepspeed["train_batch_size"] == expected[2]


def test_a_triangle_that_does_not_hold_says_all_numbers() -> None:
    findings = resolution_of({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}).findings
    (message,) = {finding.message for finding in findings if finding.id == "DS902"}
    for number in ("10", "4", "2 left over"):
        assert number in message


def test_all_disagreements_in_one_list() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 7,
        "gradient_clipping": 0.3,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
        "bf16": {"enabled": False},
    }
    args = {
        "per_device_train_batch_size": 1,
        "max_grad_norm": 0.5,
        "learning_rate": 1e-3,
        "adam_beta2": 0.99,
        "bf16": True,
    }
    resolution = resolution_of(config, **args)
    keys = {finding.key for finding in resolution.findings if finding.id == "DS901"}
    assert resolution.plan is None
    assert keys == {
        "train_micro_batch_size_per_gpu",
        "gradient_clipping",
        "optimizer.params.lr",
        "optimizer.params.betas",
        "bf16.enabled",
    }


@pytest.mark.parametrize("clip", [0.0, 0.01, 1e9])
def test_clipping_is_always_written(clip: float) -> None:
    assert plan_of({}, max_grad_norm=clip).deepspeed["gradient_clipping"] == clip
    assert plan_of({"gradient_clipping": clip}).optimizer.max_grad_norm == clip


def test_the_file_wins_over_defaults_and_auto_takes_the_argument() -> None:
    optimizer = {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": "auto"}}
    plan = plan_of({"optimizer": optimizer}, weight_decay=0.2)
    assert (plan.optimizer.lr, plan.optimizer.weight_decay) == (3e-4, 0.2)
    assert str(plan.sources["optimizer.lr"]).startswith("ds.json")
    assert plan.sources["optimizer.weight_decay"].kind == "python"


def test_warmup_decay_never_trains_on_deepspeeds_own_default() -> None:
    plan = plan_of(
        {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2}}}, learning_rate=0.01, max_steps=9
    )
    params = plan.deepspeed["scheduler"]["params"]
    assert (params["warmup_max_lr"], params["total_num_steps"]) == (0.01, 9)


@pytest.mark.parametrize(
    ("config", "args", "keys"),
    [
        ({"optimizer": {"type": "AdamW", "params": {}}}, {"optim": "sgd"}, {"optimizer.type"}),
        ({"optimizer": {"type": "Adam", "params": {}}}, {"optim": "adamw_torch"}, set()),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}},
            {"lr_scheduler_type": "cosine"},
            {"scheduler.type"},
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}},
            {"lr_scheduler_type": "linear", "max_steps": 9},
            set(),
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50}}},
            {"warmup_steps": 0.1, "max_steps": 50},
            set(),
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 6, "total_num_steps": 50}}},
            {"warmup_steps": 0.1, "max_steps": 40},
            {"scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps"},
        ),
        ({"bfloat16": {"enabled": False}}, {"bf16": True}, {"bfloat16.enabled"}),
        ({"optimizer": {"type": "AdamW", "params": {"eps": 1e-6}}}, {"adam_epsilon": 1e-7}, {"optimizer.params.eps"}),
    ],
)
def test_two_places_in_their_own_words(config: dict[str, Any], args: dict[str, Any], keys: set[str]) -> None:
    found = [finding for finding in resolution_of(config, **args).findings if finding.id == "DS901"]
    assert {finding.key for finding in found} == keys
    for finding in found:
        assert "TrainingArguments(" in str(finding.also[0])


def test_a_schedule_that_ends_before_the_run_is_said() -> None:
    config = {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 1, "total_num_steps": 4}}}
    resolution = resolution_of(config, per_device_train_batch_size=8, num_train_epochs=1)
    (finding,) = [finding for finding in resolution.findings if finding.id == "DS911"]
    assert "total_num_steps is 4, and the run has 8 steps" in finding.message
    assert resolution.plan is not None
    assert resolution.plan.schedule.total_steps == 4


def test_hidden_defaults_are_written_out() -> None:
    steps = {"warmup_num_steps": 3}
    plan = plan_of({"bf16": {"enabled": True}, "scheduler": {"type": "WarmupLR", "params": steps}}, learning_rate=0.1)
    assert plan.deepspeed["bf16"] == {"enabled": True, "check_grad_overflow": True}
    params = {"warmup_num_steps": 3, "warmup_type": "log", "warmup_min_lr": 0.0, "warmup_max_lr": 0.1}
    assert plan.deepspeed["scheduler"]["params"] == params
    assert plan.schedule.warmup_steps == 3
    for key in ("warmup_type", "warmup_min_lr", "warmup_max_lr"):
        assert f"deepspeed.scheduler.params.{key}" in plan.sources
    scaling = plan_of({"fp16": {"enabled": True, "hysteresis": 4}}).deepspeed["fp16"]
    assert (scaling["loss_scale"], scaling["initial_scale_power"], scaling["hysteresis"]) == (0, 16, 4)
    cosine = {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 3, "total_num_steps": 8}}
    params = plan_of({"scheduler": cosine}).deepspeed["scheduler"]["params"]
    assert (params["warmup_min_ratio"], params["cos_min_ratio"]) == (0.0, 0.0001)


def test_auto_is_filled_and_given_arguments_reach_every_optimizer() -> None:
    host = HostFacts(ready_ops=frozenset({"fused_lion"}))
    lion = {"type": "Lion", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}}
    params = plan_of({"optimizer": lion}, host=host, adam_beta2=0.95).deepspeed["optimizer"]["params"]
    assert (params["betas"], params["weight_decay"], params["lr"]) == ([0.9, 0.95], 0.0, 5e-5)
    assert plan_of({}, optim="adagrad", adam_epsilon=1e-6).deepspeed["optimizer"]["params"]["eps"] == 1e-6
    plan = plan_of({}, optim="sgd", adam_beta1=0.5)
    assert "betas" not in plan.deepspeed["optimizer"]["params"]
    assert "adam_beta1 has no effect: SGD takes no betas" in plan.notices


def test_ops_that_are_built_are_used_and_others_are_replaced() -> None:
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    without = plan_of(config)
    assert without.optimizer.substitute_for == "cpu_adam"
    assert without.deepspeed["optimizer"]["params"]["torch_adam"] is True
    assert any("dstrain ops build cpu_adam" in notice for notice in without.notices)
    ready = plan_of(config, host=HostFacts(ready_ops=frozenset({"cpu_adam"})))
    assert ready.optimizer.engine_class.endswith("DeepSpeedCPUAdam")
    assert ready.needed_ops == ("cpu_adam",)
    assert "torch_adam" not in ready.deepspeed["optimizer"]["params"]


@pytest.mark.parametrize(
    ("rows", "args", "steps", "per_epoch"),
    [
        (64, {"num_train_epochs": 2}, 16, 8),
        (65, {"num_train_epochs": 2}, 18, 9),
        (65, {"num_train_epochs": 2, "dataloader_drop_last": True}, 16, 8),
        (64, {"num_train_epochs": 0.5}, 4, 8),
        (64, {"max_steps": 3}, 3, 8),
    ],
)
def test_length(rows: int, args: dict[str, Any], steps: int, per_epoch: int) -> None:
    length = plan_of(None, rows=rows, **args).length
    assert (length.max_steps, length.steps_per_epoch) == (steps, per_epoch)


@pytest.mark.parametrize(
    ("rows", "world", "args", "id"),
    [
        (0, 1, {}, "DS903"),
        (5, 1, {"dataloader_drop_last": True}, "DS903"),
        (64, 2, {}, "DS905"),
        (64, 1, {"eval_strategy": "steps"}, "DS906"),
    ],
)
def test_runs_that_cannot_be(rows: int, world: int, args: dict[str, Any], id: str) -> None:
    resolution = resolution_of(None, world, rows, **args)
    assert resolution.plan is None
    assert id in {finding.id for finding in resolution.findings}


_AUTO = st.just("auto")
_CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "train_batch_size": _AUTO,
        "train_micro_batch_size_per_gpu": _AUTO | st.integers(1, 4),
        "gradient_accumulation_steps": _AUTO | st.integers(1, 4),
        "gradient_clipping": _AUTO | st.floats(0, 2),
        "bf16": st.fixed_dictionaries({}, optional={"enabled": _AUTO | st.booleans()}),
        "fp16": st.fixed_dictionaries({}, optional={"enabled": _AUTO, "loss_scale": st.just(0)}),
        "zero_optimization": st.fixed_dictionaries(
            {"stage": st.sampled_from([0, 1, 2, 3])},
            optional={
                "reduce_bucket_size": _AUTO,
                "stage3_prefetch_bucket_size": _AUTO,
                "stage3_param_persistence_threshold": _AUTO,
                "overlap_comm": st.booleans(),
            },
        ),
        "optimizer": st.fixed_dictionaries(
            {"type": st.sampled_from(["AdamW", "Adam"])},
            optional={
                "params": st.fixed_dictionaries(
                    {}, optional={"lr": _AUTO, "betas": _AUTO, "eps": _AUTO, "weight_decay": _AUTO}
                )
            },
        ),
        "scheduler": st.fixed_dictionaries(
            {"type": st.sampled_from(["WarmupLR", "WarmupDecayLR"])},
            optional={
                "params": st.fixed_dictionaries(
                    {},
                    optional={
                        "warmup_min_lr": _AUTO,
                        "warmup_max_lr": _AUTO,
                        "warmup_num_steps": _AUTO,
                        "total_num_steps": _AUTO,
                        "warmup_type": _AUTO,
                    },
                )
            },
        ),
    },
)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    if isinstance(value, list | tuple):
        return [leaf for inner in value for leaf in _leaves(inner)]
    return [value]


@settings(max_examples=150, deadline=None)
@given(config=_CONFIGS, world=st.integers(1, 4), steps=st.integers(1, 50))
def test_no_auto_survives_and_every_value_has_a_source(config: dict[str, Any], world: int, steps: int) -> None:
    resolution = resolution_of(config, world, max_steps=steps, learning_rate=1e-3)
    if resolution.plan is None:
        return
    plan = resolution.plan
    assert "auto" not in _leaves(plan.as_json()["deepspeed"])
    assert "gradient_clipping" in plan.deepspeed
    batch = plan.batch
    assert batch.global_rows == batch.micro_rows * batch.accumulation * world
    missing = [
        name
        for name in ("batch.micro_rows", "optimizer.lr", "precision", "length.max_steps")
        if name not in plan.sources
    ]
    assert missing == []
