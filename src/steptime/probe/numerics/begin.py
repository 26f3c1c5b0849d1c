"""Begins `steptime nan` in this process: what the plan asks for is told what happens in the job."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
from typing import Any

from steptime.probe import compiler
from steptime.probe.changes import seeds
from steptime.probe.numerics.account import GrowingNumerics
from steptime.probe.numerics.ending import Ending
from steptime.probe.numerics.instrument import Instrument
from steptime.probe.numerics.job import Job
from steptime.probe.numerics.watch import Watch


def begin(plan: dict[str, Any]) -> None:
    """Right after torch has been imported. Raises what torch's layout makes fail; the caller switches off."""
    wishes = plan["numerics"]
    account = GrowingNumerics(plan["recording"], wishes["mode"])
    ending = Ending(plan["recording"])
    role: Watch | Instrument = (Instrument if wishes["mode"] == "instrument" else Watch)(wishes, account, ending)
    job = Job(role)
    ending.finish_with(job.finish)

    def forked() -> None:
        job.forked()
        role.forked()
        if multiprocessing.parent_process() is not None:
            # Children of multiprocessing leave by os._exit: atexit never runs there, these finalizers do.
            multiprocessing.util.Finalize(None, job.finish, exitpriority=100)

    seeds.install_chance(int(wishes["seed"]))
    compiler.hide_from_dynamo()
    job.install()
    role.install()
    atexit.register(job.finish)
    os.register_at_fork(after_in_child=forked)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, job.finish, exitpriority=100)
