# The two commands: `make demo` and `make test`. Both set up what they need in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check docs results bench clean

demo: $(READY)  ## tune a bundled example end to end; SCRIPT=yours.py tunes yours
	@BIN=$(BIN) bash tools/demo $(SCRIPT)

test: $(READY)  ## the whole suite: what can bear company three at a time, then the rest
	@$(BIN)/python -m compileall -q src  # also where Python is told to keep nothing: tests start it some hundred times
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m "not alone"
	@$(BIN)/python -m pytest -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests)

check: $(READY)  ## lint, types, docs and results up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python tools/docs.py --check
	@$(BIN)/python tools/results.py --check

docs: $(READY)  ## write what is generated from the catalogue
	@$(BIN)/python tools/docs.py

results: $(READY)  ## write the README's table from the raw records
	@$(BIN)/python tools/results.py

bench: $(READY)  ## what watching costs, by alternation
	@$(BIN)/python bench/overhead.py

clean:
	rm -rf $(VENV) hotlap-report examples/data

# A torch that is already importable is used; otherwise the one the constraints name is installed first, since a
# wider requirement would pull in another, much larger build.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV), once ..."
	@start=$$(date +%s); \
	if $(PYTHON) -c 'import torch' 2>/dev/null; \
	then $(PYTHON) -m venv --system-site-packages $(VENV) && $(BIN)/pip install -q -e '.[dev]'; \
	else $(PYTHON) -m venv $(VENV) && $(BIN)/pip install -q "$$(grep '^torch==' constraints.txt)" \
	  && $(BIN)/pip install -q -c constraints.txt -e '.[dev]'; fi \
	&& touch $@ && echo "set up in $$(( $$(date +%s) - start )) s"
