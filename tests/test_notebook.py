"""In Python: what is loaded, its tables, and its picture in a notebook without script, style sheet or request, in which
strangers' strings stay text."""

from __future__ import annotations

import html.parser
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from compare.comparisons import busy, hostile
from documents import json_of
from memory.allocator import Allocator, train
from report.report_variants import HOSTILE, with_hostile_strings
from report.stored_reports import REPORTS, stored

import steptime
from steptime.answer.json import document as as_json
from steptime.api import Loaded, LoadedComparison, LoadedMemory, LoadedReport, LoadedTrial
from steptime.errors import RecordingError, UsageError
from steptime.quantities import Estimate
from steptime.trials.results import Plan, append_result
from steptime.trials.trial import Agreement, Judgement, TrialVerdict, Variant

GPU = Path(__file__).resolve().parent / "data" / "gpu"


class Elements(html.parser.HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open = 0
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += 1
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        self.open -= 1

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_is_loaded_and_displayed() -> None:
    loaded = steptime.load(REPORTS / "quiet-1.json")
    assert loaded.report == stored("quiet-1")
    elements = Elements(loaded._repr_html_())
    process = loaded.report.processes[0]
    assert process.verdict.sentence in elements.text
    assert "66.6 ms" in elements.text
    for use in process.case.categories:
        assert use.name in elements.text
    for finding in process.findings[:3]:
        assert finding.summary in elements.text
    assert loaded.report.next_command in elements.text
    assert elements.open == 0


def test_it_is_nothing_but_boxes_of_text() -> None:
    for report in (stored("quiet-1"), with_hostile_strings(stored("quiet-1"))):
        elements = Elements(LoadedReport(report)._repr_html_())
        assert set(elements.tags) <= {"div", "b", "code", "table", "tr", "th", "td"}
        assert {name for name, _ in elements.attributes} <= {"style", "title"}
        assert not any(
            "url(" in value or "expression" in value for name, value in elements.attributes if name == "style"
        )


def test_strings_of_strangers_are_text() -> None:
    rendered = LoadedReport(with_hostile_strings(stored("quiet-1")))._repr_html_()
    assert HOSTILE[0] in Elements(rendered).text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", rendered)
    rendered.encode("utf-8")


def test_the_text_and_the_name_of_it() -> None:
    loaded = steptime.load(str(REPORTS / "quiet-1.json"))
    assert re.match(r"[\d.]+ → [\d.]+ ms/step possible \([\d.]+×\)\n", str(loaded))
    assert "\n\nBound by waiting for input" in str(loaded)
    assert repr(loaded).startswith("<steptime.load('runs/quiet-1'): Bound by waiting for input")


@pytest.mark.parametrize("name", ["chargpt", "resnet_float32"])
def test_tables_hold_numbers_where_numbers_are(name: str) -> None:
    """An interval is two numbers, a line is an int and a file a str, and a saving has one name, in every table."""
    loaded = steptime.load(GPU / name)
    tables = {table: loaded.to_dict(table) for table in loaded.tables}
    columns = {(table, column): values for table, given in tables.items() for column, values in given.items()}
    assert {"savings_ns", "savings_low_ns", "low_ns", "line", "file"} <= {column for _, column in columns}
    for (table, column), values in columns.items():
        known = [value for value in values if value is not None]
        assert column not in ("interval", "recoverable_ns", "saved_ns"), table
        if column == "line":
            assert {type(value) for value in known} <= {int}, table
        elif column in ("file", "source", "function"):
            assert {type(value) for value in known} <= {str}, table
        elif column.endswith("_ns"):
            assert not any(isinstance(value, str) for value in known), (table, column)
    for table in {table for table, column in columns if column == "low_ns"}:
        lows, highs, middles = (tables[table][each] for each in ("low_ns", "high_ns", "duration_ns"))
        assert all(low <= middle <= high for low, middle, high in zip(lows, middles, highs, strict=True))


def test_what_is_offered_is_what_dir_shows() -> None:
    assert dir(steptime) == sorted(steptime.__all__)
    assert all(hasattr(steptime, name) for name in dir(steptime))


def test_what_cannot_be_loaded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"\A[^\n]*\(no-recording\)\Z"):
        steptime.load(tmp_path)


def test_a_trace_is_loaded(shared_data: Path) -> None:
    loaded = steptime.load(shared_data / "kineto" / "resnet50_workers0.pt.trace.json.gz")
    assert "The device idles 59.3 ms per step (33 %) for the next batch" in loaded._repr_html_()


