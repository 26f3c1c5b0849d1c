"""The answer of `steptime bench-loader`: headline, the loader's parts, each setting, and batch time over workers."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.answer.answer import Answer, confidence, with_confidence
from steptime.answer.page.axes import CurveChart, curve_figures, decades_of, labelled_curve
from steptime.answer.printable import one_line
from steptime.answer.tables import Table, duration, interval, number, table_of, word
from steptime.callables.loader_bench import PLATEAU, LoaderBench, LoaderSetting
from steptime.quantities import format_bytes, format_count, format_duration, format_rate, format_share
from steptime.report.sentences import interval_text

WORTH_A_WORD = 0.5
"""Fraction worth a note: of a batch's preparation without CPU work, of an item's time that its second reading takes."""


MUCH_SHORTER = 1.25
"""Ratio of the CPU's wait from pageable memory to that from pinned memory; a smaller one does not justify a change."""


def headline(bench: LoaderBench) -> str:
    """Headline: the number of workers to set, and its effect."""
    own, best, per = bench.own, bench.best, "A step" if bench.options.step else "A batch"
    if best.batch is None:
        return "Nothing was timed."
    if own.batch is None:
        return f"The current setting, {own.name}, fails: {own.failed}. With {best.name} {_takes(bench, best)}."
    if best.workers == own.workers:
        return f"The current setting, {own.name}, is the best: {_takes(bench, own)}."
    gain, low = own.batch.value / best.batch.value, own.batch.low / best.batch.high
    if low <= 1 and own.workers < best.workers:
        return f"No difference between the current setting, {own.name}, and {best.name}: {_takes(bench, own)}."
    if gain <= 1 + PLATEAU:
        return f"{best.name} is as fast as the current {own.name}: {_takes(bench, best)}."
    reach = f"({low:.3g} to {own.batch.high / best.batch.low:.3g})"
    return (
        f"Set {best.name}: {gain:.3g} times as fast {reach} as the current {own.name}. {per} takes "
        f"{format_duration(best.batch.value)} instead of {format_duration(own.batch.value)}."
    )


def _takes(bench: LoaderBench, setting: LoaderSetting) -> str:
    assert setting.batch is not None
    assert setting.wait is not None
    if bench.options.step:
        return (
            f"a step of {format_duration(bench.options.step)} waits {format_duration(setting.wait.value)} for a batch"
        )
    return f"a batch takes {format_duration(setting.batch.value)}"


def badge(bench: LoaderBench) -> str:
    """Confidence of the result, with its reason."""
    times = [each.batch for each in bench.settings if each.batch is not None]
    busy = f"other processes used {bench.other_cpus:.1f} CPUs meanwhile" if bench.under_load else ""
    return confidence(times, f"{format_count(times[0].samples, 'block')} each in 2 processes", busy)


def notes(bench: LoaderBench) -> Iterator[str]:
    """Yields sentences that accompany the tables."""
    if (parts := bench.parts) is not None:
        yield (
            f"An item takes {format_duration(parts.item_ns)}, collating a batch {format_duration(parts.collate_ns)}"
            + (
                f"; no CPU works in {format_share(1 - parts.busy)} of that (disk, network, sleep)."
                if parts.busy <= WORTH_A_WORD
                else f"; a CPU works in {format_share(parts.busy)} of that."
            )
        )
        if parts.cold_ns is not None and parts.again_ns is not None and parts.cold_busy is not None:
            yield (
                f"With its files out of the page cache an item takes {format_duration(parts.cold_ns)} "
                f"({format_bytes(round(parts.fetched))} from the disk, no CPU works in "
                f"{format_share(1 - parts.cold_busy)} of that), from memory {format_duration(parts.again_ns)}."
            )
        elif bench.options.cold:
            yield "No file was read from a disk for its items, or the system keeps files in memory: nothing is cold."
        elif parts.again_ns is not None and parts.again_ns < WORTH_A_WORD * parts.item_ns:
            yield (
                f"The same items took {format_duration(parts.again_ns)} when they were read again: what they come "
                "from was in memory then, or the dataset keeps them. The first epoch is slower than the table says."
            )
    last = bench.settings[-1]
    if last.batch is not None and not last.repeats and bench.best.workers < last.workers:
        why = f"{format_count(bench.usable_cpus, 'usable CPU')}"
        yield f"More than {bench.best.workers} workers gain less than {format_share(PLATEAU)} ({why})."
    if any(each.repeats for each in bench.settings):
        yield "Every worker yields the same items. Split the dataset with torch.utils.data.get_worker_info()."
    elif bench.iterable and bench.best.workers > 1:
        yield (
            "The dataset is iterable. Unless it splits its items with get_worker_info(), each worker yields "
            "all of them."
        )
    yield from _of_transfers(bench)
    yield from _of_memory(bench)
    if bench.unbatched:
        yield "This is a dataset: each batch is one sample. --batch-sizes 16,32 tries others."
    yield from (f"{each.name} fails: {each.failed}." for each in (*bench.settings, *bench.variants) if each.failed)


