"""The step on another device or link: kernels by the peaks of both, the rest as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from analysis import trace_events as made
from documents import markdown_of

from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.elsewhere import MOST_WRONG, Elsewhere, elsewhere
from steptime.cli.main import main
from steptime.diagnosis import diagnose_paths, with_elsewhere
from steptime.machine.datasheet import NAMES, look_up
from steptime.quantities import Estimate
from steptime.report.sentences import elsewhere_text
from steptime.trace.reader import read

H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
SIDE = 8192
"""Of square float32 tensors that are added: 805 MB, which take 240 µs at an H100's peak."""


def trace(folder: Path, kernels: int = 2, device: str = H100) -> Path:
    """A step of 2 ms: additions of 400 µs, right behind one another, a short kernel, and a collective of 200 µs."""
    added: dict[str, Any] = {"Input Dims": [[SIDE, SIDE], [SIDE, SIDE], []], "Input type": ["float", "float", "Scalar"]}
    events = [made.step(0, 2000)]
    at = 100.0
    for number in range(1, kernels + 1):
        events += [made.operator("aten::add", 10 * number, 10 * number + 8, **added),
                   made.called("cudaLaunchKernel", 10 * number + 1, 10 * number + 5, number)]  # fmt: skip
        events.append(made.kernel(number, at, at + 400, name="vectorized_elementwise_kernel"))
        at += 400
    for number, name, length in ((kernels + 1, "tiny", 2), (kernels + 2, "ncclDevKernel_AllReduce_Sum_f32", 200)):
        events.append(made.called("cudaLaunchKernel", 10 * number + 1, 10 * number + 5, number))
        events.append(made.kernel(number, at, at + length, name=name))
        at += length
    events.append(made.called("cudaDeviceSynchronize", 200, at + 5))
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": device}]}))
    return file


def predicted(file: Path, device: str = "", link: float = 1.0, here: str = H100) -> Elsewhere:
    found_in = read(file)
    steps = step_context(found_in, steps_of(found_in), machine=look_up(here))
    found = elsewhere(steps, look_up(device), link)
    assert found is not None
    return found


def test_what_moves_bytes_lasts_by_the_bandwidths_of_the_two_datasheets(tmp_path: Path) -> None:
    found = predicted(trace(tmp_path), MI300X)
    moved = 800_000 * 3350 / 5300
    assert found.here == pytest.approx(1_002_000)
    assert found.kernels.value == pytest.approx(moved + 2_000 * 1.75 / 1.35 + 200_000, rel=0.01)
    assert found.step.value < 2_000_000 - 0.9 * (800_000 - moved)
    assert found.kernels.high == pytest.approx(200_000 + MOST_WRONG * (found.kernels.value - 200_000))
    assert found.communication == pytest.approx(0.2, abs=0.01)


def test_only_predictions_between_devices_that_were_held_against_traces_are_checked(tmp_path: Path) -> None:
    file = trace(tmp_path)
    assert predicted(file, MI300X).checked
    assert not predicted(file, "NVIDIA B200").checked
    assert not predicted(file, MI300X, link=2).checked


def test_a_link_twice_as_fast_halves_what_communicates_at_best(tmp_path: Path) -> None:
    found = predicted(trace(tmp_path), link=2)
    assert found.kernels.value == pytest.approx(found.here - 100_000)
    assert found.kernels.high == pytest.approx(found.here), (
        "it may have waited for another rank, which no link shortens"
    )
    assert found.step.value < found.step.high


def test_the_same_device_makes_no_difference(tmp_path: Path) -> None:
    found = predicted(trace(tmp_path), H100)
    assert found.step.value == pytest.approx(2_000_000)
    assert found.kernels.value == pytest.approx(found.here)


def test_it_stands_in_the_report_and_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trace(tmp_path)
    assert main(["diagnose", str(file), "--on", "MI300X", "--on", "B200", "--link", "2"]) == 0
    printed = capsys.readouterr().out
    assert "On MI300X and a link 2 times as fast:" in printed
    assert "the error of such predictions was not measured" in printed
    assert "same number of ranks" in printed
    report = with_elsewhere(diagnose_paths([str(file)]), file, ["MI300X"], 1.0, max_size=10**9, cache=False)
    assert "On other hardware" in markdown_of(report)


def test_it_takes_the_place_of_no_other_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trace(tmp_path)
    assert main(["diagnose", str(file)]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main(["diagnose", str(file), "--on", "MI300X", "--on", "B200"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if not line.startswith("On ")] == plain
    assert len(printed) == len(plain) + 2


def test_where_faster_kernels_do_not_shorten_the_step_it_says_what_stays() -> None:
    def reported(step: float, kernels: float) -> str:
        of_step, of_kernels = Estimate(step, step, step, 1), Estimate(kernels, kernels, kernels, 1)
        return elsewhere_text(Elsewhere("B200", 1.0, of_step, of_kernels, 50e6, 0.0, (), True), 100e6)

    assert "unchanged CPU time" in reported(98e6, 10e6)
    assert "unchanged CPU time" not in reported(65e6, 10e6)
    assert "unchanged CPU time" not in reported(100e6, 48e6)


def test_programs_get_the_predictions_in_the_short_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trace(tmp_path)
    assert main(["diagnose", str(file), "--on", "MI300X", "--json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)["elsewhere"]
    found = predicted(file, MI300X)
    assert (reported["device"], reported["link"], reported["checked"]) == ("MI300X", 1.0, True)
    assert reported["step_ns"]["value"] == pytest.approx(found.step.value, abs=1)
    assert reported["kernels_ns"]["high"] == pytest.approx(found.kernels.high, abs=1)
    assert (reported["kernels_here_ns"], len(reported["peaks"])) == (1_002_000, 2)
    assert main(["diagnose", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["elsewhere"] == []


@pytest.mark.parametrize(("device", "known"), [("Testcard", "MI300X"), (H100, "Q9000")])
def test_a_device_without_a_datasheet_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str, known: str
) -> None:
    assert main(["diagnose", str(trace(tmp_path, device=device)), "--on", known]) != 0
    assert "(unknown-device)" in capsys.readouterr().err


def test_a_folder_is_no_trace_to_predict_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path)
    assert main(["diagnose", str(tmp_path), "--on", "B200"]) != 0
    assert "Give one trace file" in capsys.readouterr().err


def test_every_name_that_is_offered_is_in_the_table() -> None:
    found = [look_up(name) for name in NAMES]
    assert None not in found
    assert len({machine.source for machine in found if machine is not None}) > 25


GPU = Path(__file__).resolve().parents[1] / "data" / "gpu"


def test_a_recording_is_predicted_on_the_scale_of_its_steady_step(capsys: pytest.CaptureFixture[str]) -> None:
    """An H100 whose host decides the step: kernels that are twice as fast shorten it hardly."""
    assert main(["diagnose", str(GPU / "nanogpt"), "--on", "B200", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (found,) = report["elsewhere"]
    step = report["step"]["duration_ns"]["value"]
    assert found["kernels_ns"]["value"] < 0.7 * found["kernels_here_ns"]
    assert 0.9 * step < found["step_ns"]["value"] <= 1.01 * step
    assert main(["diagnose", str(GPU / "dense_device_bound"), "--on", "B200", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (found,) = report["elsewhere"]
    step = report["step"]["duration_ns"]["value"]
    assert found["step_ns"]["value"] < 0.9 * step, "here the device decides"
    assert found["kernels_here_ns"] <= step, "no part is longer than its whole"
