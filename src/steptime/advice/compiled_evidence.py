"""What torch.compile wrote down, joined to the kernels and operators of a case by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from steptime.advice.evidence import Case, CompiledKernelUse, CompilerEventUse, CompilerUse, KernelUse, OperatorUse
from steptime.quantities import SourceLine
from steptime.trace.compile_logs import CompiledKernel, CompileLogs, CompilerEvent

PREFIX = re.compile(r"^graph_\d+_")
"""That a C++ kernel's name has in a trace, and in generated code only where it is profiled."""
Use = TypeVar("Use", KernelUse, OperatorUse)

SHOWN_CODE = 3
"""Kernels whose source is kept, the longest: a report is read by people."""


def with_compile_logs(case: Case, logs: CompileLogs, folder: str) -> Case:
    """The case with the lines that its generated kernels compute, and with what broke graphs and failed guards.
    folder: the logs'."""
    known = defaultdict[str, list[CompiledKernel]](list)
    for kernel in logs.kernels:
        for name in {kernel.name, PREFIX.sub("", kernel.name)}:
            known[name].append(kernel)
    spent = defaultdict[str, float](float)
    for use in case.kernels or case.operators:
        spent[use.name] += use.duration
    files = {use.name: Path(use.source.file).name for use in case.kernels if use.source is not None}
    found = {name: known.get(name) or known.get(PREFIX.sub("", name)) for name in spent}
    chosen = {name: _of_trace(same, files.get(name, "")) for name, same in found.items() if same is not None}
    uses = sorted((_use(name, spent[name], each) for name, each in chosen.items()), key=lambda use: -use.duration)
    kernels = tuple(replace(use, code=use.code if place < SHOWN_CODE else "") for place, use in enumerate(uses))
    lines = {use.name: use.lines[0] for use in kernels if use.lines}
    return replace(
        case,
        kernels=_placed(case.kernels, lines),
        operators=_placed(case.operators, lines),
        compiler=CompilerUse(folder, kernels, _told(logs.breaks), _told(logs.recompilations), _told(logs.limits)),
    )


def _of_trace(same: Sequence[CompiledKernel], file: str) -> Sequence[CompiledKernel]:
    """Of kernels of one name in several graphs those of the file that the trace says, all where it says none."""
    return [kernel for kernel in same if kernel.file and kernel.file == file] or same


def _use(name: str, duration: float, same: Sequence[CompiledKernel]) -> CompiledKernelUse:
    lines = dict.fromkeys(line for kernel in same for line in kernel.lines)
    operators = dict.fromkeys(operator for kernel in same for operator in kernel.operators)
    return CompiledKernelUse(name, duration, tuple(lines), tuple(operators), same[0].code)


def _placed(uses: tuple[Use, ...], lines: Mapping[str, SourceLine]) -> tuple[Use, ...]:
    return tuple(replace(use, source=lines.get(use.name, use.source)) for use in uses)


def _told(events: Sequence[CompilerEvent]) -> tuple[CompilerEventUse, ...]:
    return tuple(CompilerEventUse(each.source, each.reason, each.count, each.hint) for each in events)
