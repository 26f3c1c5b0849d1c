"""`%%steptime` in a notebook: a cell, recorded while it runs, with its diagnosis below it."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from steptime.api import load
from steptime.errors import SteptimeError
from steptime.in_process import record
from steptime.probe import messages


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext steptime`: adds the magic."""
    shell.register_magic_function(partial(_measured, shell), "cell", "steptime")


def _measured(shell: Any, line: str, cell: str) -> None:
    """Runs the cell and shows what its training says, unless it failed or trained too little. line: the folder of the
    recording, "" for runs/<name>-<time>."""
    recording = record(line.strip() or None)
    before, shell.execution_count = shell.execution_count, len(shell.user_ns.get("In", ("", ""))) - 1
    try:  # the line of the magic is one of the cell's, whose number some versions of IPython have counted on already
        succeeded = shell.run_cell(f"# %%steptime\n{cell}").success
    finally:
        shell.execution_count = before
        recording.stop()
    if recording.folder is None or not succeeded:
        return
    try:
        import_module("IPython.display").display(load(recording.folder))
    except SteptimeError as error:
        messages.say(str(error))
