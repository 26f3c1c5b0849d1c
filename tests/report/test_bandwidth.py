"""Bandwidth, machine balance and GPU utilisation, as a reader of the guides of the field asks for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from device_recordings import report_of
from machines import two_cpus

from steptime.advice.evidence import Case
from steptime.cli import env
from steptime.cli.main import main
from steptime.machine.environment import Environment
from steptime.machine.identity import identify
from steptime.report.sentences import balance_text, gpu_busy_text
from steptime.report.tables import case_tables

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "gpu"
EVERY = sorted(each.name for each in RECORDINGS.iterdir() if (each / "manifest.json").exists())


def case_of(name: str) -> Case:
    return report_of(name).processes[0].case


@pytest.mark.parametrize("name", EVERY)
def test_no_operator_moves_more_of_a_copy_than_all(name: str) -> None:
    case = case_of(name)
    assert case.machine is not None
    for table in case_tables(case):
        titles = [column.title for column in table.columns]
        if "of a copy" not in titles:
            continue
        rate, part = titles.index("bandwidth"), titles.index("of a copy")
        for row in (*table.rows, *table.rest):
            if row[part].value != "":
                assert float(row[part].value) <= 1
                assert float(row[rate].value) == pytest.approx(float(row[part].value) * (case.machine.copy_bytes or 0))


def test_a_memory_bound_operator_has_gb_per_second_in_every_document(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    assert main(["diagnose", str(RECORDINGS / "nanogpt"), "-o", str(out)]) == 0
    rows = [line for line in out.read_text().splitlines() if "aten::gelu_backward | backward" in line]
    assert re.search(r"\| 864 MiB \| 2\.78 TB/s \| 92 % \|", rows[0]), rows


def test_the_step_is_held_against_the_balance_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of("nanogpt")
    assert case.roofline is not None
    assert case.machine is not None
    balance = case.machine.balance(case.roofline.dtype)
    assert balance is not None
    assert balance == pytest.approx(dict(case.machine.rates)[case.roofline.dtype] / (case.machine.copy_bytes or 0))
    assert main(["diagnose", str(RECORDINGS / "nanogpt")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f" FLOP/byte against a balance of {balance:.3g} ({case.roofline.dtype}): memory-bound; " in shown
    assert re.search(r"memory-bound kernels move [\d.]+ [GT]B/s, \d+ % of a copy's", shown)
    assert main(["diagnose", str(RECORDINGS / "nanogpt"), "--json"]) == 0
    gpu = json.loads(capsys.readouterr().out)["gpu"]
    assert gpu["balance"] == pytest.approx(balance)
    assert gpu["flop_per_byte"] == pytest.approx(case.roofline.flops / case.roofline.bytes)


def test_what_bounds_the_step_is_named_where_its_time_says_the_same() -> None:
    case = case_of("dense")
    assert case.roofline is not None
    slow = replace(case.roofline, flops=1e9, bytes=1e9, memory=9.0, compute=1.0)
    assert "1 FLOP/byte against" in balance_text(replace(case, roofline=slow))
    assert ": memory-bound" in balance_text(replace(case, roofline=slow))
    torn = replace(slow, memory=1.0, compute=9.0)
    assert "-bound;" not in balance_text(replace(case, roofline=torn))


def test_env_prints_the_balance_of_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    found = Environment(identify(), "2.0", "python", (two_cpus(2, "2.0"),), ())
    rows = {row[0].text: row[1].text for table in env.answer_of(found).tables for row in table.rows}
    assert rows["machine balance"] == "float32 2.7 FLOP/byte, bfloat16 12.2 FLOP/byte, float16 0.0757 FLOP/byte"


def test_a_gpu_below_seventy_percent_says_what_it_waits_for() -> None:
    case = case_of("chargpt")
    text = gpu_busy_text(case)
    assert text.startswith("GPU busy in 36 % of the steady steps' time, by the driver; idle mostly for ")
    assert text.endswith("ms/step")
    assert "idle" not in gpu_busy_text(replace(case, step=replace(case.step, gpu_busy=0.71)))


def test_without_the_driver_the_kernels_tell_how_busy_a_gpu_is() -> None:
    case = case_of("ddp")
    assert case.step.gpu_busy is None
    assert re.match(r"GPU busy in \d+ % of the steady steps' time, by the kernels", gpu_busy_text(case))
    assert gpu_busy_text(replace(case, kernels=())) == ""
