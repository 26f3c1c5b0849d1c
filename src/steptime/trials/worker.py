"""The far end of an executor: a process on the device's machine that runs the turns it is sent, one after the other.

    python -m steptime.trials.worker [--detached]

A line of JSON on standard input is an `Order`, one on standard output an `Answer`. One law: when standard input ends,
for whatever reason, what is running is ended with everything that it started, and so is this process.
"""

from __future__ import annotations

import _thread
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from steptime.errors import SteptimeError
from steptime.trials.containment import Workspace, leave
from steptime.trials.execute import ScheduledRun, execute
from steptime.trials.trial import Run, Spent

INTERRUPTED = 130
DETACHED = "--detached"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be run, and where."""

    stand: Workspace
    turn: ScheduledRun


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order: a run; or the budget was spent; or why no turn can be run, as (slug, sentence)."""

    run: Run | None = None
    spent: bool = False
    refusal: tuple[str, str] | None = None


def encode(document: Order | Answer) -> bytes:
    """As a line."""
    return msgspec.json.encode(document, enc_hook=_text) + b"\n"


def decode_order(line: bytes) -> Order:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(line, type=Order, dec_hook=_path)


def decode_answer(line: bytes) -> Answer:
    """Raises msgspec.DecodeError, as for a lane that died."""
    return msgspec.json.decode(line, type=Answer, dec_hook=_path)


def answer(order: Order) -> Answer:
    """Runs an order."""
    stand = order.stand
    if not stand.directory.is_dir():
        return Answer(refusal=("folder-gone", _not_here(stand.directory)))
    if not stand.folder.is_dir():
        return Answer(refusal=("folder-gone", _not_here(stand.folder)))
    try:
        return Answer(run=execute(stand, order.turn))
    except Spent:
        return Answer(spent=True)
    except SteptimeError as error:
        return Answer(refusal=(error.slug, error.sentence))


def _not_here(folder: Path) -> str:
    import socket

    return (
        f"The folder {folder} is not there on {socket.gethostname()}: machines of a cluster try a job in a folder that "
        "all of them share."
    )


def _text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError  # how a hook tells msgspec that it does not know a type


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError  # as above


def _listen(source: BinaryIO, orders: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        orders.put(line)
    orders.put(b"")
    _thread.interrupt_main()


def main(arguments: Sequence[str] = ()) -> int:
    """Answers orders until there are none. Detached, it is nobody's child: Ray kills those of its actors before they
    can end what they have started."""
    if DETACHED in arguments and os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    stands: set[Workspace] = set()
    try:
        while line := orders.get():
            order = decode_order(line)
            stands.add(order.stand)
            sys.stdout.buffer.write(encode(answer(order)))
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for stand in stands:
            leave(stand)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
