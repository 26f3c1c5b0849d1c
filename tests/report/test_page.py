"""The page: one file, its numbers, and strangers' strings that stay text."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json as standard_json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from report.report_variants import HOSTILE, of_kernels, with_hostile_strings

from steptime.advice.device_uses import RankUse
from steptime.advice.engine import all_rules
from steptime.advice.evidence import Case
from steptime.analysis.roofline import KernelUse
from steptime.analysis.stragglers.comparison import Straggler
from steptime.answer.page.axes import decades, even_ticks
from steptime.diagnosis import diagnose_paths
from steptime.quantities import Estimate
from steptime.report import json
from steptime.report.page import page
from steptime.report.page.charts import roofline_chart, series
from steptime.report.page.ranks import heat_map
from steptime.report.page.waterfall import waterfall
from steptime.report.report import Report
from steptime.report.tables import case_tables

BUDGET = 2_500_000
"""Bytes of an ordinary page."""


class Elements(html.parser.HTMLParser):
    """What a browser would make of the page: elements with attributes, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, str] = {}
        self.text = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attributes}))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            kind = dict(self.found[-1][1]).get("type", self.inside)
            self.raw[kind] = self.raw.get(kind, "") + data
        else:
            self.text += data.replace("\u00a0", " ")


def test_a_page_is_one_file_that_points_nowhere(report: Report) -> None:
    elements = Elements(page.render(report))
    loaders = {"link", "img", "iframe", "object", "embed", "base", "form", "video", "audio", "source", "meta"}
    for tag, attributes in elements.found:
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            value = attributes.get(name, "#")
            assert value.startswith("#") or (tag == "link" and value == "data:,"), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")], attributes
        assert "style" not in attributes, "the page's own policy would refuse it"
        assert tag not in loaders - {"link", "meta"}
    assert "@import" not in elements.raw["style"]
    assert "url(" not in elements.raw["style"]


