"""`python()`: an interpreter for jobs of the tests that has torch imported already (see server.py)."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GIVEN = "PRELOADED_PYTHON"
"""A variable of this process's environment: the program, where another process has started the server."""


@functools.cache
def python() -> str:
    """The path of a program that takes a Python command line. The server behind it lives as long as the tests do; jobs
    that are started before it is ready wait for it."""
    if given := os.environ.get(GIVEN):
        return given
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPTIME")}
    # The system shows of a fork what its server was started with: `steptime attach` asks there who stands by.
    environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "STEPTIME_STANDBY": "1"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        words = [sys.executable, str(HERE / "server.py"), str(listener.fileno())]
        server = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, pass_fds=[listener.fileno()]
        )
    atexit.register(server.kill)
    program = folder / "python"
    words = [sys.executable, "-I", "-S", str(HERE / "client.py"), str(folder / "socket"), str(program)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def steptime_words(*words: str) -> list[str]:
    """A command line of steptime: a fork has it imported, a Python of its own takes half a second of CPU for that."""
    return [python(), "-m", "steptime", *words]
