"""Thinning of a long run's journals: they keep whole steps of each minute, and its slowest ones.

Each gap is a record (`Kind.THINNED`) with its number of steps, so that readers neither take a gap for a long step nor
count too few. Evaluations, checkpoints, compilations, profiles and pauses stay, an evaluation's calls as one. A run
whose records fit is not thinned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.arrays import Int64, unique
from steptime.intervals import contains, measure, union
from steptime.journal import Flag, Kind
from steptime.recording.packed import LAYOUT, VALUE_KINDS, Records, pack, plausible

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
BYTES_PER_SECOND = 10_000_000 / 86_400
"""Packed bytes of a rank's journal and its loader's together: 10 MB per day."""
LEAST_BYTES = 4096
"""Least room of any part, bytes: a single long interval must fit."""
SLOW = 2.0
"""Factor of the median above which a step is slow."""
LASTING = (
    Kind.COMPILE, Kind.CHECKPOINT, Kind.UNTIMED, Kind.BOUNDARY, Kind.PROFILED, Kind.DISCOVERY, Kind.LINES,
    Kind.PAUSE, Kind.LOADER_START,
)  # fmt: skip
"""Rare kinds, kept everywhere: the time that they mark must not count as a usual step."""
CLOSELY = (Kind.PROFILED, Kind.DISCOVERY, Kind.LINES, Kind.UNTIMED)
"""Windows whose steps are kept."""
SIGNS = (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP, Kind.BACKWARD, Kind.FORWARD)
"""Kinds that mark steps; the first one present counts. The analysis finds steps more exactly."""
ATTEMPTS: tuple[tuple[int, tuple[Kind, ...]], ...] = (*((1 << power, LASTING) for power in range(9, -1, -1)), (1, ()))
"""Number of steps kept per minute, and kinds kept everywhere, until the records fit."""
LEAST_MARKS, SHARE_OF_SLOW = 3, 4
"""LEAST_MARKS: fewest marks to thin. SHARE_OF_SLOW: kept steps per minute for each slow one besides."""


LEAST_CALLS = 5
"""Fewest consecutive calls without gradients that are an evaluation; fewer may be a teacher's."""


@dataclass(frozen=True, slots=True)
class Thinned:
    """Packed blocks for journal.packed and loader.packed. left_out: number of steps. sign: kind that marks steps."""

    journal: bytes
    loader: bytes
    left_out: int
    sign: Kind


def thin(journal: Records, loader: Records, sign: Kind | None = None, rate: float = BYTES_PER_SECOND) -> Thinned:
    """Returns the records of an interval of the run, thinned to the size that its length allows, or whole if they fit.
    The first record of each journal stays first, so that a reader recognizes a block. sign: kind that marked steps in
    earlier intervals, so that an interval that only evaluates has no steps. rate: most bytes per second of the run."""
    journal, loader = (records[plausible(records, None)] for records in (journal, loader))
    ends, (found, marks) = _ends(journal), _marks(journal)
    length = int(ends.max() - ends.min()) if len(journal) else 0
    room = max(LEAST_BYTES, int(rate * length / SECOND))
    best = found if sign is None else min(found, sign, key=SIGNS.index)
    thinned = Thinned(pack(journal.tobytes()), pack(loader.tobytes()), 0, best)
    if len(thinned.journal) + len(thinned.loader) <= room or len(marks) < LEAST_MARKS:
        return thinned
    for kept, lasting in ATTEMPTS:
        thinned = _thinned(journal, loader, marks, kept, lasting, found is best)
        if len(thinned.journal) + len(thinned.loader) <= room:
            break
    return replace(thinned, sign=best)


def _ends(records: Records) -> Int64:
    """Returns when each record was written; a sample's second time is a value."""
    sample = np.isin(records["kind"], [*VALUE_KINDS, Kind.QUEUE])
    ends: Int64 = np.where(sample, records["start"], records["end"]).astype(np.int64)
    return ends


def _marks(journal: Records) -> tuple[Kind, Int64]:
    """Returns the kind that marks steps here, and the ends of its intervals."""
    kind = next((kind for kind in SIGNS if (journal["kind"] == kind).any()), SIGNS[-1])
    rows = journal[journal["kind"] == kind]
    identities, counts = np.unique(rows["identity"], return_counts=True)
    if not len(counts):
        return kind, np.zeros(0, np.int64)
    return kind, unique(rows["end"][rows["identity"] == identities[counts.argmax()]].astype(np.int64))


