"""A fork of a Python that has imported torch is as a fresh interpreter to its job; what is no sound fork is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from steptime.changes import Change, VariantOptions
from steptime.launcher.forks import ForkServer, is_forkable
from steptime.trials.containment import Layer, Workspace, ground_of
from steptime.trials.execute import ScheduledRun, execute, start_ahead
from steptime.trials.same_work import suspicion
from steptime.trials.trial import AS_IT_IS, Run, Variant

pytest.importorskip("torch")

JOB = """
import gc, inspect, json, os, signal, sys, threading
begun = {"names": sorted(globals()), "path": sys.path, "words": sys.orig_argv[1:], "torch": "torch" in sys.modules}
VARIABLES
import numpy
import torch
from torch import nn

if __name__ == "__main__":
    facts = {
        **begun, "argv": sys.argv, "file": __file__, "here": os.getcwd(), "stdin": sys.stdin.read(), "hash": hash("x"),
        "python": [sys.executable, sys.prefix, str(sys.flags)], "variables": dict(os.environ) | {"STEPTIME_PROBE": ""},
        "threads": [torch.get_num_threads(), threading.active_count()], "gc": [gc.isenabled(), gc.get_freeze_count()],
        "signals": [str(signal.getsignal(number)) for number in (1, 2, 13, 15, 17, 25)],
        "wakeup": signal.set_wakeup_fd(-1), "seed": torch.initial_seed(), "draw": numpy.random.rand(),
        "files": len(os.listdir("/proc/self/fd")), "session": os.getsid(0) == os.getpid(),
        "output": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stderr.errors],
        "finders": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
        "origin": torch.__spec__.origin,
    }
    open("written", "w").write("x")
    print("facts", json.dumps(facts), flush=True)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        loss = nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    print("unflushed")
    LAST
"""
LAST = "raise RuntimeError('the end')"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """One for all tests: its start takes longer than all that is asked of it."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def forks(server: ForkServer) -> ForkServer:
    server.off = False
    return server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all forks, too: the server forks for one environment, and that names the trial's folder."""
    return tmp_path_factory.mktemp("forks")


def workspace(folder: Path, *words: str, variables: str = "", last: str = LAST) -> Workspace:
    (folder / "job").mkdir(parents=True, exist_ok=True)
    text = JOB.replace("VARIABLES", variables).replace("LAST", last)
    (folder / "job" / "train.py").write_text(text, encoding="utf-8")
    made = Workspace((sys.executable, *(words or ("train.py",))), folder / "trial", folder / "job", keep=True)
    if ground_of(made).layer is not Layer.OVERLAY:
        pytest.skip("this system permits no overlays")
    return made


def run(
    place: Workspace, forks: ForkServer | None, variant: Variant = AS_IT_IS, steps: int = 100
) -> tuple[Run, list[str]]:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # the server's environment is that of all its forks
    found = execute(place, ScheduledRun(variant, 0, 0, 0, VariantOptions(steps, 5, seed=0)), forks=forks)
    (log,) = place.folder.glob("variants/*/output.log")
    return found, log.read_text(encoding="utf-8").splitlines()


def facts(lines: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lines[0].removeprefix("facts "))
    return found


@pytest.mark.parametrize("words", [("train.py", "--lr", "1"), pytest.param(("-m", "train"), marks=pytest.mark.slow)])
def test_a_fork_is_as_a_fresh_interpreter(
    tmp_path: Path, folder: Path, forks: ForkServer, words: tuple[str, ...]
) -> None:
    fresh = run(workspace(tmp_path, *words), None)
    forks.ahead((sys.executable, "train.py"), tmp_path, {"NO_SUCH": "environment"})
    forked = run(workspace(folder, *words), forks)
    mine, theirs = (
        json.loads(json.dumps(facts(lines)).replace(str(where), ""))
        for (_, lines), where in ((forked, folder), (fresh, tmp_path))
    )
    assert mine == theirs
    assert forked[1][1:13] == fresh[1][1:13], "the same losses"
    assert len(_servers()) == 1, "the one that was started ahead for another environment is gone"
    assert forked[1][-1] == "RuntimeError: the end"
    assert forked[1][13] == "unflushed"
    assert forked[0].failure.startswith("It ended with status 1")
    assert list((folder / "job").iterdir()) == [folder / "job" / "train.py"]


@pytest.mark.slow
def test_a_fork_computes_what_a_fresh_process_does(tmp_path: Path, forks: ForkServer) -> None:
    fresh, forked = (
        run(workspace(tmp_path / name, last=""), each, steps=6)[0] for name, each in (("a", None), ("b", forks))
    )
    assert forked.failure == fresh.failure == ""
    assert forked.losses == fresh.losses
    assert forked.start_seconds < fresh.start_seconds


