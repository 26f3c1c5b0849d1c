"""The main pictures as SVG and PNG: well-formed, with the report's numbers, and strangers' strings as text."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report.report_variants import HOSTILE, of_kernels, with_hostile_strings
from report.stored_reports import stored

from steptime.answer import output
from steptime.answer.page import card
from steptime.cli.options import REPORT_FORMATS
from steptime.errors import OutputError
from steptime.report.answer import answer_of
from steptime.report.page import pictures
from steptime.report.page.charts import roofline_chart, series
from steptime.report.page.waterfall import waterfall
from steptime.report.report import Report

NAMESPACE = "{http://www.w3.org/2000/svg}"


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{NAMESPACE}text")]


def parsed(report: Report) -> ElementTree.Element:
    return ElementTree.fromstring(pictures.render_svg(report))


def test_all_three_pictures_are_there_with_their_numbers() -> None:
    report = of_kernels(stored("quiet-1"))
    process = report.processes[0]
    root = parsed(report)
    reported = words(root)
    fall, every, roof = waterfall(process.case), series(process), roofline_chart(process.case)
    assert fall is not None
    assert every is not None
    assert roof is not None
    for each in fall.falls:
        assert {each.name, each.duration, each.share} <= set(reported)
    assert fall.duration in reported
    assert any(every.mean_words in text for text in reported)
    marks = [path for path in root.iter(f"{NAMESPACE}path") if path.get("fill-opacity") == "0.6"]
    assert len(marks) == len(roof.points)
    assert process.verdict.sentence in " ".join(reported)


def test_everything_lies_inside_the_image() -> None:
    root = parsed(of_kernels(stored("quiet-1")))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for text in root.iter(f"{NAMESPACE}text"):
        assert 0 <= float(text.get("x", 0)) <= width
        assert 0 < float(text.get("y", 0)) <= height


def test_what_is_missing_leaves_no_hole(report: Report) -> None:
    from dataclasses import replace

    process = replace(report.processes[0], step_ns=(), steady=())
    without = replace(report, processes=(process,))
    assert float(parsed(without).get("height", 0)) < float(parsed(report).get("height", 0))


def test_strings_of_strangers_are_text() -> None:
    root = parsed(with_hostile_strings(of_kernels(stored("quiet-1"))))
    names = {element.tag.removeprefix(NAMESPACE) for element in root.iter()}
    assert names <= {"svg", "title", "defs", "pattern", "rect", "text", "tspan", "line", "path"}
    assert not any(name.startswith("on") or "href" in name for element in root.iter() for name in element.attrib)
    assert any(HOSTILE[0][:20] in text for text in words(root))


def test_a_png_is_drawn_twice_as_sharp(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    if not any(Path(folder).expanduser().is_dir() for folder in card.FONTS):
        pytest.skip("no fonts on this system")
    report = stored("quiet-1")
    path = tmp_path / "report.png"
    output.write(answer_of(report), str(path), REPORT_FORMATS, force=False)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    root = parsed(report)
    expected = tuple(round(2 * float(root.get(side, 0))) for side in ("width", "height"))
    assert struct.unpack(">II", data[16:24]) == expected
    assert len(data) > 20_000  # words and bars, not white


def test_without_the_extra_a_png_is_refused_before_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(output, "find_spec", lambda _: None)
    with pytest.raises(OutputError, match=r"pip install 'steptime\[images\]'.*\(images-missing\)"):
        output.check(str(tmp_path / "report.png"), REPORT_FORMATS, force=False)
    output.check(str(tmp_path / "report.svg"), REPORT_FORMATS, force=False)


def test_without_a_font_a_png_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr(card, "FONTS", (str(tmp_path),))
    with pytest.raises(OutputError, match="images-no-fonts"):
        pictures.render_png(stored("quiet-1"))
