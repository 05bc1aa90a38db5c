"""The README's first screen is true: its example is the file that the tests start, and importing loads no torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.paper
_ROOT = Path(__file__).parents[2]


def test_the_example_is_the_file() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (_ROOT / "README.md").read_text(), re.DOTALL)
    assert block == (_ROOT / "docs" / "examples" / "train.py").read_text()


def test_every_file_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([\w/.]+)\)", (_ROOT / "README.md").read_text()):
        assert (_ROOT / target).exists(), target


def test_importing_loads_no_torch() -> None:
    code = "import sys, dstrain; from dstrain import TrainingArguments, parse_args; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=_ROOT, check=True)
    assert done.stdout.strip() == "False"
