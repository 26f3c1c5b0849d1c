"""What several rooms' tests share."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

import pytest
from example_counts import ALL
from hypothesis import Phase, settings
from hypothesis.internal.conjecture import providers
from machines import remember_peaks
from patience import PATIENCE
from preloading import GIVEN, python
from published import DATA, Published

from steptime import plain_pickle

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Containers often set it. Every process of the tests would compile all of steptime: as much work as it does then.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Two tests run at a time, each with a job: threads of torch that wait by turning would take the CPUs from the others.
# A job of twenty steps took 62 s of CPU instead of 4 s on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has its children ignore it, and so would every job of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a change is judged by itself. `nightly` (make test-all) looks for new ones, and at more.
# Nor does it look for the smallest failing example, which takes minutes.
FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile("repeatable", derandomize=True, max_examples=ALL // 4, phases=FOUND)
settings.register_profile("nightly", max_examples=ALL)
settings.load_profile("repeatable")


def _constants_of_no_source() -> Any:
    """Hypothesis tries constants of all modules of ours that are imported: others in each worker and each order of
    tests, found in 0.6 s of CPU, 1.6 s in a new clone."""
    return providers._local_constants if settings().derandomize else _constants_of_all_source()


_constants_of_all_source: Any = getattr(providers, "_get_local_constants", None)
if _constants_of_all_source is not None:
    providers._get_local_constants = _constants_of_no_source


@pytest.fixture(scope="session")
def shared_data() -> Published:
    """The folder of published traces; a test that asks for a file that is not there is skipped."""
    return Published(DATA)


@pytest.fixture(scope="session", autouse=True)
def cache_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the cache of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("cache")
    remember_peaks(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """The collected tests, torch and what was imported since are a million objects, which the garbage collector need
    not look at again each time: a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_time() -> Iterator[None]:
    """A test of what could hold us for ever fails instead."""

    def over(*_: object) -> None:
        raise TimeoutError("it did not end")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pickles_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles of strangers are read in this process, without its limits: for many small files that must end in a
    sentence. That a process of its own reads them is the matter of other tests."""

    def converted(file: IO[bytes], converter: str, _memory: int, _seconds: int) -> IO[bytes]:
        module, _, function = converter.partition(":")
        made = tempfile.TemporaryFile()  # noqa: SIM115 – the reader closes it
        try:
            plain_pickle.convert_file(getattr(importlib.import_module(module), function), file.fileno(), made)
        except plain_pickle.NotPlainError:
            made.close()
            raise
        made.seek(0)
        return made

    for reader in ("steptime.hang.dump", "steptime.memory.snapshot"):
        monkeypatch.setattr(f"{reader}.converted", converted)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of xdist, before it starts a worker: jobs of all workers are forks of one server."""
    node.workerinput[GIVEN] = python()


def pytest_configure(config: pytest.Config) -> None:
    if given := getattr(config, "workerinput", {}).get(GIVEN):
        os.environ[GIVEN] = given


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that collecting makes goes away again: the garbage collector would look at all of it for nothing, now and
    later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class Places:
    """Where each worker of xdist begins to collect. pytest rewrites each module at its first import, half of the work
    of collecting in a new clone: three workers that begin at the same one would all rewrite all of them, and now each
    finds what the others have rewritten."""

    usual: ClassVar[dict[pytest.Item | pytest.Collector, int]] = {}
    """Files and folders in this one, and their places."""

    @classmethod
    def turned(cls, found: list[Any]) -> list[Any]:
        cls.usual = {each: place for place, each in enumerate(found)}
        count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) / count
        sizes = [sum(path.stat().st_size for path in _modules_in(each.path)) for each in found]
        first = next((place for place in range(len(found)) if sum(sizes[:place]) >= share * sum(sizes)), 0)
        return found[first:] + found[:first]

    @classmethod
    def of(cls, item: pytest.Item) -> int:
        return next((cls.usual[each] for each in item.listchain() if each in cls.usual), 0)


def _modules_in(path: Path) -> list[Path]:
    return list(path.rglob("test_*.py")) if path.is_dir() else [path]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.path == Path(__file__).parent and report.passed and "PYTEST_XDIST_WORKER" in os.environ:
        report.result = Places.turned(report.result)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All workers have one order. Tests with a browser come last. Skips what needs a device where there is none; asks
    torch only when some test was collected that needs one."""
    if Places.usual:
        items.sort(key=Places.of)
    Chromium.modules = {
        each.module for each in items if isinstance(each, pytest.Function) if "browser" in each.fixturenames
    }
    items.sort(key=lambda each: getattr(each, "module", None) in Chromium.modules)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


class Chromium:
    """The browser of the tests, started for the first that asks for it. Its driver runs an event loop in this thread,
    which tests of other things would meet: so it ends behind the last of those that follow one another, and modules
    with a browser come last, together."""

    modules: ClassVar[set[object]] = set()
    """Those of which any test has a browser."""
    driver: ClassVar[Any] = None
    process: ClassVar[Any] = None

    @classmethod
    def started(cls) -> Any:
        playwright = pytest.importorskip("playwright.sync_api", reason="Playwright's Python package is not installed")
        path = os.environ.get("STEPTIME_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
        if path is None:
            pytest.skip(f"no Chromium: none of {', '.join(CHROMIUMS)} is installed (set STEPTIME_CHROMIUM)")
        if cls.process is None:
            cls.driver = playwright.sync_playwright().start()
            cls.process = cls.driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            cls.process.new_context = partial(_patient, cls.process.new_context)
        return cls.process

    @classmethod
    def end(cls) -> None:
        if cls.process is not None:
            cls.process.close()
        if cls.driver is not None:
            cls.driver.stop()
        cls.driver = cls.process = None


def _patient(opened: Callable[..., Any], **options: Any) -> Any:
    """What a page waits for may be a job that has to start on a busy machine."""
    context = opened(**options)
    context.set_default_timeout(150_000)
    return context


@pytest.fixture(scope="module")
def browser() -> Any:
    return Chromium.started()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if nextitem is None or getattr(nextitem, "module", None) not in Chromium.modules:
            Chromium.end()
