"""Reader of Nsight Compute's kernel measurements: the details page as CSV (`ncu --csv`, `ncu --import report.ncu-rep
--csv`).

A row is one metric of one launch, or the result of one of ncu's rules for it. Versions differ in columns (a launch's
grid is a column or a metric) and in metric names, of which each metric has two. Kernel names differ from a trace's:
newer versions omit namespaces, and all write "T1" where a trace repeats the type.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import TextIO

from steptime.errors import UsageError, no_such_file

NAME, VALUE = "Kernel Name", "Metric Value"
EXPECTED = "Expected the details page: ncu --import report.ncu-rep --csv > kernels.csv"
HEAD = 400
"""Most lines before the header: messages of ncu and of the job."""
MOST_FILES, MOST_LINES, LONGEST_LINE = 4_000, 20_000_000, 1 << 20
MOST_COMPANIONS = 50
"""Most files next to a trace that are checked without being asked for."""
METRICS = {
    "occupancy": ("Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    "possible": ("Theoretical Occupancy", "sm__maximum_warps_per_active_cycle_pct"),
    "memory": ("Memory Throughput", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    "dram": (
        "DRAM Throughput",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "compute": ("Compute (SM) Throughput", "SM Throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
}
"""Fields of `KernelCounters` in percent, with ncu's names for them."""
LIMITS = {
    "Block Limit Registers": "registers",
    "Block Limit Shared Mem": "shared memory",
    "Block Limit Barriers": "barriers",
    "Block Limit Warps": "warps of a block",
    "Block Limit SM": "blocks of a multiprocessor",
}
STALL = re.compile(
    r"being stalled (?:waiting )?(?:for |on )?(?P<on>[^.]+)\..*represents about (?P<share>[\d.,]+)%", re.DOTALL
)
"""Text of the rule CPIStall."""


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """Mean counters over the launches of one kernel with one grid. Fractions are 0 to 1, None if not measured.
    occupancy: active warps of a multiprocessor, relative to its maximum. possible: the occupancy that the kernel's
    resources allow; limit: the resource that limits it, "" for none. memory: use of the busiest part of the path to
    memory; dram: use of DRAM's throughput; compute: use of the busiest pipeline. stall: main reason that warps wait, in
    ncu's words; stalled: its fraction of the cycles between two instructions of a warp."""

    launches: int
    occupancy: float | None = None
    possible: float | None = None
    limit: str = ""
    memory: float | None = None
    dram: float | None = None
    compute: float | None = None
    stall: str = ""
    stalled: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Counters of one kernel with one grid. blocks: number of blocks in the grid, 0 if unknown."""

    name: str
    blocks: int
    counters: KernelCounters


@dataclass(slots=True)
class _Launch:
    name: str
    blocks: int = 0
    values: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)

    def take(self, row: Mapping[str, str]) -> None:
        metric, value = row.get("Metric Name", ""), number(row.get(VALUE, ""))
        if metric == "Grid Size" and value is not None:
            self.blocks = self.blocks or round(value)
        elif metric in LIMITS and value is not None:
            self.limits[LIMITS[metric]] = value
        elif row.get("Metric Unit") == "%" and value is not None:
            self.values |= {name: value / 100 for name, names in METRICS.items() if metric in names}
        elif row.get("Rule Name") == "CPIStall" and (found := STALL.search(row.get("Rule Description", ""))):
            self.stalls[found["on"]] = (number(found["share"]) or 0.0) / 100


def find_counters(path: Path) -> tuple[Path, ...]:
    """Files of Nsight Compute that lie next to a trace or a recording."""
    folder = path if path.is_dir() else path.parent
    return tuple(file for file in islice(sorted(folder.glob("*.csv")), MOST_COMPANIONS) if _header(file))


def counter_files(given: Path) -> tuple[Path, ...]:
    """Files of Nsight Compute at a path, a file or a folder. Raises UsageError (no-counters) if there are none."""
    if not given.exists():
        raise no_such_file(given, "a CSV of Nsight Compute (ncu --csv), or a folder of them", UsageError)
    files = islice(sorted(given.rglob("*.csv")), MOST_FILES) if given.is_dir() else [given]
    found = tuple(file for file in files if _header(file))
    if found:
        return found
    if given.suffix == ".ncu-rep":
        seen = f"{given} is a report of Nsight Compute, which only ncu reads: ncu --import {given} --csv > kernels.csv"
        raise UsageError("no-counters", seen)
    seen = (
        "contains no CSV of Nsight Compute"
        if given.is_dir()
        else f'has no line with the columns "{NAME}" and "{VALUE}"'
    )
    raise UsageError("no-counters", f"{given} {seen}. {EXPECTED}")


def read_counters(files: Iterable[Path]) -> tuple[MeasuredKernel, ...]:
    """Counters of all kernels in these files, by name and grid; a launch that several files contain counts once."""
    launches: dict[tuple[str, str, str, str], _Launch] = {}
    for file in files:
        for row in _rows(file):
            key = (row.get("Process ID", ""), row.get("ID", ""), row[NAME], row.get("Grid Size", ""))
            launch = launches.setdefault(key, _Launch(row[NAME], _blocks(row.get("Grid Size", ""))))
            launch.take(row)
    alike = defaultdict[tuple[str, int], list[_Launch]](list)
    for launch in launches.values():
        alike[launch.name, launch.blocks].append(launch)
    return tuple(MeasuredKernel(name, blocks, _together(same)) for (name, blocks), same in alike.items())


def _together(same: Sequence[_Launch]) -> KernelCounters:
    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(sum(known) / len(known), 6) if known else None

    shares = {name: mean(launch.values.get(name) for launch in same) for name in METRICS}
    waits = {wait for launch in same for wait in launch.stalls}
    stalls = {wait: sum(launch.stalls.get(wait, 0.0) for launch in same) / len(same) for wait in waits}
    stall = max(sorted(stalls), key=lambda wait: stalls[wait], default="")
    least = min(same[0].limits.values(), default=0.0)
    binding = [name for name, limit in same[0].limits.items() if limit == least]
    limit = " and ".join(binding) if (shares["possible"] or 1.0) < 1 else ""
    return KernelCounters(len(same), limit=limit, stall=stall, stalled=stalls.get(stall), **shares)


def number(text: str) -> float | None:
    """Number that ncu wrote in a localized format: 1,024 and 4,963,609,951.19, 61.84 and 61,84; None for other text."""
    text = text.strip()
    if text.count(",") > 1 or ("." in text and text.find(",") < text.find(".")) or re.fullmatch(r"\d{1,3},\d{3}", text):
        text = text.replace(",", "")
    elif "," in text:
        text = text.replace(".", "").replace(",", ".")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _blocks(grid: str) -> int:
    """Number of blocks in a grid such as "(224, 1, 1)"."""
    sides = [int(side) for side in re.findall(r"\d{1,10}", grid)]
    return min(prod(sides), 1 << 60) if sides else 0


def _header(file: Path) -> list[str]:
    """Names of the columns; empty if the file is no details page of ncu."""
    if not file.is_file():
        return []
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            return next(
                (cells for cells in map(_cells, islice(_lines(lines), HEAD)) if {NAME, VALUE} <= set(cells)), []
            )
    except OSError:
        return []


def _rows(file: Path) -> Iterator[dict[str, str]]:
    """Yields the rows after the header, skipping the job's output between them. Raises UsageError."""
    columns = _header(file)
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            for cells in map(_cells, islice(_lines(lines), MOST_LINES)):
                if NAME not in cells and len(cells) > columns.index(VALUE):
                    yield dict(zip(columns, cells, strict=False))
    except OSError as error:
        raise UsageError("no-counters", f"{file} cannot be read: {error.strerror or error}.") from error


def _lines(file: TextIO) -> Iterator[str]:
    """Yields the file's lines, long ones in pieces, since a file without line ends must not fill the memory."""
    return iter(lambda: file.readline(LONGEST_LINE), "")


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), []) if line.startswith('"') else []
    except csv.Error:
        return []
