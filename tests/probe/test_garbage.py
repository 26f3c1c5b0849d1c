"""The collector is timed, and the user's signals come through it."""

from __future__ import annotations

import gc
import subprocess
import sys
import types

import pytest
from patience import PATIENCE
from preloading import python

pytest.importorskip("torch")

from steptime.journal import Kind
from steptime.probe.session import LEAST, GarbageObserver


def test_collections_are_written_with_their_start_and_end() -> None:
    records: list[tuple[int, int, int, int]] = []
    watch = GarbageObserver(lambda *record: records.append(record))
    garbage: list[list[int]] = [[] for _ in range(200_000)]  # enough objects for a collection to take longer than LEAST
    watch.install()
    gc.collect()
    watch.remove()
    gc.collect()
    watch.write()
    assert len(garbage) == 200_000
    assert [kind for kind, *_ in records] == [Kind.GARBAGE]
    assert records[0][3] - records[0][2] >= LEAST


def test_no_python_function_runs_inside_the_collector() -> None:
    """One would swallow a KeyboardInterrupt: the collector can only print what is raised in a callback."""
    watch = GarbageObserver(lambda *record: None)
    ran: list[types.CodeType] = []
    gc.collect()  # generators that others left behind run when they are collected
    others, gc.callbacks[:] = gc.callbacks[:], []  # those of the tests' own libraries
    watch.install()
    sys.setprofile(lambda frame, event, argument: ran.append(frame.f_code) if event == "call" else None)
    try:
        gc.collect()
    finally:
        sys.setprofile(None)
        watch.remove()
        gc.callbacks[:] = others
    assert ran == []


INTERRUPTED = """
import _thread, functools, gc
from steptime.probe.session import GarbageObserver

class Interrupt:  # a callback in C: it sets the signal and handles nothing
    start = stop = property(next)
    __next__ = iter(_thread.interrupt_main, 0).__next__

gc.disable()
gc.collect()  # what imports left behind may have finalizers in Python, in which the interrupt would end
gc.callbacks.append(functools.partial(getattr, Interrupt()))
WATCH
try:
    gc.collect()
    print("swallowed")
except KeyboardInterrupt:
    print("came through")
"""


@pytest.mark.parametrize(
    ("watch", "seen"),
    [
        ("GarbageObserver(lambda *record: None).install()", "came through"),
        ("gc.callbacks.append(lambda phase, information: None)", "swallowed"),  # what a function in Python would do
    ],
)
def test_an_interrupt_during_a_collection_reaches_the_program(watch: str, seen: str) -> None:
    code = INTERRUPTED.replace("WATCH", watch)
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stdout == f"{seen}\n", done.stderr
