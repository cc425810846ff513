# Every target installs first where needed: `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUST := $(shell find rust -name '*.rs' -o -name '*.toml' 2>/dev/null) Cargo.toml Cargo.lock

# Without a server, from the cheapest on; `attention` last, because it uses every core.
BENCHES := day encode prompt index turn attention
FUZZ_TARGETS := index_operations index_load stream_decoder
FUZZ_SECONDS := 300
# Where the nightly toolchain's own target folder is, so that its builds and ours do not undo each other.
NIGHTLY := target/nightly
HOST = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: help install demo test test-rust test-python nightly lint bench package clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: $(VENV)/.installed ## make .venv with everything in it

$(VENV)/bin/uv:
	@command -v $(PYTHON) >/dev/null || { echo "appliance needs $(PYTHON) on the PATH (or: make PYTHON=/path/to/python3.11 …)"; exit 2; }
	@command -v cargo >/dev/null || { echo "appliance needs cargo (Rust 1.90 or newer) on the PATH"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/.dependencies: $(VENV)/bin/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --requirement pyproject.toml --all-extras
	@touch $@

# The extension is built into the tree, and the package installed as a link to it.
$(VENV)/.installed: $(VENV)/.dependencies $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/maturin develop --release --locked --uv
	@touch $@

demo: install ## chat with a real small model on this machine (PORT=N picks the port)
	$(BIN)/appliance demo $(DEMO_FLAGS)

test: test-rust test-python ## run every test

test-rust: install
	cargo test --workspace --locked --release

# Files go to workers whole, in the order of tests/conftest.py: what takes longest comes first.
test-python: install
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 20 $(PYTEST_FLAGS)

nightly: ## what takes an hour: a million index operations, 40,000 of the tiers, every repair, 50 crashes, fuzzing, AddressSanitizer
	PREFIX_INDEX_OPERATIONS=1000000 cargo test -p appliance-core --locked --release --test prefix_index
	ENGINE_TIER_OPERATIONS=40000 $(BIN)/python -m pytest tests/properties/test_engine_tiers.py
	APPLIANCE_TESTS_NIGHTLY=1 $(BIN)/python -m pytest tests/postgres/test_repairs_on_*.py tests/postgres/test_run.py tests/postgres/test_killed_runs.py tests/e2e/test_stopped_database.py tests/e2e/test_chaos.py tests/e2e/test_database_away.py tests/box
	APPLIANCE_TESTS_NIGHTLY=1 $(BIN)/python -m pytest tests/unit/experiment/test_simulated_experiments.py
	JOURNAL_OPERATIONS=5000 $(BIN)/python -m pytest tests/properties/test_journal.py
	JOURNAL_CRASHES=50 $(BIN)/python -m pytest tests/postgres/test_crashes.py
	set -e; for name in $(FUZZ_TARGETS); do \
		cargo +nightly fuzz run --fuzz-dir rust/fuzz --target-dir $(NIGHTLY) $$name -- -max_total_time=$(FUZZ_SECONDS); done
	RUSTFLAGS=-Zsanitizer=address cargo +nightly test -p appliance-kernels --locked --release \
		--target $(HOST) --target-dir $(NIGHTLY)

lint: install ## formatters, linters and type checkers
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff format --check appliance tests bench deb
	$(BIN)/ruff check appliance tests bench deb
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest appliance._core

bench: install ## measure, beside the peers' own code; the last figure needs a running demo
	$(BIN)/python -m bench.peers
	set -e; for name in $(BENCHES); do $(BIN)/python -m bench.$$name; done
	cargo bench -p appliance-core --locked --bench turn --bench index
	$(BIN)/python -m bench.first_token

package: install ## a .deb with everything in it, into dist/ (PACKAGE_FLAGS="--compression none" is faster and larger)
	$(BIN)/python -m deb.build $(PACKAGE_FLAGS)

clean: ## remove what install and test made
	rm -rf $(VENV) target dist appliance/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
