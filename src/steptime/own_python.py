"""Python processes that steptime starts for itself: they import steptime's modules, never those in the current folder.

`python -m` and `python -c` look for modules in the current folder first, and PYTHONPATH may name it, too: a stranger's
`queue.py` there would be run. So each of these processes is isolated (-I) and gets its search path explicitly: first
the standard library and the environment, then steptime's own folder, then the other paths of this process.
`tests/test_house.py` ensures that no other is started."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
START = (
    "import runpy, sys; sys.path += sys.argv.pop(1).split('\\n'); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
WITHOUT_FOLDER = "import os, sys; sys.path = [path for path in sys.path if path not in ('', os.getcwd())]; "
"""Prefix of the -c code for another interpreter, which obeys PYTHONPATH."""


def own_python(module: str, *words: str) -> tuple[str, ...]:
    """Command that runs one of steptime's modules, as `python -m` does. words: its arguments."""
    return (sys.executable, "-I", "-c", START, "\n".join(_paths()), module, *words)


def _paths() -> list[str]:
    """Folders to append to those of the environment."""
    left_out = {os.path.dirname(os.path.realpath(sys.argv[0] if sys.argv else ""))}  # noqa: PTH120 - text
    with contextlib.suppress(OSError):  # it was removed
        left_out.add(str(Path.cwd()))
    known = [path for path in sys.path if Path(path).is_absolute() and path not in left_out]
    return list(dict.fromkeys((ROOT, *known)))
