"""The one rule for which cards a start uses, and what index means which card."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dstrain.core.errors import UsageError
from dstrain.core.machine import Gpu
from dstrain.probe.devices import choose, cuda_order, rank_device, read_mask, table

pytestmark = pytest.mark.paper

MASK = "CUDA_VISIBLE_DEVICES"
FOUR = tuple(
    Gpu(place, "H100", f"GPU-{place}f0{place}-aa", f"0000:0{place}:00.0", 80 * 2**30, 0, "9.0") for place in range(4)
)
SPLIT = (Gpu(0, "H100", "GPU-0f", mig=("MIG-a1", "MIG-a2")), Gpu(1, "H100", "GPU-1f"))
MIXED = (
    Gpu(0, "T4", "GPU-t4", "0000:01:00.0", 15 * 2**30, 0, "7.5"),
    Gpu(1, "H100", "GPU-h1", "0000:02:00.0", 80 * 2**30, 0, "9.0"),
    Gpu(2, "A100", "GPU-a1", "0000:03:00.0", 40 * 2**30, 0, "8.0"),
)


@pytest.mark.parametrize(
    ("environ", "ids"),
    [
        ({}, "0,1,2,3"),
        ({MASK: "1,3"}, "1,3"),
        ({MASK: " 3 , 1 "}, "3,1"),
        ({MASK: ""}, ""),
        ({MASK: "-1"}, ""),
        ({MASK: "NoDevFiles"}, ""),
        ({MASK: "0,9,1"}, "0"),
        ({MASK: "9"}, ""),
        ({MASK: "1,1"}, ""),
        ({MASK: "GPU-1f01,GPU-3f03"}, "GPU-1f01,GPU-3f03"),
        ({MASK: "GPU-1f01,2"}, "GPU-1f01"),
        ({MASK: "GPU-zz"}, ""),
        ({MASK: "GPU-1f01,GPU-1f01-aa"}, ""),
        ({MASK: "0,x"}, "0"),
        ({MASK: "0,,1"}, "0"),
        # A scheduler's list limits where the machine shows more than it names, and where nothing nearer does.
        ({"SLURM_STEP_GPUS": "2-3"}, "2,3"),
        ({"SLURM_STEP_GPUS": "4-7"}, "0,1,2,3"),
        ({"SLURM_JOB_GPUS": "1"}, "1"),
        ({"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0-3"}, "1"),
        ({"SLURM_STEP_GPUS": "1", MASK: "0"}, "0"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "0,1,2,3"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-2f02-aa"}, "GPU-2f02-aa"),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "SLURM_JOB_GPUS": "2"}, "2"),
    ],
)
def test_what_a_mask_leaves(environ: Mapping[str, str], ids: str) -> None:
    assert ",".join(read_mask(environ, FOUR).ids or ()) == ids


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("0,9,1", ["'9'", "4 cards", "1 after it"]),
        ("1,1", ["twice", "no card at all"]),
        ("GPU-1f01,2", ["mixes", "indices and UUIDs"]),
        ("GPU-zz", ["no card of this machine"]),
        ("GPU-", ["neither an index from 0 nor a UUID"]),
        ("GPU-1f01,GPU-1f01-aa", ["are one card"]),
        ("1x", ["'1x'", "may read it as another card"]),
        ("MIG-a1", ["no MIG device"]),
    ],
)
def test_a_fault_of_the_mask_is_said_with_its_value(mask: str, words: list[str]) -> None:
    problems = read_mask({MASK: mask}, FOUR).problems
    text = " ".join(problem for problem, _ in problems)
    assert mask in text
    assert all(word in text for word in words), text
    assert all(fix for _, fix in problems)
    with pytest.raises(UsageError) as caught:
        choose({MASK: mask}, FOUR)
    assert caught.value.where == "environment"
    assert mask in caught.value.message


def test_an_ambiguous_uuid_is_a_fault() -> None:
    twins = (Gpu(0, uuid="GPU-ab1"), Gpu(1, uuid="GPU-ab2"))
    assert "fits 2 cards" in read_mask({MASK: "GPU-ab"}, twins).problems[0][0]
    assert read_mask({MASK: "GPU-ab2"}, twins).known() == (twins[1],)


@pytest.mark.parametrize(("entry", "card"), [("MIG-a2", 0), ("MIG-GPU-1f/0/0", 1), ("GPU-1f", 1)])
def test_mig_ids_belong_to_their_card(entry: str, card: int) -> None:
    mask = read_mask({MASK: entry}, SPLIT)
    assert mask.problems == ()
    assert mask.known() == (SPLIT[card],)


def test_two_instances_of_one_card_are_two_devices() -> None:
    assert read_mask({MASK: "MIG-a1,MIG-a2"}, SPLIT).ids == ("MIG-a1", "MIG-a2")


@pytest.mark.parametrize(
    ("mask", "flags", "ids"),
    [
        ("1,3", {"count": 2}, "1,3"),
        ("1,3", {"count": 1}, "1"),
        ("1,3", {"include": "localhost:3"}, "3"),
        ("1,3", {"include": "localhost:3,1"}, "3,1"),
        ("1,3", {"include": "localhost"}, "1,3"),
        ("1,3", {"include": "other:0@node7:1", "host": "node7"}, "1"),
        ("1,3", {"exclude": "localhost:1"}, "3"),
        ("1,3", {"exclude": "localhost:0"}, "1,3"),
        ("1,3", {"exclude": "other"}, "1,3"),
        (None, {"exclude": "localhost:0,2"}, "1,3"),
        (None, {"count": 2}, "0,1"),
        (None, {"include": "localhost:2"}, "2"),
        (None, {"include": "localhost:GPU-2f02-aa"}, "2"),
        ("GPU-3f03,GPU-1f01", {"count": 1}, "GPU-3f03"),
        ("GPU-3f03,GPU-1f01", {"include": "localhost:GPU-1f01"}, "GPU-1f01"),
        ("GPU-3f03,GPU-1f01", {"include": "localhost:GPU-1f01-aa"}, "GPU-1f01"),
        ("GPU-3f03,GPU-1f01", {}, "GPU-3f03,GPU-1f01"),
    ],
)
def test_flags_choose_inside_the_mask(mask: str | None, flags: dict[str, object], ids: str) -> None:
    environ = {} if mask is None else {MASK: mask}
    choice = choose(environ, FOUR, **flags)  # type: ignore[arg-type]
    assert choice.value() == ids
    assert choice.why


@pytest.mark.parametrize(
    ("mask", "flags", "sides"),
    [
        ("1,3", {"count": 3}, ["3 devices", f"{MASK}=1,3 leaves 2"]),
        ("1,3", {"include": "localhost:0"}, ["--include localhost:0", f"{MASK}=1,3"]),
        ("1,3", {"exclude": "localhost:1,3"}, ["--exclude localhost:1,3", f"{MASK}=1,3"]),
        ("1,3", {"exclude": "localhost"}, ["--exclude localhost", f"{MASK}=1,3"]),
        ("", {"count": 1}, ["1 devices", f"{MASK}= leaves 0"]),
        ("GPU-3f03", {"include": "localhost:3"}, ["--include localhost:3", f"{MASK}=GPU-3f03"]),
        (None, {"count": 5}, ["5 devices", "this machine has 4"]),
        (None, {"count": 0}, ["0 devices", "at least one"]),
        (None, {"include": "localhost:7"}, ["--include localhost:7", "4 cards"]),
        (None, {"exclude": "localhost:7"}, ["--exclude localhost:7", "4 cards"]),
        (None, {"include": "other:0"}, ["--include other:0", "localhost"]),
        (None, {"include": "localhost:"}, ["'localhost:'", "HOST:ID"]),
        (None, {"include": "localhost:a"}, ["'localhost:a'", "HOST:ID"]),
        (None, {"include": "localhost:0,0"}, ["names a card twice"]),
        (None, {"include": "localhost:0@localhost:1"}, ["names this host twice"]),
        (None, {"include": "localhost", "exclude": "localhost:1"}, ["--include localhost", "--exclude localhost:1"]),
        (None, {"include": "localhost:1", "count": 1}, ["--include localhost:1", "(1)"]),
    ],
)
def test_a_contradiction_names_both_sides(mask: str | None, flags: dict[str, object], sides: list[str]) -> None:
    environ = {} if mask is None else {MASK: mask}
    with pytest.raises(UsageError) as caught:
        choose(environ, FOUR, **flags)  # type: ignore[arg-type]
    assert all(side in caught.value.message for side in sides), caught.value.message
    assert caught.value.fix


def test_without_known_cards_the_mask_is_all_there_is() -> None:
    assert read_mask({}, None).ids is None
    assert choose({}, None).value() is None
    assert choose({}, None, count=2).value() == "0,1"
    assert choose({MASK: "4,7"}, None, count=1).value() == "4"
    assert choose({}, None, include="localhost:5").value() == "5"
    with pytest.raises(UsageError, match="not known"):
        choose({}, None, exclude="localhost:5")
    assert read_mask({"SLURM_STEP_GPUS": "3"}, None).ids is None


def test_a_rank_outside_the_mask_refuses() -> None:
    assert [rank_device({MASK: "3,1"}, FOUR, rank) for rank in range(2)] == ["3", "1"]
    assert rank_device({}, None, 5) is None
    with pytest.raises(UsageError, match=r"LOCAL_RANK=2 has no card: CUDA_VISIBLE_DEVICES=3,1 leaves 2"):
        rank_device({MASK: "3,1"}, FOUR, 2)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["0", "1", "2", "3"]), unique=True, min_size=1),
    st.integers(1, 4),
    st.lists(st.sampled_from(["0", "1", "2", "3"]), unique=True, min_size=1),
)
def test_the_mask_is_always_a_limit(mask: list[str], count: int, slots: list[str]) -> None:
    """Whatever the flags, what is chosen lies in the mask, once each, in the order it was named; or it is refused."""
    environ = {MASK: ",".join(mask)}
    filters = (
        {"count": count},
        {"include": f"localhost:{','.join(slots)}"},
        {"exclude": f"localhost:{','.join(slots)}"},
    )
    for flags in filters:
        try:
            chosen = choose(environ, FOUR, **flags).ids or ()  # type: ignore[arg-type]
        except UsageError:
            if "count" in flags:
                assert count > len(mask)
            elif "include" in flags:
                assert set(slots) - set(mask)
            else:
                assert set(mask) <= set(slots)
            continue
        assert set(chosen) <= set(mask)
        assert len(set(chosen)) == len(chosen) > 0


_TEXTS = st.one_of(st.text(max_size=20), st.text("0123456789-,@:² GPUMIGlocalhost", max_size=20))


@settings(max_examples=50)
@given(_TEXTS, _TEXTS)
@example("9" * 5000, "9" * 5000)
@example("0-99999999999", "localhost:0-99999999999")
def test_no_text_makes_it_raise_anything_else(mask: str, flag: str) -> None:
    for cards, flags in itertools.product((FOUR, (), None), ({}, {"include": flag}, {"exclude": flag})):
        for environ in ({MASK: mask}, {"NVIDIA_VISIBLE_DEVICES": flag, "SLURM_JOB_GPUS": mask}):
            with contextlib.suppress(UsageError):
                choose(environ, cards, **flags)


def test_equal_cards_are_numbered_by_address_either_way() -> None:
    for order in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}):
        assert cuda_order(tuple(reversed(FOUR)), order) == (FOUR, True)


def test_unlike_cards_are_numbered_by_the_order_that_is_asked_for() -> None:
    ordered, certain = cuda_order(MIXED, {})
    assert [card.name for card in ordered] == ["H100", "A100", "T4"]
    assert not certain
    assert cuda_order(MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == (MIXED, True)
    # The same index is another card.
    assert read_mask({MASK: "0"}, MIXED).known()[0].name == "H100"
    assert read_mask({MASK: "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED).known()[0].name == "T4"


def test_the_table_names_address_name_and_memory() -> None:
    lines = table({}, MIXED)
    assert lines[0].startswith("cuda index 0 = nvidia-smi 1: H100, 80 GiB at 0000:02:00.0")
    assert all("a guess" in line for line in lines)
    assert not any("a guess" in line for line in table({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED))
