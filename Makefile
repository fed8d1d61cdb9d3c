# make demo   train one model under three mechanisms through the P4 switch
# make test   the test-suite
# make p4     compile the P4 programs (or, without p4c, verify the committed ones)
# make lint   ruff and the structure tests
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_FLAGS ?=
# What only computes never runs beside what has deadlines, as real runs do; of those, two at a time, which mostly wait.
# In this order: what takes longest first, so that the workers end at about the same time.
COMPUTING := tests/property tests/fuzz tests/unit tests/dataplane
TIMED := tests/integration tests/chaos tests/emulation
DEALT := --dist loadfile --no-loadscope-reorder
WORKERS ?= 2

.PHONY: demo test p4 lint install clean
.DEFAULT_GOAL := install

install: $(STAMP)

# Installed editable: Python changes need no new install; C++ and dependency changes do, hence the prerequisites.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard */native/*.cpp */native/*.h)
	@bash .ci/prerequisites $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv --system-site-packages $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --editable '.[train,emulation,controller,mpi,plot,cluster,test]'
	@touch $@

p4:
	@$(PYTHON) p4/build.py
	@$(PYTHON) p4/generate.py

demo: $(STAMP) p4
	@$(BIN)/emulation demo

# pytest's exit code 5: PYTEST_FLAGS chose none of these.
test: $(STAMP)
	$(BIN)/python -m pytest $(COMPUTING) --numprocesses $(WORKERS) $(DEALT) $(PYTEST_FLAGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest $(TIMED) --numprocesses $(WORKERS) $(DEALT) $(PYTEST_FLAGS) || [ $$? -eq 5 ]

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf build $(VENV)
