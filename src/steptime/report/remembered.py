"""Cached report of a large trace, in the user's cache folder, so that it is analysed only once.

A cached report counts only for the same question: the same file under the same name, the same code and the same peaks,
without other tools' records next to it. It is a checksum and the report as JSON; if it is damaged, the trace is
diagnosed again."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec

import steptime
from steptime.folders import cache_folder
from steptime.report.json import without_contents
from steptime.report.report import Report
from steptime.report.trace_files import carried
from steptime.trace.compile_logs import find_logs
from steptime.trace.entries import OF_ANSWER, OF_COLUMNS, EntryError, Stamp, entry_of, read_entry, stamp_of, write_entry
from steptime.trace.nsight_compute import find_counters

MAGIC = b"steptime-answer 1 "


class Question(msgspec.Struct, frozen=True):
    """Everything that a cached report depends on. called: path as given, which the report repeats. code: digest of the
    code. pictures: True if the report has them; max_size: most bytes of JSON that are read. started: time of the
    question, time.time_ns()."""

    stamp: Stamp
    called: str
    code: str
    peaks: tuple[tuple[str, int, int], ...]
    pictures: bool
    max_size: int
    started: int = 0


class _KeptReport(msgspec.Struct, frozen=True):
    question: Question
    report: Report


def question_about(path: str, *, pictures: bool, max_size: int) -> Question | None:
    """Question for a trace; None if nothing is cached: for no file, or next to other tools' records, which change."""
    try:
        stamp = stamp_of(Path(path)) if Path(path).is_file() else None
        if stamp is None or find_logs(Path(path)) is not None or find_counters(Path(path)):
            return None
        return Question(stamp, path, _code(), tuple(_peaks()), pictures, max_size, time.time_ns())
    except OSError:  # a folder that cannot be looked into
        return None


def recall(question: Question) -> Report | None:
    """Cached report for a question; None without one."""
    answer = read_entry(_entry(question), _kept_report)
    if answer is None or not _same(answer.question, question):
        return None
    first, *others = answer.report.processes
    shown = replace(first, traces=carried(first.traces)) if question.pictures else first
    return replace(answer.report, processes=(shown, *others))


def _kept_report(file: BinaryIO) -> _KeptReport:
    checksum, _, encoded = file.read().removeprefix(MAGIC).partition(b"\n")
    try:
        if checksum == _checksum(encoded):
            return msgspec.json.decode(encoded, type=_KeptReport)
    except (ValueError, RecursionError) as error:
        raise EntryError(str(error)) from error
    raise EntryError("damaged")


def remember(question: Question, report: Report) -> None:
    """Caches the report of a trace whose columns are cached, unless it does not survive JSON, plug-ins contributed to
    it, or its inputs have changed since the question."""
    from steptime.advice.engine import all_rules  # which is there where something was diagnosed
    from steptime.advice.rules import CATALOGUE

    if all_rules() != (CATALOGUE, ()) or not entry_of(question.stamp, OF_COLUMNS).exists():
        return
    report = without_contents(report)
    try:
        encoded = msgspec.json.encode(_KeptReport(question, report))
        if msgspec.json.decode(encoded, type=_KeptReport).report != report:
            return
    except (ValueError, RecursionError):  # half of a surrogate pair in a name
        return
    now = question_about(question.called, pictures=question.pictures, max_size=question.max_size)
    if question.stamp.settled(question.started) and now is not None and _same(now, question):
        whole = MAGIC + _checksum(encoded) + b"\n" + encoded
        write_entry(_entry(question), len(whole), lambda file: file.write(whole))


def _same(one: Question, other: Question) -> bool:
    """True if both are the same except for their time."""
    return msgspec.structs.replace(one, started=other.started) == other


def _entry(question: Question) -> Path:
    return entry_of(question.stamp, OF_ANSWER, f"{question.called}\0{question.pictures}")


def _checksum(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).hexdigest().encode()


def _code() -> str:
    """Digest of steptime's own files by size and time, the Python version, and the folders of other packages: plug-ins
    add rules, and another numpy may round differently."""
    own = sorted(_sources(str(Path(steptime.__file__).parent)))
    elsewhere = [(folder, Path(folder).stat().st_mtime_ns) for folder in sys.path if Path(folder).exists()]
    known = "\n".join(map(str, (sys.version, *own, *elsewhere)))
    return hashlib.blake2b(known.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def _peaks() -> Iterator[tuple[str, int, int]]:
    """Files of the peaks measured on this machine, on which its reports depend."""
    for file in sorted(cache_folder().glob("peaks-*.json")):
        status = file.stat()
        yield file.name, status.st_size, status.st_mtime_ns
