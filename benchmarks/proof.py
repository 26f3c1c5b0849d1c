"""docs/proof.md, one table, and benchmarks/results/proof-<name>.md, all figures behind it, from results of one machine.

    python -m benchmarks.proof [--name MACHINE]

Reads benchmarks/results/fresh-jobs.jsonl (jobs that nobody had seen), <name>.json (the clinic, rivals, faithfulness,
faults), overhead-<name>.json (cost) and, where there is one, <name>.md: why targets were missed, by hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import overhead
from benchmarks.clinic import fixes, generate, tables as clinic
from benchmarks.clinic.rivals import RIVALS
from benchmarks.clinic.rows import rows_of
from benchmarks.clinic.score import Count, score
from benchmarks.faithful import run as faithful
from benchmarks.faults import run as faults
from benchmarks.kept import RESULTS, ROOT, USUAL_NAME, read
from benchmarks.reports import tables as reports

PAGE = ROOT / "docs" / "proof.md"
ABOUT = ("cpu", "cpus", "system", "python", "torch", "steptime", "commit", "date", "load")
"""What every piece says of the run that it comes from."""

SHORT = """\
How often is the diagnosis right? What does steptime cost? Does it change a training? One table, the newest batch on
top. Each figure was measured by the command in its row, on two CPUs; run it in the root of a clone that has the `dev`
group installed, on a quiet machine. `make bench` takes a quick set in 15 minutes, `make bench-full` all of it.
"""
READ = """\
## How to read it

- **Public reports** are what people complain about: scripts that re-enact in small what somebody reported, with the
  cause that was found ([each case](../benchmarks/results/reports.md)), scored once, before any rule was changed for it.
  Blind: written by somebody who does not look at rules. Advice counts where its words are the owners' fix. Words can
  match by accident, and miss by wording: two readers who judged the same answers by their meaning were stricter about
  the cause and milder about the advice ([what they found](../benchmarks/results/reports.md)).
- **Fresh jobs** are the figures to trust. Each job is composed from a seed that had never been run, and scored once
  ([how](clinic.md)). A withheld verdict counts as not right. A twin is the same job without the planted fault: what
  steptime says of it was measured in it, and may be true, but nobody planted it.
- **The clinic** is tuned: rules, accepted answers and jobs were changed after results had been seen. Verdicts are
  withheld there mostly because another program used the second CPU.
- **Intervals are too narrow.** A finding's interval comes from one run; two runs differ by 4 to 10 % of a step.
- **Targets missed**: false alarms, the planted share in the interval, and the cost of short steps. On a Xeon whose
  pace changes by itself the cost is higher: 2.4 % of a step of 2 ms
  ([figures](../benchmarks/results/overhead-xeon-2cpu.md)).
- **Other tools** were asked about fewer jobs, while a second program used the other CPU. A tool's word counts for
  every cause that it could mean. HTA and traceinsight fail on traces without a device.

## More figures

- Programs it was tried on: [compatibility](compatibility.md),
  [25 programs nobody had tuned it on](../benchmarks/results/public-programs.md),
  [public traces](../benchmarks/results/public-traces.md), [figures that others published](published-figures.md).
