"""`python()`: an interpreter for jobs of the tests that has torch imported already (see server.py)."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


@functools.cache
def python() -> str:
    """The path of a program that takes a Python command line. The server behind it lives as long as the tests do."""
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPTIME")}
    # The system shows of a fork what its server was started with: `steptime attach` asks there who stands by.
    environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "STEPTIME_STANDBY": "1"}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), str(folder / "socket")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    program = folder / "python"
    words = [sys.executable, "-I", "-S", str(HERE / "client.py"), str(folder / "socket"), str(program)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)