def test_the_policy_lets_our_script_and_style_in_and_nothing_else(report: Report) -> None:
    elements = Elements(page.render(report))
    policy = next(each["content"] for _, each in elements.found if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(elements.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_carries_the_whole_report(report: Report) -> None:
    elements = Elements(page.render(report))
    assert json.read(elements.raw["application/json"].encode(), "page") == report


def test_a_reader_finds_everything_that_is_known(report: Report) -> None:
    text = Elements(page.render(report)).text
    process = report.processes[0]
    for finding in process.findings:
        assert finding.summary in text
        assert finding.advice in text
    for part in (process.verdict.sentence, "96.2 ms", "train.py:88", "aten::conv2d", "evaluation", "no device trace"):
        assert part in text
    for part in (
        "2.13.0+cpu",
        "120 ms once",
        "trace 2 is cut",
        "steptime explain ST102",
        "the first 3 steps are warm-up",
    ):
        assert part in text


def test_every_finding_folds_out_to_the_page_of_its_rule(report: Report) -> None:
    rules = {rule.code: rule for rule in all_rules()[0]}
    text = " ".join(Elements(page.render(report)).text.split())
    for finding in report.processes[0].findings:
        for heading, paragraphs in rules[finding.code].page.sections:
            assert heading in text
            assert " ".join(paragraphs.replace("`", "").split())[:80] in text


def test_strangers_strings_make_no_element_and_no_attribute(report: Report) -> None:
    hostile = with_hostile_strings(report)
    elements = Elements(page.render(hostile))
    names = {tag for tag, _ in elements.found}
    assert "img" not in names
    assert sum(tag == "script" for tag, _ in elements.found) == 2
    for _, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes.get("href", "#").startswith("javascript")
    for text in HOSTILE[:5]:
        assert text in elements.text
    assert "\x1b" not in elements.text
    assert "\u202e" not in elements.text
    data = elements.raw["application/json"]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert standard_json.loads(data)["next_command"] == HOSTILE[0]


def test_long_names_and_names_that_are_no_unicode_do_no_harm(report: Report) -> None:
    process = report.processes[0]
    kernel = KernelUse("k" * 10_000, "o" * 10_000, 1.0, 1e6, "memory", "s" * 10_000)
    case = replace(process.case, kernels=(kernel,) * 50)
    text = page.render(replace(report, source="runs/\udcff", processes=(replace(process, case=case),)))
    assert "runs/\\udcff" in text
    assert text.encode()
    assert len(text) < BUDGET


def test_the_waterfall_falls_from_the_measured_step_to_the_floor(report: Report) -> None:
    fall = waterfall(report.processes[0].case)
    assert fall is not None
    blocks = [(each.start, each.start + each.kept + each.recoverable) for each in fall.falls]
    ends = [start for start, _ in blocks]
    assert [end for _, end in blocks] == pytest.approx([fall.measured, *ends[:-1]])
    assert ends[-1] == pytest.approx(0, abs=1e-9)
    wait = next(each for each in fall.falls if each.name == "input")
    assert (wait.kept, wait.duration, wait.saving) == (0, "68 ms", "68 ms")
    assert wait.recoverable / fall.measured == pytest.approx(68.0 / 96.2)
    assert fall.remainder_words == "28.2 ms"
    assert sum(part.width for part in fall.remainder) / fall.measured == pytest.approx(28.2 / 96.2)


def test_the_series_shows_every_step_and_what_it_was(report: Report) -> None:
    steps = (900_000_000, *[96_000_000] * 78, 140_000_000)
    process = replace(report.processes[0], step_ns=steps, steady=(False, *[True] * 78, False))
    process = replace(process, case=replace(process.case, step=replace(process.case.step, warm_up=1)))
    displayed = series(process)
    assert displayed is not None
    kinds = [bar.kind for bar in displayed.bars]
    assert (*map(kinds.count, ("warm-up", "steady", "excluded")), displayed.cut) == (1, 78, 1, 2)
    assert len(displayed.bars) == len(steps)
    assert (displayed.bars[0].kind, displayed.bars[0].cut, displayed.bars[0].height) == ("warm-up", True, 100)
    assert displayed.bars[5].height / displayed.mean == pytest.approx(96.0 / 96.2)


def test_steps_that_took_no_time_have_bars_without_a_height(report: Report) -> None:
    process = report.processes[0]
    nothing = replace(process.case.step.duration, value=0.0, low=0.0, high=0.0)
    case = replace(process.case, step=replace(process.case.step, duration=nothing))
    displayed = series(replace(process, case=case, step_ns=(0, 0, 0), steady=(True,) * 3))
    assert displayed is not None
    assert [bar.height for bar in displayed.bars] == [0, 0, 0]


def test_thousands_of_steps_share_bars_and_lose_no_slow_one(report: Report) -> None:
    steps = [1_000_000] * 10_000
    steps[7_777] = 1_200_000
    process = replace(report.processes[0], step_ns=tuple(steps), steady=(True,) * 10_000)
    displayed = series(process)
    assert displayed is not None
    assert len(displayed.bars) <= 400
    assert [bar.slowest for bar in displayed.bars if bar.peak > bar.height] == [7_777]
    assert (displayed.bars[0].first, displayed.bars[-1].last) == (0, 9_999)


def test_points_lie_where_their_figures_put_them(report: Report) -> None:
    chart = roofline_chart(of_kernels(report).processes[0].case)
    assert chart is not None
    assert [point.name for point in chart.points] == ["gemm", "relu"], "what has no model has no place"
    matrix, pointwise = chart.points
    across, up = decades([50.0, 0.1, 10.0, 20.0]), decades([5e12, 4e10, 1.3e13])
    assert matrix.x == pytest.approx(across.place(50.0))
    assert matrix.y == pytest.approx(100 - up.place(5e12))
    assert pointwise.radius / matrix.radius == pytest.approx(0.5)
    roof, slope = chart.peaks
    assert roof.words == "float32 10 TFLOP/s"
    assert slope.words == "1 TB/s"
    assert (roof.x1, roof.y1) == pytest.approx((slope.x2, slope.y2)), "the roof starts at the ridge"
    assert "[[64, 64]]" in " ".join(matrix.lines)


def test_points_without_a_peak_say_what_is_missing(report: Report) -> None:
    case = of_kernels(report).processes[0].case
    kernels = tuple(replace(use, bound="unmodelled") for use in case.kernels)
    chart = roofline_chart(replace(case, kernels=kernels, machine=None, step=replace(case.step, device="cpu")))
    assert chart is not None
    assert chart.bounds == ("no peak known",)
    assert chart.peaks == ()
    assert "steptime run" in chart.source
    assert "model" not in " ".join(chart.points[0].lines)


def test_tables_have_texts_and_raw_values(report: Report) -> None:
    kernels = next(table for table in case_tables(of_kernels(report).processes[0].case) if table.identity == "kernels")
    column = [heading.raw for heading in kernels.columns].index("duration_ns")
    assert [(row[column].text, row[column].value, row[column].bar) for row in kernels.rows] == [
        ("1 ms", 1e6, 100.0),
        ("250 µs", 25e4, 25.0),
        ("250 µs", 25e4, 25.0),
    ]


def test_several_ranks_make_a_heat_map_with_the_late_one_marked(report: Report) -> None:
    ranks = tuple(
        RankUse(rank, 96e6, 40e6, 1e6 if rank == 3 else 30e6, 0.94 if rank == 3 else 0.02) for rank in range(4)
    )
    straggler = Straggler((3,), "", 30e6, 0.94, "", 0.0, (), Estimate(29e6, 28e6, 30e6, 5))
    case = replace(report.processes[0].case, ranks=ranks, straggler=straggler)
    processes = tuple(
        replace(report.processes[0], name=f"rank {rank}", rank=rank, case=replace(case, rank=rank))
        for rank in (3, 0, 1, 2)
    )
    heat = heat_map(replace(report, processes=processes))
    assert heat is not None
    assert [(row.name, row.late) for row in heat.rows] == [(f"rank {rank}", rank == 3) for rank in range(4)]
    text = Elements(page.render(replace(report, processes=processes))).text
    assert "straggler: the other ranks wait for it" in text
    assert heat_map(report) is None


def test_a_line_does_not_end_before_a_unit(report: Report) -> None:
    process = report.processes[0]
    reported = replace(
        process, verdict=replace(process.verdict, sentence="Computing: 8.5 ms of 10 s per step (4.5 %).")
    )
    text = page.render(replace(report, processes=(reported,)))
    assert "Computing: 8.5\u00a0ms of 10\u00a0s per step (4.5\u00a0%).</h1>" in text


def test_what_the_headline_says_is_not_reported_again(report: Report) -> None:
    process = report.processes[0]
    message = process.findings[1].summary
    reported = replace(process, verdict=replace(process.verdict, sentence=f"{message}, at train.py:88."))
    assert Elements(page.render(replace(report, processes=(reported,)))).text.count(message) == 1


def test_a_case_with_nothing_but_a_step_makes_a_page(report: Report) -> None:
    process = report.processes[0]
    bare = replace(process, case=Case(process.case.step), findings=(), step_ns=(), steady=(), notes=(), cost=None)
    text = Elements(page.render(replace(report, processes=(bare,), problems=()))).text
    assert "No breakdown of the step" in text
    assert process.verdict.sentence in text


@pytest.mark.parametrize(("highest", "words"), [(185e6, "50 ms"), (3.0, "1 ns"), (61e9, "20 s")])
def test_ticks_are_round_numbers(highest: float, words: str) -> None:
    ticks = even_ticks(highest)
    assert ticks[0].words == "0"
    assert words in [tick.words for tick in ticks]
    assert all(0 <= tick.place <= 100.001 for tick in ticks)


def test_a_job_of_many_ranks_keeps_to_the_budget(report: Report) -> None:
    process = report.processes[0]
    kernels = tuple(KernelUse(f"kernel_{number}_" * 20, "aten::x", 1.0, 1e3, "memory") for number in range(300))
    case = replace(process.case, kernels=kernels)
    ranks = tuple(replace(process, name=f"rank {rank}", rank=rank, case=case) for rank in range(64))
    text = page.render(replace(report, processes=ranks))
    assert len(text.encode()) < BUDGET
    data = standard_json.loads(Elements(text).raw["application/json"])
    assert len(data["processes"]) == 64
    assert data["processes"][63]["case"]["categories"]


def test_pages_of_real_traces_keep_to_the_budget(shared_data: Path) -> None:
    report = diagnose_paths((str(shared_data / "kineto" / "resnet50_workers0.pt.trace.json.gz"),), cache=False)
    text = page.render(report)
    assert len(text.encode()) < BUDGET
    assert "enumerate(DataLoader)" in Elements(text).text
