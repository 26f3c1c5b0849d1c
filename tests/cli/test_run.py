"""`steptime run` on a real, small training job."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python
from test_docs import follow

from steptime.recording.inventory import take_inventory

pytest.importorskip("torch")

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]

JOB = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8 * int(sys.argv[1])
    def __getitem__(self, index):
        total = 0
        for number in range(8000):
            total += number % 7
        return torch.full((16,), float(total % 5)), torch.tensor(1.0)

torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for values, wanted in DataLoader(Slow(), batch_size=8):
    optimizer.zero_grad()
    loss = (model(values).squeeze(1) - wanted).square().mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.9f}")
print("to stderr", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("job") / "train job.py"
    script.write_text(JOB, encoding="utf-8")
    return script


def bare(job: Path, steps: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python(), job, str(steps)], capture_output=True, text=True, check=True)


def test_a_job_is_measured_and_its_output_is_its_own(steptime: Steptime, job: Path, tmp_path: Path) -> None:
    run = steptime(
        "run", "--recording", tmp_path / "r", "-o", tmp_path / "r.json", "--full", "--", python(), job, "150"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == bare(job, 150).stdout, "the same losses, to the last bit that is printed"
    text = [line for line in run.stderr.splitlines() if not line.startswith("steptime: ")]
    head = next(number for number, line in enumerate(text) if line.startswith("steptime 0"))
    assert head >= 2, "the answer comes first"
    assert re.match(r"Step \S+ \S+ ± .* mean of \d+ steps", text[head + 1])
    assert re.search(r"waits? .* (for the loader|while its batches)|waiting for input", " ".join(text)), "the verdict"
    assert any(re.search(r"train job\.py:\d+", line) for line in text), "a finding has its source line"
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    step = report["processes"][0]["case"]["step"]
    assert step["total"] in (149, 150)
    assert step["mode"] == "optimizer"
    follow(shlex.split(text[-1].removeprefix("Next:  steptime ")))


def test_whoever_ends_a_job_does_not_wait_for_peaks(job: Path, tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group; the diagnosis of what was recorded follows, without anything more to measure."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    words = [python(), "-m", "steptime", "run", "--recording", str(tmp_path / "r"), "--", python(), str(job), "100000"]
    started = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while not any((tmp_path / "r").glob("process-*/trace-*.json*")):  # it has been profiled
        assert started.poll() is None
        time.sleep(0.1)
    os.killpg(started.pid, signal.SIGINT)
    seen = started.communicate(timeout=PATIENCE)[1]
    assert started.returncode == -signal.SIGINT
    assert "\nStep " in seen or "(too-few-steps)" in seen, "what was recorded is looked at"
    assert "peaks" not in seen
    assert not (tmp_path / "r" / "machine.json").exists()


def test_json_goes_to_standard_output_behind_the_jobs_own(steptime: Steptime, job: Path, tmp_path: Path) -> None:
    run = steptime("run", "--quiet", "--json", "--no-peaks", "--recording", tmp_path / "r", "--", python(), job, "60")
    assert run.returncode == 0
    own, brace, rest = run.stdout.partition("{")
    assert own == bare(job, 60).stdout
    assert json.loads(brace + rest)["job"]["torch"]
    assert run.stderr == "to stderr\n", "quiet is quiet"


def test_a_job_is_named_by_its_script_and_never_overwrites_another(
    steptime: Steptime, job: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        steptime("run", "--quiet", "--no-peaks", "--no-profile", "--", python(), job, "4")
    recordings = list((tmp_path / "work" / "runs").iterdir())
    assert len(recordings) == 2
    assert all(path.name.startswith("train-job-") for path in recordings)


def test_force_replaces_a_recording(steptime: Steptime, job: Path, tmp_path: Path) -> None:
    words = ("--quiet", "--no-peaks", "--no-profile", "--recording", tmp_path / "r", "--", python(), job, "4")
    steptime("run", *words)
    first = json.loads((tmp_path / "r" / "manifest.json").read_text(encoding="utf-8"))
    steptime("run", "--force", *words)
    second = json.loads((tmp_path / "r" / "manifest.json").read_text(encoding="utf-8"))
    assert second["started_epoch_ns"] > first["started_epoch_ns"]


def test_a_recording_is_replaced_by_one_that_has_a_step(steptime: Steptime, job: Path, tmp_path: Path) -> None:
    """The earlier one is there, whole, while the job runs, and stays where it measured nothing or is killed."""
    options = ("--quiet", "--no-peaks", "--no-profile", "--recording", tmp_path / "r")
    steptime("run", *options, "--", python(), job, "4")
    before = (tmp_path / "r" / "manifest.json").read_bytes()
    run = steptime("run", "--force", *options, "--", "true")
    assert "contains an earlier recording, kept because this run recorded no step" in run.stderr
    assert (tmp_path / "r" / "manifest.json").read_bytes() == before
    manifest = str(tmp_path / "r" / "manifest.json")
    looks = f"import os; print(os.path.getsize({manifest!r}), flush=True); os.kill(os.getppid(), 9)"
    killed = steptime("run", "--force", *options, "--", sys.executable, "-c", looks)
    assert killed.stdout.split() == [str(len(before))]
    assert (tmp_path / "r" / "manifest.json").read_bytes() == before
    steptime("run", "--force", *options, "--", python(), job, "4")
    assert (tmp_path / "r" / "manifest.json").read_bytes() != before
    assert sorted(path.name for path in tmp_path.glob("r*")) == ["r", "r-2", "r-3"], "those of the two above"


def test_the_first_command_can_be_given_again(steptime: Steptime, job: Path, tmp_path: Path) -> None:
    """It overwrites the report that steptime wrote, and says so, and no file that anybody has touched since."""
    words = ("run", "--no-peaks", "--no-profile", "-o", "report.md", "--", python(), job, "60")
    assert "Wrote report.md\n" in steptime(*words).stderr
    report = tmp_path / "work" / "report.md"
    first = report.read_bytes()
    again = steptime(*words)
    assert (again.returncode, "Wrote report.md, replacing the old file" in again.stderr) == (0, True)
    assert report.read_bytes() != first
    assert len(list((tmp_path / "work" / "runs").iterdir())) == 2
    report.write_text(report.read_text() + "my note\n")
    assert "(output-exists)" in steptime(*words).stderr
    assert report.read_text().endswith("my note\n")


def test_the_job_starts_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "import steptime.cli.main as main, steptime.cli.run, steptime.cli.exit_codes, steptime.cli.options\n"
        "steptime.cli.options.Delivery((), False, False, False, False).check()\n"
        "heavy = {'numpy', 'msgspec', 'rich', 'psutil', 'pynvml', 'isal', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


COMPILED = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def loss_of(values):
    hidden = model(values)
    if hidden.sum().item() > 1e9:
        hidden = hidden * 2
    return hidden.square().mean()

compiled = torch.compile(loss_of, backend="eager")
for _ in range(40):
    optimizer.zero_grad()
    compiled(torch.ones(4, 8)).backward()
    optimizer.step()
"""


