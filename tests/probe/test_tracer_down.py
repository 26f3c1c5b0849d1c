"""When CUDA's tracer is taken down: behind the last window alone, by a variable in C that os.environ does not show."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

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
def train(folder, where):
    device.in_use = lambda: where != "cpu"
    torch.version.cuda = where.removeprefix("cuda ")
    before = dict(os.environ)
    recorder = Recorder(sys.exit)
    recorder.open(folder)
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
    return {"seen": list(seen), "changed": sorted(set(os.environ.items()) ^ set(before.items()))}

found = []
for number, (where, own) in enumerate(json.loads(sys.argv[2])):
    os.environ.pop("TEARDOWN_CUPTI", None)
    if own is not None:
        os.environ["TEARDOWN_CUPTI"] = own
    seen.clear()
    folder = os.path.join(sys.argv[1], str(number))
    os.mkdir(folder)
    found.append(train(folder, where))
print(json.dumps(found))
"""
JOBS = (("cuda 13.0", None), ("cuda 13.0", "1"), ("cuda 13.0", ""), ("cpu", None), ("cuda 12.4", None))
"""What the job runs on, and what its user has set."""
Reported = Callable[..., dict[str, object]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """One after another in one process."""
    words = [python(), "-c", JOB, str(tmp_path_factory.mktemp("jobs")), json.dumps(JOBS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = dict(zip(JOBS, json.loads(done.stdout.splitlines()[-1]), strict=True))
    return lambda where, own=None: found[where, own]


def test_the_tracer_is_taken_down_at_the_last_window_alone(reported: Reported) -> None:
    found = reported("cuda 13.0")
    assert found["seen"] == [
        ["job", None],
        ["start", "0"], ["stop", "0"], ["behind", "0"],
        ["start", "0"], ["stop", "1"], ["behind", "0"],
        ["start", "0"], ["stop", "1"], ["behind", "0"],
    ]  # fmt: skip
    assert found["changed"] == []


@pytest.mark.parametrize("own", ["1", ""])
def test_what_the_user_has_reported_stays(own: str, reported: Reported) -> None:
    found = reported("cuda 13.0", own)
    assert isinstance(found["seen"], list)
    assert {value for _, value in found["seen"]} == {own}
    assert found["changed"] == []


def test_a_job_on_a_cpu_has_no_such_variable(reported: Reported) -> None:
    found = reported("cpu")
    assert isinstance(found["seen"], list)
    assert {value for _, value in found["seen"]} == {None}


def test_before_cuda_12_6_the_tracer_stays(reported: Reported) -> None:
    """A job with CUDA graphs may crash where it is attached again."""
    found = reported("cuda 12.4")
    assert isinstance(found["seen"], list)
    assert {value for what, value in found["seen"] if what == "stop"} == {"0"}
