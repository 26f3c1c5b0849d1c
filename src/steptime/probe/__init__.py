"""The probe: the part of steptime that runs in the user's process, from the import of torch on.

It uses only the standard library, torch and `steptime.journal`, and raises nothing into the user's program.
probe/inject/sitecustomize.py calls `start()` right after `import torch` has run.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import time
from typing import Any

from steptime.probe.messages import guarded

PLAN = "STEPTIME_PROBE"
"""Environment variable with the plan as JSON. Its keys: recording, profile, profile_steps, max_profile_seconds,
changes, variant, numerics, contained, began_epoch_ns, catch, log; attached: lock file of the `steptime attach`."""

FOR_EVER = 1 << 60
_current: list[Any] = []
"""The session of this process; empty before the first `start`."""
_asked: list[str] = []
"""Plans still to be started; the first one is being started now."""


def start(plan: str = "") -> bool:
    """Starts the instrumentation by this plan, or by the environment's if it is "". Returns False if that fails; raises
    nothing: a failure is one line on stderr."""
    _asked.append(plan or os.environ.get(PLAN, ""))
    begun = True
    if len(_asked) == 1:  # else it was a signal, in the middle of what another had asked for
        collects = gc.isenabled()
        gc.disable()  # our imports would trigger a collection of all that torch has just made: 70 ms
        try:
            while _asked:
                begun = guarded(lambda: _start(json.loads(_asked[0]))) is not None
                del _asked[0]
        finally:
            if collects:
                gc.enable()
    return begun


def watching(recording: str = "") -> Any:
    """Returns the active session of this process, or None. recording: path that the session must write into, "" for
    any."""
    import torch  # noqa: F401 - with it the probe comes, where the job was started by us

    found = _current[0] if _current and _current[0].active else None
    return found if found is not None and recording in ("", found.plan["recording"]) else None


def leave(session: Any) -> None:
    """Ends the instrumentation; the job goes on without it. Raises nothing."""
    from steptime.probe import session as sessions

    guarded(lambda: sessions.leave(session))


def _start(plan: dict[str, Any]) -> bool:
    start = time.perf_counter_ns()
    from steptime.journal import Kind
    from steptime.probe import compiler, loader, profiling, schedule, sites
    from steptime.probe.session import Session, leave

    if plan.get("contained"):
        from steptime.probe.changes import outside

        outside.install(plan)
    if plan.get("numerics"):
        _start_numerics(plan)
        return True
    trial = None
    if plan.get("changes") or plan.get("variant"):
        from steptime.probe.changes.switching import SwitchingTrial
        from steptime.probe.changes.trial import Trial

        switched = (plan.get("variant") or {}).get("switched")
        trial = SwitchingTrial(plan) if switched else Trial(plan)
        trial.install()
    if _current:  # we were here before; whoever asked then is gone
        if _current[0].active:
            leave(_current[0])
        loader.record_into(plan["recording"])
        _current[0] = Session(plan, schedule.run)
        _current[0].install()
        return True
    current = _current
    current.append(Session(plan, schedule.run))
    if trial is not None:
        trial.attach(current[0])

    def forked() -> None:
        over = not current[0].active
        current[0].abandon()
        if over:
            return
        loader.distinguish(True)
        current[0] = Session(plan, schedule.run)
        if trial is not None:
            trial.attach(current[0])
        current[0].install()

    compiler.hide_from_dynamo()
    sites.install()
    profiling.observe_profilers()
    loader.install(
        plan["recording"],
        lambda *record: current[0].recorder.append(*record),
        lambda iterator: current[0].iterator_made(iterator),
    )
    current[0].install()
    current[0].recorder.interval(int(Kind.PAUSE), 0, start, time.perf_counter_ns())
    atexit.register(lambda: current[0].finish())
    atexit.register(lambda: current[0].out_of_memory())  # runs before that one, as it is registered after it
    os.register_at_fork(after_in_child=forked)
    return True


def _start_numerics(plan: dict[str, Any]) -> None:
    """Starts `steptime nan` instead of a session: an Instrument or a Monitor checks the job's numbers."""
    from steptime.probe import compiler
    from steptime.probe.changes import seeds
    from steptime.probe.changes.variant import ProcessVariant
    from steptime.probe.numerics.instrument import Instrument
    from steptime.probe.numerics.job import GrowingNumerics, Job
    from steptime.probe.numerics.monitor import Monitor
    from steptime.probe.recorder import finish_as_child

    options = plan["numerics"]
    numerics = GrowingNumerics(plan["recording"], options["mode"])
    ending = ProcessVariant(plan["recording"], steps=FOR_EVER, warm_up=0, limit_seconds=float(FOR_EVER))
    role = (Instrument if options["mode"] == "instrument" else Monitor)(options, numerics, ending)
    job = Job(role)
    ending.finish = job.finish  # a rank that another one ends writes its numerics, too
    ending.install()
    seeds.install_chance(int(options["seed"]))
    compiler.hide_from_dynamo()
    job.install()
    role.install()
    atexit.register(job.finish)
    os.register_at_fork(after_in_child=job.forked)
    finish_as_child(job.finish)
