"""What people compare GPUs by: utilisation by the datasheet, by the driver, and what steps cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from device_recordings import diagnosed, report_of

from steptime.cli.main import main
from steptime.cli.trial import case_and_findings
from steptime.report.sentences import format_price, gpu_busy_text, price_text, reached_text

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "gpu"


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0, "$0.00"), (1234.5, "$1,234.50"), (2.5, "$2.50"), (0.72, "$0.720"), (0.0029816, "$0.00298")],
)
def test_a_price_has_cents_or_three_digits(dollars: float, text: str) -> None:
    assert format_price(dollars) == text


def test_steps_cost_what_their_gpus_cost_meanwhile() -> None:
    report = report_of("dense")
    assert price_text(report) == "", "nobody gave a price"
    step, first = report.processes[0].case.step.duration.value, report.processes[0].findings[0]
    assert first.savings is not None
    alone = price_text(replace(report, price=3.6))
    assert alone.startswith(f"{format_price(step / 1e9)} per 1,000 steps (1 GPU at $3.60 an hour)"), "a second: $0.001"
    assert alone.endswith(f"{first.code} is worth {format_price(first.savings.value / 1e9)} of it")
    together = price_text(replace(report, price=3.6, environment=replace(report.environment, ranks=8)))
    assert together.startswith(f"{format_price(8 * step / 1e9)} per 1,000 steps (8 GPUs at $3.60 an hour each)")


def test_a_price_on_the_command_line_is_in_every_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, page, markdown = str(RECORDINGS / "dense"), tmp_path / "r.html", tmp_path / "r.md"
    assert main(["diagnose", recording, "--price", "2.5", "-o", str(page), "-o", str(markdown)]) == 0
    reported = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Price: "))
    assert "per 1,000 steps (1 GPU at $2.50 an hour)" in reported
    assert "$2.50 an hour" in page.read_text()
    assert "2.50 an hour" in markdown.read_text()
    assert main(["diagnose", recording, "--price", "2.5", "--json"]) == 0
    gpu = json.loads(capsys.readouterr().out)["gpu"]
    assert gpu["price"] == pytest.approx(0.00298, rel=0.01)
    assert main(["diagnose", recording, "--price", "0"]) == 2


def test_utilisation_by_the_datasheet_stands_alongside_the_measured_peak() -> None:
    """A recording of an H100: 184 TFLOP/s in tf32, of 494 by NVIDIA's datasheet."""
    case, _ = diagnosed("dense")
    roofline = case.roofline
    assert roofline is not None
    assert roofline.rated == 494.5e12
    assert roofline.mfu == pytest.approx(roofline.flops / case.step.duration.value * 1e9 / 494.5e12)
    assert roofline.hfu == roofline.mfu, "nothing is computed again"
    text = reached_text(case)
    assert "48 % of the tf32 peak (384 TFLOP/s, measured); MFU 37 % of the datasheet's 494 TFLOP/s" in text
    assert "HFU" not in text


def test_what_checkpointing_computes_again_is_the_hardwares_alone(shared_data: Path) -> None:
    case, _ = case_and_findings(shared_data / "tracelens/mi300/resnet_act_checkpoint.json.gz")
    roofline = case.roofline
    assert roofline is not None
    assert roofline.mfu is not None
    assert roofline.hfu is not None
    assert 0.7 < roofline.mfu / roofline.hfu < 0.8, "forward of four: forward, again, and twice as much in backward"
    assert "MFU 0.4 %, HFU 0.6 %" in reached_text(case)


def test_a_gpu_is_busy_by_the_drivers_samples_of_the_steady_steps() -> None:
    case, _ = diagnosed("chargpt")
    assert case.step.gpu_busy == pytest.approx(0.36, abs=0.01)
    assert gpu_busy_text(case).startswith("GPU busy in 36 % of the steady steps' time, by the driver")


def test_a_run_too_short_for_the_drivers_samples_has_none() -> None:
    """The steps of this recording last for a third of a second: the sample behind them is mostly of the start."""
    case, _ = diagnosed("ddp")
    assert case.step.gpu_busy is None
    assert "by the driver" not in gpu_busy_text(case)
