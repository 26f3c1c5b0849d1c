"""Reader of a recording.

A recording may be torn, cut or garbled anywhere. Everything readable is kept, everything else is a sentence among the
problems. Only three are refused: a folder without a recording, a newer format, and one without read access.

Also the reader of parity.jsonl, which a variant of a trial writes: losses, gradient norms, peak memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptime.errors import RecordingError, no_such_file
from steptime.journal import EARLY_WINDOW, FORMAT_VERSION, RECORD, SPAWNED
from steptime.recording import documents, recording as rec
from steptime.recording.documents import (
    decode_document,
    decode_fact,
    decode_lines,
    read_blocks,
    read_bytes,
)
from steptime.recording.newest import listed
from steptime.recording.packed import ASIDE, CLOCK_SLACK, LONGEST_LIFE, SUFFIX, Decoded, Life, decode, unpack
from steptime.recording.parity import Parity, StepWork

SKETCH = 16
"""Numbers of a sketch: BUCKETS of probe/changes/sketches."""
SHAPE = re.compile(r"[0-9]{1,12}(x[0-9]{1,12}){0,63}")


class _ParityLine(msgspec.Struct):
    """Fields of a line besides the step's work."""

    step: int
    loss: float | None = None
    backwards: int = 0
    gradient_norm: float | None = None
    peak_bytes: int = 0
    began_ns: int = 0
    end_ns: int = 0
    gradients: tuple[tuple[str, float | None], ...] = ()


# Not strict: JSON has no infinities and no NaN, which are written as text.
_line_decoder = msgspec.json.Decoder(_ParityLine, strict=False)
_work_decoder = msgspec.json.Decoder(StepWork, strict=False)


def read_parity(path: Path, problems: list[str]) -> Parity | None:
    """Returns the numbers of a variant; None if the process is in no trial, or took no step."""
    lines = decode_lines(path, read_bytes(path, documents.LARGEST_LINES, problems), _decode, problems)
    rows = sorted({line.step: (line, work) for line, work in lines}.values(), key=lambda row: row[0].step)
    if not rows:
        return None
    steps, works = zip(*rows, strict=True)
    return Parity(
        step=_column([line.step for line in steps], np.int64),
        loss=_column([line.loss for line in steps], np.float64),
        norm=_column([line.gradient_norm for line in steps], np.float64),
        backwards=_column([line.backwards for line in steps], np.int64),
        peak_bytes=_column([line.peak_bytes for line in steps], np.int64),
        end=_column([line.end_ns for line in steps], np.int64),
        began_ns=steps[0].began_ns,
        gradients=tuple(line.gradients for line in steps if line.gradients),
        work=works,
    )


def _decode(data: bytes) -> tuple[_ParityLine, StepWork]:
    """Returns a line of parity.jsonl. Raises ValueError."""
    try:
        line, work = _line_decoder.decode(data), _work_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    counts = (line.step, line.backwards, line.peak_bytes, line.began_ns, line.end_ns)
    if not all(0 <= number < documents.LARGEST_NUMBER for number in counts):
        raise ValueError("a number is out of range")
    sketches = [each for batch in work.batches for each in batch]
    sketches += [each for *_, each in (*work.updates, *work.directions, *work.carried, *work.buffers)]
    sketches += [each for *_, each in work.weights] + [each for *_, each in work.ways]
    shapes = [shape for shape, _ in (*work.carried, *work.buffers)]
    if any(len(each) != SKETCH for each in sketches) or not all(map(SHAPE.fullmatch, shapes)):
        raise ValueError(f"a sketch has not {SKETCH} numbers, or a shape is none")
    return line, work


def _column(values: list[Any], kind: type[Any]) -> Any:
    """Returns a read-only array; NaN for None."""
    column = np.array(values, kind)
    column.flags.writeable = False
    return column


