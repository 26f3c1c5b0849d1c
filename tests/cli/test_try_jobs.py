"""`steptime try -- CMD…` on jobs that cannot be tried: each gets its sentence, and what was done stays."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python

from steptime.cli.main import main
from steptime.trials.results import read_results

pytest.importorskip("torch")

TRAINING = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        loss = model(torch.randn(4, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("script", "budget", "slug", "words"),
    [
        ("print('nothing here')", "5m", "no-torch", "Its last output: nothing here"),
        ("import torch\nprint('looked around')", "5m", "no-steps", "took no training step"),
        ("import torch\nraise RuntimeError('no data at all')", "5m", "no-steps", "RuntimeError: no data at all"),
        ("import torch\ninput('Which model? ')", "5m", "no-steps", "input is empty"),
        ("import time\ntime.sleep(600)", "4s", "no-steps", "no training step in 2 s, half of the budget"),
    ],
)
def test_a_job_that_cannot_be_tried_gets_its_sentence(
    script: str,
    budget: str,
    slug: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "job.py").write_text(script)
    assert main(["try", "-q", "--budget", budget, "--", python(), "job.py"]) == 1
    reported = capsys.readouterr().err.splitlines()[-1]
    assert words in reported
    assert f"({slug})" in reported


@pytest.mark.slow
def test_a_job_without_end_is_measured_for_as_long_as_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "job.py").write_text(textwrap.dedent(TRAINING).format(steps=10**9))
    assert main(["lab", "--budget", "60s", "--", python(), "job.py"]) == 0
    reported = capsys.readouterr()
    assert f"\nLab of {python()} job.py"[:40] in reported.out
    assert not reported.out.startswith("Nothing was timed"), "steps were measured"


@pytest.mark.slow
def test_what_is_measured_without_peaks_measures_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where those of an earlier job would lie
    (tmp_path / "job.py").write_text(textwrap.dedent(TRAINING).format(steps=10**9))
    words = ["--until-measured", "--no-peaks", "--no-progress", "--recording", "runs/a"]
    assert main(["run", *words, "--", python(), "job.py"]) == 0
    assert "peaks" not in capsys.readouterr().out.partition("Cost:")[2].partition("\n")[0]


@pytest.mark.slow
def test_the_script_with_all_knobs_is_tried_in_larger_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "train.py"]) == 0
    words = ["--budget", "6m", "--batch-sizes", "auto", "-o", "lab.html", "--", python(), "train.py"]
    assert main(["lab", *words]) == 0
    reported = capsys.readouterr().out
    assert "Items per second by batch size" in reported
    assert "throughput" in reported.splitlines()[0]
    assert "Items/s by batch size" in (tmp_path / "lab.html").read_text(encoding="utf-8")


SLOW_ITEMS = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Items(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
            return torch.full((8,), float(index))

    if __name__ == "__main__":
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        for step, inputs in enumerate(DataLoader(Items(), batch_size=4)):
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


PROGRAM = """
import signal
from steptime.cli.main import entry

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background has it ignored
entry()
"""


@contextmanager
def steptime(*words: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_trial_that_is_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "job.py").write_text(textwrap.dedent(SLOW_ITEMS))
    with steptime("try", "--budget", "5m", "--max-trials", "1", "--", python(), "job.py") as trial:
        for _ in range(3000):
            found = list(tmp_path.glob("runs/*/results.jsonl"))
            if found and found[0].read_text().count('{"run":') >= 3:
                break
            time.sleep(0.1)
        trial.send_signal(signal.SIGINT)
        out, err = trial.communicate(timeout=PATIENCE)
    assert trial.returncode == 130, err
    assert "finished runs are kept" in err
    assert "--resume" in out.splitlines()[-1]
    before = read_results(found[0].parent)
    assert len(before.runs) >= 3
    assert not (found[0].parent / "copies").exists()
    with steptime("try", "--budget", "2m", *shlex.split(out.splitlines()[-1])[3:]) as resumed:
        out, err = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, err
    after = read_results(found[0].parent)
    assert after.runs[: len(before.runs)] == before.runs
    assert len(after.runs) > len(before.runs)
    assert {judgement.variant.proposal for _, judgement in after.judgements} == {"RM101"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py", "runs"]