- What people do with a model in mid-training: [164 operations](../benchmarks/results/operations.md), watched and bare.
- Trials: [false wins](statistics.md#checked), [cheats that `judge` catches](../benchmarks/results/red-team.md).
- Predictions: [fixes](../benchmarks/results/predictions-epyc-avx512-2cpu.md),
  [memory](../benchmarks/results/memory-predictions.md), [replay](../benchmarks/results/replay.md),
  [other devices](../benchmarks/results/elsewhere.md).
- GPUs: [three machines](../benchmarks/results/gpu/three-machines.md),
  [the newest](../benchmarks/results/gpu/h200-variants.md).
"""

HEAD = """\
Everything behind [the page of proof](../../docs/proof.md): how often the diagnosis is right, beside other tools on the
same jobs; what steptime costs; whether a watched job is the same job; and what faults do to it.
"""
FRESH_ROWS = RESULTS / "fresh-jobs.jsonl"
FRESH = """\
Composed from seeds that had never been run, scored once ([how](../../docs/clinic.md)). A verdict that is withheld
counts as not right. A finding is right where it names the cause, or stands on the faulty line. What is said of a twin,
which has no planted fault, may be true all the same: the last column is what a reader should look at. Seed 9027 is
left out: one fault stood in it twice, and what was planted was no truth. The second row leaves
aside what the twin is told, too: it is true of both, and may be larger than what was planted. The newest batch comes
first; beside seeds 9149 to 9151 other programs ran. With seed 9210 steptime itself failed, which counts as withheld
and is mended since. A share is of a step; of jobs with rollouts what was planted is a
share of all of the run, which steptime tells apart from the steps.
"""
COST = """\
All of it: `python -m benchmarks.overhead`; one table: `--only steps`, `run`,
`recording` or `tools`. Targets: at most 1 % of a
step of 2 ms and 5 % of one of 0.4 ms in CPU time, 0.5 s for a run.
"""
FAITHFULNESS = """\
Target: no difference. All: `python -m benchmarks.faithful.run`; one job: `python -m benchmarks.faithful.run --scripts
FILE`.
"""
FAULTS = """\
Target: every recording can be read, and at most the last second of training is lost; no reader crashes, hangs or takes
memory without bound; a job ends with the status that it has alone, whatever its streams lead to, and finds its own
bytes alone in its files, whatever descriptors it closes; no process of a trial changes a file of the user's, and none
outlives a trial that is killed. All:
`python -m benchmarks.faults.run`; one kill: `python -m benchmarks.faults.run --only kills --first 17 --kills 1`; one
reader: `python -m benchmarks.faults.run --only fuzz --target trace`; one trial: `python -m benchmarks.faults.run --only
trials --first 17 --trials 1`; one job that closes descriptors: `python -m benchmarks.faults.run --only descriptors
--first 2 --descriptors 1`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name", default=USUAL_NAME, help="of the machine whose results are shown")
    name = parser.parse_args().name
    for path, text in ((PAGE, page(name)), (RESULTS / f"proof-{name}.md", everything(name))):
        path.write_text(text, encoding="utf-8")
        print(f"Wrote {path}")


def page(name: str) -> str:
    """docs/proof.md in Markdown, from the files of results alone."""
    return "\n".join(
        [
            "# Proof",
            f"\n<!-- made by `python -m benchmarks.proof --name {name}`; do not edit -->\n",
            SHORT,
            "| | measured | 95 % interval | target | when | by |",
            "| --- | --- | --- | --- | --- | --- |",
            *_rows(name, read(name)),
            f"\nEvery job, every row and older batches: [all figures](../benchmarks/results/proof-{name}.md).\n",
            READ.rstrip(),
            "",
        ]
    )


def everything(name: str) -> str:
    """benchmarks/results/proof-<name>.md in Markdown, from the files of results alone."""
    kept = read(name)
    return "\n".join([*_head(name, kept), *(line for section in _sections(name, kept) for line in section), ""])


def _rows(name: str, kept: Mapping[str, Any]) -> Iterator[str]:
    for what, count, when in reports.proof_rows(reports.rows()):
        yield _counted(what, count, "", when, "benchmarks.reports")
    if FRESH_ROWS.exists():
        yield from _fresh_rows()
    if clinic.SECTION in kept:
        yield from _clinic_rows(kept)
    costs = RESULTS / f"overhead-{name}.json"
    if costs.exists():
        yield from _cost_rows(json.loads(costs.read_text(encoding="utf-8")))
    if faithful.SECTION in kept:
        jobs = sum("job" in piece for piece in kept[faithful.SECTION].values())
        found, when = faithful.differences_in(kept[faithful.SECTION]), _when(kept[faithful.SECTION])
        by = "benchmarks.faithful.run"
        yield _row(f"Differences of {jobs} jobs, watched and bare: output, files, weights", str(found), "0", when, by)
    if faults.SECTION in kept:
        faulty = faults.faults_of(faults.merged(kept[faults.SECTION]))
        what = "Faults: jobs killed, damaged files read, streams closed, trials that overwrite"
        yield _row(what, str(len(faulty)), "0", _when(kept[faults.SECTION]), "benchmarks.faults.run")


def _fresh_rows() -> Iterator[str]:
    """The two newest batches."""
    batches = _batches()
    for title, (commit, rows) in zip(("Fresh jobs, newest batch", "The batch before"), batches, strict=False):
        when = f"{rows[-1]['about']['date']}, {commit}"
        for what, found in generate.counts(rows).items():
            if "twin is told" not in what and (title.startswith("Fresh") or what.startswith("right cause first")):
                yield _counted(f"{title}: {what}", found, "", when, "benchmarks.clinic.generate")


def _clinic_rows(kept: Mapping[str, Any]) -> Iterator[str]:
    section, when, by = kept[clinic.SECTION], _when(kept[clinic.SECTION]), "benchmarks.clinic.run"
    found = score(rows_of(section))
    yield _counted("Clinic: right cause first, of what was decided", found.first, "≥ 90 %", when, by)
    yield _counted("Clinic: line, where the right cause is first", found.line, "≥ 90 %", when, by)
    yield _counted("Clinic: false alarms on healthy jobs", found.false_alarms, "≤ 5 %", when, by)
    yield _counted("Clinic: planted share in the interval", found.covered, "90 to 99 %", when, by)
    yield _counted("Clinic: verdict withheld, though a fault was there", found.abstained, "", when, by)
    for tool in RIVALS:
        theirs = rows_of(section, tool)
        keys = {(row.case.job, row.dose.amount) for row in theirs if row.message is not None}
        if keys:
            ours = score([row for row in rows_of(section) if (row.case.job, row.dose.amount) in keys]).found_first
            what = f"{tool} on the same jobs: right cause first (steptime {ours.good} of {ours.all})"
            yield _counted(what, score(theirs).found_first, "", when, by)
    if fixes.SECTION in kept:
        tried = Count(fixes.adopted(kept[fixes.SECTION]), len(kept[fixes.SECTION]))
        yield _counted("Clinic: right fix adopted", tried, "", _when(kept[fixes.SECTION]), "benchmarks.clinic.fixes")


def _cost_rows(results: Mapping[str, Any]) -> Iterator[str]:
    measured = results["measured"]
    for row in results.get("steps", ())[:4]:
        share = {each: 100 * value for each, value in row["watch_share"].items()}
        source = "a DataLoader" if row["loader"] else "memory"
        what = f"Cost of a step of {row['step_us'] / 1e3:.2f} ms, batches from {source}: CPU time"
        target = "≤ 5 %" if row["step_us"] < 1000 else "≤ 1 %"
        when = f"{measured['steps']['date']}, {measured['steps']['commit']}"
        value = f"{row['watch_us']['median']:.1f} µs, {share['median']:.2f} %"
        yield _row(what, value, target, when, "benchmarks.overhead", f"{share['low']:.2f} to {share['high']:.2f} %")
    for row in results.get("run", ())[-1:]:
        added, when = row["added_wall_s"], f"{measured['run']['date']}, {measured['run']['commit']}"
        spread = f"{added['low']:.2f} to {added['high']:.2f} s"
        what = "Cost of a run with a profile, once: wall time"
        yield _row(what, f"{added['median']:.2f} s", "≤ 0.5 s", when, "benchmarks.overhead", spread)


def _counted(what: str, found: Count, target: str, when: str, by: str) -> str:
    low, high = found.interval()
    return _row(
        what, f"{found.good} of {found.all}", target, when, by, f"{low:.0%} to {high:.0%}" if found.all else "–"
    )


def _row(what: str, value: str, target: str, when: str, by: str, interval: str = "") -> str:
    return f"| {what} | {value} | {interval} | {target} | {when} | `python -m {by}` |"


def _when(section: Mapping[str, Any]) -> str:
    """Day, or first and last day, on which the pieces of a section were taken."""
    days = sorted({str(about["date"]) for piece in section.values() for about in _runs(piece) if "date" in about})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""


def _batches() -> list[tuple[str, Sequence[dict[str, Any]]]]:
    """Commit and rows of each batch of fresh jobs, the newest first."""
    rows = [json.loads(line) for line in FRESH_ROWS.read_text(encoding="utf-8").splitlines()]
    commits = reversed(dict.fromkeys(row["about"]["commit"] for row in rows if "about" in row))
    return [(commit, [row for row in rows if row.get("about", {}).get("commit") == commit]) for commit in commits]


def _head(name: str, kept: Mapping[str, Any]) -> list[str]:
    facts = {section: _facts(kept[section]) for section in sorted(kept)}
    return [
        "# All figures of the proof",
        f"\n<!-- made by `python -m benchmarks.proof --name {name}`; do not edit -->\n",
        HEAD,
        f"Results: [{name}.json]({name}.json).",
        "\n| | " + " | ".join(ABOUT) + " |",
        "|---" * (len(ABOUT) + 1) + "|",
        *(
            f"| {section} | " + " | ".join(found.get(fact, "") for fact in ABOUT) + " |"
            for section, found in facts.items()
        ),
    ]


def _facts(section: Mapping[str, Any]) -> dict[str, str]:
    """What the pieces of a section say of their runs; of the load, the lowest and the highest."""
    found: dict[str, str] = {}
    for fact in ABOUT:
        values = {about[fact] for piece in section.values() for about in _runs(piece) if fact in about}
        if values:
            found[fact] = f"{min(values)} to {max(values)}" if fact == "load" else ", ".join(sorted(map(str, values)))
    return found


def _runs(piece: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """When and where the rows of a piece were taken."""
    return [piece.get("about", {}), *piece.get("earlier", ())]


def _fresh() -> list[str]:
    rows = [json.loads(line) for line in FRESH_ROWS.read_text(encoding="utf-8").splitlines()]
    lines = ["\n## Jobs that nobody had seen\n", FRESH]
    for commit, own in _batches():
        message = {
            fact: ", ".join(sorted({str(row["about"][fact]) for row in own})) for fact in ("date", "cpu", "torch")
        }
        where = "; ".join(f"{fact} {value}" for fact, value in message.items())
        lines += [f"\nAt {commit}: {where}.\n", generate.table(own)]
    return [*lines, "", generate.listing(rows)]


def _sections(name: str, kept: Mapping[str, Any]) -> Iterator[list[str]]:
    if FRESH_ROWS.exists():
        yield _fresh()
    notes = RESULTS / f"{name}.md"
    if notes.exists():
        yield ["", notes.read_text(encoding="utf-8").rstrip()]
    if clinic.SECTION in kept:
        yield ["\n## The clinic\n", *clinic.clinic(kept[clinic.SECTION], name)]
        if fixes.SECTION in kept:
            yield ["\n### Fixes\n", *fixes.table(kept[fixes.SECTION], name)]
        yield ["\n## Next to other tools\n", *clinic.rivals(kept[clinic.SECTION], name)]
    costs = RESULTS / f"overhead-{name}.json"
    if costs.exists():
        displayed = overhead.show(json.loads(costs.read_text(encoding="utf-8")))
        yield ["\n## Cost\n", COST, *displayed.rstrip().splitlines()[2:]]
    if faithful.SECTION in kept:
        yield ["\n## Faithfulness\n", FAITHFULNESS, *faithful.tables(kept[faithful.SECTION])]
    if faults.SECTION in kept:
        yield ["\n## Faults\n", FAULTS, *faults.tables(kept[faults.SECTION])]


if __name__ == "__main__":
    main()
