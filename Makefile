# Every target makes .venv first and installs what constraints.txt pins. Nothing else is needed but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test check bench format docs clean slow
.DEFAULT_GOAL := demo

demo: $(VENV)/.run ## train a byte model on two ranks; typed again after a kill, it goes on from the step it had reached
	$(BIN)/deepspeed --num_gpus 2 docs/examples/byte_lm.py docs/examples/byte_lm.yaml \
		--deepspeed ds_configs/zero2.json --output_dir run --resume_from_checkpoint auto

test: $(VENV)/.dev ## every tier but slow
	$(BIN)/python -m pytest

slow: $(VENV)/.dev ## the long ones
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.dev ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## steps/s of the Trainer over a bare deepspeed.initialize loop
	$(BIN)/python tests/benchmarks/step_rate.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## pages that are made from the code
	$(BIN)/python -m dstrain.rules.pages docs/rules
	$(BIN)/python -m dstrain.args.table docs/arguments.md

# torch first and by its exact version: a range may bring gigabytes of CUDA where none is wanted.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed --constraint constraints.txt setuptools wheel ninja
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
