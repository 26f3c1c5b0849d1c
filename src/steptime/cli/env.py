"""Work of `steptime env`, whose options are in verbs/env.py."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace

from steptime._version import __version__
from steptime.answer.answer import Answer
from steptime.answer.output import FORMATS
from steptime.answer.tables import Table, table_of, word
from steptime.cli.delivery import hand_over
from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery
from steptime.errors import NothingMeasuredError, UsageError
from steptime.machine.environment import Environment, describe, interpreter_with_torch
from steptime.machine.machine import Machine
from steptime.quantities import Estimate, format_bytes, format_duration, format_intensity, format_share

Row = tuple[str, str]


def answer_of(environment: Environment) -> Answer:
    """Answer on the machine and the peaks of each device."""
    identity = environment.identity
    rows = [
        ("host", f"{identity.host}, {identity.system}"),
        ("memory", format_bytes(identity.memory)),
        *(
            ("accelerator", f"{each.name}, {format_bytes(each.memory)}, driver {each.driver}")
            for each in identity.accelerators
        ),
        ("steptime", f"{__version__} on Python {platform.python_version()}"),
        ("torch", f"{environment.torch} in {environment.interpreter}" if environment.torch else "not found"),
    ]
    return Answer(
        title="Environment",
        headline=f"{identity.processor}, {identity.usable_cpus} of {identity.logical_cpus} CPUs usable",
        parts=(_table("machine", "", rows), *map(_peaks, environment.machines)),
        notes=environment.problems,
        data=environment,
    )


def _table(identity: str, title: str, rows: Sequence[Row]) -> Table:
    return table_of(
        identity, title, "", rows, word("", "name", lambda row: row[0]), word(" ", "value", lambda row: row[1])
    )


def _peaks(machine: Machine) -> Table:
    threads = f", {machine.threads} threads" if machine.device == "cpu" and machine.threads else ""
    loaded = f" while other processes used {machine.other_cpus:.1f} CPUs: a lower bound, to be measured again next time"
    origin = (
        f"measured{loaded if machine.under_load else ''}"
        if machine.measured
        else f"from a datasheet ({machine.source}), not measured"
    )
    rows = [(f"{rate.name} matmul", _rate(rate.rate, "FLOP/s")) for rate in machine.matrix]
    if machine.copy is not None:
        rows.append(("copy", _rate(machine.copy, "B/s")))
        ridges = (f"{rate.name} {format_intensity(rate.rate.value / machine.copy.value)}" for rate in machine.matrix)
        rows.append(("machine balance", ", ".join(ridges)))
    if machine.updates:
        sizes = (f"{_scaled(each.rate.value, 'B/s')} ({format_bytes(each.size)})" for each in machine.updates)
        rows.append(("update in place", ", ".join(sizes)))
    costs = {
        "operator on the CPU": machine.dispatch,
        "operator launched": machine.launch,
        "batch from a worker": machine.handover,
        "profiled operator": machine.profiler,
    }
    for name, cost in costs.items():
        if cost is not None:
            rows.append((name, f"{format_duration(cost.value)}{_spread(cost, format_duration(cost.high))}"))
    if (together := machine.together) is not None:
        spread = _spread(together, f"{together.low:.2f}")
        rows.append(("all CPUs at once", f"the work of {together.value:.2f} alone{spread}"))
    if machine.between_runs is not None:
        rows.append(
            ("runs of one job", f"differ by {format_share(machine.between_runs)} of the step time with no change")
        )
    return _table(f"peaks-{machine.device}", f"Peaks of {machine.name}{threads}: {origin}", rows)


def _rate(rate: Estimate, unit: str) -> str:
    return f"{_scaled(rate.value, unit)}{_spread(rate, _scaled(rate.low, unit))}"


def _spread(estimate: Estimate, median: str) -> str:
    return f"  (median block {median})" if estimate.samples > 1 else ""


def _scaled(value: float, unit: str) -> str:
    """Rate with a decimal prefix: "1.23 TFLOP/s"."""
    for prefix, size in (("T", 1e12), ("G", 1e9)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value / 1e6:.3g} M{unit}"


def _sweep(python: str | None, recording: str | None, delivery: Delivery, *, remeasure: bool) -> int:
    """Runs the sweep on the accelerator, else on the CPU, and places the operators of a recording on it."""
    from steptime.callables.sweep import SweepOptions, answer_of_sweep, operators_of, sweep
    from steptime.diagnosis import diagnose_paths

    delivery.check(FORMATS)
    operators = operators_of(diagnose_paths((recording,)).processes[0].case) if recording else ()
    if recording and not operators:
        raise NothingMeasuredError(
            "nothing-to-place",
            f"{recording} has no operators with known FLOPs. Record the job with a profile: steptime run -- COMMAND",
        )
    interpreter = interpreter_with_torch(python)
    machines = describe(python, remeasure=remeasure, runs=False, notify=say).machines
    machine = next((each for each in reversed(machines) if each.measured), None)
    found = sweep(SweepOptions(machine.device if machine is not None else "cpu"), interpreter, machine, say)
    found = replace(found, recording=recording or "", operators=operators)
    hand_over(answer_of_sweep(found), delivery)
    return 0


def run(
    remeasure: bool, runs: bool, sweeps: bool, recording: str | None, python: str | None, delivery: Delivery
) -> int:
    """Prints the machine, or its sweep. Returns the exit status. Raises SteptimeError."""
    if (delivery.outputs or recording) and not sweeps:
        raise UsageError("usage", "-o and --place need --sweep: steptime env --sweep -o FILE")
    if sweeps:
        return _sweep(python, recording, delivery, remeasure=remeasure)
    hand_over(answer_of(describe(python, remeasure=remeasure, runs=runs, notify=say)), delivery)
    return 0
