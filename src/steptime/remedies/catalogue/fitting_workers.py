"""RM101: as many workers as the model of supply and demand asks for."""

from __future__ import annotations

from steptime.changes import Scalar
from steptime.findings.case import Case, LoaderUse
from steptime.findings.loader_model import Supply, supply
from steptime.findings.stakes import modelled
from steptime.remedies.loader_change import loader_change
from steptime.remedies.remedy import CallEdit, Option, Promise, Snippet, remedy

SURE = 0.6
"""Of the predicted saving: what is left of it where items vary and the CPUs are not idle (the lower bound)."""
AS_GOOD = 1.15
"""A predicted step so much longer than the best one is within the model's error of it (it was 6 to 19 % off in trials,
benchmarks/results/remedies-epyc-2cpu.md); another number of workers that is predicted to be worse costs the trial a
quarter of its rounds."""
NEIGHBOUR = 4
"""Of so many workers, one: the step to the other number that is tried."""
WITHOUT_WORKERS = (
    ("num_workers", 0),
    ("persistent_workers", False),
    ("prefetch_factor", None),
    ("timeout", 0),
    ("multiprocessing_context", None),
)
STREAMS = "the workers' random numbers (augmentation), and the order from the second epoch on"


@remedy("RM101", "fitting-workers", addresses={"ST101", "ST102", "ST103", "ST106"}, promise=Promise.SAME_BITS, risk=2)
def fitting_workers(case: Case) -> tuple[Option, ...]:
    """As many loader workers as the items need

    What it changes
        num_workers of the training DataLoader, up or down, and persistent_workers=True where there are any. An iterable
        dataset without workers is left alone: each worker would yield all of it.

    What it promises
        Equal losses: indices are drawn in the training process, whatever the number of workers. Where the dataset draws
        random numbers (augmentation), each worker draws its own, and persistent workers leave out one draw an epoch:
        then another random stream is in force, and losses are compared with the band that other seeds span.

    What it should gain
        The step without its wait, but with receiving a batch from a worker, or the making of its batches divided by the
        workers, or the CPU time of the whole job divided by the usable CPUs, whichever is longest, against the step as
        it is; and the first batch of each epoch is waited for all the same. All of these are measured. A job that
        trains on the CPU with a thread on each waits for the slowest of them: what a worker does on one of these CPUs
        is added to the step. A worker that is at its next batch hands one over later, where making it takes a CPU: as
        if it held the interpreter's lock, which pure Python does (expect a little more where it does not). The number
        tried is the smallest that comes within 3 % of the best prediction, with its neighbour where that is predicted
        to be nearly as good. There may be more workers than CPUs where items wait (disk, network, sleep): the CPU time
        of making a batch is measured, each worker counts with its share, and no more than 64 on a host nor than an
        epoch has batches are tried. Without workers a quarter of what receiving a batch takes is saved, too: by so much
        they slow the training and their own collating. Expect less where an item's own operators use several threads: a
        worker has one.

    When to leave it
        When memory is short (each worker holds its own copy of what the dataset touches, and 25 MB of its own at
        least), or when making the item itself cheaper is easy. torch warns of more workers than CPUs whatever they do:
        a job that turns warnings into errors must let that one pass.
    """
    loader = case.loader
    if loader is None:
        return ()
    model = supply(case.step, loader, case.settings, case.contention)
    if model is None or model.best == loader.workers or (loader.iterable and not loader.workers):
        return ()
    if model.best > loader.workers and loader.in_memory_tensors:
        return ()
    return tuple(_option(case, loader, model, workers) for workers in _worth_trying(loader, model))


def _worth_trying(loader: LoaderUse, model: Supply) -> tuple[int, ...]:
    """The model's best and, where it asks for more, the number above or below it: the model may err by a worker."""
    if model.best < loader.workers:
        return (model.best,)
    far = max(1, model.best // NEIGHBOUR)
    near = min(model.best + far, model.limit) if model.best < model.limit else model.best - far
    as_good = near > loader.workers and model.step(near) <= AS_GOOD * model.step(model.best)
    return (model.best, near) if as_good else (model.best,)


def _option(case: Case, loader: LoaderUse, model: Supply, workers: int) -> Option:
    arguments: tuple[tuple[str, Scalar], ...] = (("num_workers", workers),)
    if workers:
        arguments += (("persistent_workers", True),)
    most = loader.wait.value + (0.0 if workers else model.beside)
    gain = min(case.step.duration.value - model.step(workers), most)
    edit = CallEdit("DataLoader", _keywords(workers), loader.site) if loader.site is not None else None
    label = ", ".join(f"{name}={value}" for name, value in arguments)
    return Option(
        label,
        (loader_change(loader, arguments),),
        modelled(gain, SURE * gain, gain, case.step.steady),
        edit or Snippet(f"DataLoader(…, {label})"),
        STREAMS if workers and (not loader.workers or not loader.persistent_workers) else "the workers' random numbers",
        other_data=True,
    )


def _keywords(workers: int) -> tuple[tuple[str, str], ...]:
    """As source; without workers the options that need some are taken back."""
    if workers:
        return (("num_workers", str(workers)), ("persistent_workers", "True"))
    return tuple((name, str(value)) for name, value in WITHOUT_WORKERS)
