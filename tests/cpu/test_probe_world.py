"""World facts: what each launcher sets is understood; contradictions and halves are refused, all at once."""

from __future__ import annotations

import pytest

from dstrain.core.errors import UsageError
from dstrain.core.facts import WorldFacts
from dstrain.probe import world_facts

pytestmark = pytest.mark.cpu

DEEPSPEED = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_SIZE": "4",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29400",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, WorldFacts()),
        ({"RANK": "", "WORLD_SIZE": " ", "LOCAL_RANK": ""}, WorldFacts()),
        (DEEPSPEED, WorldFacts(8, 5, 1, 4, "deepspeed")),
        (TORCHRUN, WorldFacts(2, 1, 1, 2, "torchrun")),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, WorldFacts()),
        (
            TORCHRUN | {"LOCAL_SIZE": "1"},
            WorldFacts(2, 1, 1, 2, "torchrun"),
        ),  # left by the process that started torchrun
        (DEEPSPEED | {"LOCAL_WORLD_SIZE": "1"}, WorldFacts(8, 5, 1, 4, "deepspeed")),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"},
            WorldFacts(2, 1, 1, 2, "other"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            WorldFacts(4, 3, 1, 2, "other"),
        ),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, WorldFacts()),
    ],
)
def test_what_launchers_set(environ: dict[str, str], expected: WorldFacts) -> None:
    assert world_facts(environ) == expected


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"LOCAL_RANK": ""}, ["RANK=5", "WORLD_SIZE=8", "LOCAL_RANK is not"]),
        ({"WORLD_SIZE": "", "RANK": ""}, ["LOCAL_RANK=1 is set", "RANK and WORLD_SIZE are not"]),
        ({"RANK": "8"}, ["RANK=8 is not below WORLD_SIZE=8"]),
        ({"RANK": "-1"}, ["RANK='-1' is not a whole number"]),
        ({"WORLD_SIZE": "two", "LOCAL_RANK": "1.0"}, ["WORLD_SIZE='two'", "LOCAL_RANK='1.0'"]),
        ({"LOCAL_RANK": "4"}, ["LOCAL_RANK=4 is not below the 4 ranks of this host"]),
        ({"LOCAL_SIZE": "16"}, ["16 ranks on this host, but WORLD_SIZE=8"]),
        ({"LOCAL_WORLD_SIZE": "2", "CROSS_SIZE": ""}, ["LOCAL_SIZE=4, LOCAL_WORLD_SIZE=2 disagree"]),
        ({"RANK": "0"}, ["LOCAL_RANK=1 is above RANK=0"]),
        ({"CROSS_RANK": "2"}, ["CROSS_RANK=2 is not below CROSS_SIZE=2"]),
        ({"CROSS_SIZE": "1", "CROSS_RANK": "0"}, ["one host (CROSS_SIZE=1) with 4 ranks"]),
        ({"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, ["LOCAL_SIZE=4, LOCAL_WORLD_SIZE=2 disagree"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE=0: at least one rank"]),
        ({"LOCAL_SIZE": "", "CROSS_SIZE": ""}, ["LOCAL_WORLD_SIZE is not set", "MASTER_ADDR=node0"]),
        ({"RANK": "9", "LOCAL_RANK": "7"}, ["RANK=9 is not below", "LOCAL_RANK=7 is not below"]),
    ],
)
def test_contradictions_are_named(changes: dict[str, str], texts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        world_facts(DEEPSPEED | changes)
    message = str(caught.value)
    for text in texts:
        assert text in message
    assert "fix: " in message


def test_srun_tasks_that_know_nothing_of_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="srun started 4 tasks"):
        world_facts({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"})
