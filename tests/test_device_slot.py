"""The script for a borrowed device runs where there is none: what it would measure is rehearsed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_slot_is_rehearsed_on_a_cpu(tmp_path: Path) -> None:
    words = ("measure", "--rehearse", "--into", str(tmp_path), "--only", "left-behind,tiny-variants")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.device.slot", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    phases = [json.loads(line) for line in (tmp_path / "phases.jsonl").read_text().splitlines()]
    assert [(each["phase"], each["status"]) for each in phases] == [("left-behind", 0), ("tiny-variants", 0)]
    arms = [json.loads(line) for line in (tmp_path / "left-behind.txt").read_text().splitlines()]
    assert [(each["arm"], len(each["kernels"])) for each in arms] == [("two-kept-then-down", 2), ("history", 0)]
    rows = [json.loads(line) for line in (tmp_path / "tiny-variants.txt").read_text().splitlines()]
    assert {"base", "again", "tf32", "bf16", "fused"} == {each["variant"] for each in rows}
    assert all(each["blocks"] >= 3 and each["host_ms"] <= each["wall_ms"] for each in rows)


def test_a_phase_that_ends_badly_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    from benchmarks.device.slot import Phase, played

    bad = Phase("bad", (sys.executable, "-c", "raise SystemExit(3)"), 20)
    missing = Phase("missing", ("no-such-program",), 20)
    good = Phase("good", (sys.executable, "-c", "print(7)"), 20)
    assert played(tmp_path, iter((bad, missing, good)), 60) == 1
    phases = [json.loads(line) for line in (tmp_path / "phases.jsonl").read_text().splitlines()]
    assert [each["status"] for each in phases] == [3, 127, 0]
    assert (tmp_path / "good.txt").read_text() == "7\n"
