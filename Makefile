# Two commands for people: `make demo` and `make test`. Each does all set-up it needs on a fresh machine, then runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
BUILD_PACKAGES := gcc libjpeg62-turbo-dev libxxhash-dev
TEST_PACKAGES := fuse3 chromium iproute2 redis-server

DOCS := $(VENV)/.installed-docs

.PHONY: docs screenshots demo test install lint clean fuzz fuzz-files matrix rehearse bench-loop bench-loaders bench-remote bench-verdicts \
        bench-verdicts-generated \
        bench-predictions bench-drawn-predictions bench-tune bench-tune-claims bench-ranks soak-ranks bench-shared chaos soak

demo: $(CORE)
	$(BIN)/flatout demo

# Two at a time, whole files: tests of one file share servers and trained runs.
test: $(DEV) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

install: $(CORE)
	@echo "$(BIN)/flatout is installed with what training images needs. Left out:"
	@echo "  test tools and $(TEST_PACKAGES): make test gets them"
	@echo "  extras (service, ray, aws, web, translation, trackers, models), for example:"
	@echo "    $(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[service,translation]'"

# Installed anew when the project's own files change what is needed; otherwise this costs nothing.
$(CORE): pyproject.toml setup.py constraints.txt $(wildcard $(foreach room,data/pixels tasks/classification,src/flatout/$(room)/*.c src/flatout/$(room)/native/*))
	@$(call get_packages,$(BUILD_PACKAGES),Pillow decodes then and takes several times as long)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) setuptools wheel
	$(PIP) torch==2.13.0
	$(PIP) --no-build-isolation -e .
	@touch $@

$(DEV): $(CORE)
	@$(call get_packages,$(TEST_PACKAGES),tests that need them are skipped)
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

# Debian packages; passed over where they are there already. Where apt is not, or not allowed: $(2) says what follows.
define get_packages
missing=""; for package in $(1); do dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
  echo "installing$$missing"; apt-get update -qq && apt-get install -qq -y $$missing >/dev/null; \
elif [ -n "$$missing" ]; then echo "note: not installed:$$missing ($(2))"; fi
endef

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site in site/: opens without a server and without a network.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(DOCS): $(CORE)
	$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

# The pictures of README and site, from runs of today's code (some minutes).
screenshots: $(DEV)
	$(BIN)/python docs/build/screenshots.py

# Every pair of features, trained for real (about 10 minutes); `make test` tries a sample of them.
matrix: $(DEV)
	$(BIN)/python tests/matrix/run.py --out docs/pairs.md

# Every story recipe as it ships, at the story's pace, on small data in the real layout; `make test` does a sample.
rehearse: $(DEV)
	$(BIN)/python tests/rehearsal/run.py $(STORIES)

# Mutated JPEGs and pack indexes against the compiled decoder (address and undefined-behaviour sanitizers).
fuzz: $(CORE)
	$(BIN)/python tests/native_fuzz/run.py $(ROUNDS)

# Every file of runs, inputs, datasets and caches, damaged, against every command that reads it; `make test` does 200 rounds.
fuzz-files: ROUNDS ?= 20000
fuzz-files: $(DEV)
	nice $(BIN)/python tests/fuzz/files_fuzz.py $(ROUNDS) --result benchmarks/results/$$(date +%F)-fuzz-files.md

# Measured results go to benchmarks/results/, dated, with the command.
bench-loop: $(CORE)
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/startup.py --out benchmarks/results
	$(BIN)/python benchmarks/emulated_step.py --out benchmarks/results

# Two nodes over 100 Mb/s (needs root), two ranks that really train, and the cost of flatout's loop over bare DDP.
bench-ranks: $(DEV)
	$(BIN)/python benchmarks/slow_link.py speed
	$(BIN)/python benchmarks/slow_link.py accuracy
	$(BIN)/python benchmarks/ddp_overhead.py

# Every fault of docs/faults.md and how its tests ended; two files at a time.
chaos: $(DEV)
	$(BIN)/python tests/chaos/run.py -n 2 --dist loadfile

# kill -9 at random moments of runs with everything on, KILLS times, then an hour of emulated training.
KILLS ?= 200
soak: $(DEV)
	$(BIN)/python tests/soak/run.py --kills $(KILLS) --out benchmarks/results/$$(date +%F)-soak.md
	FLATOUT_FLAT_SECONDS=3600 $(BIN)/python -m pytest tests/chaos/test_chaos_flat.py

# kill -9 of a random rank under torchrun, 20 times; `make test` does it twice.
soak-ranks: $(DEV)
	FLATOUT_RANK_KILLS=20 $(BIN)/python -m pytest tests/chaos/test_chaos_ranks.py -k torchrun

# What users get who set nothing beside fixed settings and peers, as shipped and at their best: at most 25 minutes on two idle
# cores, once the peers are installed; turns that would begin later are listed as left out. Peers live in their own environments under BENCH (10 GB); a peer that does not install is listed as such.
BENCH ?= /tmp/flatout-bench
bench-loaders: $(CORE)
	bash benchmarks/loaders/setup_peers.sh $(BENCH)
	$(BIN)/python benchmarks/loaders/run.py --dir $(BENCH) --wait-for-quiet 5 --most-minutes 24

bench-remote: $(DEV)
	$(BIN)/python benchmarks/loaders/make_photos.py $(BENCH)/data/photos
	$(BIN)/python benchmarks/remote_training.py --photos $(BENCH)/data/photos

# Injected faults against the verdict of `flatout explain`; predictions against the runs that follow.
bench-verdicts: $(DEV)
	$(BIN)/python benchmarks/verdicts/run_scenarios.py --dir $(BENCH)/verdicts

# Scenarios drawn by seed, each with its counterfactual runs and those of its fixes: about an hour for 100 on an idle machine. Needs root
# (cgroups, namespaces). Goes on where an earlier call was interrupted; slices: make bench-verdicts-generated SEEDS=200:300 MINUTES=9
SEEDS ?= 0:100
bench-verdicts-generated: $(DEV)
	$(BIN)/python benchmarks/verdicts/generate.py --seeds $(SEEDS) --most-minutes $(or $(MINUTES),600) --dir $(BENCH)/verdicts

bench-predictions: $(DEV)
	$(BIN)/python benchmarks/predictions/run.py --dir $(BENCH)/verdicts

# 64 pairs that a seed draws: ranks, cache, accumulate, checkpointing, a mount, batch, workers, epochs, link, speed. 24 minutes at most.
bench-drawn-predictions: $(DEV)
	$(BIN)/python benchmarks/predictions/generate.py --seed $(or $(SEED),1) --dir $(BENCH)/drawn

bench-tune-claims: $(DEV)
	$(BIN)/python benchmarks/tuning/claims.py --dir $(BENCH)/claims

bench-tune: $(DEV)
	$(BIN)/python benchmarks/tuning/run.py --dir $(BENCH)/verdicts --exhaustive

# Tiny-ImageNet-40 and photos. TensorSocket beside it: benchmarks/shared_tensorsocket.py (pip install tensorsocket pyzmq tornado elsewhere).
TINY ?= ../shared/data/tiny-imagenet-40.tar
bench-shared: $(DEV)
	test -e $(BENCH)/data/tiny/unpacked.json || $(BIN)/python benchmarks/loaders/unpack_tiny.py $(BENCH)/data/tiny
	$(BIN)/python benchmarks/shared_train.py --data $(BENCH)/data/tiny --out benchmarks/results
	$(BIN)/python benchmarks/loaders/make_photos.py $(BENCH)/data/photos
	$(BIN)/python benchmarks/shared_handover.py
	$(BIN)/python benchmarks/shared_batches.py --data tiny=$(TINY):train-64 --warm 250 --cache off
	$(BIN)/python benchmarks/shared_batches.py --data tiny=$(TINY):train-64 --warm 250 --cache off --jobs 1 4 --slices 80
	$(BIN)/python benchmarks/shared_batches.py --data photos=$(BENCH)/data/photos:train-224 --warm 12 --cache off

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
