"""The presets on disk are what the code makes, and no linter has an error or a warning to say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Severity
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.reader import read
from dstrain.resolve.presets import PRESETS
from dstrain.rules import lint

pytestmark = pytest.mark.paper
_FOLDER = Path(__file__).parents[2] / "ds_configs"


def test_the_folder_holds_these_and_no_others() -> None:
    assert {path.name for path in _FOLDER.iterdir()} == {f"{name}.json" for name in PRESETS}


@pytest.mark.parametrize("name", PRESETS)
def test_on_disk_as_made(name: str) -> None:
    path = _FOLDER / f"{name}.json"
    assert path.read_text() == PRESETS[name].text()
    assert read(path).data == PRESETS[name].config()


@pytest.mark.parametrize("mode", [Mode.DSTRAIN, Mode.TRANSFORMERS])
@pytest.mark.parametrize("name", PRESETS)
def test_nothing_to_say_of_them(name: str, mode: Mode) -> None:
    report = lint(
        doc=Document(name, PRESETS[name].config()), mode=mode, world=WorldFacts(world_size=8, local_world_size=8)
    )
    loud = [finding for finding in report.findings if finding.severity is not Severity.ADVICE]
    assert not loud, [(finding.id, finding.message) for finding in loud]
