"""Reads pickles that nobody vouches for: numbers, texts, lists, tuples and dictionaries, and nothing else.

A pickle is a program. Python's own unpickler runs it here, but it may look up no class, so that nothing can be called,
and it runs in a process of its own, whose memory and time the operating system limits. A converter turns the value into
bytes there, as a value that holds itself twice, forty levels deep, is small until somebody spells it out. That process
imports the standard library and the converter only.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

REFUSED, TOO_LARGE = 3, 4
"""Exit statuses of the process: its output is the reason as JSON; memory did not suffice."""
START = """
import sys
sys.path.append(sys.argv[1])
from steptime import plain_pickle
plain_pickle.serve(*sys.argv[2:])
"""
BASE_MEMORY = 256 << 20
"""Bytes that the process may take in any case: the interpreter takes 20 MiB."""

MOST_ELEMENTS = 50_000_000
"""Elements of a value that is turned into JSON: a dump of a hundred thousand calls with their stacks has 20 million."""


class NotPlainError(Exception):
    """A file that is not read to its end. Its text is a clause behind the file's name.

    kind: "refused" (it asks for more than data), "damaged", "foreign" (something else), "strange" (no real file is like
    it) or "too-large" (for the memory that it may take).
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


Converter = Callable[[io.BufferedReader, BinaryIO], None]
"""Reads the file and writes what it makes of it. May raise NotPlainError."""


# -- in our process ----------------------------------------------------------------------------------------------------


def converted(file: IO[bytes], converter: str, memory: int, seconds: int) -> IO[bytes]:
    """Result of a converter, "module:function", for a file, within so many bytes of memory and seconds of processor
    time. Raises NotPlainError."""
    made = tempfile.TemporaryFile()  # noqa: SIM115 – the caller closes it
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", START, root, converter, str(memory), str(seconds)],
        stdin=file,
        stdout=made,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    made.seek(0)
    if not done.returncode:
        return made
    with made:
        if done.returncode == REFUSED:
            raise NotPlainError(*json.load(made))
    if done.returncode == TOO_LARGE:
        raise NotPlainError("too-large", f"does not fit into {memory >> 20} MiB of memory while it is read")
    raise NotPlainError("strange", f"was not read to its end within {seconds} s and {memory >> 20} MiB of memory")


# -- in the process of its own -----------------------------------------------------------------------------------------


class PlainUnpickler(pickle.Unpickler):
    """Makes plain data. Without a class nothing else can be made or called."""

    def find_class(self, module: str, name: str) -> NoReturn:  # named by pickle
        raise NotPlainError("refused", f"asks for {module[:80]}.{name[:80]}: nothing of it was run")

    def persistent_load(self, pid: object) -> NoReturn:
        raise NotPlainError("refused", "asks for an object outside of itself: nothing of it was run")


def unpickle(file: BinaryIO) -> tuple[Any, list[Any] | None]:
    """The value, and None; of a file that ends in the middle None, and all that was begun, in that order."""
    unpickler = PlainUnpickler(file)
    try:
        return unpickler.load(), None
    except (EOFError, OSError, zlib.error):
        pass
    except pickle.UnpicklingError as error:
        if "truncated" not in str(error):
            raise
    memo = unpickler.memo.copy()
    return None, [memo[place] for place in sorted(memo)]


def to_json(file: io.BufferedReader, made: BinaryIO) -> None:
    """A converter: the whole value as JSON."""
    value, begun = unpickle(file)
    if begun is not None:
        raise NotPlainError("damaged", "is cut short")
    if _elements(value, {}) > MOST_ELEMENTS:
        raise NotPlainError("strange", "holds the same lists again and again")
    made.write(json.dumps(value).encode())


def _elements(value: Any, known: dict[int, int]) -> int:
    """How many there are of all containers, spelt out; known: those of each, by its id."""
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_ELEMENTS + 1  # where it holds itself
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_elements(each, known) for each in inner)
    return known[id(value)]


def serve(converter: str, memory: str, seconds: str) -> NoReturn:
    """The whole process. Never returns: what was made is not taken apart, which would take long."""
    module, _, function = converter.partition(":")
    convert: Converter = getattr(importlib.import_module(module), function)
    _limit(int(memory), int(seconds))
    gc.disable()
    try:
        convert_file(convert, 0, sys.stdout.buffer)
    except MemoryError:
        os._exit(TOO_LARGE)
    except NotPlainError as error:
        _refuse(error.kind, str(error))
    os._exit(0)


def convert_file(convert: Converter, descriptor: int, made: BinaryIO) -> None:
    """Converts an open file. Raises NotPlainError, whatever is wrong with the file, and MemoryError."""
    try:
        convert(io.BufferedReader(io.FileIO(descriptor, closefd=False), 1 << 20), made)
        made.flush()
    except RecursionError:
        raise NotPlainError("strange", "is nested too deeply") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        reason = f"is damaged, or no plain data ({type(error).__name__}: {str(error)[:200]})"
        raise NotPlainError("damaged", reason) from None


def _limit(memory: int, seconds: int) -> None:
    """Limits of this process; one that a system does not know (macOS: the address space) is left out."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: memory,
              resource.RLIMIT_FSIZE: memory, resource.RLIMIT_NOFILE: 16}  # fmt: skip
    for what, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def _refuse(kind: str, reason: str) -> NoReturn:
    os.lseek(1, 0, os.SEEK_SET)
    os.ftruncate(1, 0)
    os.write(1, json.dumps([kind, reason.encode("utf-8", "replace").decode()]).encode())
    os._exit(REFUSED)
