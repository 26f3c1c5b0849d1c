"""Changes of a trial that must be there before the interpreter starts: variables of the environment, and preloading.

The probe reports them by the same rules; what cannot be made here is said by leaving it out of the environment.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterable
from pathlib import Path

from steptime.changes import Change

PRELOAD = "LD_PRELOAD"


def changed_variables(changes: Iterable[Change]) -> dict[str, str]:
    """The variables that "environment" (arguments: name and value) and "preload" (target: a library's name, such as
    "jemalloc" or "tcmalloc", or its path) ask for; a library that is not found is left out."""
    variables: dict[str, str] = {}
    for change in changes:
        if change.kind == "environment":
            variables.update({name: str(value) for name, value in change.arguments})
        elif change.kind == "preload" and (library := find_library(change.target)):
            before = variables.get(PRELOAD, os.environ.get(PRELOAD, ""))
            variables[PRELOAD] = ":".join(filter(None, (library, before)))
    return variables


def find_library(name: str) -> str:
    """What the dynamic loader knows the library by; "" where it is not found."""
    if os.sep in name:
        return name if Path(name).exists() else ""
    short = [name, f"{name}_minimal"] if name == "tcmalloc" else [name]
    return next((found for each in short if (found := ctypes.util.find_library(each))), "")
