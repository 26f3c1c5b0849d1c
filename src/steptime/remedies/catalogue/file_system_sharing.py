"""RM109: batches handed over by the name of their shared memory."""

from __future__ import annotations

from dataclasses import replace

from steptime.findings.case import Case
from steptime.findings.loader_model import supply
from steptime.findings.stakes import modelled
from steptime.remedies.loader_change import loader_change
from steptime.remedies.remedy import Option, Promise, StatementEdit, remedy

STRATEGY = "file_system"
LIKELY, SURE = 0.5, 0.0
"""Of the wait that the making of batches does not explain. By hand, on two CPUs, with one worker, items of 20 ms in
pure Python and 18 ms of training beside them, a wait of 10.5 ms became one of 4.3 ms; with items that let the lock go
(zlib), 2.5 to 3.5 ms became 1.1 to 1.5 ms."""


@remedy("RM109", "file-system-sharing", addresses={"ST101", "ST102"}, promise=Promise.SAME_BITS, risk=2)
def file_system_sharing(case: Case) -> Option | None:
    """Batches handed over by name

    What it changes
        torch.multiprocessing.set_sharing_strategy("file_system") before training: a loader's worker tells the training
        process the name of each tensor's shared memory. By default, on Linux, it passes an open file for each of them,
        through a connection that it must answer itself; where it makes the next item in pure Python meanwhile, it holds
        the interpreter's lock and answers late, five milliseconds at a time (sys.getswitchinterval).

    What it promises
        Equal losses: the batches are the same.

    What it should gain
        About half of what the training still waits although batches are made quickly enough: what is left of the wait
        beside the making of batches by so many workers. Less where the items let the lock go.

    When to leave it
        Where jobs are often killed: torch's manager process (torch_shm_manager) frees what a dead process shared, and
        where that is killed too, the memory stays in /dev/shm.
    """
    loader = case.loader
    if loader is None or not loader.workers:
        return None
    model = supply(case.step, loader, case.settings, case.contention)
    if model is None:
        return None
    at_once = replace(model, handover=0.0, lateness=0.0).step(loader.workers)
    unexplained = min(case.step.duration.value - at_once, loader.wait.value)
    if unexplained <= 0:
        return None
    statement = f'torch.multiprocessing.set_sharing_strategy("{STRATEGY}")'
    return Option(
        statement.removeprefix("torch.multiprocessing."),
        (loader_change(loader, (("strategy", STRATEGY),), "sharing-strategy"),),
        modelled(LIKELY * unexplained, SURE * unexplained, unexplained, case.step.steady),
        StatementEdit(statement, "torch"),
    )