SMALL = """
import os
VARIABLES
import torch
import torch._dynamo
print("small", os.environ.get("MKL_NUM_THREADS"), torch.__file__, torch.imported_by == os.getpid())
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[ForkServer, str], list[str]]:
    """Runs a job that does not train, with a torch of a few lines: servers of the real one take seconds each. Returns
    what the job printed."""
    package = tmp_path / "elsewhere" / "torch"
    package.mkdir(parents=True)
    told = "import os\nclass cuda: is_initialized = staticmethod(lambda: False)\nimported_by = os.getpid()\n"
    (package / "__init__.py").write_text(told, encoding="utf-8")
    (package / "_dynamo.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def printed(forks: ForkServer, variables: str) -> list[str]:
        place = workspace(tmp_path)
        (place.directory / "train.py").write_text(SMALL.replace("VARIABLES", variables), encoding="utf-8")
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # as in `run`
        start_ahead(forks, place)
        ahead = _servers()
        lines = run(place, forks)[1]
        assert forks.off or _servers() == ahead, "it was made for this command"
        return [line for line in lines if line.startswith("small ")]

    return printed


def test_a_server_that_was_started_ahead_takes_the_place_of_the_one_that_is_renewed(
    tmp_path: Path, small: Callable[[ForkServer, str], list[str]]
) -> None:
    made, others = workspace(tmp_path), _servers()
    forked = [f"small None {tmp_path}/elsewhere/torch/__init__.py False"]
    with closing(ForkServer()) as forks:
        assert small(forks, "") == forked
        (first,) = _servers() - others
        following = forks.start_next()
        assert forks.start_next() == following != first
        forks.await_next()
        forks.renew()
        assert small(forks, "") == forked
        assert _servers() - others == {following}
        psutil.Process(following).send_signal(signal.SIGKILL)
        assert forks._server is not None
        _, directory, environment = forks._server.made_of
        with (tmp_path / "output").open("wb") as output:
            assert forks.job(made.command, directory, environment, "", (output, output, ())) is None
        assert forks.off, "a server that was ended is no harm: processes start as usual"
    assert _servers() == others


def _servers() -> set[int]:
    return {each.pid for each in psutil.Process().children() if "fork_script" in " ".join(each.cmdline())}


def test_nothing_that_a_fork_starts_stays(folder: Path, forks: ForkServer) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    sleeper = f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 600; :', {mark!r}], start_new_session=True)"
    assert run(workspace(folder, last=sleeper), forks)[0].failure == ""
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or ())]


def test_only_a_plain_python_is_forked(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    refused = [
        (str(script), "train.py"),
        (sys.executable, "-O", "train.py"),
        (sys.executable,),
        ("torchrun", "train.py"),
    ]
    assert not any(is_forkable(words) for words in refused)
    assert is_forkable((sys.executable, "train.py"))


HALF = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    long long ns = (at->tv_sec * 1000000000LL + at->tv_nsec) / 2;
    at->tv_sec = ns / 1000000000LL; at->tv_nsec = ns % 1000000000LL;
    return result;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_clock_that_runs_at_half_the_rate_is_suspicious(tmp_path: Path, folder: Path, forks: ForkServer) -> None:
    library = tmp_path / "half.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", library, "-ldl"], input=HALF.encode(), check=True)
    slow = "        optimizer.step()\n        __import__('select').select([], [], [], 0.2)"
    variant = Variant("env", (Change("environment", arguments=(("LD_PRELOAD", str(library)),)),))
    runs = []
    for where, server, each in ((folder, forks, AS_IT_IS), (tmp_path, None, variant)):
        place = workspace(where, last="")
        source = where / "job" / "train.py"
        text = (
            source.read_text(encoding="utf-8")
            .replace("        optimizer.step()", slow)
            .replace("range(12)", "range(40)")
        )
        source.write_text(text, encoding="utf-8")
        runs.append(run(place, server, each, steps=8)[0])
    honest, cheat = runs
    assert honest.clock == pytest.approx(1.0, abs=0.1)
    assert cheat.clock == pytest.approx(0.5, abs=0.1)
    assert suspicion([honest], [honest]) is None
    found = suspicion([cheat], [honest])
    assert found is not None
    assert re.search(r"Its clock counts 0\.[45]\d s in each second", found.sentence)


def test_what_sets_variables_before_its_import_is_started_anew(
    tmp_path: Path, small: Callable[[ForkServer, str], list[str]]
) -> None:
    with closing(ForkServer()) as forks:
        anew = [f"small 1 {tmp_path}/elsewhere/torch/__init__.py True"]
        assert small(forks, "os.environ['MKL_NUM_THREADS'] = '1'") == anew
        assert forks.off
