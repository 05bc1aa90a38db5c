"""What DeepSpeed itself says about a configuration: a process that reads one JSON request per line and answers in one.

Request: `{"config": {...}, "until": "config" | "initialize" | "step"}`. Answer: `{"at": ..., "error": ..., ...}` where
`at` is how far it came: the phase that failed, "compile" when an op would have been built, "ok" when none failed. One
rank, CPU, a model of two layers. DeepSpeed is the real one; only its compiler call is replaced, by a refusal.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


class Oracle:
    """The parent's side of the process."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        environment = {**os.environ, **ranks, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def ask(self, config: dict[str, Any], until: str = "step") -> dict[str, Any]:
        """How far DeepSpeed comes with a configuration."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the oracle has no pipes")
        self._process.stdin.write(json.dumps({"config": config, "until": until}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle died on {config}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process. It has nothing to lose, and DeepSpeed's own clean-up at exit takes many seconds."""
        self._process.kill()
        self._process.communicate(timeout=60)


def _serve() -> None:
    import deepspeed
    import torch
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.runtime.config import DeepSpeedConfig

    class WouldCompile(BaseException):
        pass

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise WouldCompile(self.name)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(rows))).pow(2).mean()

    # Their own prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    OpBuilder.jit_load = refuse
    # Left on, init_distributed compiles the shared-memory op on a CPU (0.19.8, comm/torch.py:47).
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    logging.disable(logging.CRITICAL)

    def attempt(config: dict[str, Any], until: str) -> dict[str, Any]:
        phase, engine, seen = "config", None, {}
        try:
            DeepSpeedConfig(copy.deepcopy(config))
            if until == "config":
                return {"at": "ok"}
            phase, model = "initialize", Net()
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), config=copy.deepcopy(config)
            )
            seen = {"clipping": engine.gradient_clipping(), "autotp_size": engine.autotp_size(), "lrs": []}
            phase = "step"
            dtype = next(iter(engine.module.parameters())).dtype
            for _ in range(3 * int(engine.gradient_accumulation_steps()) if until == "step" else 0):
                engine.backward(engine(torch.randn(2, 8, dtype=dtype)))
                engine.step()
                seen["lrs"].append(engine.get_lr()[0])
        except WouldCompile as op:
            return {"at": "compile", "error": str(op), **seen}
        except Exception as error:
            return {"at": phase, "error": f"{type(error).__name__}: {error}"[:300], **seen}
        finally:
            if engine is not None:
                engine.destroy()
        return {"at": "ok", **seen}

    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(attempt(request["config"], request["until"]), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
