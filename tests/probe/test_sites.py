"""Where loaders and optimizers were built, without a trace in what was built."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import sites  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(autouse=True)
def log() -> Iterator[Any]:
    """torch's own log of API use."""
    own = torch._C._log_api_usage_once
    sites.install()
    yield own
    torch._C._log_api_usage_once = own


def test_the_line_that_builds_an_optimiser_or_a_loader_is_known() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    line = sys._getframe().f_lineno - 1
    loader = torch.utils.data.DataLoader(torch.zeros(4, 1))
    of_optimizer, of_loader = sites.site_of(optimizer), sites.site_of(loader)
    assert of_optimizer is not None
    assert of_loader is not None
    assert (of_optimizer["file"], of_optimizer["line"]) == (__file__, line)
    assert of_optimizer["text"].startswith("optimizer = torch.optim.AdamW(")
    assert of_loader["line"] == line + 2


def test_a_subclass_is_known_by_the_line_that_builds_it() -> None:
    class Mine(torch.utils.data.DataLoader):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(torch.zeros(4, 1))

    site = sites.site_of(Mine())
    assert site is not None
    assert site["function"] == "__init__"  # the user's innermost line


def test_what_was_built_is_held_weakly() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    key, alive = id(optimizer), weakref.ref(optimizer)
    assert key in sites._built._known
    del optimizer
    gc.collect()
    assert alive() is None
    later = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(2)]
    assert set(sites._built._known) & {key, *map(id, later)} == set(map(id, later))  # what is gone goes with the next


def test_what_was_built_pickles_as_without_us(log: Any) -> None:
    weight = torch.zeros(1, requires_grad=True)  # one for both: its address is in the pickle

    def made() -> bytes:
        return pickle.dumps(torch.optim.SGD([weight], lr=0.1))

    with_us = made()
    torch._C._log_api_usage_once = log
    assert made() == with_us


def test_the_call_reaches_torchs_own_log_with_all_arguments(log: Any) -> None:
    assert torch._C._log_api_usage_once("python.nn_module") is None
    with pytest.raises(TypeError):
        torch._C._log_api_usage_once()


def test_whose_code_a_file_is() -> None:
    import json

    assert sites.whose(__file__) == sites.USER
    assert sites.whose(json.__file__) == sites.INNER
    assert sites.whose(torch.__file__) == sites.INNER
    assert sites.whose(sites.__file__) == sites.INNER
    assert sites.whose(pytest.__file__) == sites.LIBRARY
    assert sites.whose("<string>") == sites.INNER


def test_what_a_library_writes_while_the_job_runs_is_the_librarys() -> None:
    folder = tempfile.gettempdir()
    assert sites.whose(f"{folder}/torch_geometric.nn.conv.gin_conv_GINConv_propagate_o3ij4bn7.py") == sites.LIBRARY
    assert sites.whose(f"{folder}/__main___MyConv_propagate_x1_4bn7z.py") == sites.LIBRARY
    assert sites.whose(f"{folder}/train_baseline.py") == sites.USER
    assert sites.whose(f"{folder}/ann/train.v2_baseline.py") == sites.USER


def test_a_script_without_a_file_is_the_users() -> None:
    found: dict[str, object] = {"__name__": "__main__", "sys": sys, "user_frame": sites.user_frame}
    exec("place = user_frame(sys._getframe())", found)
    place = found["place"]
    assert isinstance(place, tuple)
    assert place[2] == "<module>"


@pytest.fixture
def rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package's function that builds a loader anew, as Accelerate does."""
    package = tmp_path / "site-packages"
    package.mkdir()
    source = "from torch.utils.data import DataLoader\n\ndef prepare(loader):\n    return DataLoader(loader.dataset)\n"
    (package / "preparing.py").write_text(source)
    monkeypatch.syspath_prepend(package)
    return importlib.import_module("preparing").prepare


def test_a_loader_that_a_package_builds_anew_is_known_by_the_users_line(rebuilt: Any) -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    loader = torch.utils.data.DataLoader(dataset)
    line = sys._getframe().f_lineno - 1
    prepared = rebuilt(loader)
    site = sites.site_of(prepared)
    assert site is not None
    assert (site["file"], site["line"]) == (__file__, line)


