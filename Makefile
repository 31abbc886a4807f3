# `make study`, `make strategies` and `make test` create the environment first, once.

VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYTHONNOUSERSITE := 1
# Sources that are formatted and checked.
PYTHON_SOURCES := workflow/scripts tests envs
SNAKEMAKE_SOURCES := Snakefile rules

.PHONY: study strategies test check lock clean

study: $(VENV)/complete
	@python -m snakemake
	@python workflow/scripts/show_verdicts.py --results results

strategies: $(VENV)/complete
	@python -m snakemake --configfile config/strategies.yaml
	@python workflow/scripts/show_verdicts.py --results results/strategies
	@python -m snakemake --configfile config/batches.yaml
	@python workflow/scripts/show_verdicts.py --results results/batches

test: $(VENV)/complete check
	@python -m pytest -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

check: $(VENV)/complete
	ruff format --check $(PYTHON_SOURCES)
	ruff check $(PYTHON_SOURCES)
	snakefmt --check $(SNAKEMAKE_SOURCES)
	snakemake --lint
	snakemake --lint --configfile config/test.yaml
	snakemake --lint --configfile config/test_strategies.yaml
	snakemake --lint --configfile config/strategies.yaml
	snakemake --lint --configfile config/batches.yaml

$(VENV)/complete: envs/requirements.lock envs/create_environment.py
	@command -v python3 > /dev/null || { echo "error: no python3 found; install Python 3.11 or 3.12"; exit 1; }
	@python3 envs/create_environment.py $(VENV)

# Newest versions within envs/requirements.in. Index hosts stay out of the lock.
lock: $(VENV)/complete
	uv pip compile envs/requirements.in --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --quiet -o envs/requirements.lock

clean:
	rm -rf results .snakemake
