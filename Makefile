# The targets create their environments: a fresh machine needs only Python 3.11, git and make.
PYTHON ?= python3.11
ACTIVATE = . .venv/bin/activate
# One thread per test process, because the processes share the cores.
PYTEST = $(ACTIVATE) && OMP_NUM_THREADS=1 pytest
# Where `make validate` writes what it validates.
EXAMPLE = .venv-validate/example

.PHONY: repro test test-slow test-lowest lint lock behaviours docs validate

repro: .venv
	@$(ACTIVATE) && pfl check && dvc repro --keep-going
	@printf '\nNext:\n  source .venv/bin/activate\n'
	@printf '  the report:   results/<table>/report/index.html (or README.md), at the paths printed above\n'
	@printf '  every trial:  mlflow ui, then the page printed above, or http://127.0.0.1:5000/#/experiments\n'

test: .venv
	$(PYTEST) -n 2 -m "not slow and not gpu"

# One more process than for the fast tests: tests of sweeps wait for processes to start and end. Each process takes one
# file after another, in the order of tests/conftest.py.
test-slow: .venv
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "slow and not gpu"

# The fast tests, and `dvc repro` of an installed wheel, with the lowest versions that pyproject.toml declares.
test-lowest: .venv-lowest
	. .venv-lowest/bin/activate && OMP_NUM_THREADS=1 pytest -n 2 -m "not slow and not gpu"
	. .venv-lowest/bin/activate && OMP_NUM_THREADS=1 pytest tests/pipeline/test_installed.py

lint: .venv
	$(ACTIVATE) && ruff check && ruff format --check && mypy && lint-imports && pfl behaviours --check

.venv: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check uv
	# Compile now: if PYTHONDONTWRITEBYTECODE is set, every process would compile all its imports.
	.venv/bin/uv pip sync --quiet --compile-bytecode --python .venv/bin/python requirements.lock
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
	@touch .venv

.venv-lowest: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip compile --quiet pyproject.toml --extra pipeline --extra data --resolution lowest-direct \
	    --output-file .venv-lowest/lowest.txt
	.venv-lowest/bin/uv pip sync --quiet --python .venv-lowest/bin/python .venv-lowest/lowest.txt
	# The tests' own tools have no lowest version.
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python hatchling psutil pytest \
	    pytest-timeout pytest-xdist
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --no-deps --editable .
	@touch .venv-lowest

# Citation metadata, which are derived from CITATION.cff, the container files, and an example of each export.
validate: .venv .venv-validate
	.venv-validate/bin/cffconvert --validate
	.venv-validate/bin/cffconvert --format codemeta --outfile codemeta.json
	.venv-validate/bin/cffconvert --format zenodo --outfile .zenodo.json
	.venv-validate/bin/hadolint Containerfile Containerfile.cuda
	rm -rf $(EXAMPLE)
	$(ACTIVATE) && pfl report methods-digits && pfl export rocrate methods-digits --out $(EXAMPLE)
	.venv-validate/bin/python .github/validate_crate.py $(EXAMPLE)
	.venv-validate/bin/mlcroissant validate --jsonld $(EXAMPLE)/partitions/two-classes.json

.venv-validate: .github/validators.txt
	$(PYTHON) -m venv .venv-validate
	.venv-validate/bin/pip install --quiet --disable-pip-version-check --requirement .github/validators.txt
	@touch .venv-validate

# New versions of everything, in one file for all platforms: markers select each platform's packages.
lock: .venv
	.venv/bin/uv pip compile pyproject.toml --extra pipeline --extra data --extra dev --extra docs --upgrade \
	    --no-annotate --python-version 3.11 --universal -o requirements.lock

# The documentation site in site/, with pages and a schema generated from the code, and the picture of a report from
# the latest `make repro`.
docs: .venv
	$(ACTIVATE) && python docs/methods_page.py > docs/methods.md
	$(ACTIVATE) && python -m pipeline.spec.reference
	@$(ACTIVATE) && sh docs/report.sh
	$(ACTIVATE) && NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	@echo 'docs: site/index.html'

# Add the digests of edited code, under the old fingerprints where the battery agrees; commit them with the edit.
behaviours: .venv
	$(ACTIVATE) && pfl behaviours
