# What a person does with this project. `make help` lists it.
SHELL := /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENGINE ?= cpu
VENV := .venv$(if $(filter cuda,$(ENGINE)),-cuda)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONFIG ?= deploy/local/$(if $(MODEL),model,server).toml
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help languages install serve playground test test-parallel test-serial test-areas test-full check image model-image wheels proto \
	proto-baseline docs lock deploy-tools editor-tools vsix models calibration clean bench-gpu llama-server

help: ## List the targets.
	@grep -E '^[a-z_%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

serve: $(VENV)/installed ## Install missing parts and start a server, on the embedded models or on MODEL: a hub id, a folder, a GGUF file.
	@$(if $(MODEL),folder=$$($(BIN)/target-model prepare "$(MODEL)") && \
		)$(BIN)/completion-server serve --config $(CONFIG)$(if $(MODEL), --set engine.model="$$folder")

# The data of GitHub's linguist, by which the server knows languages.
LINGUIST := linguist-languages@9.5.0
languages: ## Make the table of languages anew.
	@folder=$$(mktemp -d) && cd $$folder && npm pack --silent $(LINGUIST) && tar xzf *.tgz && cd - >/dev/null && \
		node editors/languages/make_table.mjs $$folder/package > completion_server/core/languages.tsv; rm -rf $$folder

# The tests run in parallel, more than there are cores since most wait, except those that start a real engine or measure memory or wall-clock time.
# Python keeps what it compiles, also where the environment forbids it: each of the many processes would compile all anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Files in the order of tests/conftest.py, the longest first.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder
# Importing all files takes longer than many tests.
SERIAL = $(shell grep -rl --include='test_*.py' 'mark\.serial' tests | sort)
QUICK := not full and not large

test: test-parallel test-serial ## Run the tests, with real engines.
	@echo "All tests passed."

test-parallel: $(VENV)/installed-dev
	@echo "Tests in parallel:"
	@$(PYTEST) $(PARALLEL) -m "not serial and $(QUICK)"

test-serial: $(VENV)/installed-dev
	@echo "Tests one after another, with real engines:"
	@$(PYTEST) -m "serial and $(QUICK)" $(SERIAL)

# AREAS are folders of tests.
test-areas: $(VENV)/installed-dev
	@echo "Slow tests of $(AREAS):"
	@$(PYTEST) $(PARALLEL) -m "full and not large and not serial" $(AREAS)

test-full: $(VENV)/installed-dev .venv-cuda-check/installed .venv-calibration/installed ## Run every test, also the slow ones, with more examples; before a release.
	@echo "Tests in parallel:"
	@$(PYTEST) $(PARALLEL) --hypothesis-profile full -m "not serial"
	@echo "Tests one after another, with real engines:"
	@$(PYTEST) --hypothesis-profile full -m serial $(SERIAL)
	@echo "All tests passed."

check: $(VENV)/installed-dev ## Lint, types, import rules, the image's recipe, the contract, its compatibility and stubs.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint --config deploy/image/hadolint.yaml deploy/image/Dockerfile
	@cd proto && ../$(BIN)/buf lint
	@cd proto && ../$(BIN)/buf breaking --path completion --against baseline.binpb
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh proto/check_fresh.sh
	@sh editors/playground/check_fresh.sh

# Into the local image store; deploy/image/README.md has the command for a registry, with SBOM and provenance.
image: ## Build the container image for ENGINE (cpu or cuda) with docker buildx.
	docker buildx build --file deploy/image/Dockerfile --build-arg VARIANT=$(ENGINE) \
		--build-arg REVISION="$$(git rev-parse HEAD)" --build-arg CREATED="$$(date -u +%FT%TZ)" \
		--tag completion-server:$(ENGINE) --load .

# DRAFT is the folder of its draft model, TAG the name in buildah's storage, MODEL_IMAGE further options.
model-image: $(VENV)/installed ## Build an image of MODEL, the folder of a model, for Kubernetes' image volumes; needs buildah.
	@$(BIN)/python -m deploy.image.models --target "$(MODEL)" $(if $(DRAFT),--draft "$(DRAFT)") $(if $(TAG),--tag "$(TAG)") \
		$(MODEL_IMAGE)

wheels: $(VENV)/installed-dev ## At a release: build the wheels into dist/, and what they are locked with (SBOM, CycloneDX).
	@$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./completion_client ./completion_lsp .
	@for each in cpu cuda; do cat requirements/$$each.txt $$([ $$each = cuda ] || echo requirements/torch-cpu.txt) \
		| PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
			--output-file dist/completion-server-$$each.cdx.json - || exit 1; done