PROCESS_FOLDER = re.compile(r"process-(\d{1,10})(?:-(\d{1,4}))?")
LARGEST_JOURNAL = 1 << 30
"""Most bytes of journal.bin that are read: 44 million records, weeks of a job; more would not fit a small machine."""
JOURNAL_BLOCK = RECORD.size << 16
"""Bytes that are read at once."""
MOST_PROCESSES = 4096
LARGEST_IDENTITY = 2**32 - 1


class _ManifestVersion(msgspec.Struct):
    format_version: int


@dataclass(frozen=True, slots=True)
class Contents:
    """Recording without its processes, which do not fit into memory at once for thousands of ranks."""

    path: Path
    manifest: rec.Manifest
    folders: tuple[Path, ...]
    telemetry: tuple[rec.TelemetrySample, ...]
    problems: tuple[str, ...]


def look_into(path: Path) -> Contents:
    """Reads the recording in the folder `path` except its processes. Raises the errors of `load`."""
    problems: list[str] = []
    folders = process_folders(path)
    manifest = read_manifest(path, bool(folders), problems)
    file = path / "telemetry.jsonl"
    decode_sample = partial(decode_document, kind=rec.TelemetrySample)
    samples = decode_lines(file, read_bytes(file, documents.LARGEST_LINES, problems), decode_sample, problems)
    samples.sort(key=lambda sample: sample.monotonic_ns)
    return Contents(path, manifest, tuple(folders), tuple(samples), tuple(problems))


def load_process(folder: Path, manifest: rec.Manifest) -> tuple[rec.Process, tuple[str, ...]]:
    """Reads one of the folders of `Contents`; returns the process and its problems. Raises RecordingError only."""
    problems: list[str] = []
    return _process(folder, manifest, problems), tuple(problems)


def facts_of(path: Path) -> tuple[rec.ProcessFacts, ...]:
    """Returns the identities of a recording's processes, without their records. Raises the errors of `load`."""
    found = (read_facts(folder, []) for folder in process_folders(path))
    return tuple(facts for facts in found if facts is not None)


def walk(path: Path) -> Iterator[rec.Process]:
    """Yields the processes of a recording one by one, in no order, for callers that drop each before the next."""
    contents = look_into(path)
    return (load_process(folder, contents.manifest)[0] for folder in contents.folders)


def load(path: Path) -> rec.Recording:
    """Reads the recording in the folder `path`, whole or damaged.

    Raises RecordingError if it is missing, no recording, of a newer format, or not readable."""
    return load_whole(look_into(path))


def load_whole(contents: Contents) -> rec.Recording:
    """Reads the first MOST_PROCESSES processes of `Contents`; returns the whole recording."""
    problems = list(contents.problems)
    if len(contents.folders) > MOST_PROCESSES:
        problems.append(
            f"The recording has {len(contents.folders)} processes; steptime read the first {MOST_PROCESSES}."
        )
    processes = [_process(folder, contents.manifest, problems) for folder in contents.folders[:MOST_PROCESSES]]
    processes.sort(key=place)
    return rec.Recording(contents.path, contents.manifest, tuple(processes), contents.telemetry, tuple(problems))


def place(process: rec.Process) -> tuple[bool, int, int, int]:
    """Sort key of a process in its recording: by rank, those without one last."""
    facts = process.facts
    return facts.rank is None, facts.rank or 0, facts.pid, _program(process)


def name_of(process: rec.Process) -> str:
    """Returns a process's name in reports: its rank, else its process ID."""
    facts, program = process.facts, _program(process)
    name = f"rank {facts.rank}" if facts.rank is not None else f"process {facts.pid}"
    return f"{name} (program {program})" if program > 1 else name


def _program(process: rec.Process) -> int:
    """Returns 1 for the first program that trained under this pid, 2 for the next: a process may replace its program
    (exec), and a system reuses pids."""
    match = PROCESS_FOLDER.fullmatch(process.folder.name)
    return int(match[2] or 0) + 1 if match else 1