def _of_memory(bench: LoaderBench) -> Iterator[str]:
    """Notes on the memory for kept items, and on the content of stored samples."""
    length, best = bench.parts.length if bench.parts is not None else None, bench.best
    if bench.options.kept and length and best.samples and best.bytes:
        size = format_bytes(round(length * best.bytes / best.samples))
        yield f"To keep all {length:,} items in memory takes {size}, once in each worker that reads them."
    if bench.formats:
        parts, own = bench.parts, ""
        if parts is not None:
            own = f" The dataset itself takes {format_duration(parts.again_ns or parts.item_ns)}."
        yield f"Samples were stored as the dataset yields them: decoded and augmented.{own}"
    for each in bench.formats:
        if each.left_out:
            yield f"{each.name} was not timed: {each.left_out}."
    if any(each.random_ns is None for each in bench.formats if not each.left_out):
        yield "Temporary files stay in memory here, so reads from disk were not measured (set TMPDIR to a disk)."


def tables(bench: LoaderBench) -> tuple[Table, ...]:
    """Non-empty tables of a loader's bench: by workers, of other settings, of formats, and of transfers."""
    found = (
        _table("workers", "by workers", bench.settings, bench),
        _table("others", "other settings", bench.variants, bench),
        _formats(bench),
        _transfers(bench),
    )
    return tuple(table for table in found if table.rows)


def _table(identity: str, title: str, settings: tuple[LoaderSetting, ...], bench: LoaderBench) -> Table:
    own = bench.own.batch
    return table_of(
        identity, title, "", [each for each in settings if each.batch is not None],
        word("setting", "setting", lambda each: each.name, kind="code"),
        duration("step" if bench.options.step else "batch", "batch_ns",
                 lambda each: each.batch.value if each.batch else None, barred=True),
        interval("interval", lambda each: each.batch, interval_text),
        duration("waits", "wait_ns", lambda each: each.wait.value if each.wait and bench.options.step else None),
        number("samples/s", "samples_per_second", lambda each: each.rate if each.samples else None,
               lambda value: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"),
        number("speed", "speed", lambda each: own.value / each.batch.value if own and each.batch else None,
               lambda value: f"{value:,.0f}x" if value >= 1000 else f"{value:.3g}x"),
        duration("first batch", "first_ns", lambda each: each.first),
        duration("receiving", "received_ns", lambda each: each.received),
    )  # fmt: skip


def _formats(bench: LoaderBench) -> Table:
    return table_of(
        "formats", "reading a sample in other file formats", "",
        [each for each in bench.formats if not each.left_out],
        word("format", "format", lambda each: each.name),
        number("on the disk", "bytes", lambda each: each.bytes, lambda value: format_bytes(round(value))),
        duration("in order", "ordered_ns", lambda each: each.ordered_ns),
        duration("at random", "random_ns", lambda each: each.random_ns, barred=True),
        duration("from memory", "warm_ns", lambda each: each.warm_ns),
    )  # fmt: skip


def _transfers(bench: LoaderBench) -> Table:
    return table_of(
        "transfers", "a batch to the device", "", bench.transfers,
        word("memory", "memory", lambda each: each.name, kind="code"),
        duration("the CPU waits", "host_ns", lambda each: each.host_ns, barred=True),
        duration("on the device", "device_ns", lambda each: each.device_ns),
        number("B/s", "bytes_per_second", lambda each: each.rate, lambda value: f"{format_rate(value)}B/s"),
        duration("pinning before", "pin_ns", lambda each: each.pin_ns),
    )  # fmt: skip


def _of_transfers(bench: LoaderBench) -> Iterator[str]:
    """Notes on the training thread's time that pinned memory and asynchronous copies save."""
    if bench.no_transfer:
        yield f"Copying a batch to the device was not timed: {bench.no_transfer}."
    if not bench.transfers:
        return
    usual, best = bench.transfers[0], bench.transfers[-1]
    size = format_bytes(usual.bytes)
    if usual.host_ns > MUCH_SHORTER * best.host_ns:
        yield (
            f"To the device a batch ({size}) takes {format_duration(usual.host_ns)} of the training thread from usual "
            f"memory, and {format_duration(best.host_ns)} with pin_memory=True and .to(device, non_blocking=True): it "
            f"is copied within {format_duration(best.device_ns)} meanwhile."
        )
    else:
        yield (
            f"To the device a batch ({size}) takes {format_duration(usual.host_ns)} of the training thread; "
            "pinned memory saves almost nothing."
        )


def _head(bench: LoaderBench) -> str:
    size = format_bytes(bench.best.bytes) + " a batch" if bench.best.bytes else ""
    samples = format_count(bench.best.samples, "sample") if bench.best.samples else ""
    return one_line(
        " · ".join(filter(None, ("steptime bench-loader", f"torch {bench.torch}", bench.dataset, samples, size)))
    )


def answer_of(bench: LoaderBench) -> Answer:
    """Answer with the number of workers to set."""
    message, sure = headline(bench), badge(bench)
    return Answer(
        f"Bench of {bench.options.loader}", message, sure, (_head(bench),), tables(bench), tuple(notes(bench)),
        figures=curve_figures(chart(bench)), data=with_confidence({"bench": bench}, message, sure),
    )  # fmt: skip


def chart(bench: LoaderBench) -> CurveChart | None:
    """Chart of batch time over workers; None for a single count."""
    known = [(format_count(each.workers, "worker"), each.batch) for each in bench.settings if each.batch is not None]
    if len(known) < 2:
        return None
    axis = decades_of(time for _, time in known)
    return labelled_curve("time of a batch", "Time per batch by workers", known, axis, format_duration)
