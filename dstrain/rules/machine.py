"""HOSTxxx: what of a machine stops or slows a run. Registered when this module is imported: only the doctor needs it.

The facts that these rules ask for (`software`, `cuda`, `gpus`, …) are those of `core/machine.py`; `config check` knows
none of them, and does not load the rules.
"""

from __future__ import annotations

from typing import Any

from dstrain.rules import (
    machine_build,
    machine_compiler,
    machine_driver,
    machine_gpu,
    machine_run,
    machine_system,
    machine_toolkit,
)
from dstrain.rules.registry import Report, lint

__all__ = [
    "PREFIX",
    "diagnose",
    "machine_build",
    "machine_compiler",
    "machine_driver",
    "machine_gpu",
    "machine_run",
    "machine_system",
    "machine_toolkit",
]

PREFIX = "HOST"


def diagnose(**facts: Any) -> Report:
    """Run the machine rules whose facts are all known; the others are listed as not run, with what they need."""
    report = lint(**facts)  # rules of configurations need a document, and are not run
    mine = {name: missing for name, missing in report.not_run.items() if name.startswith(PREFIX)}
    return Report(report.findings, mine)
