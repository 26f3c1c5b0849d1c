"""An agent that knows nothing of performance and follows only what `steptime mcp` answers, on generated jobs.

    python -m benchmarks.agent --seed 400 --count 10 --into FOLDER [--score FILE.jsonl]   # goes on where it was ended
    python -m benchmarks.agent --table FILE.jsonl

It calls `diagnose`, then whatever each answer names as `next`, at most MOST_CALLS times, and runs `apply` where an
answer has one: then it is done. Where the next call judges a change of its own, it makes the only one that it knows:
the statement on a line that the diagnosis named is left out, with those that only make more of what it binds, the first
of them where nothing else in its function reads that, and which is no part of the training (`.backward()`, `.step()`,
`.zero_grad()`). So it edits blindly, and the referee alone keeps it from harm; whether somebody wants that statement's
output is a question that it does not ask.

Jobs are the first of the seeds with a fault and one process. A job counts as solved when a patch of it was judged
faster and the same training, and applied.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.clinic.compose import Design, design, written
from benchmarks.clinic.generate import dosed
from benchmarks.kept import machine

MOST_CALLS = 8
BUDGET = "150s"
CHANGE = "change.patch"
TRAINS = frozenset({"backward", "step", "zero_grad"})
"""Methods that no agent would leave out of a training."""


def main() -> None:
    options = arguments()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return
    done = set()
    if options.score and options.score.exists():
        done = {json.loads(line)["seed"] for line in options.score.read_text(encoding="utf-8").splitlines()}
    for job in jobs(options.seed, options.count):
        if job.seed in done:
            continue
        row = tried(job, options.into / str(job.seed))
        print(json.dumps(row))
        if options.score:
            with options.score.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if options.one:
            return


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=400, help="of the first job")
    parser.add_argument("--count", type=int, default=10, help="of jobs")
    parser.add_argument("--into", type=Path, default=Path("agent-jobs"), help="folder of the jobs")
    parser.add_argument("--score", type=Path, help="append a row for each job to this file")
    parser.add_argument("--one", action="store_true", help="end after the next job")
    parser.add_argument("--table", type=Path, help="print the scores of the rows in this file")
    return parser.parse_args()


def jobs(seed: int, count: int) -> list[Design]:
    """The first so many designs from a seed on that can be run here, have a fault, and are one process."""
    found: list[Design] = []
    while len(found) < count:
        job = design(seed)
        if job.planted and not job.missing and job.loop.ranks == 1:
            found.append(job)
        seed += 1
    return found


def tried(job: Design, folder: Path) -> dict[str, Any]:
    """What the agent reached on a job."""
    amounts = [dosed(job, number, folder) for number in range(len(job.planted))]
    script = written(job, amounts).write(folder / "job")
    git = ("git", "-c", "user.name=agent", "-c", "user.email=agent@localhost")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "as it is")):
        subprocess.run([*git, *words], cwd=script.parent, check=True)
    start = time.monotonic()
    reached = importlib.import_module("anyio").run(conversation, script)
    reached["line"] = reached["line"].removeprefix(f"{script.parent}{os.sep}")
    faults = [f"{each.fault.name} in {each.place}" for each in job.planted]
    named = {"seed": job.seed, "loop": job.loop.name, "model": job.model.name, "faults": faults}
    return {**named, **reached, "seconds": round(time.monotonic() - start), "about": machine()}


async def conversation(script: Path) -> dict[str, Any]:
    """Diagnose, then what each answer says."""
    mcp, stdio = importlib.import_module("mcp"), importlib.import_module("mcp.client.stdio")
    words = ["-c", "from steptime.cli.main import entry; entry()", "mcp"]
    server = mcp.StdioServerParameters(command=sys.executable, args=words, cwd=script.parent, env=dict(os.environ))
    folder, calls, answer = script.parent, list[str](), dict[str, Any]()
    places = list[str]()
    async with mcp.Client(stdio.stdio_client(server)) as client:
        job = {"command": [sys.executable, script.name], "directory": str(folder)}
        next_: dict[str, Any] = {"tool": "diagnose", "arguments": job}
        while len(calls) < MOST_CALLS:
            tool, given = next_["tool"], dict[str, Any](next_["arguments"])
            if given.get("diff") == CHANGE:
                while places and not left_out(folder, places[0]):
                    places.pop(0)
                if not places:
                    return _row(calls, answer, "no change of its own was possible", "")
            if tool == "judge":
                given["budget"] = BUDGET
            what = next((key for key in ("diff", "fixes", "resume") if key in given), "")
            calls.append(f"{tool} {what}".strip())
            result = await client.call_tool(tool, given)
            if result.is_error:
                return _row(calls, answer, result.content[0].text, places[0] if places else "")
            answer = json.loads(result.content[0].text)
            if tool == "diagnose":
                places = [answer["line"], *(each.get("line", "") for each in answer["findings"])]
                places = [each for each in dict.fromkeys(places) if each]
            if answer.get("apply"):
                subprocess.run(answer["apply"], shell=True, cwd=folder, check=True)
                return _row(calls, answer, "adopted", places[0] if what == "diff" else answer["line"])
            next_ = answer["next"]
            if what == "diff" and next_["arguments"].get("resume") is None:
                places.pop(0)
                next_ = {"tool": "judge", "arguments": given}
    return _row(calls, answer, f"gave up after {MOST_CALLS} calls", "")


def _row(calls: Sequence[str], answer: dict[str, Any], end: str, line: str) -> dict[str, Any]:
    return {
        "end": end,
        "said": answer.get("answer", ""),
        "saves": answer.get("saves", ""),
        "line": line,
        "calls": calls,
    }


def left_out(folder: Path, line: str) -> bool:
    """Writes CHANGE, which leaves the statement on a line out; False where there is none, or what it binds is read."""
    file, _, rest = line.partition(":")
    path = folder / Path(file).name
    number = rest.partition(":")[0]
    if not path.is_file() or not number.isdigit():
        return False
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Expr | ast.For)]
    on_line = [each for each in statements if each.lineno <= int(number) <= (each.end_lineno or 0)]
    if not on_line:
        return False
    statement = max(on_line, key=lambda each: each.lineno)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and statement in ast.walk(node)]
    scope = max(functions, key=lambda each: each.lineno, default=tree)
    gone = _unread(statement, scope)
    if not gone:
        return False
    lines = text.splitlines(keepends=True)
    for each in sorted(gone, key=lambda each: -each.lineno):
        first, last = each.lineno - 1, each.end_lineno or each.lineno
        lines[first:last] = [" " * each.col_offset + "pass\n"]
    path.write_text("".join(lines), encoding="utf-8")
    diff = subprocess.run(["git", "diff"], cwd=folder, capture_output=True, text=True, check=True).stdout
    path.write_text(text, encoding="utf-8")
    (folder / CHANGE).write_text(diff, encoding="utf-8")
    return True


def _unread(statement: ast.stmt, scope: ast.AST) -> list[ast.stmt]:
    """The statement, and those of its function that only make more of what it makes, where nothing else there reads
    that; none where something does, or where one of them trains."""
    gone, found = [statement], True
    while found:
        inside = {id(node) for each in gone for node in ast.walk(each)}
        names = [node for node in ast.walk(scope) if isinstance(node, ast.Name)]
        bound = {each.id for each in names if id(each) in inside and isinstance(each.ctx, ast.Store)}
        readers = {id(each) for each in names if each.id in bound and isinstance(each.ctx, ast.Load)} - inside
        reading = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        reading = [node for node in reading if readers & {id(each) for each in ast.walk(node)}]
        seen = {id(each) for node in reading for each in ast.walk(node)}
        if readers - seen:
            return []
        found = bool(reading)
        gone += reading
    calls = [node.func for each in gone for node in ast.walk(each) if isinstance(node, ast.Call)]
    return [] if any(isinstance(call, ast.Attribute) and call.attr in TRAINS for call in calls) else gone


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What was reached, as Markdown."""
    won = [row for row in rows if row["end"] == "adopted"]
    lines = [
        f"{len(won)} of {len(rows)} jobs reached an adopted patch that was judged faster and the same training.",
        "",
    ]
    lines += ["| seed | loop, model | planted | end | the adopted patch | calls |", "|---|---|---|---|---|---|"]
    for row in rows:
        saves = row["saves"] if row["end"] == "adopted" else ""
        lines.append(
            f"| {row['seed']} | {row['loop']}, {row['model']} | {'; '.join(row['faults'])} | {row['end']} | {saves} | "
            f"{', '.join(row['calls'])} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