proto: editors/node_modules/installed $(VENV)/installed-dev ## Generate the Python and TypeScript stubs from the contract; needs Node.
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh proto/generate.sh
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh editors/stubs/generate.sh

playground: ## Build the page at / of the HTTP listener from editors/playground; needs Node.
	@cd editors/playground && npm ci --ignore-scripts --no-audit --no-fund --loglevel error && npm run --silent check \
		&& npm run --silent build

proto-baseline: $(VENV)/installed-dev ## At a release: keep the contract that later ones must be compatible with.
	@cd proto && ../$(BIN)/buf build --path completion --exclude-source-info -o baseline.binpb

install: $(VENV)/installed ## Set up .venv with the locked requirements and the commands, and do no more.

docs: $(VENV)/installed ## Write the keys of docs/configuration.md, and the tables of figures from benchmarks/.
	@$(BIN)/python docs/generate_configuration.py
	@$(BIN)/python docs/generate_tables.py

lock: $(VENV)/installed-dev ## Renew the locked requirement lists for ENGINE (cpu or cuda, on any machine), and with cpu the others.
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh requirements/lock.sh $(ENGINE)

deploy-tools: ## Install into .tools/ what tests need beside Python: kustomize, types of custom resources, gRPC in Node, Tabby's client.
	@sh requirements/deploy-tools.sh

editor-tools: ## Install into .tools/ the real editors that tests drive; about a minute.
	@sh requirements/editor-tools.sh

vsix: editors/node_modules/installed ## Build the VS Code extension, editors/vscode/completion-server.vsix; needs Node 20.
	@npm run --silent --prefix editors/stubs build
	@npm run --silent --prefix editors/vscode package

editors/node_modules/installed: editors/package-lock.json
	@command -v npm >/dev/null || { echo "npm not found; on Debian: apt-get install nodejs npm" >&2; exit 1; }
	@npm ci --prefix editors --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

models: $(VENV)/installed ## Train the embedded models anew, from corpus to model card (hours on two cores).
	@$(BIN)/draft-model build-embedded
	@rm -rf work/embedded/int8
	@$(BIN)/target-model quantize --model target_model/embedded-bf16 --out work/embedded/int8
	@rm -rf target_model/embedded && mv work/embedded/int8 target_model/embedded

calibration: .venv-calibration/installed ## Set up the environment that `target-model quantize --calibration` needs.

# BENCH has a benchmark's options; BENCH=--help lists them. quality wants MODEL, the folder of a real code model. h2load
# (cpu), redis-server (replicas) and llama.cpp's server (capacity) are contestants and parts that are left out if absent.
bench-%: $(VENV)/installed ## One of attacks, capacity, cpu, models, overhead, prompt, quality, replicas, scheduler, sessions, speculation, trial.
	@$(BIN)/python -m loadtest.bench.$* $(BENCH_$*) $(BENCH) --record benchmarks/$*.json

bench-quality: $(VENV)/installed-dev editors/node_modules/installed
BENCH_quality = --model "$(MODEL)"
BENCH_capacity := --picture docs/images/capacity.svg
# Speculation gains little on two cores and varies.
BENCH_scheduler := --set engine.num_speculative_tokens=0

llama-server: .venv-llama/bin/llama-server ## Build llama.cpp's server as a contestant of bench-capacity (C++, CMake and Ninja).

# The source comes with the package llama-cpp-python.
LLAMA_PACKAGE := llama-cpp-python==0.3.36
LLAMA_CMAKE := -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
	-DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF
