# The targets set themselves up: a fresh machine needs Python 3.11, git and make.
PYTHON ?= python3.11
ACTIVATE = . .venv/bin/activate
# One thread per test process, because the processes share the cores.
PYTEST = $(ACTIVATE) && OMP_NUM_THREADS=1 pytest -n 2

.PHONY: repro test test-slow lint lock golden behaviours docs

repro: .venv
	@$(ACTIVATE) && pfl check && dvc repro --keep-going
	@printf '\nNext:\n  source .venv/bin/activate\n'
	@printf '  the report:   reports/tables/<table>/index.html (or README.md), at the paths printed above\n'
	@printf '  every trial:  mlflow ui, then the page printed above, or http://127.0.0.1:5000/#/experiments\n'

test: .venv
	$(PYTEST) -m "not slow and not gpu"

test-slow: .venv
	$(PYTEST) -m "slow and not gpu"

lint: .venv
	$(ACTIVATE) && ruff check && ruff format --check && mypy && lint-imports

.venv: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check uv
	# Compiled here: where PYTHONDONTWRITEBYTECODE is set, every process would compile all that it imports.
	.venv/bin/uv pip sync --quiet --compile-bytecode --python .venv/bin/python requirements.lock
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
	@touch .venv

# New versions of everything.
lock: .venv
	.venv/bin/uv pip compile pyproject.toml --all-extras --upgrade --no-annotate \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_28 -o requirements.lock

# The documentation site in site/, with the pages and the schema that are made from the code, and the picture of a
# report, from the latest `make repro`.
docs: .venv
	$(ACTIVATE) && { python -m pipeline.spec.methods_page && pfl methods --markdown; } > docs/methods.md
	$(ACTIVATE) && python -m pipeline.spec.reference
	@sh docs/report.sh
	$(ACTIVATE) && NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo 'docs: site/index.html'

# New golden trajectories, after an edit that was to move them.
golden: .venv
	$(ACTIVATE) && export OMP_NUM_THREADS=1 && python -m tests.golden.trajectory && python -m tests.golden.networks

# Names for what the code does now, in pfl/behaviours.json; to be committed with an edit that moves numbers.
behaviours: .venv
	$(ACTIVATE) && OMP_NUM_THREADS=1 pfl behaviours
