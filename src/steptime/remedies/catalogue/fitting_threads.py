"""RM401: as many threads as there are CPUs for them."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case, SettingsUse
from steptime.findings.threads import fitting_threads, idle_cpus
from steptime.remedies.remedy import EnvironmentEdit, Option, Promise, SwitchEdit, remedy


@remedy("RM401", "fitting-threads", addresses={"ST801", "ST808"}, promise=Promise.SAME_CURVE, risk=1)
def threads_for_cpus(case: Case) -> Option | None:
    """As many threads as there are CPUs for them

    What it changes
        The number of threads of one operator on the CPU: fewer, so that those of all training processes and a loader's
        workers find a CPU each; or more, where CPUs are idle.

    What it promises
        A curve as another seed would give: sums over several threads are taken in another order.

    What it should gain
        No model predicts it; threads that wait for each other on a crowded CPU have made steps ten times as long, and
        small operators gain nothing from more of them.

    When to leave it
        When the other load on the machine is the reason, and goes away; when idle CPUs are somebody else's.
    """
    settings = case.settings
    if settings is None:
        return None
    best, threads = fitting_threads(settings, case.loader), settings.intra_op_threads
    room = idle_cpus(case.contention) if case.contention is not None else 0.0
    if best == threads or (2 * room < best - threads):
        return None
    change = Change("threads", arguments=(("intra_op", best),))
    return Option(f"{best} threads", (change,), None, _edit(settings, best))


def _edit(settings: SettingsUse, best: int) -> EnvironmentEdit | SwitchEdit:
    """The variable, unless the job sets another number than that, or than what torch would choose by itself."""
    asked, threads = settings.omp_num_threads, settings.intra_op_threads
    if asked != str(threads) if asked else threads > settings.logical_cpus:
        return SwitchEdit("set_num_threads", f"torch.set_num_threads({best})", str(best))
    return EnvironmentEdit((("OMP_NUM_THREADS", str(best)),))