def process_folders(path: Path) -> list[Path]:
    """Returns the folders of the processes, by name. Raises RecordingError."""
    try:
        if not path.exists():
            raise no_such_file(path, "a recording (a folder written by steptime run), a trace or a report")
        if not path.is_dir():
            raise _no_recording(path, "is a file")
        return sorted(each for each in path.iterdir() if PROCESS_FOLDER.fullmatch(each.name) and each.is_dir())
    except PermissionError:
        raise RecordingError(
            "recording-permission", f"You have no permission to read {path}. Ask for read access."
        ) from None
    except (OSError, ValueError) as error:
        raise RecordingError("recording-unreadable", f"{path} cannot be read: {error}.") from None


def _no_recording(path: Path, seen: str) -> RecordingError:
    message = (
        f"{path} is not a recording: it {seen}. Expected a folder written by `steptime run`, with a manifest.json."
    )
    return RecordingError("no-recording", listed(path) or message)


def read_manifest(path: Path, has_processes: bool, problems: list[str]) -> rec.Manifest:
    """Reads manifest.json. Raises RecordingError if there is neither one nor a process, or its format is newer."""
    data = read_bytes(path / "manifest.json", documents.LARGEST_DOCUMENT, problems)
    if not data and not has_processes:
        raise _no_recording(Path.cwd() if path == Path() else path, "has no manifest.json")
    try:
        version = decode_document(data, _ManifestVersion).format_version
        if version > FORMAT_VERSION:
            raise RecordingError(
                "recording-newer",
                f"{path} has recording format {version}; this steptime reads up to {FORMAT_VERSION}. Upgrade: "
                "pip install --upgrade steptime",
            )
        return decode_document(data, rec.Manifest)
    except ValueError as error:
        problems.append(f"manifest.json cannot be read ({_short(error)}): command and end of the job are unknown.")
        return rec.Manifest(FORMAT_VERSION, "", (), "", "", 0)


def _process(folder: Path, manifest: rec.Manifest, problems: list[str]) -> rec.Process:
    known = read_facts(folder, problems)
    life = life_of(known, manifest)
    lines = read_bytes(folder / "facts.jsonl", documents.LARGEST_LINES, problems)
    found = decode_lines(folder / "facts.jsonl", lines, decode_fact, problems)
    intervals = _journal(folder / "journal.bin", life, problems).table
    workers = _journal(folder / "loader.bin", life, problems).table
    return assemble_process(folder, known, found, intervals, workers, problems)


def assemble_process(
    folder: Path,
    known: rec.ProcessFacts | None,
    found: Sequence[object],
    intervals: rec.IntervalTable,
    workers: rec.IntervalTable,
    problems: list[str],
) -> rec.Process:
    """Makes a process from the content of its files. found: its facts in the order in which they were written."""
    match = PROCESS_FOLDER.fullmatch(folder.name)
    unknown = rec.ProcessFacts(int(match[1]) if match else 0, (), "", "", "", "", 0, 0, 0)
    facts = {each.field: each.of(found) for each in rec.FACTS}
    identity = workers.identity.copy()
    spawned = [  # spawned workers know the loader's seed only
        (SPAWNED | loader.seed, loader.identity)
        for loader in facts["loaders"]
        if loader.seed is not None and 0 <= loader.identity <= LARGEST_IDENTITY
    ]
    for seed, loader in spawned:
        identity[workers.identity == seed] = loader
    iterators = dict(reversed(spawned))
    identity.flags.writeable = False
    for each in rec.FACTS:
        if each.in_workers:
            facts[each.field] = tuple(
                replace(fact, iterator=iterators.get(fact.iterator, fact.iterator)) for fact in facts[each.field]
            )
    held = _held(found)
    for name in ("leaks", "growing"):
        facts[name] = tuple(fact for fact in facts[name] if id(fact) in held)
    facts["traces"] = _traces(folder, facts["traces"], problems)
    return rec.Process(
        folder=folder,
        facts=known or unknown,
        intervals=intervals,
        workers=replace(workers, identity=identity),
        notes=tuple(fact for fact in found if isinstance(fact, str)),
        parity=read_parity(folder / "parity.jsonl", problems),
        **facts,
    )


