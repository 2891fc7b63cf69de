# make setup: everything into .venv.  make demo: the whole system on real digits.  make test: all checks.
PYTHON ?= python3
BIN := .venv/bin

# RepPer with personal heads and with a common one, and the paper's six rows of baselines.
DEMO := repper+linear,repper+common,fedavg,fedavg+finetune,fedprox,fedprox+finetune,lg-fedavg+finetune,fedrep+finetune

.PHONY: setup demo test test-federation test-hosts test-edge chaos lint bench docs lock audit sbom page page-check clean
setup: .venv/ready

# PyTorch by its exact version, and first: pip then takes the build for this machine.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	touch $@

demo: setup
	$(BIN)/repper compare --data digits --clients 20 --alpha 0.5 --methods $(DEMO) --rounds 20 --evaluate-every 5 --out runs/digits-demo --overwrite
	$(BIN)/repper report runs/digits-demo --out runs/digits-demo/report.html

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

# A server and its sites as processes, with faults: some minutes, one after the other.
test-federation: setup
	$(BIN)/pytest tests/federation

# The same on hosts of their own, made of Linux namespaces, with attacks: needs root.
test-hosts: setup
	$(BIN)/pytest tests/hosts

# Exported encoders, classifiers on devices, and their page in a browser.
test-edge: setup
	$(BIN)/pytest tests/edge -n 2

# Faults at random, for four minutes (CHAOS_MINUTES): kills, full disks, damaged files and more.
chaos: setup
	$(BIN)/python benchmarks/chaos

# On a machine that has nothing else to do.
bench: setup
	$(BIN)/python benchmarks/bench.py

# The pages of docs/ as a site, dist/site; a warning is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open dist/site/index.html (for its search: $(BIN)/python -m http.server -d dist/site)"

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# What a site installs, with the hashes of the wheels, from constraints.txt: requirements.lock.
lock: setup
	$(BIN)/python .ci/lock

# Tools of their own environment, so that they are no part of what they look at.
.venv-audit/ready:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	touch $@

# Known vulnerabilities of all that is pinned. A package that could not be looked up is an error, too.
audit: .venv-audit/ready
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# A bill of materials (CycloneDX) of what a site installs: the lock file, and torch.
sbom: .venv-audit/ready
	mkdir -p dist
	grep '^torch==' constraints.txt | cat requirements.lock - > dist/bill.txt
	.venv-audit/bin/cyclonedx-py requirements dist/bill.txt --pyproject pyproject.toml --output-reproducible --output-file dist/repper.cdx.json
	rm dist/bill.txt

# The page of `repper play`, from page/ (needs Node 20 or later): src/repper/edge/page.html.
page:
	cd page && npm ci && npm run build

# The committed page is what page/ gives.
page-check:
	cd page && npm ci && npm run check

clean:
	rm -rf .venv .venv-audit runs dist build page/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