.venv-llama/bin/llama-server:
	@echo "Building llama.cpp's server into .venv-llama, about ten minutes on two quiet cores ..."
	@$(PYTHON) -m venv --clear .venv-llama
	@.venv-llama/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary :all: \
		--dest .venv-llama/source $(LLAMA_PACKAGE)
	@tar xzf .venv-llama/source/*.tar.gz -C .venv-llama/source --strip-components 1
	@# GCC before 13 drops what it takes for unused of a variable that _tile_loadconfig reads: SIGILL where there is AMX.
	@sed -i 's/alignas(64) tile_config_t tc/alignas(64) volatile tile_config_t tc/; s/_tile_loadconfig(&tc)/_tile_loadconfig((const void *)\&tc)/' \
		.venv-llama/source/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
	@cmake -G Ninja -S .venv-llama/source/vendor/llama.cpp -B .venv-llama/build $(LLAMA_CMAKE) >.venv-llama/build.log
	@cmake --build .venv-llama/build --target llama-server >>.venv-llama/build.log \
		|| { tail -n 20 .venv-llama/build.log; exit 1; }
	@cp .venv-llama/build/bin/llama-server $@

# BENCH has its options, such as --part sessions. BENCH_GPU_PYTHON is an interpreter that has vLLM and the other requirements:
# nothing is installed then, so it may be any version, offline.
bench-gpu: ## Whether the server works on this machine's GPU, how fast, and for how many editors; three parts.
	@[ -n "$(BENCH_GPU_PYTHON)" ] || $(MAKE) --no-print-directory ENGINE=cuda .venv-cuda/installed
	@PYTHONPATH="$(CURDIR):$(CURDIR)/proto$${PYTHONPATH:+:$$PYTHONPATH}" \
		$(or $(BENCH_GPU_PYTHON),.venv-cuda/bin/python) -m loadtest.bench.gpu \
		--record benchmarks/gpu.json $(BENCH)

clean: ## Remove the environments and all caches; work/ stays, which may hold hours of training.
	rm -rf .venv .venv-cuda .venv-cuda-check .venv-calibration .venv-llama .tools build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		editors/node_modules editors/*/dist editors/vscode/out editors/vscode/*.vsix

# Install torch's CPU build with a given pip.
define install_torch
$(1) install --quiet --no-deps -r requirements/torch-cpu.txt 2>/dev/null \
	|| { echo "pip finds no CPU build of torch; taking it from PyTorch's own CPU index, $(TORCH_CPU_INDEX)"; \
	     $(1) install --quiet --no-deps --index-url $(TORCH_CPU_INDEX) -r requirements/torch-cpu.txt; }
endef

# requirements/cuda.txt is resolved for one Python; for another one some packages have other versions.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@[ "$(ENGINE)" != cuda ] || $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "requirements/cuda.txt is locked for Python 3.11; name one with make ENGINE=cuda" \
		     "PYTHON=/path/to/python3.11. An environment of your own, of any version, that has vLLM 0.33 and the rest:" \
		     "make bench-gpu BENCH_GPU_PYTHON=/path/to/python, or pip install --no-deps --editable . in it" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "The venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/installed: requirements/$(ENGINE).txt requirements/torch-cpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing the locked requirements for $(ENGINE) into $(VENV), about two minutes from a warm package cache ..."
	@if [ "$(ENGINE)" = cpu ]; then $(call install_torch,$(PIP)); fi
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/$(ENGINE).txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/installed-dev: requirements/dev.txt $(VENV)/installed
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

# Always on CPU builds: a model to calibrate must fit in memory; speed does not matter.
.venv-calibration/installed: requirements/calibration.txt requirements/torch-cpu.txt | $(BIN)/python
	@echo "Installing llmcompressor into .venv-calibration, about a minute from a warm package cache ..."
	@$(PYTHON) -m venv --clear .venv-calibration
	@$(call install_torch,.venv-calibration/bin/python -m pip --disable-pip-version-check)
	@.venv-calibration/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
		-r requirements/calibration.txt
	@touch $@

# What is needed to import the engine and to resolve its configuration; no compilers, no kernels for special models.
CUDA_CHECK_WITHOUT := ^(cuda-(core|tile|toolkit)|fastsafetensors|flashinfer|humming|nccl|nvidia-(cuda-(cccl|crt|nvcc)|cudnn-frontend|cutlass|nvvm)|opencv|pyarrow|pandas|datasets|pynvvideo|quack|tensorboard|tilelang|tokenspeed|torch(audio|codec|vision|-c-)|z3)
.venv-cuda-check/installed: requirements/cuda.txt pyproject.toml
	@echo "Installing the locked CUDA versions into .venv-cuda-check, 3 GB to download, 7 GB on the disk ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "requirements/cuda.txt is locked for Python 3.11; name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv-cuda-check
	@awk -v without='$(CUDA_CHECK_WITHOUT)' '/^[a-z]/ { kept = $$0 !~ without } kept' requirements/cuda.txt \
		>.venv-cuda-check/requirements.txt
	@.venv-cuda-check/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
		-r .venv-cuda-check/requirements.txt
	@.venv-cuda-check/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
