"""When CUDA's tracer is taken down: behind the last window alone, by a variable in C that os.environ does not show."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python

JOB = """
import ctypes, json, os, sys, warnings
warnings.simplefilter("ignore")  # this build of torch has no CUDA, and says so
import torch
from steptime.probe import device, profiling
from steptime.probe.recorder import Recorder

getenv = ctypes.CDLL(None).getenv
getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p
seen = []

def look(what):
    value = getenv(b"TEARDOWN_CUPTI")
    seen.append((what, None if value is None else value.decode()))

class Profile(torch.profiler.profile):
    def prepare_trace(self):
        look("start")
        super().prepare_trace()

    def stop(self):
        look("stop")
        super().stop()

with torch.profiler.profile():
    pass  # imports of torch's own change the environment
torch.profiler.profile = Profile
device.in_use = lambda: sys.argv[2] != "cpu"
torch.version.cuda = sys.argv[2].removeprefix("cuda ")
before = dict(os.environ)
recorder = Recorder(sys.exit)
recorder.open(sys.argv[1])
look("job")
for number, followed in ((3, True), (4, False), (5, False)):
    window = profiling.ProfilerWindow(recorder, number, False, followed=followed)
    window.start()
    torch.ones(2).add_(1)
    if number == 5:
        window.abandon()
    else:
        window.stop(1)
    look("behind")
print(json.dumps({"seen": seen, "changed": sorted(set(os.environ.items()) ^ set(before.items()))}))
"""


def reported(folder: Path, where: str, own: str | None = None) -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name != "TEARDOWN_CUPTI"}
    environment |= {"TEARDOWN_CUPTI": own} if own is not None else {}
    words = [python(), "-c", JOB, str(folder), where]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_tracer_is_taken_down_at_the_last_window_alone(tmp_path: Path) -> None:
    found = reported(tmp_path, "cuda 13.0")
    assert found["seen"] == [
        ["job", None],
        ["start", "0"], ["stop", "0"], ["behind", "0"],
        ["start", "0"], ["stop", "1"], ["behind", "0"],
        ["start", "0"], ["stop", "1"], ["behind", "0"],
    ]  # fmt: skip
    assert found["changed"] == []


@pytest.mark.parametrize("own", ["1", ""])
def test_what_the_user_has_reported_stays(own: str, tmp_path: Path) -> None:
    found = reported(tmp_path, "cuda 13.0", own)
    assert isinstance(found["seen"], list)
    assert {value for _, value in found["seen"]} == {own}
    assert found["changed"] == []


def test_a_job_on_a_cpu_has_no_such_variable(tmp_path: Path) -> None:
    found = reported(tmp_path, "cpu")
    assert isinstance(found["seen"], list)
    assert {value for _, value in found["seen"]} == {None}


def test_before_cuda_12_6_the_tracer_stays(tmp_path: Path) -> None:
    """A job with CUDA graphs may crash where it is attached again."""
    found = reported(tmp_path, "cuda 12.4")
    assert isinstance(found["seen"], list)
    assert {value for what, value in found["seen"] if what == "stop"} == {"0"}
