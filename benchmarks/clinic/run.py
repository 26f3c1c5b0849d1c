"""The clinic: jobs with one planted fault each, in several doses, and how often the diagnosis is right.

    python -m benchmarks.clinic.run [--quick] [--cases heavy_decode,casts] [--shares 15,40] [--name MACHINE]
                                    [--rival profiler=PYTHON ...] [--continue]

Every job runs bare first: its own stopwatch gives the healthy step, and which amount of the fault takes which share of
a step. Then it runs under `steptime run`, unmodified, and under each rival, at the same amounts. What is said goes into
benchmarks/results/<name>.json after every case; --continue takes only what is not there yet. The tables are made by
`python -m benchmarks.proof`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import CASES, Case
from benchmarks.clinic.diagnosed import Reported, steptime_says
from benchmarks.clinic.rivals import RIVALS
from benchmarks.clinic.rows import plain, row_of
from benchmarks.clinic.score import Row
from benchmarks.clinic.tables import SECTION
from benchmarks.clinic.truth import Dose, doses
from benchmarks.kept import USUAL_NAME, keep, machine, read
from benchmarks.started import JobFailed

OURS = "steptime"
QUICK = ("heavy_decode", "loop_loss", "two_losses")
"""So that all quick benchmarks together take less than a quarter of an hour on two CPUs."""
ABOUT = {"about", "earlier"}
"""Of what is kept of a case: the machine now and when other rows of it were taken; the rest is rows by tool."""
NOTHING = Dose(0, 0.0, 0.0, math.nan, math.nan)


def main() -> None:
    options = arguments()
    tools: dict[str, Callable[[Case, int], Reported]] = {OURS: steptime_says}
    for name, python in options.rival:
        tools[name] = RIVALS[name].adapter(python)
    for case in (case for case in CASES if case.job in options.cases):
        kept = read(options.name).get(SECTION, {}).get(case.job, {}) if options.go_on else {}
        sound = {
            name: [row for row in kept.get(name, ()) if name not in tools or not row["failed"]]
            for name in {*kept, *tools} - ABOUT
        }
        found = examined(case, options.shares, tools, sound)
        if any(found.values()):
            rows = {name: sorted([*sound[name], *found.get(name, ())], key=_amount) for name in sound}
            earlier = [*kept.get("earlier", ()), kept["about"]] if kept else []
            keep(options.name, SECTION, case.job, {**rows, "about": machine(), "earlier": earlier})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three cases, healthy and at 40 %%")
    parser.add_argument("--cases", help="names of jobs, with commas between")
    parser.add_argument("--shares", help="of a step that the fault shall take, in percent")
    parser.add_argument("--rival", action="append", default=[], type=_rival, metavar="NAME=PYTHON",
                        help=f"a rival, and the interpreter that has it: {', '.join(RIVALS)}")  # fmt: skip
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="leave out what is kept and ran, of tools and of amounts"
    )
    parser.add_argument("--name", default=USUAL_NAME, help="of the machine, for the file of results")
    options = parser.parse_args()
    known = [case.job for case in CASES]
    options.cases = options.cases.split(",") if options.cases else list(QUICK) if options.quick else known
    options.shares = [
        float(share) / 100 for share in (options.shares or ("40" if options.quick else "15,40")).split(",")
    ]
    unknown = set(options.cases) - set(known)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def _rival(words: str) -> tuple[str, str]:
    name, _, python = words.partition("=")
    if name not in RIVALS or not Path(python).exists():
        raise argparse.ArgumentTypeError(f"{words}: expected {'|'.join(RIVALS)}=PATH of a Python")
    return name, str(Path(python).absolute())


def examined(
    case: Case,
    shares: list[float],
    tools: dict[str, Callable[[Case, int], Reported]],
    kept: dict[str, list[dict[str, Any]]],
) -> dict[str, list[dict[str, Any]]]:
    """The rows of one case that are missing, by tool; a case that cannot run here is one row that says why. A rival
    that comes later meets the amounts that are kept."""
    if case.missing:
        why = f"needs {', '.join(case.missing)}"
        return {name: [reported(name, Row(case, NOTHING, None, why))] for name in tools if not kept[name]}
    met = {name: {row["dose"]["amount"] for row in kept[name]} for name in tools}
    taken = [row_of(case, row).dose for row in kept[OURS]]
    further = [share for share in shares if case.most and share not in {dose.wanted for dose in taken}]
    try:
        new = doses(case, further) if further or not taken else []
    except JobFailed as error:
        return {name: [reported(name, Row(case, NOTHING, None, str(error)))] for name in tools if not kept[name]}
    taken += [dose for dose in new if dose.amount not in met[OURS]]
    return {
        name: [reported(name, heard(case, dose, says)) for dose in taken if dose.amount not in met[name]]
        for name, says in tools.items()
    }


def _amount(row: dict[str, Any]) -> int:
    return int(row["dose"]["amount"])


def heard(case: Case, dose: Dose, says: Callable[[Case, int], Reported]) -> Row:
    try:
        return Row(case, dose, says(case, dose.amount))
    except JobFailed as error:
        return Row(case, dose, None, str(error))
    except subprocess.TimeoutExpired as error:
        return Row(case, dose, None, f"took more than {error.timeout:.0f} s")


def reported(tool: str, row: Row) -> dict[str, Any]:
    """One line on the screen; the row as it is kept."""
    words = row.failed or ", ".join(_words(row.message) if row.message else ()) or "nothing"
    bottleneck = row.message.bottleneck if row.message else ""
    step = f"{row.dose.share:6.1%} of {row.dose.step_ns / 1e6:8.2f} ms"
    print(f"{row.case.job:28} {tool:9} {step}  {bottleneck:10} {words}", flush=True)
    return plain(row)


def _words(message: Reported) -> Iterator[str]:
    for cause, (value, low, high), line in zip(message.causes, message.shares, message.lines, strict=True):
        yield f"{cause} {value:.0%} ({low:.0%} to {high:.0%})" + (f" {line[0]}:{line[1]}" if line else "")


if __name__ == "__main__":
    main()