def test_tables_are_columns_of_raw_values() -> None:
    loaded = steptime.load(REPORTS / "quiet-1.json")
    process = loaded.report.processes[0]
    assert {"findings", "steps", "categories", "lines", "operators", "processes"} <= set(loaded.tables)
    steps = loaded.to_dict("steps")
    assert steps["duration_ns"] == list(process.step_ns)
    assert steps["kind"].count("steady") + steps["kind"].count("outlier") == sum(process.steady)
    categories = loaded.to_dict("categories")
    assert sum(categories["duration_ns"]) == pytest.approx(process.case.step.duration.value, rel=0.01)
    findings = loaded.to_dict("findings")
    assert findings["code"] == [finding.code for finding in process.findings]
    assert findings["savings_ns"][0] == process.findings[0].savings.value


def test_a_table_has_all_rows_however_many_a_page_shows() -> None:
    report = stored("quiet-1")
    case = report.processes[0].case
    many = replace(case, operators=case.operators[:1] * 1000)
    loaded = LoadedReport(replace(report, processes=(replace(report.processes[0], case=many),)))
    assert len(loaded.to_dict("operators")["calls"]) == 1000


def test_every_table_is_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    loaded = steptime.load(REPORTS / "quiet-1.json")
    for name in loaded.tables:
        frame = loaded.to_pandas(name)
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) > 0
    assert loaded.to_pandas("steps").duration_ns.dtype.kind == "i"


def test_what_is_not_there_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = steptime.load(REPORTS / "quiet-1.json")
    with pytest.raises(UsageError, match=r"no table 'kernel'\. Tables: findings, steps.*\(no-such-table\)"):
        loaded.to_pandas("kernel")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UsageError, match=r"pip install polars.*\.to_dict\('steps'\).*\(no-data-frames\)"):
        loaded.to_polars("steps")
    with pytest.raises(UsageError, match=r"no rank 3\. .*one process.*\(no-such-rank\)"):
        loaded.of_rank(3)


def test_another_rank_is_put_in_front() -> None:
    report = stored("quiet-1")
    ranks = tuple(replace(report.processes[0], name=f"rank {rank}", rank=rank) for rank in range(3))
    loaded = LoadedReport(replace(report, processes=ranks)).of_rank(2)
    assert [process.rank for process in loaded.report.processes] == [2, 0, 1]


def test_two_runs_are_compared() -> None:
    before, after = (steptime.load(REPORTS / f"{name}.json") for name in ("quiet-1", "quiet-2"))
    change = before.compare(after)
    assert change.to_dict("differences")["name"][0] == "step"
    assert str(change).startswith("No difference found")
    with pytest.raises(UsageError, match="compare-two"):
        before.compare()


def test_a_comparison_that_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(as_json(busy()), encoding="utf-8")
    loaded = steptime.load(path)
    assert isinstance(loaded, LoadedComparison)
    assert loaded.comparison == busy()
    path.write_text(as_json(busy()).replace('"step"', '"stop"'), encoding="utf-8")
    with pytest.raises(RecordingError, match=r"\(report-unreadable\)"):
        steptime.load(path)


def test_a_compact_report_says_what_to_load_instead(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json_of(stored("quiet-1")), encoding="utf-8")
    with pytest.raises(RecordingError, match="--full"):
        steptime.load(path)


def displayed(loaded: Loaded) -> Elements:
    elements = Elements(loaded._repr_html_())
    assert set(elements.tags) <= {"div", "b", "code", "table", "tr", "th", "td"}
    assert {name for name, _ in elements.attributes} <= {"style"}
    assert elements.open == 0
    return elements


def test_a_trial_is_loaded_and_displayed(tmp_path: Path) -> None:
    variant = Variant("RM101", (), "RM101", "num_workers=<script>")
    speed = Estimate(2.9, 2.7, 3.1, 4, "1")
    judgement = Judgement(variant, TrialVerdict.ADOPT, Agreement.SAME_BITS, "Losses are equal", speed, 1.02, 35e6, 4)
    append_result(tmp_path, plan=Plan(("python", "train.py"), "/job", "runs/a", (variant,), 0.03))
    append_result(tmp_path, stage=0, judgement=judgement)
    loaded = steptime.load(tmp_path)
    assert isinstance(loaded, LoadedTrial)
    assert loaded.to_dict("variants")["verdict"] == ["adopt"]
    assert "<script>" in displayed(loaded).text


def test_a_comparison_is_displayed_and_strangers_strings_are_text() -> None:
    assert busy().sentence in displayed(LoadedComparison(busy())).text
    rendered = LoadedComparison(hostile())._repr_html_()
    assert "<script" not in rendered
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", rendered)


def test_a_snapshot_is_loaded_and_displayed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    allocator = Allocator()
    train(allocator, 3)
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    loaded = steptime.load(path)
    assert isinstance(loaded, LoadedMemory)
    assert loaded.to_dict("owners-0")["bytes"][0]
    assert "By owner" in displayed(loaded).text