def _thinned(
    journal: Records, loader: Records, marks: Int64, kept: int, lasting: tuple[Kind, ...], counted: bool
) -> Thinned:
    label = _labels(journal, marks, kept)
    turns = np.flatnonzero(np.diff(label)) + 1  # first steps of runs of one label
    starts, ends = np.append(0, turns), np.append(turns, len(label))
    displayed = label[starts] != LEFT_OUT
    windows = union(marks[starts[displayed]], marks[ends[displayed]] + 1)
    gaps = _gaps(marks, starts, ends, label[starts], counted)
    journal_stays, loader_stays = (
        (written < marks[0]) | (written > marks[-1]) | contains(windows, written)
        for written in (_ends(journal), _ends(loader))
    )
    journal_stays |= np.isin(journal["kind"], lasting)
    journal_stays[:1] = loader_stays[:1] = True
    records = np.concatenate([journal[journal_stays][1:], gaps, _evaluations(journal[~journal_stays])])
    records = records[np.argsort(_ends(records), kind="stable")]
    kept_journal = pack(np.concatenate([journal[:1], records]).tobytes())
    return Thinned(kept_journal, pack(loader[loader_stays].tobytes()), int(gaps["identity"].sum()), SIGNS[-1])


LEFT_OUT, SAMPLE, FOR_SLOWNESS = 0, 1, 2


def _labels(journal: Records, marks: Int64, kept: int) -> Int64:
    """Returns a label per step: the first ones of a minute, and those profiled or line-timed, are its sample; the
    slowest and their neighbours stay for their slowness."""
    duration = np.diff(marks)
    minute = (marks[1:] - marks[0]) // MINUTE
    place = np.arange(len(duration)) - np.searchsorted(minute, minute)
    close = journal[np.isin(journal["kind"], CLOSELY)]
    looked = measure(union(close["start"], close["end"]), marks[:-1], marks[1:]) > 0
    label = np.where((place < kept) | looked, SAMPLE, LEFT_OUT)
    slow = np.flatnonzero((duration > SLOW * np.median(duration)) & (label == LEFT_OUT))
    for number in unique(minute[slow]).tolist():
        mine = slow[minute[slow] == number]
        worst = mine[np.argsort(-duration[mine], kind="stable")][: max(1, kept // SHARE_OF_SLOW)]
        neighbours = np.clip(np.add.outer(worst, (-1, 0, 1)).ravel(), 0, len(duration) - 1)
        label[neighbours] = np.where(label[neighbours] == SAMPLE, SAMPLE, FOR_SLOWNESS)
    label[-1] = max(label[-1], SAMPLE)  # what follows starts where it ends
    return label


def _gaps(marks: Int64, starts: Int64, ends: Int64, labels: Int64, counted: bool) -> Records:
    """Returns a record for each run of left-out steps, and one without length where a sample meets slow steps."""
    rows = []
    for at, (start, end, label) in enumerate(zip(starts.tolist(), ends.tolist(), labels.tolist(), strict=True)):
        after = labels[at + 1] if at + 1 < len(labels) else LEFT_OUT
        flags = Flag.SLOW if after == FOR_SLOWNESS else 0
        if label == LEFT_OUT:
            rows.append((Kind.THINNED, flags, 0, (end - start - 1) * counted, marks[start], marks[end]))
        elif at + 1 < len(labels) and after != LEFT_OUT:
            rows.append((Kind.THINNED, flags, 0, 0, marks[end], marks[end]))
    return np.array(rows, LAYOUT)


def _evaluations(left: Records) -> Records:
    """Returns left-out forwards without gradients, consecutive ones as one record."""
    signs = left[np.isin(left["kind"], SIGNS)]
    signs = signs[np.argsort(signs["start"], kind="stable")]
    calls = (signs["kind"] == Kind.FORWARD) & (signs["flags"] & Flag.GRADIENT == 0)
    heads = np.flatnonzero(calls & ~np.append(False, calls[:-1]))
    tails = np.flatnonzero(calls & ~np.append(calls[1:], False))
    many = tails - heads >= LEAST_CALLS - 1
    found: Records = signs[heads[many]].copy()
    found["end"] = signs["end"][tails[many]]
    return found
