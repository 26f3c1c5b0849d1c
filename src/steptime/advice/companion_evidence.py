"""Files of other tools about the same job, joined to a case: torch.compile's records by names of kernels and operators,
counters of Nsight Compute by names and grids of kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from steptime.advice.device_evidence import LONGEST_TEXT
from steptime.advice.evidence import Case, CompiledKernelUse, CompilerUse
from steptime.advice.kernels import time_in
from steptime.advice.savings import ratio, summed
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.quantities import SourceLine, format_count, format_share
from steptime.trace.compile_logs import CompiledKernel, CompileLogs
from steptime.trace.nsight_compute import KernelCounters, MeasuredKernel

PREFIX = re.compile(r"^graph_\d+_")
"""Prefix of a C++ kernel's name in a trace; generated code has it only if it is profiled."""
Use = TypeVar("Use", KernelUse, OperatorUse)

DISPLAYED_CODE = 3
"""Number of kernels whose source is kept, longest first: a report is read by people."""


def with_compile_logs(case: Case, logs: CompileLogs, folder: str) -> Case:
    """The case with what torch.compile's logs show: lines that generated kernels compute, graph breaks and failed
    guards. folder: folder of the logs."""
    known = defaultdict[str, list[CompiledKernel]](list)
    for kernel in logs.kernels:
        for name in {kernel.name, PREFIX.sub("", kernel.name)}:
            known[name].append(kernel)
    taken = summed((use.name, use.duration) for use in case.kernels or case.operators)
    files = {use.name: Path(use.source.file).name for use in case.kernels if use.source is not None}
    found = {name: known.get(name) or known.get(PREFIX.sub("", name)) for name in taken}
    chosen = {name: _of_trace(same, files.get(name, "")) for name, same in found.items() if same is not None}
    uses = sorted((_use(name, taken[name], each) for name, each in chosen.items()), key=lambda use: -use.duration)
    kernels = tuple(replace(use, code=use.code if place < DISPLAYED_CODE else "") for place, use in enumerate(uses))
    lines = {use.name: use.lines[0] for use in kernels if use.lines}
    return replace(
        case,
        kernels=_placed(case.kernels, lines),
        operators=_placed(case.operators, lines),
        compiler=CompilerUse(folder, kernels, logs.breaks, logs.recompilations, logs.limits),
    )


def _of_trace(same: Sequence[CompiledKernel], file: str) -> Sequence[CompiledKernel]:
    """Kernels of the file that the trace names, among kernels of one name in several graphs; all if it names none."""
    return [kernel for kernel in same if kernel.file and kernel.file == file] or same


def _use(name: str, duration: float, same: Sequence[CompiledKernel]) -> CompiledKernelUse:
    lines = dict.fromkeys(line for kernel in same for line in kernel.lines)
    operators = dict.fromkeys(operator for kernel in same for operator in kernel.operators)
    return CompiledKernelUse(name, duration, tuple(lines), tuple(operators), same[0].code)


def _placed(uses: tuple[Use, ...], lines: Mapping[str, SourceLine]) -> tuple[Use, ...]:
    return tuple(replace(use, source=lines.get(use.name, use.source)) for use in uses)


ANONYMOUS = re.compile(r"\(anonymous namespace\)::|(?<!\w)<unnamed>::|unnamed>::")
TRUE, FALSE = re.compile(r"\btrue\b"), re.compile(r"\bfalse\b")
SUFFIX = re.compile(r"\b(\d+)u?l{0,2}\b")
WORD = re.compile(r"[A-Za-z_]\w*|\d+")
SAYS_NOTHING = re.compile(
    "T\\d+|unnamed|anonymous|namespace|instance|lambda|const|void|operator|type|int|unsigned|long|bool|char"
)
"""Words that one of the two tools omits or spells differently."""


def with_counters(case: Case, measured: Sequence[MeasuredKernel]) -> Case:
    """The case with Nsight Compute's counters at its kernels. measured: kernels with counters."""
    known = by_function(measured)
    return replace(case, kernels=tuple(replace(use, counters=counters_of(use, known)) for use in case.kernels))


def by_function(measured: Iterable[MeasuredKernel]) -> Mapping[str, Sequence[MeasuredKernel]]:
    """Measured kernels by the `kernel_function` of their names."""
    known = defaultdict[str, list[MeasuredKernel]](list)
    for kernel in measured:
        known[kernel_function(kernel.name)].append(kernel)
    return known


def reported_counters(case: Case, measured: int, source: str) -> str:
    """Sentence on the fraction of kernel time that has counters. measured: number of kernels that Nsight Compute
    measured."""
    found = [use for use in case.kernels if use.counters is not None]
    part = ratio(time_in(found), time_in(case.kernels))
    reported = f"{format_share(part)} of the kernels' time, by name and grid" if found else "none with the same grid"
    return f"Nsight Compute measured {format_count(measured, 'kernel')}, {reported}: {source}."


def counters_of(use: KernelUse, known: Mapping[str, Sequence[MeasuredKernel]]) -> KernelCounters | None:
    """Counters for a kernel: those of the measured kernel that has its grid and no word that its name lacks; None if
    there is none, or several that differ. known: measured kernels by `kernel_function`. Without grids in the trace, the
    kernel must have been measured with a single grid."""
    words, cut = words_of(use.name), len(use.name) == LONGEST_TEXT
    alike = [each for each in known.get(kernel_function(use.name), ()) if words_of(_start(each.name, cut=cut)) <= words]
    alike = [each for each in alike if not use.blocks or not each.blocks or each.blocks == use.blocks]
    most = max((words_of(each.name).total() for each in alike), default=0)
    closest = [each for each in alike if words_of(each.name).total() == most]
    return closest[0].counters if len(closest) == 1 else None


def kernel_function(name: str) -> str:
    """Name of a kernel's function, without namespaces, template arguments and parameters."""
    plain = ANONYMOUS.sub("", name).removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    return plain.rsplit("::", 1)[-1].strip()


def words_of(name: str) -> Counter[str]:
    """Words that distinguish kernels of one function (types, functors and numbers), with their counts."""
    plain = SUFFIX.sub(r"\1", FALSE.sub("0", TRUE.sub("1", name)))
    return Counter(word for word in WORD.findall(plain) if not SAYS_NOTHING.fullmatch(word))


def _start(measured: str, *, cut: bool) -> str:
    """Part of a measured name that a name cut to LONGEST_TEXT surely contains: the measured one has no namespaces, so
    it is shorter."""
    return measured[: LONGEST_TEXT // 3] if cut else measured
