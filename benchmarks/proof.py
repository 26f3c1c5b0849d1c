"""docs/proof.md, from what is kept of one machine.

    python -m benchmarks.proof [--name MACHINE]

Reads benchmarks/results/fresh-jobs.jsonl (jobs that nobody had seen), <name>.json (the clinic, rivals, faithfulness,
faults), overhead-<name>.json (cost) and, where there is one, <name>.md: what a person has to say about targets that
were missed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import overhead
from benchmarks.clinic import fixes, generate, tables as clinic
from benchmarks.faithful import run as faithful
from benchmarks.faults import run as faults
from benchmarks.kept import RESULTS, ROOT, USUAL_NAME, read

PAGE = ROOT / "docs" / "proof.md"
ABOUT = ("cpu", "cpus", "system", "python", "torch", "steptime", "commit", "date", "load")
"""What every piece says of the run that it comes from."""

HEAD = """\
How often the diagnosis is right, beside other tools on the same jobs; what steptime costs; whether a watched job is the
same job; and what faults do to it. Every figure was measured by a command that stands beside it, to be run in the root
of a clone that has the `dev` group installed, on a machine that does nothing else. A quick set of all of it, in about a
quarter of an hour: `make bench`; everything: `make bench-full`.
"""
FRESH_ROWS = RESULTS / "fresh-jobs.jsonl"
FRESH = """\
Composed from seeds that had never been run, scored once ([how](clinic.md)). A verdict that is withheld counts as not
right. A finding is right where it names the cause, or stands on the faulty line. What is said of a twin, which has no
planted fault, may be true all the same: the last column is what a reader should look at. Seed 9027 is left out: one
fault stood in it twice, and what was planted was no truth. The second row leaves
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
    PAGE.write_text(page(name), encoding="utf-8")
    print(f"Wrote {PAGE}")


def page(name: str) -> str:
    """The whole page in Markdown, from the files of results alone."""
    kept = read(name)
    return "\n".join([*_head(name, kept), *(line for section in _sections(name, kept) for line in section), ""])


def _head(name: str, kept: Mapping[str, Any]) -> list[str]:
    facts = {section: _facts(kept[section]) for section in sorted(kept)}
    return [
        "# Proof",
        f"\n<!-- made by `python -m benchmarks.proof --name {name}`; do not edit -->\n",
        HEAD,
        f"Results: [{name}.json](../benchmarks/results/{name}.json).",
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
    for commit in reversed(dict.fromkeys(row["about"]["commit"] for row in rows if "about" in row)):
        own = [row for row in rows if row.get("about", {}).get("commit") == commit]
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
