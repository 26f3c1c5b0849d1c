"""Reader of untrusted pickles: numbers, texts, lists, tuples and dictionaries, and nothing else.

A pickle is a program. Python's own unpickler runs it here, but it may look up no class, so that nothing can be called.
It runs in a process of its own, with limits on memory and time. There, a converter turns the value into bytes, because
a value that contains itself twice, forty levels deep, is small until it is written out. That process imports only the
standard library and the converter."""

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
"""Exit statuses of the process: REFUSED, with the reason as JSON in its output; TOO_LARGE for its memory."""
START = """
import sys
sys.path.append(sys.argv[1])
from steptime import plain_pickle
plain_pickle.serve(*sys.argv[2:])
"""
BASE_MEMORY = 256 << 20
"""Bytes that the process may use in any case: the interpreter takes 20 MiB."""

MOST_ELEMENTS = 50_000_000
"""Most elements of a value that is converted to JSON: a dump of 100,000 calls with their stacks has 20 million."""


class NotPlainError(Exception):
    """Raised for a file that is not read to its end. Its text is a clause that follows the file's name.

    kind: "refused" (it asks for more than data), "damaged", "foreign" (something else), "strange" (unlike any real
    file) or "too-large" (for the memory that it may use)."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


Converter = Callable[[io.BufferedReader, BinaryIO], None]
"""Function that reads the file and writes the result. May raise NotPlainError."""


# -- in our process ----------------------------------------------------------------------------------------------------


def converted(file: IO[bytes], converter: str, memory: int, seconds: int) -> IO[bytes]:
    """Output of a converter, "module:function", within `memory` bytes and `seconds` of CPU. Raises NotPlainError."""
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
        raise NotPlainError("too-large", f"needs more than {memory >> 20} MiB of memory to read")
    raise NotPlainError("strange", f"could not be read within {seconds} s and {memory >> 20} MiB of memory")


# -- in the process of its own -----------------------------------------------------------------------------------------


class PlainUnpickler(pickle.Unpickler):
    """Unpickler for plain data. Without classes nothing else can be made or called."""

    def find_class(self, module: str, name: str) -> NoReturn:  # named by pickle
        raise NotPlainError(
            "refused",
            f"requests {module[:80]}.{name[:80]}, which plain data never does; steptime executed nothing in it",
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise NotPlainError(
            "refused", "requests an object outside itself, which plain data never does; steptime executed nothing in it"
        )


def unpickle(file: BinaryIO) -> tuple[Any, list[Any] | None]:
    """Reads a pickle: returns (value, None), or if truncated (None, all objects that were started, in that order)."""
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
    """Converter that writes the whole value as JSON."""
    value, begun = unpickle(file)
    if begun is not None:
        raise NotPlainError("damaged", "is cut short")
    if _elements(value, {}) > MOST_ELEMENTS:
        raise NotPlainError("strange", "repeats the same lists too often")
    made.write(json.dumps(value).encode())


def _elements(value: Any, known: dict[int, int]) -> int:
    """Number of elements of all containers when written out; known: numbers of those already counted, by id."""
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_ELEMENTS + 1  # where it holds itself
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_elements(each, known) for each in inner)
    return known[id(value)]


def serve(converter: str, memory: str, seconds: str) -> NoReturn:
    """Main function of the process that reads a file. It never returns: freeing the value would take long."""
    module, _, function = converter.partition(":")
    convert: Converter = getattr(importlib.import_module(module), function)
    _limit(int(memory), int(seconds))
    gc.disable()
    try:
        convert_file(convert, 0, sys.stdout.buffer)
    except MemoryError:
        os._exit(TOO_LARGE)
    except NotPlainError as error:
        os.lseek(1, 0, os.SEEK_SET)
        os.ftruncate(1, 0)
        os.write(1, json.dumps([error.kind, str(error).encode("utf-8", "replace").decode()]).encode())
        os._exit(REFUSED)
    os._exit(0)


def convert_file(convert: Converter, descriptor: int, made: BinaryIO) -> None:
    """Converts an open file. Raises NotPlainError for any fault of the file, and MemoryError."""
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
        reason = f"is damaged, or not plain data ({type(error).__name__}: {str(error)[:200]})"
        raise NotPlainError("damaged", reason) from None


def _limit(memory: int, seconds: int) -> None:
    """Sets the limits of this process; those that a system does not know (macOS: the address space) are left out."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: memory,
              resource.RLIMIT_FSIZE: memory, resource.RLIMIT_NOFILE: 16}  # fmt: skip
    for what, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
