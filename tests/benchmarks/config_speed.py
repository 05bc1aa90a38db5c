"""How long `dstrain config check` takes: one file in a fresh process, and a folder of many.

    python tests/benchmarks/config_speed.py [--files 1000] [--folder FOLDER]

The budgets are 0.5 s for one file with no torch imported, and 10 s for 1,000 files; exit code 1 when one is missed.
Wall time counts everything else that the machine does, so CPU time is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dstrain.rules import RULES

ONE_S, MANY_S_PER_FILE = 0.5, 0.01
_CHECK = "import sys; from dstrain.cli.main import main; main(sys.argv[1:]); sys.exit(int('torch' in sys.modules))"


def _timed(command: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds, exit code."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    code = subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


def _texts(folder: Path | None) -> list[str]:
    if folder:
        return [path.read_text(errors="replace") for path in sorted(folder.glob("*.json"))]
    examples = [example for rule in RULES.values() for example in (rule.fires, rule.quiet)]
    return [json.dumps({k: v for k, v in e.items() if k != "$facts"}, indent=4) for e in examples]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="configurations to copy (default: the examples of the rules)")
    args = parser.parse_args()
    texts = _texts(args.folder)
    with tempfile.TemporaryDirectory() as scratch:
        for index in range(args.files):
            Path(scratch, f"{index:05d}.json").write_text(texts[index % len(texts)])
        command = [sys.executable, "-c", _CHECK, "config", "check", "--world-size", "8"]
        ones = [_timed([*command, str(Path(scratch, "00000.json"))]) for _ in range(5)]
        wall, cpu, code = min(ones)
        many_wall, many_cpu, _ = _timed([*command, scratch])
    limit = MANY_S_PER_FILE * args.files
    print(f"one file: best of 5 {wall:.3f} s wall, {min(one[1] for one in ones):.3f} s CPU (budget {ONE_S} s)")
    print(f"  torch imported: {'yes' if code else 'no'}; CPU of the best run {cpu:.3f} s")
    print(f"{args.files} files: {many_wall:.2f} s wall, {many_cpu:.2f} s CPU (budget {limit:.0f} s)")
    return int(wall > ONE_S or bool(code) or many_wall > limit)


if __name__ == "__main__":
    sys.exit(main())
