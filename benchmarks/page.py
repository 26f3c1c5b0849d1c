"""What a page of 50,000 events costs: to write, to open, and to move about in.

    python -m benchmarks.page TRACE [--megabytes 100] [--rounds 15] [--vega FOLDER] [--name MACHINE]

TRACE, made longer (see large_trace.py), is read and diagnosed; several of its steps together, until they have 50,000
events, take the place of the page's one step. Chromium opens that page, the one of TRACE itself, which carries it
whole, and an empty one in turns; first paint is the browser's own `first-contentful-paint`. --vega names a folder with
vega, vega-lite and vega-embed from npm: then a further page, which inlines their bundles and draws an empty chart, is
opened in turns, too. --name writes the figures to results/page-MACHINE.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from benchmarks.large_trace import repeat
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.trace_steps import find_steps
from steptime.diagnosis import diagnose_paths, diagnose_traces
from steptime.report.page import page
from steptime.report.report import Report
from steptime.report.step_view import MOST_EVENTS, cut
from steptime.trace.gather import gather
from steptime.trace.reader import DEFAULT_MAX_SIZE
from steptime.trace.table import Trace
from steptime.trace.windows import read_rank

RESULTS = Path(__file__).parent / "results"
HEAD = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>empty</title></head><body><p>empty</p>'
OURS = "page of 50,000 events"
WHOLE = "page with its whole trace"
EMPTY = f"{HEAD}</body></html>"
VEGA = """<div id="chart"></div><script>{bundles}</script>
<script>vegaEmbed("#chart", {{"mark": "point", "data": {{"values": []}}}});</script></body></html>"""
LIMIT = "The limit for first paint is 1.5× an empty page with Vega's bundles, which pages of charts usually carry."
BUNDLES = ("vega/build/vega.min.js", "vega-lite/build/vega-lite.min.js", "vega-embed/build/vega-embed.min.js")
FIRST_PAINT = """() => new Promise((resolve) => {
  const seen = () => performance.getEntriesByName("first-contentful-paint")[0];
  const look = () => (seen() ? resolve(seen().startTime) : setTimeout(look, 2));
  look();
})"""
FRAMES = """() => new Promise((resolve) => {
  const canvas = document.getElementById("lanes-canvas");
  canvas.scrollIntoView();
  canvas.focus();
  const keys = [..."+dd++a-d--+++++dd-----"];
  const spent = [];
  const turn = (left) => {
    if (!left.length) { resolve(spent); return; }
    const begin = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: left[0], bubbles: true }));
    requestAnimationFrame(() => setTimeout(() => { spent.push(performance.now() - begin); turn(left.slice(1)); }, 0));
  };
  turn(keys);
})"""
"""Milliseconds from a key to the frame that answers it."""


def spent(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and its seconds of CPU."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def of_many_events(report: Report, trace: Trace) -> Report:
    """The report with so many steps in its timeline that MOST_EVENTS events are seen."""
    steps = step_context(trace, find_steps(trace).boundaries)
    boundaries, windows = steps.boundaries, steps.windows
    for count in range(1, len(boundaries) + 1):
        host = int(boundaries[0, 0]), int(boundaries[count - 1, 1])
        device = int(windows[0, 0]), int(windows[count - 1, 1])
        inside = (trace.events.start >= host[0]) & (trace.events.start < host[1])
        if inside.sum() >= 1.05 * MOST_EVENTS or count == len(boundaries):
            break
    step_view = cut(StepContext(trace, np.array([host]), np.array([device])), 0, 0, f"{count} steps together")
    return replace(report, processes=(replace(report.processes[0], step_view=step_view),))


def first_paints(pages: dict[str, Path], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Milliseconds by page, and of the frames of the first one."""
    found: dict[str, list[float]] = {name: [] for name in pages}
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for turn in range(rounds + 1):
            for name, path in pages.items():
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                sheet = context.new_page()
                sheet.goto(path.as_uri())
                paint = sheet.evaluate(FIRST_PAINT)
                if turn:  # the first round is the browser's own
                    found[name].append(paint)
                context.close()
        sheet = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        sheet.goto(next(iter(pages.values())).as_uri())
        sheet.wait_for_selector("#lanes-canvas[data-begin]")
        frames = sheet.evaluate(FRAMES)
        browser.close()
    return found, frames


