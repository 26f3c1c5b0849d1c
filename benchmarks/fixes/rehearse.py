"""The planted jobs without a clock: is the right fix proposed, does its change act, do the gradients stay what they
are, and does the patch run? A few steps each; other work on the machine makes no difference.

    python -m benchmarks.fixes.rehearse FOLDER [--only NAME,…]
    python -m benchmarks.fixes.rehearse FOLDER --report benchmarks/results/fixes-rehearsed.md
"""

from __future__ import annotations

import argparse
import json
from math import isclose
from pathlib import Path
from typing import Any

from benchmarks.fixes.planted import PLANTED, Planted
from benchmarks.fixes.run import environment_of, findings_of, record
from steptime.advice.propose import propose
from steptime.changes import Change, VariantOptions
from steptime.diagnosis import diagnose_paths
from steptime.recording.load import load
from steptime.trials.containment import Workspace
from steptime.trials.execute import ScheduledRun, execute
from steptime.trials.judge import judge
from steptime.trials.patch import make_patch
from steptime.trials.plan import edits_of, plan_variants, script_of, workspace_for, writable
from steptime.trials.trial import BASELINE, Run, Variant

LINES = "rehearsed.jsonl"
OPTIONS = VariantOptions(steps=6, warm_up=3, limit_seconds=60.0, dropout=False, fingerprint_steps=2)


def rehearse(job: Planted, folder: Path) -> dict[str, Any]:
    """The first proposal that is right for a job, as a change and as a patch."""
    recording = record(job, folder)
    (process, *_) = diagnose_paths((str(recording),)).processes
    proposals = propose(process.case, process.findings)
    manifest = load(recording).manifest
    place = Path(manifest.directory), manifest.command
    variants = plan_variants(writable(proposals, *place), 50, process.case.step.duration.value, *place)
    result: dict[str, Any] = {
        "job": job.name,
        "right": job.right,
        "findings": findings_of(recording),
        "proposed": [variant.proposal for variant in variants],
    }
    chosen = next((variant for variant in variants if variant.proposal in job.right), None)
    if chosen is None:
        return result
    workspace = workspace_for(load(recording).manifest, recording, folder / job.name / "rehearsal", uncontained=False)
    runs = [one(workspace, variant, number) for number, variant in enumerate((Variant(BASELINE), chosen))]
    judgement = judge(chosen, runs)
    patch = make_patch(edits_of(chosen, variants, proposals), workspace.directory, script_of(workspace.command))
    result |= {
        "label": chosen.label,
        "changes": [change.detail for change in runs[1].changes],
        "verdict": judgement.verdict.value,
        "agreement": judgement.agreement.value,
        "failure": runs[1].failure,
        "patch_lines": sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in patch.diff.splitlines()),
        "environment": [f"{name}={value}" for name, value in patch.environment],
        "snippets": list(patch.snippets),
    }
    if patch.files or patch.environment:
        variables = (Change("environment", arguments=patch.environment),) if patch.environment else ()
        patched = tuple((str(path), text) for path, _, text in patch.files)
        run = one(workspace, Variant("patch", variables, sources=patched), 2)
        result["patch_failure"] = run.failure
        result["patch_losses"] = losses_agree(runs[1], run)
    return result


def one(workspace: Workspace, variant: Variant, position: int) -> Run:
    return execute(workspace, ScheduledRun(variant, 0, 0, position, OPTIONS, rehearsal=True))


def losses_agree(change: Run, patch: Run) -> str:
    """How the losses of the patched job compare with those under the change."""
    pairs = [(a, b) for a, b in zip(change.losses, patch.losses, strict=False) if a is not None and b is not None]
    if not pairs:
        return "none seen"
    if all(a == b for a, b in pairs):
        return "equal"
    return "close" if all(isclose(a, b, rel_tol=0.02) for a, b in pairs) else "apart"


def report(results: list[dict[str, Any]]) -> str:
    machine = environment_of("")
    lines = [
        "# Fixes on planted jobs, rehearsed",
        "",
        "Without a clock (`python -m benchmarks.fixes.rehearse`): the right fix as a change from outside, as a patch;",
        f"{machine['machine']}, Python {machine['python']}, torch {machine['torch']}, {machine['date']}.",
        "",
        "| job | found first | right fix | the change | gradients | patch | the patched job's losses |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        first = result["findings"][0] if result["findings"] else "–"
        wanted = " or ".join(result["right"]) or "none"
        if "label" not in result:
            reported = "not proposed" if result["right"] else f"proposed: {' '.join(result['proposed']) or 'nothing'}"
            lines.append(f"| {result['job']} | {first} | {wanted} | {reported} | | | |")
            continue
        acted = result["failure"] or "; ".join(result["changes"])
        kept = "kept" if result["verdict"] == "undecided" else result["verdict"]
        written = f"{result['patch_lines']} lines" if result["patch_lines"] else " ".join(result["environment"])
        losses = result.get("patch_failure") or result.get("patch_losses", "")
        lines.append(
            f"| {result['job']} | {first} | {wanted}: {result['label']} | {acted} | {kept} | {written or 'snippet'} | "
            f"{losses} |"
        )
    planted = [result for result in results if result["right"]]
    good = [result for result in planted if result.get("verdict") == "undecided"]
    ran = [result for result in planted if result.get("patch_losses") in ("equal", "close")]
    lines += [
        "",
        f"- Right fix proposed, in force and with the gradients it promises: {len(good)} of {len(planted)}.",
        f"- Patches that ran with the same losses: {len(ran)}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    path = arguments.folder / LINES
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if arguments.report is not None:
        arguments.report.write_text(report(done), encoding="utf-8")
        print(report(done))
        return
    wanted = arguments.only.split(",") if arguments.only else [job.name for job in PLANTED]
    for job in PLANTED:
        if job.name in wanted and job.name not in {result["job"] for result in done}:
            result = rehearse(job, arguments.folder)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(job.name, {name: value for name, value in result.items() if name not in ("job",)}, flush=True)


if __name__ == "__main__":
    main()
