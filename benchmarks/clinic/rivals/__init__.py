"""Other tools on the same jobs: each says in its own words what a step is slow for, and a printed table says which of
our causes each word may mean. Where that is unclear, the rival gets the benefit: one word may stand for many causes."""

from __future__ import annotations

from benchmarks.clinic.rivals import profiler, slowai, traceml, traces
from benchmarks.clinic.rivals.rival import Rival

RIVALS: dict[str, Rival] = {
    rival.name: rival
    for rival in (
        traceml.UNMODIFIED,
        traceml.INSTRUMENTED,
        slowai.SLOWAI,
        profiler.TEXTBOOK,
        traces.HTA,
        traces.TRACEINSIGHT,
        traces.TENSORBOARD,
    )
}
"""By the name that `--rival` knows."""