def test_which_of_several_loaders_a_package_builds_anew_is_not_guessed(rebuilt: Any) -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    loaders = [torch.utils.data.DataLoader(dataset)]
    loaders.append(torch.utils.data.DataLoader(dataset))
    site = sites.site_of(rebuilt(loaders[0]))
    assert site is not None
    assert site["text"] == "site = sites.site_of(rebuilt(loaders[0]))"


def test_a_dataset_is_not_kept_alive() -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    key, alive = id(dataset), weakref.ref(dataset)
    torch.utils.data.DataLoader(dataset)
    assert key in sites._loaded._known
    del dataset
    gc.collect()
    assert alive() is None
    later = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    torch.utils.data.DataLoader(later)
    assert set(sites._loaded._known) & {key, id(later)} == {id(later)}  # what is gone goes with the next
    assert sites.site_of(torch.utils.data.DataLoader([1, 2])) is not None, "a list has no weak references"


LIVES = """
import sys, types, weakref
sys.path.insert(0, SOURCE)
torch = types.ModuleType("torch")  # the variables of a frame need none of it
torch.__file__ = "/nowhere/torch/__init__.py"
torch._C = types.SimpleNamespace(DisableTorchFunction=None, _get_tracing_state=None)
sys.modules["torch"] = torch
from steptime.probe.sites import TRACED_FROM, variables

class Thing:
    pass

def generated():
    item = Thing()
    life = weakref.ref(item)
    yield sys.getrefcount(item)
    del item
    yield life() is None

def own_locals(argument):
    mine = locals()
    mine["added"] = 1
    other = 2
    return sorted(mine), argument

def job(argument):
    seen, thing, cell = [], Thing(), [1]
    life = weakref.ref(thing)
    seen.append(sys.getrefcount(thing))
    def inner():
        nonlocal cell
        cell = cell + [len(seen)]
    inner(); inner()
    seen += [list(cell), *generated(), own_locals(3)]
    other = [number for number in range(3) if cell]
    seen.append(sys.getrefcount(cell))
    del thing
    seen += [life() is None, sys.getrefcount(argument)]
    life = weakref.ref(argument)
    argument = None
    seen.append(life() is None)
    thing = cell
    cell = None
    seen.append(sys.getrefcount(thing))
    return seen

met = set()
def local(frame, event, argument):
    met.update((frame.f_code.co_name, name) for name in variables(frame))
    return local

bare = job(Thing())
if sys.version_info >= TRACED_FROM:
    codes = {each.__code__ for each in (job, generated, own_locals)}
    sys.settrace(lambda frame, event, argument: local if frame.f_code in codes else None)
    watched = job(Thing())
    sys.settrace(None)
    assert watched == bare, (bare, watched)
    assert {("job", "cell"), ("job", "thing"), ("job", "argument"), ("generated", "item")} <= met, met
    assert not any(name == "own_locals" for name, _ in met)
"""


OTHERS = [path for path in os.environ.get("STEPTIME_PYTHONS", "").split(os.pathsep) if path]
"""Interpreters of other versions, as for the timing of lines."""


@pytest.mark.parametrize("python", [sys.executable, *OTHERS, "python3.10", "python3.12", "python3.13", "python3.14"])
def test_reading_variables_in_a_trace_function_keeps_nothing_alive_and_writes_nothing(python: str) -> None:
    if subprocess.run(["sh", "-c", f"{python} -V"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} does not start")
    script = f"SOURCE = {str(SOURCE)!r}\n{LIVES}"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_text_of_a_function_is_its_own_as_in_the_file() -> None:
    def inner(number: int) -> int:
        return number + 1

    facts = sites.text_facts(inner.__code__)
    assert facts is not None
    assert facts["text"] == "    def inner(number: int) -> int:\n        return number + 1\n"
    assert facts["first_line"] == inner.__code__.co_firstlineno
    assert facts["function"].endswith("inner")
    assert sites.text_facts(compile("1", "<string>", "exec")) is None
