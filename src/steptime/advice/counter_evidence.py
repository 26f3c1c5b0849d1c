"""A case with what Nsight Compute measured of its kernels, joined by name and grid."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from steptime.advice.device_evidence import LONGEST_TEXT
from steptime.advice.evidence import Case, KernelUse
from steptime.advice.kernels import spent
from steptime.advice.savings import ratio
from steptime.quantities import format_count, format_share
from steptime.trace.nsight_compute import KernelCounters, MeasuredKernel

ANONYMOUS = re.compile(r"\(anonymous namespace\)::|(?<!\w)<unnamed>::|unnamed>::")
TRUE, FALSE = re.compile(r"\btrue\b"), re.compile(r"\bfalse\b")
SUFFIX = re.compile(r"\b(\d+)u?l{0,2}\b")
WORD = re.compile(r"[A-Za-z_]\w*|\d+")
SAYS_NOTHING = re.compile(
    "T\\d+|unnamed|anonymous|namespace|instance|lambda|const|void|operator|type|int|unsigned|long|bool|char"
)
"""Words that one of the two tools leaves out, or writes otherwise."""


def with_counters(case: Case, measured: Sequence[MeasuredKernel]) -> Case:
    """The case with the counters of those of its kernels that were measured."""
    known = by_function(measured)
    return replace(case, kernels=tuple(replace(use, counters=counters_of(use, known)) for use in case.kernels))


def by_function(measured: Iterable[MeasuredKernel]) -> Mapping[str, Sequence[MeasuredKernel]]:
    """The measured kernels by `function_of` their names."""
    known = defaultdict[str, list[MeasuredKernel]](list)
    for kernel in measured:
        known[function_of(kernel.name)].append(kernel)
    return known


def told_counters(case: Case, measured: int, source: str) -> str:
    """How much of the kernels' time the counters are of. measured: kernels that Nsight Compute measured."""
    found = [use for use in case.kernels if use.counters is not None]
    part = ratio(spent(found), spent(case.kernels))
    told = (
        f"{format_share(part)} of the kernels' time, by name and grid" if found else "none of which ran with that grid"
    )
    return f"Nsight Compute measured {format_count(measured, 'kernel')}, {told}: {source}."


def counters_of(use: KernelUse, known: Mapping[str, Sequence[MeasuredKernel]]) -> KernelCounters | None:
    """Those of the kernel with its grid all of whose words are in its name; None where none was measured, or several
    that differ. known: the measured kernels by `function_of`. Where the trace has no grids, only a kernel that was
    measured with one grid counts."""
    words, cut = words_of(use.name), len(use.name) == LONGEST_TEXT
    alike = [each for each in known.get(function_of(use.name), ()) if words_of(_begin(each.name, cut=cut)) <= words]
    alike = [each for each in alike if not use.blocks or not each.blocks or each.blocks == use.blocks]
    most = max((words_of(each.name).total() for each in alike), default=0)
    closest = [each for each in alike if words_of(each.name).total() == most]
    return closest[0].counters if len(closest) == 1 else None


def function_of(name: str) -> str:
    """A kernel's own name, without namespaces, template arguments and parameters."""
    plain = ANONYMOUS.sub("", name).removeprefix("void ").split("<", 1)[0].split("(", 1)[0]
    return plain.rsplit("::", 1)[-1].strip()


def words_of(name: str) -> Counter[str]:
    """What tells a kernel from others of its function: types, functors and numbers, as often as they stand there."""
    plain = SUFFIX.sub(r"\1", FALSE.sub("0", TRUE.sub("1", name)))
    return Counter(word for word in WORD.findall(plain) if not SAYS_NOTHING.fullmatch(word))


def _begin(measured: str, *, cut: bool) -> str:
    """Of the measured name what one that was cut to LONGEST_TEXT surely holds: namespaces make that longer."""
    return measured[: LONGEST_TEXT // 3] if cut else measured
