# make demo   a diagnosis of a real training job, from nothing but Python
# make test   the tests, in an environment of their own; all but the slow ones
# make test-all   the slow ones, too, as every night: all planted faults, the compiler, four times the examples of properties
# make lint   ruff, mypy, and pyright over the public names
# make site   the documentation as a site, with search: .site/out
# make package  the wheel and the source archive, checked, installed into an empty environment and run there
# make picture   all pictures in README and docs, of new runs: terminal, page, card, live page; on a quiet machine, with Chromium
# make bench  the quick benchmarks, some 15 minutes on two CPUs: benchmarks/results/<NAME>.json and docs/proof.md
# make bench-full   all of them: hours

PYTHON ?= python3

# The demo and the tests train on the CPU. Which torch is the CPU build depends on where pip looks: a configured folder
# of wheels (pip's find-links) may hold it, and the public index has the CUDA build for Linux, gigabytes that nobody
# needs here. So a local wheel is taken where there is one, and else PyTorch's own index of CPU builds, as its
# installation page has it. `make demo TORCH_INDEX=https://…` takes a mirror instead.
TORCH := torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# $(call torch_into,ENVIRONMENT): nothing to do where torch can be imported already.
define torch_into
$(1)/bin/python -c 'import torch' 2>/dev/null \
	|| { $(1)/bin/python -m pip install --quiet --no-index --no-deps '$(TORCH)' 2>/dev/null \
	     && $(1)/bin/python -m pip install --quiet '$(TORCH)'; } \
	|| $(1)/bin/python -m pip install --quiet '$(TORCH)' --index-url '$(TORCH_INDEX)'
endef

# Half of the tests wait for a process of theirs: three at a time keep two processors busy. The slow ones measure, one at a time.
THREE ?= -n 3 --dist worksteal

.PHONY: demo test test-all lint docs site package picture bench bench-full clean

demo: .demo/ready
	.demo/bin/steptime run --force --recording runs/demo -o runs/demo.html -- .demo/bin/python examples/slow_input.py

test: .test/ready
	.test/bin/python -m pytest -m "not slow" $(THREE) $(PYTEST_ARGS)

test-all: .test/ready
	.test/bin/python -m pytest --hypothesis-profile=nightly $(PYTEST_ARGS)

lint: .test/ready
	.test/bin/ruff check
	.test/bin/mypy
	.test/bin/basedpyright --pythonpath .test/bin/python tests/typed # a user's script that uses every public name

# The schemas, the only files in git that are generated from the code; the tests fail when they are not current.
docs: .test/ready
	.test/bin/python -c 'from steptime.report.json import schema_text; print(schema_text(), end="")' >docs/report-schema.json
	.test/bin/python -c 'from steptime.report.compact import CompactReport; from steptime.report.json import schema_text; print(schema_text(CompactReport), end="")' >docs/compact-schema.json
	.test/bin/python -c 'from steptime.compare.comparison import Comparison; from steptime.report.json import schema_text; print(schema_text(Comparison), end="")' >docs/comparison-schema.json
	.test/bin/python -c 'from steptime.compare.history import History; from steptime.report.json import schema_text; print(schema_text(History), end="")' >docs/history-schema.json

site: .site/ready
	NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs build --quiet

# As a user has it: steptime in an environment of its own, torch in the job's.
package: .test/ready
	rm -rf .package && $(PYTHON) -m venv .package && $(PYTHON) -m venv .package/tool
	.package/bin/python -m pip install --quiet build twine
	.package/bin/python -m build --outdir .package/dist . >.package/build.log || { cat .package/build.log; exit 1; }
	.package/bin/twine check --strict .package/dist/*
	.package/tool/bin/python -m pip install --quiet .package/dist/*.whl
	cd .package && tool/bin/steptime run --recording run -- ../.test/bin/python ../examples/nan_distance.py && tool/bin/steptime explain ST101 >explained

picture: .test/ready .demo/ready
	PATH="$(CURDIR)/.demo/bin:$$PATH" .test/bin/python .ci/terminal.py docs/terminal.svg -- steptime run -- python examples/slow_input.py
	.test/bin/steptime report --force -o runs/demo.html -o docs/card.png
	.test/bin/python .ci/picture.py runs/demo.html docs .demo/bin/python examples/slow_input.py --epochs 40

# make bench NAME=my-machine RIVALS="--rival slowai=PYTHON": other tools beside ours, each in an environment of its own.
# A benchmark that finds a fault ends with 1; the page is made all the same.
NAME ?= $(shell $(PYTHON) -c 'from benchmarks.kept import USUAL_NAME; print(USUAL_NAME)')
RIVALS ?= --rival profiler=.test/bin/python

bench bench-full: QUICK = $(if $(filter bench,$@),--quick)
bench bench-full: .test/ready
	.test/bin/python -m benchmarks.clinic.run $(QUICK) --name $(NAME) $(RIVALS)
	$(if $(QUICK),,.test/bin/python -m benchmarks.clinic.fixes --name $(NAME))
	.test/bin/python -m benchmarks.overhead $(QUICK) --name $(NAME)
	-.test/bin/python -m benchmarks.faithful.run $(QUICK) --name $(NAME)
	-.test/bin/python -m benchmarks.faults.run $(QUICK) --name $(NAME)
	.test/bin/python -m benchmarks.proof --name $(NAME)

clean:
	rm -rf .demo .test .site .package

# The stamps make a second call start at once.
.demo/ready: pyproject.toml
	$(PYTHON) -m venv .demo
	.demo/bin/python -m pip install --quiet --editable .
	$(call torch_into,.demo)
	touch $@

.test/ready: pyproject.toml
	$(PYTHON) -m venv .test
	.test/bin/python -m pip install --quiet --upgrade 'pip>=25.1' # knows dependency groups
	.test/bin/python -m pip install --quiet --editable . --group dev
	$(call torch_into,.test)
	touch $@

.site/ready: pyproject.toml
	$(PYTHON) -m venv .site
	.site/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.site/bin/python -m pip install --quiet --editable . --group docs # pages of rules, fixes and commands are made of it
	touch $@
