"""What `run` does between the end of a job and its diagnosis."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from steptime.capture.outcome import Outcome
from steptime.cli.border import say
from steptime.errors import NothingMeasuredError, SteptimeError
from steptime.hardware.ceilings import FILE_NAME, ceilings, remembered
from steptime.hardware.link import link_of
from steptime.hardware.machine import Link, Machine
from steptime.hardware.measurement import store
from steptime.recording.load import facts_of, walk
from steptime.recording.recording import Process


def nothing_measured(outcome: Outcome, folder: Path) -> NothingMeasuredError | None:
    """Why there is nothing to account for; None when a process trained."""
    if outcome.steps_seen:
        return None
    failed = outcome.signal is not None or outcome.status != 0
    ended = f"by signal {outcome.signal}" if outcome.signal else f"with status {outcome.status}"
    if not outcome.python_seen:
        return NothingMeasuredError(
            "no-python",
            f"The job ended {ended} and no Python in it took the watch in: steptime measures Python programs that use "
            "torch, in an environment that has steptime, or with PYTHONPATH left as it is and without -I, -E and -S.",
        )
    if not outcome.torch_seen:
        advice = "its own output may say why" if failed else "give the command that trains, as python train.py"
        return NothingMeasuredError("no-torch", f"The job ended {ended} and never imported torch: {advice}.")
    advice = "its own output may say why" if failed else "let it run on into training, or check that it trains here"
    return NothingMeasuredError(
        "no-steps",
        f"The job ended {ended}, imported torch, and took no training step: {advice}; what was seen is in {folder}.",
    )


def measure_ceilings(folder: Path, *, quiet: bool) -> None:
    """Puts this machine's ceilings beside the recording, measured with the job's own interpreter if they are not known
    yet. A failure is said and costs the ceilings, not the diagnosis."""
    trainer = next(walk(folder), None)
    if trainer is None:
        return
    tell = _nothing if quiet else say
    try:
        machine = _machine(trainer, tell)
        store(replace(machine, link=_link(trainer, folder, tell)), folder / FILE_NAME)
    except SteptimeError as error:
        say(str(error))
    except OSError as error:
        say(f"The ceilings of this machine could not be written to {folder} ({error.strerror}).")


def _nothing(sentence: str) -> None:
    return


def _link(trainer: Process, folder: Path, tell: Callable[[str], None]) -> Link | None:
    """Between so many processes as ranks of the job ran on the trainer's host, where that is this one."""
    facts, settings = trainer.facts, trainer.settings
    if settings is None or settings.distributed_backend is None or facts.host != socket.gethostname():
        return None
    ranks = len({each.rank for each in facts_of(folder) if each.rank is not None and each.host == facts.host})
    device = facts.device.partition(":")[0]
    return link_of(facts.executable, device, settings.distributed_backend, ranks, facts.torch, tell)


def _machine(trainer: Process, tell: Callable[[str], None]) -> Machine:
    facts = trainer.facts
    device = facts.device.partition(":")[0]
    threads = trainer.settings.intra_op_threads if trainer.settings is not None and device == "cpu" else None
    known = remembered(device, facts.torch, threads=threads, name=facts.device_name)
    if known is not None:
        return known
    tell("measuring this machine's ceilings, once (some seconds; --no-ceilings skips it)")
    machine = ceilings(facts.executable, device, facts.torch, threads=threads, name=facts.device_name)
    if machine.disturbed:
        tell("other load slowed that: the ceilings are at least what was measured, which is done again next time")
    return machine
