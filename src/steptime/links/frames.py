"""Python functions in a trace (with_stack): which of them are the user's.

Kineto names a function by its file and the line where it begins, "train.py(12): forward", not the line that was
running.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import PurePath

import numpy as np

from steptime.arrays import Bool
from steptime.kineto.table import Trace
from steptime.quantities import SourceLine

FRAME = re.compile(r"^(?P<file>[^<].*)\((?P<line>\d+)\): (?P<function>.*)$")
BUILT_IN = re.compile(r"^<built-in (?:function|method) (?P<function>\w+)(?: of .*)?>$")
FOREIGN = re.compile(r"(^|/)(site-packages|dist-packages|lib/python\d[\d.]*|steptime/capture)/")
"""The last one is ours, also where it runs from a checkout (`pip install --editable`)."""
_LIBRARIES = """
torch torchvision torchaudio numpy pandas scipy sklearn PIL transformers accelerate datasets tokenizers lightning
pytorch_lightning lightning_fabric keras timm peft trl diffusers ignite fastai deepspeed megatron tqdm wandb mlflow
hydra click steptime
"""
LIBRARIES = frozenset(_LIBRARIES.split())
"""Kineto strips what is on sys.path from the file names, so packages are known by their first folder only."""


def is_user_file(file: str) -> bool:
    """True unless the file is of a library, of Python's own, or no file."""
    parts = PurePath(file).parts
    if not parts or file.startswith("<") or FOREIGN.search(file):
        return False
    top = parts[0].removesuffix(".py")
    return top not in LIBRARIES and top not in sys.stdlib_module_names


def user_functions(trace: Trace, is_user: Callable[[str], bool]) -> Bool:
    """By symbol: a function in a file of the user's."""
    matches = (FRAME.match(symbol) for symbol in trace.symbols)
    found = (bool(match) and is_user(match["file"]) for match in matches)  # type: ignore[index]
    return np.fromiter(found, np.bool_, len(trace.symbols))


def source_line(symbol: str) -> SourceLine | None:
    """Where the function of a frame begins; None for what is no Python function in a file."""
    found = FRAME.match(symbol)
    return SourceLine(found["file"], int(found["line"]), found["function"]) if found else None


def function_name(symbol: str) -> str:
    """The name of a Python function alone: "zoom_shift" of "<built-in function zoom_shift>", "forward" of
    "train.py(12): forward"; anything else as it is."""
    found = FRAME.match(symbol) or BUILT_IN.match(symbol)
    return found["function"] if found else symbol
