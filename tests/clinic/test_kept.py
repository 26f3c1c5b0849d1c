"""Results are kept piece by piece, come back as they were, and the page is what its generator makes of them."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept, proof
from benchmarks.clinic import rivals, run, tables
from benchmarks.clinic.cases import CASES
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals import RIVALS
from benchmarks.clinic.rows import plain, row_of, rows_of
from benchmarks.clinic.score import Row, score
from benchmarks.clinic.truth import Dose, dose_of

DECODING = next(case for case in CASES if case.job == "heavy_decode")
SEVERE = Dose(4, 0.4, 0.4, 1e7, 1.67e7, 0.38, 0.42)
REPORTED = Reported("input", ("input-wait",), ((0.4, 0.35, 0.45),), (("heavy_decode.py", 30),), ("few-steps",), 1.6e7)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    return tmp_path


def test_a_piece_is_replaced_and_the_others_stay(folder: Path) -> None:
    kept.keep("box", "clinic", "casts", {"rows": 1})
    kept.keep("box", "clinic", "padding", {"rows": 2})
    kept.keep("box", "faults", "room", {})
    kept.keep("box", "clinic", "casts", {"rows": 3})
    assert kept.read("box") == {"clinic": {"casts": {"rows": 3}, "padding": {"rows": 2}}, "faults": {"room": {}}}
    assert [path.name for path in folder.iterdir()] == ["box.json"]


def test_a_machine_without_results_has_none(folder: Path) -> None:
    assert kept.read("box") == {}


@pytest.mark.parametrize("row", [Row(DECODING, SEVERE, REPORTED), Row(DECODING, SEVERE, None, "no torch")])
def test_a_row_comes_back_from_json_as_it_was(row: Row) -> None:
    assert row_of(DECODING, json.loads(json.dumps(plain(row)))) == row


def test_a_further_amount_is_taken_by_itself_and_a_rival_meets_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[float]] = []

    def doses(case: Any, shares: list[float]) -> list[Dose]:
        asked.append(shares)
        healthy = Dose(0, 0.0, 0.0, 1e7, 1e7)
        return [healthy, *(Dose(int(10 * share), share, share, 1e7, 1e7 / (1 - share)) for share in shares)]

    monkeypatch.setattr(run, "doses", doses)
    first = run.examined(DECODING, [0.4], {"steptime": lambda *_: REPORTED}, {"steptime": []})
    assert [row["dose"]["amount"] for row in first["steptime"]] == [0, 4]
    tools = {"steptime": lambda *_: REPORTED, "slowai": lambda *_: REPORTED}
    found = run.examined(DECODING, [0.4, 0.8], tools, {**first, "slowai": []})
    assert {name: [row["dose"]["amount"] for row in rows] for name, rows in found.items()} == {
        "steptime": [8],
        "slowai": [0, 4, 8],
    }
    whole = {"steptime": first["steptime"] + found["steptime"]}
    assert run.examined(DECODING, [0.4, 0.8], {"steptime": lambda *_: REPORTED}, whole) == {"steptime": []}
    assert asked == [[0.4], [0.8]]


def test_what_a_rival_failed_at_stays_while_another_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, sound = plain(Row(DECODING, SEVERE, None, "IndexError")), plain(Row(DECODING, SEVERE, REPORTED))
    kept.keep("box", tables.SECTION, DECODING.job, {"about": {}, "hta": [failed], "steptime": [sound]})
    words = ["run", "--continue", "--name", "box", "--cases", DECODING.job, "--shares", "40"]
    monkeypatch.setattr(sys, "argv", [*words, "--rival", f"slowai={sys.executable}"])
    monkeypatch.setattr(RIVALS["slowai"].__class__, "adapter", lambda *_: lambda *_: REPORTED)
    run.main()
    found = kept.read("box")[tables.SECTION][DECODING.job]
    assert found["hta"] == [failed]
    assert [row["failed"] for row in found["slowai"]] == [""]
    assert found["earlier"] == [{}]


def test_a_dose_that_was_never_measured_comes_back_as_one() -> None:
    row = Row(DECODING, Dose(0, 0.0, 0.0, math.nan, math.nan), None, "needs pandas")
    assert math.isnan(row_of(DECODING, json.loads(json.dumps(plain(row), allow_nan=False))).dose.healthy_ns)


def test_the_share_of_a_fault_has_the_interval_of_all_pairs_of_runs() -> None:
    dose = dose_of(3, 0.4, [10.0, 12.0], [20.0, 24.0])
    assert (dose.share, dose.low, dose.high) == pytest.approx((0.5, 0.4, 1 - 10 / 24))


def test_a_rival_is_right_by_any_of_its_words_that_may_mean_the_cause_and_its_harmless_ones_are_no_alarm() -> None:
    message = plain(Row(DECODING, SEVERE, Reported("INPUT_BOUND", ("INPUT_BOUND",), ((0, 0, 0),), (None,))))
    calm = plain(Row(DECODING, Dose(0, 0, 0, 1e7, 1e7), Reported("x", ("COMPUTE_BOUND",), ((0, 0, 0),), (None,))))
    section = {"heavy_decode": {"traceml": [message, calm]}}
    found = score(rows_of(section, "traceml"))
    assert (found.first.good, found.first.all, found.false_alarms.good) == (1, 1, 0)


def test_what_is_no_complaint_takes_no_place_from_a_rivals_right_word() -> None:
    message = Reported("COMPUTE_BOUND", ("COMPUTE_BOUND", "INPUT_BOUND"), ((0, 0, 0),) * 2, (None,) * 2)
    section = {"heavy_decode": {"traceml": [plain(Row(DECODING, SEVERE, message))]}}
    assert score(rows_of(section, "traceml")).first.share == 1


def test_what_rivals_words_may_mean_are_causes_of_the_clinic() -> None:
    causes = {case.cause for case in CASES}
    for rival in RIVALS.values():
        assert {cause for meant in rival.meanings.values() for cause in meant} <= causes, rival.name
        assert rival.how


def test_the_scripts_of_rivals_parse() -> None:
    scripts = sorted((Path(rivals.__file__).parent / "scripts").glob("*.py"))
    assert scripts
    for script in scripts:
        compile(script.read_text(encoding="utf-8"), str(script), "exec")


def test_a_case_that_did_not_run_is_a_row_that_says_why() -> None:
    section = {"heavy_decode": {"steptime": [plain(Row(DECODING, SEVERE, None, "needs zlib"))]}}
    assert any("heavy_decode" in line and "needs zlib" in line for line in tables.clinic(section, "box"))


def test_a_rival_that_did_not_run_is_a_row_that_says_why() -> None:
    section = {
        "heavy_decode": {
            "steptime": [plain(Row(DECODING, SEVERE, REPORTED))],
            "hta": [plain(Row(DECODING, SEVERE, None, "IndexError"))],
        }
    }
    assert any("hta" in line and "0 of 1" in line and "IndexError" in line for line in tables.rivals(section, "box"))


def test_the_page_is_what_the_generator_makes_of_the_kept_results() -> None:
    if not proof.PAGE.exists():
        pytest.skip("no run is kept yet")
    page = proof.PAGE.read_text(encoding="utf-8")
    name = re.search(r"benchmarks\.proof --name (\S+)`", page)
    assert name, "the page does not say of which machine it is"
    again = f"python -m benchmarks.proof --name {name[1]}"
    assert page == proof.page(name[1]), f"docs/proof.md is not current: {again}"
    figures = (kept.RESULTS / f"proof-{name[1]}.md").read_text(encoding="utf-8")
    assert figures == proof.everything(name[1]), f"its figures are not current: {again}"
