"""Whether a rewrite left every number where it was: reports of all kinds, stored before it and made again after it.

    python -m benchmarks.same_reports store FOLDER     # with the old code: makes recordings, too, where FOLDER has none
    python -m benchmarks.same_reports check FOLDER     # with the new code; ends with 1 where a number differs

What is reported on: every trace and snapshot next to the project (../shared/data, or $STEPTIME_DATA), and recordings of
a plain job, of two ranks, of a search for a NaN and of a trial, a comparison and a history. Compared are the numbers of
the text in their order, and the numbers of the JSON whatever their names; `--words` shows the lines whose words differ.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("STEPTIME_DATA", ROOT.parent / "shared" / "data"))
STEPTIME = (sys.executable, "-m", "steptime")
RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ZOO = ROOT / "tests" / "capture" / "zoo"
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:[.,]\d+)*")
MOST_DISPLAYED = 20


def main() -> None:
    options = arguments()
    if options.do == "store":
        record(options.folder / "recordings")
    differing = 0
    for name, words in questions(options.folder / "recordings"):
        for form in ("text", "json"):
            answer = asked([*words, "--json", "--full"] if form == "json" else words)
            place = options.folder / "reports" / f"{name}.{form}"
            if options.do == "store":
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(answer, encoding="utf-8")
            else:
                differing += reported(place, place.read_text(encoding="utf-8"), answer, options.words)
    print(f"{differing} reports with other numbers" if options.do == "check" else f"stored in {options.folder}")
    sys.exit(1 if differing else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("do", choices=("store", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--words", action="store_true", help="show the lines of texts that differ, in words or numbers")
    return parser.parse_args()


def record(folder: Path) -> None:
    """Makes the recordings that are missing."""
    jobs: dict[str, Sequence[str]] = {
        "plain": ("run", "--", sys.executable, str(ROOT / "examples" / "slow_input.py")),
        "again": ("run", "--", sys.executable, str(ROOT / "examples" / "slow_input.py")),
        "ranks": ("run", "--", *RANKS, str(ZOO / "distributed.py")),
        "evaluation": ("run", "--", sys.executable, str(ZOO / "loader_schedule_eval.py")),
        "nan": ("nan", "--", sys.executable, str(ROOT / "tests" / "numerics" / "jobs" / "planted.py"), "square_root"),
    }
    for name, (verb, *words) in jobs.items():
        if not (folder / name).exists():
            asked([verb, "--recording", str(folder / name), *words])
    if not list(folder.glob("*-try-*")):
        asked(["try", "--budget", "2m", str(folder / "plain")])


def questions(recordings: Path) -> Iterator[tuple[str, list[str]]]:
    """The name of each report, and the command line that makes it."""
    for path in sorted(DATA.rglob("*.json*")):
        if path.name != "expected.json":
            yield f"traces/{path.relative_to(DATA)}", ["diagnose", "--no-cache", str(path)]
    for folder in ("param/dlrm_kineto", "hta/trace_filter"):
        yield f"traces/{folder}", ["diagnose", "--no-cache", str(DATA / folder)]
    for path in sorted(DATA.glob("snapshots/*")):
        yield f"snapshots/{path.name}", ["memory", str(path), "--capacity", "80GiB"]
    for path in sorted(recordings.iterdir()):
        if path.name != "nan":
            yield f"recordings/{path.name}", ["diagnose", str(path)]
    yield "recordings/nan", ["report", str(recordings / "nan")]
    yield "recordings/memory", ["memory", str(recordings / "plain")]
    yield "compare", ["compare", str(recordings / "plain"), str(recordings / "again")]
    yield "history", ["history", str(recordings)]


def asked(words: Sequence[str]) -> str:
    """What the command printed, with its exit status."""
    done = subprocess.run([*STEPTIME, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return f"{done.stdout}\n{done.stderr}\nexit status {done.returncode}\n"


def reported(place: Path, before: str, after: str, words: bool) -> bool:
    """Whether the numbers differ; says which."""
    first, second = numbers_of(before, place.suffix), numbers_of(after, place.suffix)
    if first != second:
        lost, new = Counter(first) - Counter(second), Counter(second) - Counter(first)
        order = "" if lost or new else ": the same ones in another order"
        print(f"{place}{order}")
        print(f"  gone: {list(lost.elements())[:MOST_DISPLAYED]}\n  new:  {list(new.elements())[:MOST_DISPLAYED]}")
    if words and place.suffix == ".text":
        sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(place), n=0))
    return first != second


def numbers_of(answer: str, suffix: str) -> list[str]:
    if suffix == ".text" or not answer.startswith("{"):
        return NUMBER.findall(answer)
    report, _ = json.JSONDecoder().raw_decode(answer)
    return sorted(map(repr, leaves(report)))


def leaves(value: Any) -> Iterator[float | str]:
    """The numbers of a document, and those in its sentences."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, str):
        yield from NUMBER.findall(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


if __name__ == "__main__":
    main()
