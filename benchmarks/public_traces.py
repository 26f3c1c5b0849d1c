"""Fetches the public traces of benchmarks/results/public-traces.md and diagnoses each, next to what is written down.

`python -m benchmarks.public_traces FOLDER` takes the files listed in public_traces.csv, some 60 MB, from GitHub
at the commits named there, unless they lie in FOLDER/OWNER/NAME/PATH already. Ends with 1 where a bottleneck or a first
finding is another than in the list; `--write` makes the list anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.started import JobFailed, steptime

LIST = Path(__file__).with_suffix(".csv")
RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """A file of a repository at a commit. bottleneck: the category that binds; finding: the code of the first one, ""
    for none."""

    repository: str
    commit: str
    path: str
    bottleneck: str = ""
    finding: str = ""


def listed(file: Path = LIST) -> list[PublicTrace]:
    with file.open(newline="", encoding="utf-8") as lines:
        return [PublicTrace(**row) for row in csv.DictReader(lines)]


def write(traces: Iterable[PublicTrace], file: Path = LIST) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        table = csv.DictWriter(lines, [each.name for each in fields(PublicTrace)], lineterminator="\n")
        table.writeheader()
        table.writerows(map(asdict, traces))


def fetched(traces: Iterable[PublicTrace], folder: Path) -> Iterator[tuple[PublicTrace, Path]]:
    """Each trace and its file, fetched unless it is there. Raises OSError."""
    for trace in traces:
        file = folder / trace.repository / trace.path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f"{file.name}.part")
            urllib.request.urlretrieve(f"{RAW}/{trace.repository}/{trace.commit}/{trace.path}", part)
            part.rename(file)
        yield trace, file


def diagnosed(trace: PublicTrace, file: Path) -> tuple[PublicTrace, str]:
    """The trace with what steptime says of it today, and the headline. Raises JobFailed."""
    report = json.loads(steptime("diagnose", "--no-cache", "--json", str(file)))
    first = next((each["code"] for each in report["findings"] if each["weight"] == "finding"), "")
    return replace(trace, bottleneck=report["bottleneck"], finding=first), report["headline"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found, others = [], 0
    for written, file in fetched(listed(), options.folder):
        try:
            reported, headline = diagnosed(written, file)
        except JobFailed as error:
            reported, headline = replace(written, bottleneck="", finding="refused"), str(error)
        found.append(reported)
        others += reported != written
        mark = " " if reported == written else f"! {written.bottleneck} {written.finding}"
        print(
            f"{written.repository} {written.path}\n  {reported.bottleneck} {reported.finding} {mark} {headline}",
            flush=True,
        )
    if options.write:
        write(found)
    print(f"{len(found)} traces, {others} other than written down")
    return int(others > 0 and not options.write)


if __name__ == "__main__":
    sys.exit(main())
