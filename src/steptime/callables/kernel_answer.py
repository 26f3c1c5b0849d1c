"""The answer of `steptime kernel`: what fusing a chain gains, its bytes against a copy, the generated code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from steptime.answer.answer import Answer, Item, Part, Section, with_confidence
from steptime.answer.printable import one_line
from steptime.answer.tables import Table, duration, number, size, table_of, word
from steptime.callables.bench import NOT_TO_BE_TAKEN, Contender, Standing
from steptime.callables.bench_answer import answer_of as answer_of_bench, badge, ratio_text
from steptime.callables.kernel import KernelStudy, OperatorChain
from steptime.quantities import format_bytes, format_count, format_duration, format_rate, format_share
from steptime.report.sentences import place_text


def answer_of(study: KernelStudy) -> Answer:
    message, sure = headline(study), badge(study.bench)
    chain, timed, (file, missing) = study.chain, answer_of_bench(study.bench), study.file
    rival = "mine.py:mine" if missing else "chain.py:fused"
    return Answer(
        f"Kernel of {study.of}", message, sure, (*timed.head, *_subject(chain)),
        (_passes(study), *((_operators(study),) if chain is not None else ()), _lines(study)),
        tuple(_notes(study)),
        more=f"steptime kernel {shlex.quote(study.of)} -o kernel.md",
        next_command=f"steptime bench chain.py:chain {rival} --inputs chain.py:inputs" if file else "",
        details=lambda: (*timed.parts, *_code(study)),
        figures=timed.figures,
        data=with_confidence({"of": study.of, "chain": chain, "kernels": study.kernels, "bench": study.bench,
                              "least_ns": study.least}, message, sure),
        exports={".py": lambda: file} if file else {},
    )  # fmt: skip


def headline(study: KernelStudy) -> str:
    """Headline: the fused operators, the number of kernels, the speed-up, and the share of a copy's bandwidth."""
    fused, chain, (before, after) = study.fused, study.chain, (_ns(study.eager), _ns(study.fused))
    if fused.standing in NOT_TO_BE_TAKEN:
        return one_line(f"Inductor's code cannot be used for {study.of}: {fused.sentence}.")
    speed = f" ({ratio_text(fused.speed)}x)" if fused.speed is not None else ""
    gained = {Standing.FASTER: "", Standing.SLOWER: ", which is slower", Standing.ALIKE: ", no difference"}
    what = study.of if chain is None else " → ".join(link.name for link in chain.links)
    share = study.least / after if study.least else 0.0
    near = f", {format_share(share)} of that" if share <= 1 else ": its tensors fit into a cache"
    least = f" A copy of its {format_bytes(fused.bytes)} takes {format_duration(study.least or 0)}{near}."
    return one_line(
        f"{what} in {format_count(len(study.kernels), 'generated kernel')}: {format_duration(before)} → "
        f"{format_duration(after)}{speed}{gained.get(fused.standing, ', undecided')}.{least if study.least else ''}"
    )


def _subject(chain: OperatorChain | None) -> Iterator[str]:
    if chain is not None:
        where = "backward" if chain.backward else "forward"
        yield (f"Hottest chain: {format_duration(chain.duration)} per step, as recorded, in {chain.calls:.3g} times "
               f"{len(chain.links)} operators in {where}")  # fmt: skip


def _passes(study: KernelStudy) -> Table:
    """A row for the operators one by one, one for the generated code, one for a copy of its bytes."""
    chain, eager, fused, copy = study.chain, study.eager, study.fused, study.copy_rate
    rows = [
        ("eager", str(len(chain.links)) if chain else "", chain.moved if chain else 0, _ns(eager)),
        ("compiled", str(len(study.kernels)), fused.bytes, _ns(fused)),
        ("lower bound: a copy", "", fused.bytes, study.least or 0.0),
    ][: 3 if study.least else 2]

    def of_copy(value: float) -> str:
        share = "" if copy is None else f" ({format_share(value / copy)} of a copy)" if value <= copy else " (cached)"
        return f"{format_rate(value)}B/s{share}"

    return table_of(
        "passes", "Before and after", "Eager operators read and write memory one after the other.", rows,
        word("how", "how", lambda row: row[0]), word("kernels", "kernels", lambda row: row[1]),
        size("bytes", "bytes", lambda row: row[2] or None), duration("time", "time_ns", lambda row: row[3]),
        number("B/s", "B/s", lambda row: row[2] / row[3] * 1e9 if row[2] and row[3] else None, of_copy),
    )  # fmt: skip


def _ns(contender: Contender) -> float:
    return contender.time.value if contender.time is not None else 0.0


def _operators(study: KernelStudy) -> Table:
    links = study.chain.links if study.chain is not None else ()
    return table_of(
        "chain", "The chain", "", links,
        word("operator", "operator", lambda link: link.name, kind="code"),
        word("inputs", "inputs", lambda link: ", ".join(
            f"{'x'.join(map(str, each.shape)) or 'scalar'} {each.dtype}" for each in link.call.all_tensors)),
        size("bytes", "bytes", lambda link: link.call.read + link.result.bytes),
        word("line", "line", lambda link: place_text(link.place) if link.place is not None else ""),
        word("source", "source", lambda link: link.place.text if link.place is not None else "", kind="source"),
    )  # fmt: skip


def _lines(study: KernelStudy) -> Table:
    return table_of(
        "kernels", "Generated kernels", "", study.kernels,
        word("kernel", "kernel", lambda each: each.name, kind="code"),
        word("operators", "operators", lambda each: ", ".join(each.operators)),
        word("lines", "lines", lambda each: ", ".join(map(place_text, each.lines))),
    )  # fmt: skip


def _code(study: KernelStudy) -> Iterator[Part]:
    """Generated code with the user's lines above it, and PTX."""
    own = (
        Item(kernel.name, lines=tuple(f"{place_text(line)}  {line.text}" for line in kernel.lines), code=kernel.code)
        for kernel in study.kernels
    )
    yield Section("Generated code", (*own, *(Item(f"{name}, PTX", code=text) for name, text in study.assembly)))


def _notes(study: KernelStudy) -> Iterator[str]:
    if study.chain is not None:
        yield (
            "The function is made of the recorded shapes and dtypes; which of two tensors of one shape an operator "
            "takes is not recorded. -o chain.py writes it."
        )
        missing = study.file[1]
        yield missing or (
            f"Inductor breaks it into {len(study.kernels)} kernels: chain.py also has one kernel of the whole chain in "
            "triton.language, as fused, for you to tune. It needs a GPU."
        )
