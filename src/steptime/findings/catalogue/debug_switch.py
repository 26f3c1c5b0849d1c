"""ST606: a variable of the environment that helps to find faults was left on."""

from __future__ import annotations

from steptime.debug_switches import acting
from steptime.findings.case import Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals


@rule("ST606", "debug-switch", needs={Signal.STEP, Signal.SETTINGS}, weight=Weight.NOTE)
def debug_switch(signals: Signals) -> Finding | None:
    """A debugging variable was left on

    What it means
        A variable of the environment makes every step do more than train: CUDA_LAUNCH_BLOCKING=1 waits for each kernel,
        TORCH_DISTRIBUTED_DEBUG=DETAIL checks each collective by further ones, ONEDNN_VERBOSE=1 prints each product,
        PYTHONDEVMODE=1 and PYTHONMALLOC=debug check the interpreter, NCCL_P2P_DISABLE=1 sends what devices exchange
        through the host. Such lines stay in scripts long after the fault is found.

    How we know
        The variables are read at the first steps, and told where they act: those of CUDA in a job on a device, those of
        NCCL where it is the backend. What one costs depends on the job: this is a note, and steptime try measures it.

    What helps
        Take the variable out of the script, the launcher or the container. One that the script sets itself, through
        os.environ, has to be taken out there.

    When to ignore it
        While the fault is being looked for, or where the switch works around one: NCCL_P2P_DISABLE on a host whose
        devices hang without it.
    """
    settings = signals.settings
    found = acting(settings.debug_switches, signals.step.device, settings.distributed_backend)
    if not found:
        return None
    (switch, value), more = found[0], len(found) - 1
    summary = f"{switch.name}={value} is set{f' and {more} more like it' if more else ''}: {switch.what}"
    return debug_switch.finding(
        summary,
        "Take it out of the environment, unless you are looking for a fault; steptime try measures what it costs.",
        evidence=tuple(f"{switch.name}={value}: {switch.what}" for switch, value in found),
    )
