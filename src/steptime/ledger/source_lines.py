"""Which function of the user's calls an operator, from a trace with Python stacks.

Kineto names a Python function by its file and the line where it begins, not the line that was running: the line
timeline of the recording is finer, this reaches deeper.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from steptime.kineto.table import ABSENT, Category, Trace
from steptime.ledger.operations import Operations, operations_on, operator_events
from steptime.ledger.threads import autograd_lanes, training_lane
from steptime.nesting import ROOT, innermost_at, nearest_ancestor, nest, stretches
from steptime.quantities import SourceLine

Int64 = npt.NDArray[np.int64]
FRAME = re.compile(r"^(?P<file>[^<].*)\((?P<line>\d+)\): (?P<function>.*)$")
FOREIGN = re.compile(r"(^|/)(site-packages|dist-packages|lib/python\d[\d.]*)/")
_LIBRARIES = """
torch torchvision torchaudio numpy pandas scipy sklearn PIL transformers accelerate datasets tokenizers lightning
pytorch_lightning lightning_fabric keras timm peft trl diffusers ignite fastai deepspeed megatron tqdm wandb mlflow
hydra click steptime
"""
LIBRARIES = frozenset(_LIBRARIES.split())
"""Kineto strips what is on sys.path from the file names, so packages are known by their first folder only."""


def sources_of(
    trace: Trace, *, training_thread: int | None = None, is_user: Callable[[str], bool] | None = None
) -> dict[str, SourceLine]:
    """By operator name, the user's function that most of its time was called from; empty without stacks.

    What backward runs is traced to the forward operator of the same sequence number. is_user: tells the user's files
    (as the trace spells them) from libraries; without it by well-known names.
    """
    lane = training_lane(trace, training_thread)
    if lane is None or not np.any(trace.events.category == Category.PYTHON):
        return {}
    user = _user_functions(trace, is_user or is_user_file)
    forward = operations_on(trace, lane, operator_events(trace))
    frames = _frames_at(trace, lane, forward.nest.begin, user)
    by_sequence = _by_sequence(trace, forward, frames)
    rows, found = [forward.rows], [_through_forward(trace, forward, frames, by_sequence)]
    for other in autograd_lanes(trace, lane):
        engine = operations_on(trace, other, operator_events(trace))
        rows.append(engine.rows)
        found.append(_through_forward(trace, engine, np.full(len(engine.rows), ABSENT), by_sequence))
    return _heaviest(trace, np.concatenate(rows), np.concatenate(found))


def is_user_file(file: str) -> bool:
    """True unless the file is of a library, of Python's own, or no file."""
    parts = PurePath(file).parts
    if not parts or file.startswith("<") or FOREIGN.search(file):
        return False
    top = parts[0].removesuffix(".py")
    return top not in LIBRARIES and top not in sys.stdlib_module_names


def _user_functions(trace: Trace, is_user: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """By symbol: a function in a file of the user's."""
    matches = (FRAME.match(symbol) for symbol in trace.symbols)
    return np.fromiter((bool(found) and is_user(found["file"]) for found in matches), np.bool_)  # type: ignore[index]


def _frames_at(trace: Trace, lane: int, times: Int64, user: npt.NDArray[np.bool_]) -> Int64:
    """The symbol of the innermost function of the user's that is running at each time; ABSENT for none."""
    events = trace.events
    rows = np.flatnonzero((events.category == Category.PYTHON) & (events.lane == lane))
    made = nest(events.begin[rows], events.end[rows])
    rows = rows[made.order]
    theirs = nearest_ancestor(made, user[events.name[rows]])
    inner = innermost_at(stretches(made), times)
    frame = np.where(inner == ROOT, ROOT, theirs[inner])
    return np.where(frame == ROOT, ABSENT, events.name[rows[frame]])


def _by_sequence(trace: Trace, forward: Operations, frames: Int64) -> dict[int, int]:
    """The user's function of the forward operator of each sequence number.

    Operators that record nothing carry the number of the next one that does, so the last with a number owns it.
    """
    events = trace.events
    sequence = events.sequence[forward.rows]
    inside = nearest_ancestor(forward.nest, forward.engine) != ROOT
    chosen = np.flatnonzero((sequence != ABSENT) & (frames != ABSENT) & ~inside)
    return dict(zip(sequence[chosen].tolist(), frames[chosen].tolist(), strict=True))


def _through_forward(trace: Trace, operations: Operations, frames: Int64, by_sequence: dict[int, int]) -> Int64:
    """The frames, with those in backward replaced by the frame of the forward operator."""
    frame = nearest_ancestor(operations.nest, operations.engine)
    sequence = np.where(frame == ROOT, ABSENT, trace.events.sequence[operations.rows[frame]])
    through = [by_sequence.get(number, ABSENT) for number in sequence.tolist()]
    forward = np.array(through, np.int64).reshape(len(frames))
    return np.where(forward != ABSENT, forward, frames)


def _heaviest(trace: Trace, rows: Int64, frames: Int64) -> dict[str, SourceLine]:
    """For each operator the frame with the most of its time."""
    known = frames != ABSENT
    rows, frames = rows[known], frames[known]
    pairs, pair = np.unique(np.stack((trace.events.name[rows], frames), axis=1), axis=0, return_inverse=True)
    spent = np.bincount(pair.reshape(-1), trace.events.duration[rows], len(pairs))
    found: dict[str, SourceLine] = {}
    for index in np.argsort(spent, kind="stable").tolist():
        name, frame = pairs[index].tolist()
        found[trace.symbols[name]] = _line(trace.symbols[frame])
    return found


def _line(symbol: str) -> SourceLine:
    found = FRAME.match(symbol)
    assert found is not None
    return SourceLine(found["file"], int(found["line"]), found["function"])
