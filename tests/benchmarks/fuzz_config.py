"""Random and mutated inputs through reading, linting, mending and printing: nothing may raise but a `DstrainError`.

    python tests/benchmarks/fuzz_config.py --count 100000 [--seeds FOLDER] [--seed 0]
    python tests/benchmarks/fuzz_config.py --coverage --seconds 120 [--seeds FOLDER]      # needs atheris

Inputs that fail are written to `tests/paper/cases/`, where the test suite reads them for ever.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dstrain.cli._config_check import Checked, _github, _json, _text, check
from dstrain.cli._config_fix import fixed
from dstrain.core.errors import DstrainError
from dstrain.core.facts import HostFacts, Mode, WorldFacts
from dstrain.dsconfig.explain import effective
from dstrain.dsconfig.reader import is_unreadable, read_bytes
from dstrain.rules import RULES, lint

CASES = Path(__file__).parents[1] / "paper" / "cases"
NAMES = ("c.json", "c.json", "c.json", "c.hjson", "c.yaml", "c")
WORLDS = (None, WorldFacts(8, local_world_size=8), WorldFacts(1))
HOSTS = (HostFacts(), HostFacts("cuda", 8, supports_bf16=True, supports_fp16=True))
LIMIT_S = 10
"""One input that takes longer than this counts as a failure."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 10**9, 10**30, 2**63, 1.5, 1e-5, -0.0, 1e300, "", "auto", "cpu", "nvme", "none",
    "true", "false", "5e8", "1e400", "4", "x" * 300, "\ud800", "é", "a.b", "/", "~", [], [1, 2], ["auto"], [[1]],
    [None], {}, {"enabled": True}, {"stage": "auto"}, {"device": 5}, {"type": []}, {"params": None}, {"": {}},
    {"a": {"b": {"c": 1}}},
)  # fmt: skip
SNIPPETS = (
    "{", "}", "[", "]", ":", ",", '"', "'", "'''", "```", "#", "//", "/*", "*/", "\n", "\r\n", "\t", "\\", "\\u00",
    "NaN", "None", "True", "1e400", "“", "”", "\u00a0", "\ufeff", "&a", "*a", "<<: *a\n", "---\n",
    "...", "- ", "? ", "|\n", ">\n", "!!", "(", ")", ";", "=", "9" * 400, "-", "0x", "auto", '"stage"',
    '"enabled": ', "\0", "\x1b[31m", "\u2028",
)  # fmt: skip


def keys() -> list[str]:
    """Every key that some rule's example uses, as the words of random configurations."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update(key for key in value if not key.startswith("$"))
            for inner in value.values():
                walk(inner)

    for rule in RULES.values():
        walk(rule.fires)
        walk(rule.quiet)
    return sorted(found)


class Inputs:
    """Random inputs of five kinds: soup, random trees, examples with values replaced, mutated texts, random bytes."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.random = random.Random(seed)
        self.keys = keys()
        self.trees = [{k: v for k, v in e.items() if k != "$facts"} for r in RULES.values() for e in (r.fires, r.quiet)]
        self.texts = [json.dumps(tree, indent=2) for tree in self.trees]
        if folder:
            self.texts += [path.read_text(errors="replace") for path in sorted(folder.glob("*")) if path.is_file()]

    def next(self) -> bytes:
        """One input."""
        kinds: tuple[Callable[[], str | bytes], ...] = (self.soup, self.tree, self.swapped, self.mutated, self.noise)
        content = self.random.choices(kinds, (2, 4, 8, 8, 1))[0]()
        return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")

    def soup(self) -> str:
        pieces = [*SNIPPETS, *self.keys[:40], "1", "true", '"a": 1', " "]
        return "".join(self.random.choices(pieces, k=self.random.randint(0, 20)))

    def tree(self) -> str:
        return json.dumps(self._tree(3), indent=self.random.choice([None, 2]))

    def _tree(self, depth: int) -> Any:
        if depth == 0 or self.random.random() < 0.3:
            return self.random.choice(VALUES)
        names = self.random.choices(self.keys, k=self.random.randint(0, 5))
        return {name: self._tree(depth - 1) for name in names}

    def swapped(self) -> str:
        tree = json.loads(json.dumps(self.random.choice(self.trees)))
        for _ in range(self.random.randint(1, 4)):
            self._swap(tree)
        return json.dumps(tree, indent=self.random.choice([None, 1, 4]))

    def _swap(self, node: dict[str, Any]) -> None:
        while node:
            key = self.random.choice(list(node))
            if isinstance(node[key], dict) and node[key] and self.random.random() < 0.75:
                node = node[key]
                continue
            node[self.random.choice([key, key, self.random.choice(self.keys)])] = copy.deepcopy(
                self.random.choice(VALUES)
            )
            return

    def mutated(self) -> str:
        text = self.random.choice(self.texts)
        for _ in range(self.random.randint(1, 6)):
            at = self.random.randint(0, len(text))
            cut = self.random.choice([0, 0, 1, 1, 2, 5, 20])
            text = text[:at] + self.random.choice(("", *SNIPPETS)) + text[at + cut :]
        return text

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.randint(0, 60))