def reported(values: list[float], unit: str) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.1f} {unit} ({min(values):.1f} to {max(values):.1f})"


def _carried(text: str) -> str:
    return "with all of it" if 'id="trace-0"' in text else "without the trace, which has no room"


def measure(source: Path, megabytes: int, rounds: int, vega: Path | None, folder: Path) -> list[str]:
    """All figures, as lines of Markdown."""
    large = folder / "large.pt.trace.json"
    repeat(source, large, megabytes * 10**6)
    rank = gather([str(large)], max_size=DEFAULT_MAX_SIZE).ranks[0]
    trace, reading = spent(lambda: read_rank(rank, max_size=DEFAULT_MAX_SIZE, cache=False))
    report, diagnosing = spent(lambda: diagnose_traces([trace], "large"))
    ordinary, writing = spent(lambda: page.render(report))
    many = of_many_events(report, trace)
    text = page.render(many)
    step_view = many.processes[0].step_view
    whole = page.render(diagnose_paths((str(source),), cache=False))
    pages = {OURS: folder / "page.html", WHOLE: folder / "whole.html", "empty page": folder / "empty.html"}
    pages[OURS].write_text(text, encoding="utf-8")
    pages[WHOLE].write_text(whole, encoding="utf-8")
    pages["empty page"].write_text(EMPTY, encoding="utf-8")
    if vega is not None:
        bundles = "\n".join((vega / name).read_text(encoding="utf-8") for name in BUNDLES)
        pages["empty Vega page"] = folder / "vega.html"
        pages["empty Vega page"].write_text(HEAD + VEGA.format(bundles=bundles), encoding="utf-8")
    paints, frames = first_paints(pages, rounds)
    base = {name: statistics.median(values) for name, values in paints.items()}
    lines = [
        f"Trace: {large.stat().st_size / 1e6:.0f} MB, {len(trace.events):,} events.",
        "", "| | |", "| --- | --- |",
        f"| read | {reading:.2f} s CPU |",
        f"| diagnose, timeline included | {diagnosing:.2f} s CPU |",
        f"| write the page | {writing:.2f} s CPU |",
        f"| report beyond loading | {diagnosing + writing:.2f} s CPU (limit 3) |",
        f"| ordinary page | {len(ordinary.encode()) / 1e6:.2f} MB (limit 2.5) |",
        f"| page of {step_view.events if step_view else 0:,} events | {len(text.encode()) / 1e6:.2f} MB (limit 2.5) |",
        f"| page of `{source.name}`, {_carried(whole)} | {len(whole.encode()) / 1e6:.2f} MB (limit 2.5) |",
        *(f"| first paint, {name} | {reported(values, 'ms')} |" for name, values in paints.items()),
        *(f"| {ours} against the {name} | {base[ours] / value:.2f}× |"
          for ours in (OURS, WHOLE) for name, value in base.items() if name not in (OURS, WHOLE)),
        f"| from a key to its frame, {step_view.events if step_view else 0:,} events | {reported(frames, 'ms')}, "
        f"9 in 10 below {np.percentile(frames, 90):.1f} ms |",
    ]  # fmt: skip
    return lines


def main() -> None:
    """Prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vega", type=Path, metavar="FOLDER", help="node_modules with vega, vega-lite, vega-embed")
    parser.add_argument("--name", metavar="MACHINE", help="of the results that are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(options.trace, options.megabytes, options.rounds, options.vega, Path(folder))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    versions = f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}, {load}"
    made = f"{versions}; made by `python -m benchmarks.page` from `{options.trace.name}`. Medians, lowest and highest."
    text = "\n".join([made, "", *lines, "", LIMIT, ""])
    print(text)
    if options.name is not None:
        (RESULTS / f"page-{options.name}.md").write_text(f"# The page\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
