"""The probe: the part of steptime that lives in the user's process, from the moment torch is imported.

One law: standard library, torch and `steptime.journal` only, and nothing of ours ever raises into the user's program.
`start()` is called by probe/inject/sitecustomize.py right after `import torch` has run.
"""

from __future__ import annotations

import atexit
import json
import os

from steptime.probe.notice import switched_off

PLAN = "STEPTIME_PROBE"
"""Environment variable with the plan as JSON: recording, profile, profile_steps, max_profile_seconds, changes, variant,
numerics, contained, began_epoch_ns."""


def start() -> None:
    """Begins the watch in this process. Raises nothing: a failure is one line on stderr."""
    try:
        _begin()
    except Exception as error:  # the probe's boundary: nothing of ours may raise into the user's program
        if os.environ.get("STEPTIME_DEBUG"):
            raise
        switched_off(f"{type(error).__name__}: {error}")


def _begin() -> None:
    from steptime.probe import compiler, loader, sites
    from steptime.probe.session import Session

    plan = json.loads(os.environ[PLAN])
    if plan.get("contained"):
        from steptime.probe import contained

        contained.install(plan)
    if plan.get("numerics"):
        from steptime.probe.numerics.begin import begin as begin_numerics

        begin_numerics(plan)
        return
    trial = None
    if plan.get("changes") or plan.get("variant"):
        from steptime.probe.changes.trial import begin

        trial = begin(plan)
    current = [Session(plan)]
    if trial is not None:
        trial.attach(current[0])

    def finish() -> None:
        current[0].finish()

    def exhausted() -> None:
        current[0].out_of_memory()

    def forked() -> None:
        current[0].abandon()
        loader.tell_apart(True)
        current[0] = Session(plan)
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
    atexit.register(finish)
    atexit.register(exhausted)  # before `finish`, as it is registered after it
    os.register_at_fork(after_in_child=forked)
