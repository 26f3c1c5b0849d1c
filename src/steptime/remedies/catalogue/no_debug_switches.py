"""RM504: without variables that help to find faults."""

from __future__ import annotations

from steptime.changes import Change
from steptime.debug_switches import acting
from steptime.findings.case import Case
from steptime.remedies.remedy import EnvironmentEdit, Option, Promise, remedy


@remedy("RM504", "no-debug-switches", addresses={"ST606"}, promise=Promise.SAME_BITS, risk=1)
def no_debug_switches(case: Case) -> Option | None:
    """Debugging variables of the environment switched off

    What it changes
        CUDA_LAUNCH_BLOCKING, TORCH_DISTRIBUTED_DEBUG, ONEDNN_VERBOSE, PYTHONDEVMODE and others that are on get the
        value that switches them off, before the job starts. What the script sets through os.environ stays as it is:
        then the change is not in force, and said to be so.

    What it promises
        Equal losses: they only watch, wait or print.

    What it should gain
        It is not predicted: a switch that checks every block or waits for every kernel may take most of a step, or
        nothing that can be measured.

    When to leave it
        While the fault is being looked for, and where the switch works around one.
    """
    settings = case.settings
    if settings is None:
        return None
    found = acting(settings.debug_switches, case.step.device, settings.distributed_backend)
    variables = tuple((switch.name, switch.off) for switch, _ in found)
    if not variables:
        return None
    label = " ".join(f"{name}={value}" for name, value in variables)
    return Option(label, (Change("environment", arguments=variables),), None, EnvironmentEdit(variables))