def one(content: bytes, name: str, variant: int) -> str:
    """Everything that can be done with one input. Returns how it ended; raises what it should not."""
    mode, world = tuple(Mode)[variant % 3], WORLDS[variant % 7 % 3]
    document = read_bytes(content, name)
    checked = check(document, mode, world)
    if not is_unreadable(document):
        report = lint(doc=document, mode=mode, world=world or WORLDS[1], host=HOSTS[variant % 2])
        checked = Checked(document.name, report.findings, report.not_run, False)
        try:
            if variant % 4 == 0:
                fixed(document, mode, world)
            if variant % 5 == 0:
                effective(document)
        except DstrainError:
            return "refused"
    for show in (_text, _json, _github):
        show([checked])
    return "unreadable" if checked.unreadable else "read"


def _alarm(*_: Any) -> None:
    raise TimeoutError(f"more than {LIMIT_S} s")


def keep(content: bytes, name: str, failures: Counter[str]) -> None:
    """Write a failing input as a case, one for each place in our code that raised."""
    frames = [frame for frame in traceback.extract_tb(sys.exc_info()[2]) if "dstrain" in frame.filename]
    place = f"{Path(frames[-1].filename).stem}:{frames[-1].lineno}" if frames else "?"
    failures[place] += 1
    if failures[place] > 1:
        return
    suffix = Path(name).suffix or ".txt"
    path = CASES / f"{place.replace(':', '_')}_{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    CASES.mkdir(exist_ok=True)
    path.write_bytes(content)
    print(f"FAILED at {place}: {traceback.format_exc().splitlines()[-1][:150]}\n  kept as {path}", flush=True)


def run_random(count: int, seed: int, folder: Path | None) -> int:
    """`count` inputs. Returns the exit code."""
    inputs, failures, ends = Inputs(seed, folder), Counter[str](), Counter[str]()
    signal.signal(signal.SIGALRM, _alarm)
    started = time.perf_counter()
    for index in range(count):
        content, name = inputs.next(), inputs.random.choice(NAMES)
        signal.alarm(LIMIT_S)
        try:
            ends[one(content, name, inputs.random.randrange(420))] += 1
        except Exception:  # whatever it is, it is what this looks for
            keep(content, name, failures)
        finally:
            signal.alarm(0)
        if index % 10_000 == 9_999:
            print(f"{index + 1} inputs, {sum(failures.values())} failures, {dict(ends)}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{count} inputs in {seconds:.0f} s: {dict(ends)}; failures: {dict(failures) or 'none'}")
    return int(bool(failures))


def run_coverage(seconds: int, folder: Path | None) -> int:
    """A coverage-guided run with atheris, seeded with the examples of the rules and the texts of a folder."""
    import tempfile

    import atheris

    atheris.instrument_all()
    failures: Counter[str] = Counter()

    def test(content: bytes) -> None:
        name, content = NAMES[(content[0] if content else 0) % len(NAMES)], content[1:]
        try:
            one(content, name, (content[0] if content else 0))
        except Exception:
            keep(content, name, failures)

    with tempfile.TemporaryDirectory() as corpus:
        for index, text in enumerate(Inputs(0, folder).texts):
            Path(corpus, str(index)).write_bytes(b"\0" + text.encode("utf-8", "surrogatepass"))
        atheris.Setup([sys.argv[0], corpus, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20"], test)
        atheris.Fuzz()
    return int(bool(failures))


def main() -> int:
    """Read the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=Path, help="a folder of configurations to mutate")
    parser.add_argument("--coverage", action="store_true", help="coverage-guided, with atheris")
    parser.add_argument("--seconds", type=int, default=120, help="for --coverage")
    args = parser.parse_args()
    if args.coverage:
        return run_coverage(args.seconds, args.seeds)
    return run_random(args.count, args.seed, args.seeds)


if __name__ == "__main__":
    sys.exit(main())
