"""Groups trace files by rank, from file names and first events alone, and checks that they are of one job.

A rank is one process. Files that torch.profiler's schedule wrote cycle by cycle are several recordings of one rank.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steptime.errors import TraceError, UsageError
from steptime.trace.databases import PROCESSES_AS_RANKS, holds_processes, processes_of, writer_of
from steptime.trace.reader import DEFAULT_MAX_SIZE, peek
from steptime.trace.source import first_bytes
from steptime.trace.table import HOST_CATEGORIES, Trace

RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""Ranks in file names: rank-34, rank0, rank_0, worker3, as HTA, PARAM and many training scripts write them."""
BATCH_IN_NAME = re.compile(r"(?:^|[^a-z])(?:bs|batch(?:[-_]?size)?)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""Batch sizes in file names: bs32, batch_64, batch-size=8."""
ENDINGS = (".json", ".json.gz", ".sqlite")
OF_DATABASES = (".db", ".rpd")
"""Endings that other programs use too: such a file in a folder counts only if a profiler wrote it."""
BELOW = ("*.json", "*.json.gz", "*.sqlite", "*.db", "*.rpd")
MANIFEST = "manifest.json"
"""File that marks a folder as a recording of steptime."""
NAMED_AT_MOST = 3
RANKS_UNKNOWN = (
    "Some traces have no rank, in the file or in its name. Each process counts as one rank, in order of time."
)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Trace files of one process, in order of time. rank: None if unknown. process: number of the process in a database
    that holds several."""

    rank: int | None
    files: tuple[Path, ...]
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Traces that were found, by rank. problems: sentences on what was skipped."""

    ranks: tuple[RankFiles, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Head:
    """Facts from a file's start. process: id of that with most of the first CPU events. guessed: rank by its folder."""

    path: Path
    rank: int | None
    guessed: bool
    world_size: int | None
    process: int | str | None
    start: int


def is_traces(path: str) -> bool:
    """True for an existing file, a pattern, or a folder that may hold traces and is no recording."""
    given = Path(path)
    return bool(_files_in(given)) if given.is_dir() else given.exists() or glob.has_magic(path)


def gather(paths: Sequence[str], *, max_size: int = DEFAULT_MAX_SIZE) -> Gathered:
    """Traces that these files, folders and patterns contain, by rank. A folder represents the traces in it, or, if it
    has none itself, in its sub-folders. Files in a folder or under a pattern that are no traces are skipped and
    reported. Raises TraceError: no-traces, mixed-traces, and any reading error of a file that was given by name."""
    files = [meant for path in paths for meant in _meant(path)]
    if any(holds_processes(file) for file, _ in files):
        return _of_databases([file for file, _ in files], max_size)
    looked_at = [(file, _head_if_trace(file, max_size, named=named)) for file, named in files]
    heads = [head for _, head in looked_at if head is not None]
    passed_over = [file.name for file, head in looked_at if head is None]
    if not heads:
        seen = (
            f"none of {len(passed_over)} files is one, the first is {passed_over[0]}"
            if passed_over
            else "there is no file"
        )
        raise TraceError(
            "no-traces",
            f"No trace of torch.profiler in {', '.join(paths)}: {seen}. Expected .json or .json.gz files of "
            "export_chrome_trace.",
        )
    heads = _doubted(heads)
    _check_one_job(heads)
    ranks = _by_rank(heads)
    problems = []
    if passed_over:
        names = ", ".join(passed_over[:NAMED_AT_MOST]) + (", …" if len(passed_over) > NAMED_AT_MOST else "")
        problems.append(f"{len(passed_over)} of {len(files)} files are not traces and were skipped: {names}.")
    if len(ranks) > 1 and any(rank.rank is None for rank in ranks):
        problems.append(RANKS_UNKNOWN)
    return Gathered(ranks, tuple(problems))


def _of_databases(files: Sequence[Path], max_size: int) -> Gathered:
    """Processes in databases and documents, as ranks. Raises TraceError."""
    other = next((file for file in files if not holds_processes(file)), None)
    if other is not None:
        raise mixed(f"{other} is from another profiler than the other files")
    processes = [(file, process) for file in files for process in processes_of(file, max_size)]
    if len(processes) == 1:
        return Gathered((RankFiles(None, (processes[0][0],), processes[0][1]),))
    ranks = tuple(RankFiles(rank, (file,), process) for rank, (file, process) in enumerate(processes))
    return Gathered(ranks, (PROCESSES_AS_RANKS.format(writer_of(files[0]), len(ranks)),))


def _meant(path: str) -> list[tuple[Path, bool]]:
    """Files for a path, each with whether the path names it directly."""
    given = Path(path)
    if given.is_dir():
        return [(file, False) for file in _files_in(given)]
    if not given.exists() and glob.has_magic(path):
        found = sorted(map(Path, glob.glob(path, recursive=True)))  # noqa: PTH207 – Path.glob takes no absolute pattern
        files = [file for each in found for file in (_files_in(each) if each.is_dir() else [each])]
        return [(file, False) for file in _without_copies(files)]
    return [(given, True)]


def _files_in(folder: Path) -> list[Path]:
    """Files in the folder that may be traces; if there are none, those below it, except in recordings."""
    if (folder / MANIFEST).exists():
        return []
    try:
        own = list(filter(_may_be_trace, sorted(folder.iterdir())))
        if own:
            return _without_copies(own)
        below = sorted(file for pattern in BELOW for file in folder.rglob(pattern) if _may_be_trace(file))
    except OSError as error:
        raise TraceError("trace-unreadable", f"{folder} cannot be read: {error.strerror or error}.") from error
    recordings = {manifest.parent for manifest in below if manifest.name == MANIFEST}
    return _without_copies([file for file in below if recordings.isdisjoint(file.parents)])


def _may_be_trace(file: Path) -> bool:
    reported = file.name.endswith(ENDINGS) or (file.name.endswith(OF_DATABASES) and writer_of(file))
    return bool(reported) and file.is_file()


def _without_copies(files: Iterable[Path]) -> list[Path]:
    """Files without duplicates: x.json.gz next to x.json is the same, x.json next to x.db rocprofv3's second output."""
    listed = list(dict.fromkeys(files))
    names = set(listed)
    packed = {file for file in listed if file.suffix == ".gz" and file.with_suffix("") in names}
    again = {file for file in listed if file.suffix == ".json" and file.with_suffix(".db") in names}
    return [file for file in listed if file not in packed | again]


def _head_if_trace(path: Path, max_size: int, *, named: bool) -> _Head | None:
    """Facts from a file's start; None if it is no trace and was not given by name. Raises TraceError, UsageError."""
    try:
        trace = peek(path, max_size=max_size)
    except TraceError as error:
        if named and path.is_file() and (known := reported(path)) is not None:
            raise known from None
        if named or error.slug == "trace-too-large":
            raise
        return None
    known_rank = trace.rank if trace.rank is not None else rank_in_name(path.name)
    rank = known_rank if known_rank is not None else rank_in_name(path.parent.name)
    start = int(trace.events.start.min()) if len(trace.events) else 0
    return _Head(path, rank, known_rank is None, trace.world_size, host_process(trace), start)


def rank_in_name(name: str) -> int | None:
    """Rank in the name of a file or a folder, None if there is none."""
    found = RANK_IN_NAME.search(name)
    return int(found.group(1)) if found else None


def _doubted(heads: Sequence[_Head]) -> list[_Head]:
    """Heads without ranks from folder names that several processes share: "lora_rank8" means no rank."""
    processes: dict[int | None, set[int | str | None]] = {}
    for head in heads:
        processes.setdefault(head.rank, set()).add(head.process)
    unclear = {rank for rank, found in processes.items() if len(found) > 1}
    return [replace(head, rank=None) if head.guessed and head.rank in unclear else head for head in heads]


def host_process(trace: Trace) -> int | str | None:
    """Process that most of a trace's CPU events are from; None if it has no CPU events."""
    counts: Counter[int | str | None] = Counter()
    tracks = trace.events.track[np.isin(trace.events.event_kind, HOST_CATEGORIES)]
    for track, count in enumerate(np.bincount(tracks).tolist()):
        counts[trace.tracks[track].process] += count
    return counts.most_common(1)[0][0] if counts else None


def _check_one_job(heads: Sequence[_Head]) -> None:
    """Raises TraceError if files cannot be of the same job."""
    sizes = {head.world_size: head for head in heads if head.world_size is not None}
    if len(sizes) > 1:
        first, second = list(sizes.values())[:2]
        raise mixed(
            f"{first.path} is from a job of {first.world_size} ranks, {second.path} from one of {second.world_size}"
        )
    of_rank: dict[int, _Head] = {}
    for head in heads:
        if head.rank is None:
            continue
        other = of_rank.setdefault(head.rank, head)
        if None not in (head.process, other.process) and head.process != other.process:
            raise mixed(f"{other.path} and {head.path} are both from rank {head.rank}, but from two processes")


def _by_rank(heads: Sequence[_Head]) -> tuple[RankFiles, ...]:
    """Files by rank. Files without a rank belong together if the same process wrote them."""
    grouped: dict[Hashable, list[_Head]] = {}
    for head in sorted(heads, key=lambda head: (head.rank is None, head.rank or 0, head.start, head.path)):
        unknown = ("process", head.process) if head.process is not None else ("file", head.path)
        grouped.setdefault(("rank", head.rank) if head.rank is not None else unknown, []).append(head)
    return tuple(RankFiles(group[0].rank, tuple(head.path for head in group)) for group in grouped.values())


def mixed(difference: str) -> TraceError:
    """Error for traces that cannot be of one job. difference: what differs, as text."""
    return TraceError(
        "mixed-traces",
        f"{difference}: these are traces of different jobs. Diagnose each alone, or compare two: steptime compare A B",
    )


def batch_sizes(paths: Sequence[str]) -> dict[int, Path]:
    """Trace file of each batch size, if each file has a different one in its name or its folder's name (bs8.json,
    batch_16/trace.json.gz): a sweep over batch sizes. Otherwise empty."""
    files = [file for path in paths for file, _ in _meant(path)]
    message = [BATCH_IN_NAME.search(file.name) or BATCH_IN_NAME.search(file.parent.name) for file in files]
    sizes = {int(found[1]): file for found, file in zip(message, files, strict=True) if found}
    return dict(sorted(sizes.items())) if len(sizes) == len(files) > 1 else {}


START = 1 << 20
"""Bytes at a file's start, unpacked, that show its type."""


@dataclass(frozen=True, slots=True)
class _Other:
    """A file type that is no trace. endings: endings of its name; holds: patterns that must all be in its first bytes;
    lacks: bytes that must not. sentence: follows the file's name, and may contain {file}."""

    slug: str
    sentence: str
    endings: tuple[str, ...] = ()
    holds: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = (b"traceEvents",)


OTHERS = (
    _Other(
        "nsight-report",
        "is a report of Nsight Systems, which only nsys reads: nsys export -t sqlite {file}",
        endings=(".nsys-rep", ".qdrep"),
    ),
    _Other(
        "nsight-report",
        "is a report of Nsight Compute, which only ncu reads: ncu --import {file} --csv > kernels.csv, "
        "then steptime diagnose TRACE --ncu kernels.csv",
        endings=(".ncu-rep",),
    ),
    _Other(
        "counter-table",
        "is a table of Nsight Compute, not a trace. Give it with its trace: steptime diagnose TRACE --ncu {file}",
        holds=(rb'"Kernel Name",', rb'"Metric Value"'),
    ),
    _Other(
        "flight-recorder-dump",
        "is a dump of torch's flight recorder, not a trace. Find what hung: steptime hang {file}",
        holds=(rb"pg_config",),
        lacks=(b"traceEvents", b"distributedInfo"),
    ),
    _Other(
        "memory-snapshot",
        "is a snapshot of torch's allocator, not a trace. Read it: steptime memory {file}",
        holds=(rb"^\x80", rb"segments", rb"allocated_size"),
    ),
    _Other(
        "execution-trace",
        "is an execution trace of PyTorch, which has operators with arguments but no times. Give a trace of "
        "torch.profiler (export_chrome_trace; record_shapes=True keeps the arguments).",
        holds=(rb'"schema"\s*:', rb'"nodes"\s*:', rb'"op_schema"|"rf_id"'),
    ),
    _Other(
        "operator-table",
        "is a table of key_averages(): sums of operators, without steps. Write a trace with "
        'prof.export_chrome_trace("trace.json.gz") and give that.',
        holds=(rb"Self CPU %", rb"# of Calls"),
    ),
)


def reported(file: Path) -> UsageError | None:
    """Error that explains why a file is no trace; None if its type is unknown."""
    start = first_bytes(file, START)
    for other in OTHERS:
        by_name = bool(other.endings) and file.name.endswith(other.endings)
        by_start = bool(other.holds) and all(re.search(each, start) for each in other.holds)
        if by_name or (by_start and not any(each in start for each in other.lacks)):
            return UsageError(other.slug, f"{file} {other.sentence.format(file=shlex.quote(str(file)))}")
    return None
