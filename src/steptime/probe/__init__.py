"""The probe: the part of steptime that lives in the user's process, from the moment torch is imported.

One law: standard library, torch and `steptime.journal` only, and nothing of ours ever raises into the user's program.
`start()` is called by probe/inject/sitecustomize.py right after `import torch` has run.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from typing import Any

from steptime.probe.messages import guarded

PLAN = "STEPTIME_PROBE"
"""Environment variable with the plan as JSON: recording, profile, profile_steps, max_profile_seconds, changes, variant,
numerics, contained, began_epoch_ns, catch, log; attached: the lock of a `steptime attach`, which dies with it."""

FOR_EVER = 1 << 60
_current: list[Any] = []
"""The session of this process, once there is one."""
_asked: list[str] = []
"""Plans that are to be followed, the first of them now."""


def start(plan: str = "") -> bool:
    """Begins the watch in this process, by this plan or by that of the environment. Raises nothing: a failure is one
    line on stderr."""
    _asked.append(plan or os.environ.get(PLAN, ""))
    begun = True
    if len(_asked) == 1:  # else it was a signal, in the middle of what another had asked for
        while _asked:
            begun = guarded(lambda: _begin(json.loads(_asked[0]))) is not None
            del _asked[0]
    return begun


def watching(recording: str = "") -> Any:
    """The session that watches this process, into that recording if one is named; None where none does."""
    import torch  # noqa: F401 - with it the probe comes, where the job was started by us

    found = _current[0] if _current and _current[0].active else None
    return found if found is not None and recording in ("", found.plan["recording"]) else None


def leave(session: Any) -> None:
    """Ends the watch; the job goes on as it was before. Raises nothing."""
    from steptime.probe import session as sessions

    guarded(lambda: sessions.leave(session))


def _begin(plan: dict[str, Any]) -> bool:
    begin = time.perf_counter_ns()
    from steptime.journal import Kind
    from steptime.probe import compiler, loader, schedule, sites
    from steptime.probe.session import Session, leave

    if plan.get("contained"):
        from steptime.probe.changes import outside

        outside.install(plan)
    if plan.get("numerics"):
        _begin_numerics(plan)
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

    def finish() -> None:
        current[0].finish()

    def exhausted() -> None:
        current[0].out_of_memory()

    def forked() -> None:
        over = not current[0].active
        current[0].abandon()
        if over:
            return
        loader.tell_apart(True)
        current[0] = Session(plan, schedule.run)
        if trial is not None:
            trial.attach(current[0])
        current[0].install()

    compiler.hide_from_dynamo()
    sites.install()
    loader.install(
        plan["recording"],
        lambda *record: current[0].recorder.append(*record),
        lambda iterator: current[0].iterator_made(iterator),
    )
    current[0].install()
    current[0].recorder.interval(int(Kind.PAUSE), 0, begin, time.perf_counter_ns())
    atexit.register(finish)
    atexit.register(exhausted)  # before `finish`, as it is registered after it
    os.register_at_fork(after_in_child=forked)
    return True


def _begin_numerics(plan: dict[str, Any]) -> None:
    """`steptime nan`: a role that looks at the job's numbers stands in the place of the session."""
    from steptime.probe import compiler
    from steptime.probe.changes import seeds
    from steptime.probe.changes.variant import ProcessVariant
    from steptime.probe.numerics.instrument import Instrument
    from steptime.probe.numerics.job import GrowingNumerics, Job
    from steptime.probe.numerics.watch import Watch
    from steptime.probe.recorder import finish_as_child

    wishes = plan["numerics"]
    account = GrowingNumerics(plan["recording"], wishes["mode"])
    ending = ProcessVariant(plan["recording"], steps=FOR_EVER, warm_up=0, limit_seconds=float(FOR_EVER))
    role = (Instrument if wishes["mode"] == "instrument" else Watch)(wishes, account, ending)
    job = Job(role)
    ending.finish = job.finish  # a rank that another one ends has an account, too
    ending.install()
    seeds.install_chance(int(wishes["seed"]))
    compiler.hide_from_dynamo()
    job.install()
    role.install()
    atexit.register(job.finish)
    os.register_at_fork(after_in_child=job.forked)
    finish_as_child(job.finish)