def test_compilation_is_explained_where_that_is_asked_for(steptime: Steptime, tmp_path: Path) -> None:
    script, recording = tmp_path / "compiled.py", tmp_path / "r"
    script.write_text(COMPILED, encoding="utf-8")
    words = ("--explain-compile", "--no-peaks", "--recording", recording, "--json", "--full", "--")
    own = sys.executable  # torch asks for TORCH_TRACE when it is imported
    run = steptime("run", *words, own, script)
    reported = json.loads(run.stdout)["processes"][0]["case"]["compiler"]["breaks"]
    line = COMPILED.splitlines().index("    if hidden.sum().item() > 1e9:") + 1
    assert [(Path(each["source"]["file"]).name, each["source"]["line"]) for each in reported] == [("compiled.py", line)]
    assert re.search(rf"graph break, \d+ times?: .*compiled\.py:{line}, ", run.stderr)
    assert not take_inventory(recording).strange


ARCHIVING = """
import time
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def archive():
    time.sleep(1.0)

for number in range(1250):
    if number % 250 == 0:
        archive()
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


def test_slow_steps_are_caught_at_the_line_that_makes_them_slow(steptime: Steptime, tmp_path: Path) -> None:
    script = tmp_path / "archiving.py"
    script.write_text(ARCHIVING, encoding="utf-8")
    words = ("--catch", "step > 500ms", "--no-peaks", "--recording", tmp_path / "r", "--json", "--full")
    reported = json.loads(steptime("run", *words, "--", python(), script).stdout)["processes"][0]
    caught, line = reported["case"]["caught"], ARCHIVING.splitlines().index("    time.sleep(1.0)") + 1
    assert line in [each["source"]["line"] for each in caught["lines"][:2]], "or the line that calls it, before"
    assert caught["duration"] >= 5e8, "from the first look at it"
    assert all(number % 250 == 1 for number in caught["numbers"])
    assert any(each["name"] == "caught-steps" for each in reported["findings"])


@pytest.mark.parametrize("words", ["often", "every 0", "1x", "0ms", "every 10 minutes"])
def test_what_says_no_slow_steps_is_one_sentence(words: str, steptime: Steptime, job: Path) -> None:
    run = steptime("run", "--catch", words, "--", python(), job, "4")
    assert run.returncode == 2
    assert "does not choose steps" in run.stderr
