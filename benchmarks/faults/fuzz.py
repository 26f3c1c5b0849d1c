"""Readers against damaged files: whatever the bytes, an answer or one sentence, in bounded time and memory."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.faults.mutate import mutated
from benchmarks.faults.targets import Target
from steptime.errors import SteptimeError

CPU_SECONDS = 10.0
"""For one input of at most four megabytes; more is a hang."""
MEMORY = 1 << 30
"""Bytes that a reader may take beyond what the process has."""
CHUNK = 2000
"""Inputs of one child process."""
FAULTS_DISPLAYED = 20


class HangError(Exception):
    """An input has taken too long."""


@dataclass
class Fuzzed:
    """What became of the inputs of one target: how many, how many were read, refused with a sentence, by slug."""

    target: str
    inputs: int = 0
    read: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0


def damaged(target: Target, seed: int, number: int) -> tuple[str, bytes]:
    """Input `number`: the same one for the same seed and seeds."""
    draw = random.Random(f"{seed} {target.name} {number}")
    name, data = draw.choice(target.seeds)
    return name, mutated(data, draw)


def fuzz(target: Target, seed: int, seconds: float, most: int, first: int = 0) -> Fuzzed:
    """Reads damaged files until `seconds` or `most` inputs are over."""
    fuzzed, until, number = Fuzzed(target.name), time.monotonic() + seconds, first
    while number < first + most and time.monotonic() < until and len(fuzzed.faults) < FAULTS_DISPLAYED:
        number = _in_a_child(target, seed, number, min(CHUNK, first + most - number), until, fuzzed)
    return fuzzed


def _in_a_child(target: Target, seed: int, start: int, count: int, until: float, fuzzed: Fuzzed) -> int:
    """Adds what a child finds. Returns the number of the next input; a child that dies has died of its last one."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(target, seed, start, count, until, theirs))
    child.start()
    theirs.close()
    number = start
    while True:
        try:
            number, result, seconds = ours.recv()
        except EOFError:
            break
        fuzzed.inputs += 1
        fuzzed.slowest = max(fuzzed.slowest, seconds)
        if result is None:
            fuzzed.read += 1
        elif result.startswith("refused "):
            slug = result.removeprefix("refused ")
            fuzzed.refused[slug] = fuzzed.refused.get(slug, 0) + 1
        else:
            fuzzed.faults.append(f"{target.name} {number}: {result}")
        number += 1
    child.join()
    if child.exitcode:
        fuzzed.faults.append(f"{target.name} {number}: the process ended with {child.exitcode}")
        number += 1
    return number


def _child(target: Target, seed: int, start: int, count: int, until: float, answers: Connection) -> None:
    limit = _size() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _hang)
    for number in range(start, start + count):
        if time.monotonic() > until:
            return
        name, data = damaged(target, seed, number)
        started = time.process_time()
        answers.send((number, attempt(target, name, data), time.process_time() - started))


def attempt(target: Target, name: str, data: bytes) -> str | None:
    """None when the reader gave an answer, "refused <slug>", or what went wrong."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        target.read(name, data)
    except SteptimeError as error:
        return f"refused {error.slug}" if "\n" not in error.sentence else f"more than one line: {error.sentence!r}"
    except BaseException as error:  # noqa: BLE001 - whatever escapes a reader is what we look for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{name}: {type(error).__name__}: {str(error)[:200]} ({frame.filename}:{frame.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _hang(*_: Any) -> None:
    raise HangError(f"more than {CPU_SECONDS:.0f} s of CPU time")


def _size() -> int:
    """Bytes of address space."""
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - no path of anybody's
        return int(statm.read().split()[0]) * resource.getpagesize()
