"""What `steptime try` makes of the clinic's faults that a fix can take away: is it adopted, and how much of what the
healthy twin is faster by does it bring?

    python -m benchmarks.clinic.fixes [--name MACHINE] [--cases JOB,…] [--budget 3m]

Takes the amounts that the clinic keeps of the machine (`python -m benchmarks.clinic.run` comes first).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import CASES, Case
from benchmarks.clinic.rows import rows_of
from benchmarks.clinic.tables import SECTION as CLINIC
from benchmarks.clinic.truth import TIMEOUT, Dose, command, environment
from benchmarks.kept import USUAL_NAME, keep, machine, read, speed_of
from benchmarks.started import JobFailed, steptime
from steptime.trials.results import NAME, read_results
from steptime.trials.trial import Judgement, TrialVerdict

SECTION = "fixes"
COMMAND = "python -m benchmarks.clinic.fixes"
SHARE = 0.4
"""Of a step, as planted: of the amounts that are kept, the nearest."""
FIXES = {
    "pandas_rows": ("RM101",), "heavy_decode": ("RM101",), "next_by_hand": ("RM101",), "slow_collate": ("RM101",),
    "too_few_workers": ("RM101",), "workers_restarted": ("RM102",), "anomaly_detection": ("RM501",),
    "deterministic": ("RM502",), "own_profiler": ("RM503",), "single_tensor_updates": ("RM201",),
    "pointwise_chain": ("RM303", "RM301"), "checkpointing_left_on": ("RM305",), "too_many_threads": ("RM401",),
    "denormals": ("RM405",), "recompiling_shapes": ("RM309",), "compiled_slow_input": ("RM101",),
    "gan_slow_items": ("RM101",),
}  # fmt: skip
"""Jobs whose fault a fix takes away by itself, and which does, any one of them. The others' fixes are written by
hand: `try` has advice for them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", help="names of jobs, with commas between")
    parser.add_argument("--budget", default="3m", help="of a trial")
    parser.add_argument("--name", default=USUAL_NAME, help="of the machine, for the file of results")
    options = parser.parse_args()
    wanted = options.cases.split(",") if options.cases else list(FIXES)
    if unknown := sorted(set(wanted) - set(FIXES)):
        parser.error(f"no fix takes away the fault of {', '.join(unknown)}: expected some of {', '.join(FIXES)}")
    kept = read(options.name).get(CLINIC, {})
    for case in (case for case in CASES if case.job in wanted):
        doses = [row.dose for row in rows_of({case.job: kept.get(case.job, {})}) if row.dose.amount]
        if not doses:
            print(f"{case.job:28} no amount is kept of it: python -m benchmarks.clinic.run --cases {case.job} first")
            continue
        dose = min(doses, key=lambda dose: abs(dose.wanted - SHARE))
        row = tried(case, dose, options.budget)
        print(f"{case.job:28} {_cells(row)}", flush=True)
        keep(options.name, SECTION, case.job, {"about": machine(), "row": row})


def tried(case: Case, dose: Dose, budget: str) -> dict[str, Any]:
    """One job: recorded, then its fixes tried."""
    row: dict[str, Any] = {"twin": dose.step_ns / dose.healthy_ns, "right": FIXES[case.job], "failed": ""}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recording, reported = folder / "recording", folder / NAME
        started = partial(steptime, folder=folder, environment=environment(), seconds=4 * TIMEOUT)
        try:
            started("run", "--quiet", "--recording", str(recording), "--", *command(case, dose.amount))
            started("try", "--quiet", "--budget", budget, "-o", str(reported), str(recording))
        except JobFailed as error:
            return row | {"failed": str(error), "variants": []}
        if not reported.exists():
            return row | {"variants": []}
        results = read_results(reported.parent)
    proved = results.patch.judgement if results.patch is not None else None
    return row | {
        "variants": [_variant(judgement) for stage, judgement in results.judgements if stage == 0],
        "patch": speed_of(proved) if proved is not None else None,
        "patch_verdict": proved.verdict.value if proved is not None else "",
    }


def _variant(judgement: Judgement) -> dict[str, Any]:
    variant = judgement.variant
    return {
        "code": variant.proposal, "label": variant.label,
        "verdict": judgement.verdict.value, "speed": speed_of(judgement)
    }  # fmt: skip


# -- the table --------------------------------------------------------------------------------------------------------


def adopted(section: Mapping[str, Any]) -> int:
    """Number of jobs whose right fix was adopted."""
    rights = [_right(row) for row in _rows(section).values()]
    return sum(right.get("verdict") == TrialVerdict.ADOPT.value for right in rights)


def _rows(section: Mapping[str, Any]) -> dict[str, Any]:
    return {case.job: section[case.job]["row"] for case in CASES if case.job in section}


def table(section: Mapping[str, Any], name: str) -> list[str]:
    """In Markdown."""
    rows = _rows(section)
    return [
        f"Faults that a fix takes away: it was adopted in {adopted(section)} of {len(rows)}. The twin's gain is that "
        f"of the bare job without the fault. All: `{COMMAND} --name {name}`; one: `{COMMAND} --cases denormals`.",
        "",
        "| job | fix | verdict | speed-up | the twin's | of the twin's gain | its patch by itself |",
        "|---|---|---|---|---|---|---|",
        *(f"| {job} | {_cells(row)} |" for job, row in rows.items()),
    ]


def _right(row: Mapping[str, Any]) -> dict[str, Any]:
    """The variant of the right fix: adopted, the fastest; {} where it was not tried."""
    variants = [variant for variant in row["variants"] if variant["code"] in row["right"]]
    return max(variants, key=_success, default={})


def _success(variant: Mapping[str, Any]) -> tuple[bool, float]:
    return variant["verdict"] == TrialVerdict.ADOPT.value, (variant["speed"] or [0.0])[0]


def _cells(row: Mapping[str, Any]) -> str:
    variant, twin = _right(row), row["twin"]
    if not variant:
        others = ", ".join(f"{each['code']} {each['verdict']}" for each in row["variants"]) or "nothing"
        return f"{' or '.join(row['right'])} | {row['failed'] or f'not tried ({others})'} | | {twin:.2f}× | |"
    if variant["speed"] is None:
        return f"{variant['code']} {variant['label']} | {variant['verdict']} | | {twin:.2f}× | |"
    value, low, high = variant["speed"]
    share = (1 - 1 / value) / (1 - 1 / twin)
    patch = row.get("patch")
    reported = f"{patch[0]:.2f}× ({row['patch_verdict']})" if patch else "–"
    speed = f"{value:.2f}× ({low:.2f} to {high:.2f})"
    head = f"{variant['code']} {variant['label']} | {variant['verdict']}"
    return f"{head} | {speed} | {twin:.2f}× | {share:.0%} | {reported}"


if __name__ == "__main__":
    main()
