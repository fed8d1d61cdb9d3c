# make demo       train one model under three mechanisms through the P4 switch
# make test       what a change needs: the test-suite but for its campaigns, in minutes
# make test-all   all of it: whole matrices, chaos, fuzzing, sanitizers
# make p4         compile the P4 programs (or, without p4c, verify the committed ones)
# make lint       ruff, mypy, clang-format
# make tidy       clang-tidy
# make test-torch  torch's own distributed tests on the backend, and scripts of Lightning, accelerate and Trainer
# make claims     PASS or FAIL for the numbers of README and docs, of results files and of tables simulated again
# make docs       the pages of docs/ as a site: build/site/index.html
# make wheels     an sdist, and wheels for the Pythons that are here: build/dist
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_FLAGS ?=
# What only computes never runs beside what has deadlines, as real runs do; of those, two at a time, which mostly wait.
# In this order: what takes longest first, so that the workers end at about the same time.
COMPUTING := tests/property tests/fuzz tests/sanitizers tests/process tests/unit tests/dataplane
TIMED := tests/docs tests/integration tests/chaos tests/emulation
# Elements in a packet, with which the packet engine's tests run beside those that they are written with. Any others pass
# as well: make test-all SIZES="256 1024".
SIZES ?= 2048
# test_xdp.py chooses both by itself.
ENGINE := tests/integration/engine --ignore tests/integration/engine/test_xdp.py
DEALT := --dist loadfile --no-loadscope-reorder
WORKERS ?= 2

.PHONY: demo test test-all test-torch p4 lint tidy claims docs wheels install clean
.DEFAULT_GOAL := install

install: $(STAMP)

# What is compiled of netfold's own P4 programs.
SWITCH := $(wildcard p4/build/*.json emulation/switch/compiler/*.py emulation/switch/runtime/*.h emulation/switch/runtime/*/*.h)

# Installed editable: Python changes need no new install; C++ and dependency changes do, hence the prerequisites.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard */native/*.cpp */native/*.h */native/*/*.cpp */native/*/*.h) $(SWITCH)
	@bash .ci/prerequisites $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	@echo "installing netfold into $(VENV): the first time this downloads torch (2.5 GB) and compiles the packet engine ..."
	@begun=$$(date +%s); \
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --editable '.[train,emulation,controller,mpi,plot,cluster,docs,test]' && \
	echo "  done in $$(($$(date +%s) - begun)) s"
	@touch $@

p4:
	@$(PYTHON) p4/generate.py
	@$(PYTHON) p4/build.py

demo: $(STAMP) p4
	@$(BIN)/emulation demo

# How many examples and packets are drawn; `make test-all` draws as many as the tests do by themselves.
FEW := NETFOLD_PROPERTY_EXAMPLES=15 NETFOLD_ENGINE_EXAMPLES=4 NETFOLD_FUZZ_PACKETS=5000 NETFOLD_FUZZ_WRITES=500 NETFOLD_API_EXAMPLES=10

test: DRAWN := $(FEW)
test: CHOSEN := -m "not slow"
# pytest's exit code 5: PYTEST_FLAGS chose none of these.
test test-all: $(STAMP)
	$(DRAWN) $(BIN)/python -m pytest $(COMPUTING) $(CHOSEN) --numprocesses $(WORKERS) $(DEALT) $(PYTEST_FLAGS) || [ $$? -eq 5 ]
	@for elements in $(SIZES); do \
	    NETFOLD_TEST_ELEMENTS=$$elements $(BIN)/python -m pytest $(ENGINE) $(CHOSEN) \
	        --numprocesses $(WORKERS) $(DEALT) $(PYTEST_FLAGS) || [ $$? -eq 5 ] || exit 1; \
	done
	@# In one process, as only one has an interface's queue.
	$(BIN)/python -m tests.xdp_namespace $(ENGINE) $(CHOSEN) $(PYTEST_FLAGS) || [ $$? -eq 5 ]
	$(DRAWN) $(BIN)/python -m pytest $(TIMED) $(CHOSEN) --numprocesses $(WORKERS) $(DEALT) $(PYTEST_FLAGS) || [ $$? -eq 5 ]

test-torch: $(STAMP)
	@PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check accelerate expecttest lightning transformers
	@$(BIN)/python -m tests.torch_suite

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/python -m mypy
	@bash .ci/cpp format $(BIN)

tidy: $(STAMP)
	@bash .ci/cpp tidy $(BIN)

claims: $(STAMP)
	@$(BIN)/python -m tests.claims

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file .ci/mkdocs.yml

wheels:
	@bash .ci/wheels $(PYTHON)

clean:
	rm -rf build $(VENV)
