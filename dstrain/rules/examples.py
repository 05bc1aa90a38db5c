"""Running the examples of a rule: a configuration, with facts under the key `$facts`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from dstrain.args.training import TrainingArguments
from dstrain.core.facts import DataFacts, HostFacts, Mode, ModelFacts, WorldFacts
from dstrain.core.finding import Hit
from dstrain.dsconfig.document import Document
from dstrain.rules.machine_view import machine_facts
from dstrain.rules.registry import Rule

FACTS = "$facts"


def configuration(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example without its facts: what a user would have written."""
    return {key: value for key, value in example.items() if key != FACTS}


def facts(example: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an example. Unless it says otherwise: mode `deepspeed`, one rank, a CPU, a small model.

    `$facts` may hold `mode`, `world_size`, `local_world_size`, fields of `DataFacts`, under `host` and `model` those
    of these facts, under `args` the arguments that were given, and under `machine` what differs from a healthy machine.
    """
    given = dict(example.get(FACTS, {}))
    if "machine" in given:
        given |= machine_facts(given.pop("machine"))
    mode = Mode(given.pop("mode", Mode.DEEPSPEED))
    world_size = int(given.pop("world_size", 1))
    local = int(given.pop("local_world_size", world_size))
    rows = {name: given.pop(name) for name in ("train_rows", "eval_rows", "train_is_stream") if name in given}
    given.pop("no_file", None)
    host = dict(given.pop("host", {}))
    for name in ("ready_ops", "device_names"):
        if name in host:
            host[name] = frozenset(host[name]) if name == "ready_ops" else tuple(host[name])
    model = {"class_name": "Model", "parameters": 1000, "trainable_parameters": 1000} | dict(given.pop("model", {}))
    document = Document("ds_config.json", configuration(example))
    if "args" in given:
        given["args"] = TrainingArguments(**({"output_dir": "out"} | dict(given["args"])))
    return {
        "doc": document,
        "file": document,
        "mode": mode,
        "world": WorldFacts(world_size=world_size, local_world_size=local),
        "host": HostFacts(**host),
        "model": ModelFacts(**model),
        "data": DataFacts(**rows),
        **given,
    }


def hits(entry: Rule, example: Mapping[str, Any]) -> list[Hit]:
    """What one rule says about an example.

    Raises:
        KeyError: the rule needs a fact that the example does not give.
    """
    known = facts(example)
    return list(entry.function(**{name: known[name] for name in entry.needs}))


def patched(data: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Plain data after JSON Patch operations (RFC 6902: add, replace, remove, move), strictly; for dicts without text.

    Raises:
        KeyError: the place of an operation does not exist.
    """
    result: dict[str, Any] = copy.deepcopy(dict(data))
    for operation in operations:
        kind, path = operation["op"], operation["path"]
        value = _node(result, operation["from"], take=True) if kind == "move" else operation.get("value")
        if kind == "remove":
            _node(result, path, take=True)
        elif path == "":
            result = copy.deepcopy(dict(value or {}))
        else:
            if kind == "replace":
                _node(result, path, take=False)
            head, _, last = path.rpartition("/")
            _node(result, head, take=False)[last.replace("~1", "/").replace("~0", "~")] = copy.deepcopy(value)
    return result


def _node(data: Any, path: str, *, take: bool) -> Any:
    node, parent, last = data, None, ""
    for part in path.split("/")[1:]:
        last = part.replace("~1", "/").replace("~0", "~")
        parent, node = node, node[last]
    return parent.pop(last) if take and parent is not None else node
