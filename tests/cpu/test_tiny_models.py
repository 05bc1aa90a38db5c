"""The tiny models and data: the numbers other tests rest on."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from dstrain.testing import data, models

pytestmark = pytest.mark.cpu


def batch(rows: list[data.Row]) -> dict[str, torch.Tensor]:
    return default_collate(rows)


@pytest.mark.parametrize("tied", [True, False])
def test_tiny_lm_is_causal_and_its_loss_counts_labels_only(tied: bool) -> None:
    model = models.TinyLM(tied=tied)
    rows = batch(data.padded_rows(4))
    out = model(**rows)
    by_hand, counted = 0.0, 0
    for logits, labels in zip(out["logits"], rows["labels"], strict=True):
        for t in range(1, len(labels)):
            if labels[t] != models.IGNORED:
                by_hand -= logits[t - 1].log_softmax(-1)[labels[t]].item()
                counted += 1
    assert out["loss"].item() == pytest.approx(by_hand / counted, rel=1e-5)
    changed = rows["input_ids"].clone()
    changed[:, 5:] = 1
    torch.testing.assert_close(model(changed)["logits"][:, :5], out["logits"][:, :5])
    assert not torch.allclose(model(changed)["logits"][:, 5:], out["logits"][:, 5:])
    assert (model.head.weight is model.embed.weight) is tied


def test_tiny_lm_padding_on_either_side_of_a_row_does_not_change_what_is_seen() -> None:
    model = models.TinyLM()
    ids = torch.tensor([[5, 6, 7, 8]])
    padded, mask = torch.tensor([[5, 6, 7, 8, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    torch.testing.assert_close(model(padded, mask)["logits"][:, :4], model(ids)["logits"])
    left = model(torch.tensor([[0, 0, 5]]), torch.tensor([[0, 0, 1]]))["logits"]
    other = model(torch.tensor([[9, 9, 5]]), torch.tensor([[0, 0, 1]]))["logits"]
    torch.testing.assert_close(left[:, 2], other[:, 2])
    assert left.isfinite().all()


def test_num_items_divides_the_sum() -> None:
    rows = batch(data.padded_rows(4))
    counted = int((rows["labels"][:, 1:] != models.IGNORED).sum())
    mean = models.TinyLM()(**rows)["loss"]
    assert models.TinyLMItems()(**rows)["loss"] == mean
    halved = models.TinyLMItems()(**rows, num_items_in_batch=2 * counted)["loss"]
    assert halved.item() == pytest.approx(mean.item() / 2, rel=1e-6)


def test_a_batch_without_labels_has_loss_zero_and_gradients() -> None:
    model = models.TinyLM()
    ids = torch.ones(2, 4, dtype=torch.long)
    loss = model(ids, labels=torch.full_like(ids, models.IGNORED))["loss"]
    loss.backward()
    assert loss.item() == 0
    assert model.embed.weight.grad is not None


@pytest.mark.parametrize(("rows", "loss"), [(3, 3.37676), (5, 6.12105)])
def test_mlp_has_the_recorded_losses(rows: int, loss: float) -> None:
    assert models.Mlp()(**batch(data.xy_rows(rows)))["loss"].item() == pytest.approx(loss, abs=1e-5)


def test_the_variants_of_mlp_return_the_same_numbers() -> None:
    rows = batch(data.xy_rows(4))
    expected = models.Mlp()(**rows)
    first, second = models.TupleMlp()(**rows)
    shown = models.ObjectMlp()(**rows)
    assert first == shown.loss == expected["loss"]
    torch.testing.assert_close(second, shown.logits)
    torch.testing.assert_close(models.LosslessMlp()(**rows), expected["logits"])
    assert len(models.TupleMlp()(rows["x"])) == 1
    assert models.ObjectMlp()(rows["x"]).loss is None


@pytest.mark.parametrize("build", [models.TinyLM, models.Mlp, models.TinyClassifier])
def test_weights_follow_the_seed_and_the_global_random_state_is_untouched(build: type[torch.nn.Module]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = build()
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    two, other = build(), build(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_classifier_loss_is_the_mean_of_its_rows_and_falls() -> None:
    model = models.TinyClassifier()
    rows = data.class_rows(64)
    whole = model(**batch(rows))["loss"].item()
    alone = [model(**batch([row]))["loss"].item() for row in rows]
    assert whole == pytest.approx(sum(alone) / len(alone), rel=1e-5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        model(**batch(rows))["loss"].backward()
        optimizer.step()
    assert model(**batch(rows))["loss"].item() < 0.5 * math.log(3)


@pytest.mark.parametrize("tensors", [False, True])
def test_ragged_rows_vary_and_repeat_by_seed(tensors: bool) -> None:
    rows = data.ragged_rows(32, 3, tensors=tensors)
    assert len({len(row["input_ids"]) for row in rows}) > 5
    assert str(rows) == str(data.ragged_rows(32, 3, tensors=tensors)) != str(data.ragged_rows(32, 4, tensors=tensors))
    for row in rows:
        labels = [int(label) for label in row["labels"]]
        assert len(labels) == len(row["input_ids"]) == len(row["attention_mask"]) >= 3
        assert labels[0] == models.IGNORED
        assert any(label != models.IGNORED for label in labels[1:])
        assert isinstance(row["labels"], torch.Tensor if tensors else list)


def test_padded_rows_carry_different_numbers_of_labels() -> None:
    counts = {int((row["labels"] != models.IGNORED).sum()) for row in data.padded_rows()}
    assert counts == {2, 3, 4, 5, 6, 7}


def test_recording_keeps_what_was_asked_and_ends_by_itself() -> None:
    rows = data.Recording(data.xy_rows(3))
    assert len(list(iter(rows))) == 3  # type: ignore[call-overload]
    assert rows.asked == [0, 1, 2]


def test_augmenting_rows_follow_the_random_state() -> None:
    rows = data.Augmenting(4)
    torch.manual_seed(1)
    first, second = rows[0]["x"], rows[0]["x"]
    torch.manual_seed(1)
    assert torch.equal(rows[0]["x"], first)
    assert not torch.equal(first, second)


def test_stream_records_passes_and_is_shared_by_workers() -> None:
    stream = data.Stream(5)
    assert len(list(stream)) == len(list(stream)) == 5
    assert stream.yielded == [0, 1, 2, 3, 4] * 2
    assert stream.passes == 2
    shared = torch.stack([row["x"][0] for row in DataLoader(stream, batch_size=None, num_workers=2)])
    assert sorted(shared.tolist()) == sorted(row["x"][0].item() for row in data.xy_rows(5))


def test_uneven_stream_gives_each_rank_its_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        found.append(len(list(data.UnevenStream((5, 3)))))
    assert found == [5, 3]