def _held(found: Sequence[object]) -> set[int]:
    """Identities of the facts of what grows and was not freed after it had been reported."""
    held, freed = set[int](), set[str]()
    for fact in reversed(found):
        if isinstance(fact, rec.FreedFacts):
            if not fact.names:
                break
            freed.update(fact.names)
        elif isinstance(fact, rec.LeakFacts | rec.GrowingFacts) and fact.name not in freed:
            held.add(id(fact))
    return held


def read_facts(folder: Path, problems: list[str]) -> rec.ProcessFacts | None:
    """Reads process.json; None if that fails."""
    data = read_bytes(folder / "process.json", documents.LARGEST_DOCUMENT, problems)
    try:
        return decode_document(data, rec.ProcessFacts)
    except ValueError as error:
        problems.append(f"{folder.name}/process.json cannot be read ({_short(error)}): its process is unknown.")
        return None


def life_of(facts: rec.ProcessFacts | None, manifest: rec.Manifest) -> Life | None:
    """Returns the time from the process's start to the job's end, with slack; None without the process's clocks."""
    if facts is None:
        return None
    started = facts.process_started_epoch_ns or manifest.started_epoch_ns
    start = facts.monotonic_ns - (facts.epoch_ns - started) - CLOCK_SLACK if started else 0
    end = facts.monotonic_ns + LONGEST_LIFE
    if manifest.ended_epoch_ns:
        end = min(end, facts.monotonic_ns + (manifest.ended_epoch_ns - facts.epoch_ns) + CLOCK_SLACK)
    return Life(max(0, start), end)


def _journal(path: Path, life: Life | None, problems: list[str]) -> Decoded:
    decoded = decode(_blocks(path, problems), life)
    place = f"{path.parent.name}/{path.name}"
    if decoded.torn:
        problems.append(f"{place}: the last record is incomplete and was skipped.")
    if decoded.senseless:
        total = decoded.senseless + len(decoded.table.start)
        problems.append(f"{place}: {decoded.senseless} of {total} records are invalid and were skipped.")
    return decoded


def _blocks(path: Path, problems: list[str]) -> Iterator[bytes]:
    """Yields the packed records, then those renamed for packing, then the newest ones."""
    packed = path.with_suffix(SUFFIX)
    data, seen = read_bytes(packed, LARGEST_JOURNAL, problems), set()
    try:
        for block in unpack(data, LARGEST_JOURNAL) if data else ():
            seen.add(block[: RECORD.size])
            yield block
    except ValueError:
        problems.append(f"{path.parent.name}/{packed.name} is damaged; steptime read only its start.")
    for plain in (path.with_suffix(ASIDE), path):
        blocks = read_blocks(plain, LARGEST_JOURNAL, JOURNAL_BLOCK, problems)
        first = next(blocks, b"")
        if first[: RECORD.size] not in seen:  # else killed before it was removed: the packed one holds the same
            yield first
            yield from blocks


def _traces(folder: Path, traces: Sequence[rec.TraceFacts], problems: list[str]) -> tuple[rec.TraceFacts, ...]:
    """Returns the traces whose files exist, compressed or not; paths out of the folder are not followed. The early one
    is left out if there is a later one. A job that changes the kind of its boundaries (first evaluation, then training)
    overwrites its windows: of several with one path, the last counts."""
    present = []
    for trace in traces:
        names = (trace.path, trace.path + ".gz") if Path(trace.path).name == trace.path else ()
        name = next((name for name in names if _is_file(folder / name)), None)
        if name is None:
            problems.append(f"{folder.name}: the profiler's trace {trace.number} is missing.")
        else:
            present.append(replace(trace, path=name))
    steady = any(trace.number != EARLY_WINDOW and not trace.stacks and not trace.caught for trace in present)
    return tuple(trace for trace in present if trace.number != EARLY_WINDOW or not steady)


def _is_file(path: Path) -> bool:
    """True for a file; False also for an impossible name (a null byte, thousands of characters)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _short(error: ValueError) -> str:
    return str(error).splitlines()[0][:120] if str(error) else "empty"
