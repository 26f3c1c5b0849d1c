"""Work of `steptime mcp`: its tools, by the Model Context Protocol over standard input and output.

Two laws: only the command that the client gave in the same call is executed (never a recording's own command), and
every answer is short (`fitted`). A tool that runs a job starts a `steptime` process, whose messages are the
progress that the client receives."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from steptime._version import __version__
from steptime.advice.rule import Weight
from steptime.answer.answer import Answer
from steptime.answer.brief import Document, as_brief, fitted
from steptime.answer.output import write_whole
from steptime.cli import answers
from steptime.cli.explain import page_about
from steptime.compare.compare import compare
from steptime.compare.gate import labels_of
from steptime.diagnosis import diagnose_anywhere
from steptime.errors import SteptimeError, UsageError
from steptime.own_python import own_python
from steptime.recording.load import load
from steptime.report.report import Report
from steptime.trials.patch import Patch
from steptime.trials.results import Results, is_our_trial, read_results
from steptime.trials.trial import TrialVerdict

LONGEST_COMMAND = 2000
"""Most characters of a command: the answers, which are short, contain it."""
INSTRUCTIONS = (
    "steptime measures PyTorch training jobs. Start with diagnose(command=[…]), follow the `next` call of each answer, "
    "and run `apply` yourself if the answer has one: that patch ran by itself, was faster and trained the same."
)
SLUG = re.compile(r"(?P<sentence>.+) \((?P<slug>[a-z0-9-]+)\)")
"""Pattern of an error message with its slug."""
Notify = Callable[[str], Awaitable[None]]
Words = Annotated[
    list[str],
    msgspec.Meta(description="The command that starts the training, as a list of words: ['python', 'train.py']."),
]
Folder = Annotated[str, msgspec.Meta(description="Folder in which the command runs.")]
Uncontained = Annotated[
    bool, msgspec.Meta(description="Run the job in its own folder where the system permits no contained copy.")
]


class Diagnose(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Find where the time of a training step goes: slow lines, their cost, what to change. Runs a copy of the job for
    about a minute (its files stay unchanged), or reads a recording or a profiler trace."""

    command: Words = []
    path: Annotated[str, msgspec.Meta(description="Recording or profiler trace to read instead of running a job.")] = ""
    directory: Folder = ""
    uncontained: Uncontained = False


class Explain(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Explain a finding (ST101), a fix (RM101) or an error message: what it means, how steptime knows, what helps, when
    to ignore it. With `path`, also report its place in that recording."""

    code: str
    path: Annotated[str, msgspec.Meta(description="Recording or trace with the finding.")] = ""
    command: Words = []
    directory: Folder = ""


class Judge(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Measure whether a change makes the job faster and keeps its training the same: runs the job with and without it
    and a control, in turns, in contained copies. Without a change, tries steptime's own fixes and returns a patch. For
    a script without training steps, give `metric`, a number that it prints."""

    command: Words
    recording: Annotated[
        str,
        msgspec.Meta(description="Recording of this command, made by diagnose. Without it the job is measured first."),
    ] = ""
    fixes: Annotated[list[str], msgspec.Meta(description="Codes of steptime's fixes to try (RM101).")] = []
    diff: Annotated[str, msgspec.Meta(description="Your change: a file written by git diff, or its text.")] = ""
    ref: Annotated[str, msgspec.Meta(description="Your change: a commit, or A..B.")] = ""
    env: Annotated[dict[str, str], msgspec.Meta(description="Your change: environment variables.")] = {}
    args: Annotated[str, msgspec.Meta(description="Your change: further arguments of the command.")] = ""
    metric: Annotated[
        str, msgspec.Meta(description="Regular expression with one group: the number that the command prints.")
    ] = ""
    until_loss: Annotated[
        float | None,
        msgspec.Meta(description="Compare the time to this training loss; your change may then train differently."),
    ] = None
    lower_is_better: Annotated[bool, msgspec.Meta(description="The metric is a time or a cost.")] = False
    resume: Annotated[str, msgspec.Meta(description="Continue the judgement in this folder.")] = ""
    budget: Annotated[str, msgspec.Meta(description="Time for the whole call: 90s.", pattern=r"^\d+(s|m|h)$")] = "10m"
    directory: Folder = ""
    uncontained: Uncontained = False


class WhatIf(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Predict what each fix would save, from a recording or a trace. Runs nothing."""

    path: str
    command: Words = []
    directory: Folder = ""


class Compare(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Report what differs between two recordings, traces or reports, beyond noise, and its cause. Runs nothing."""

    before: str
    after: str
    directory: Folder = ""


async def diagnose(given: Diagnose, notify: Notify) -> Document:
    """Answers a `Diagnose` call."""
    if bool(given.command) == bool(given.path):
        raise UsageError("usage", "Nothing to diagnose. Give a command, or the path of a recording or a trace.")
    path = _within(given.directory, given.path)
    if given.command:
        words = ["run", "--until-measured", "--json", *_uncontained(given.uncontained), "--", *given.command]
        printed = await _steptime(words, given.directory, notify)
        path = _within(given.directory, msgspec.json.decode(printed)["source"])
    return answers.of_report(await _report(path), _job(given.command, given.directory), path)


async def explain(given: Explain, notify: Notify) -> Document:
    """Answers an `Explain` call."""
    page = page_about(given.code)
    path = _within(given.directory, given.path)
    report = await _report(path) if given.path else None
    return answers.of_page(given.code, page, report, _job(given.command, given.directory), path)


async def judge(given: Judge, notify: Notify) -> Document:
    """Answers a `Judge` call."""
    own = [name for name in ("diff", "ref", "env", "args") if getattr(given, name)]
    if given.fixes and own:
        raise UsageError("usage", f"Give fixes, or a change of yours ({own[0]}), not both.")
    if (given.metric or given.until_loss is not None) and not (own or given.resume):
        raise UsageError("usage", "metric and loss need a change of yours: give diff, ref, env or args.")
    if given.resume and (given.fixes or own or given.recording):
        raise UsageError("usage", "resume continues the planned trial. Drop fixes, changes and recording.")
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        scratch = Path(folder)
        verb, words = _change(given, scratch)
        target = ["--", *given.command]
        if given.resume:
            verb, words, target = _resumed(given)
        elif given.recording:
            target = [_same_job(given)]
        words = ["--budget", given.budget, "-o", str(scratch / "report.json"), *words]
        await _steptime(
            [verb, *words, *_uncontained(given.uncontained), *target], given.directory, notify, wanted=scratch
        )
        reported = msgspec.json.decode((scratch / "report.json").read_bytes())
    job = _job(given.command, given.directory)
    if reported["folder"] is None:
        after = answers.call("what_if", path=_within(given.directory, given.recording), **job)
        after = after if given.recording else answers.call("diagnose", **job)
        return as_brief(Answer("", reported["text"], "Unclear: no variant was run."), after)
    results = read_results(Path(reported["folder"]))
    apply = shlex.join(["git", "apply", given.diff]) if given.diff and not _is_text(given.diff) else ""
    apply = apply or judged_diff(results, Path(reported["folder"]))
    findings = (await _report(results.plan.recording)).processes[0].findings if results.plan.recording else ()
    first = next((each.code for each in findings if each.weight is Weight.FINDING), "")
    return answers.of_trial(results, reported["folder"], job, first, apply, resumed=bool(given.resume))


async def what_if(given: WhatIf, notify: Notify) -> Document:
    """Answers a `WhatIf` call."""
    path = _within(given.directory, given.path)
    return answers.of_what_if(await _report(path), _job(given.command, given.directory), path)


async def compared(given: Compare, notify: Notify) -> Document:
    """Answers a `Compare` call."""
    paths = [_within(given.directory, each) for each in (given.before, given.after)]
    before, after = [await _report(path) for path in paths]
    return answers.of_comparison(compare([before, after], labels_of(paths)), after, paths[1])


TOOLS: Mapping[str, tuple[type[msgspec.Struct], Callable[[Any, Notify], Awaitable[Document]]]] = {
    "diagnose": (Diagnose, diagnose),
    "explain": (Explain, explain),
    "judge": (Judge, judge),
    "what_if": (WhatIf, what_if),
    "compare": (Compare, compared),
}


async def answered(name: str, arguments: Mapping[str, Any], notify: Notify) -> str:
    """Answer of a tool, as JSON. Raises SteptimeError, whose sentence is for the client."""
    if name not in TOOLS:
        raise UsageError("usage", f"There is no tool {name!r}. Tools: {', '.join(TOOLS)}.")
    kind, function = TOOLS[name]
    try:
        given = msgspec.convert(dict(arguments), kind)
        if b"\\u0000" in msgspec.json.encode(given):
            raise UsageError("usage", f"A text argument of {name} contains a zero byte.")
    except UnicodeEncodeError:
        raise UsageError("usage", f"A text argument of {name} is not valid Unicode.") from None
    except msgspec.ValidationError as error:
        raise UsageError("usage", f"The arguments of {name} are invalid: {error}.") from None
    if sum(map(len, getattr(given, "command", []))) > LONGEST_COMMAND:
        raise UsageError(
            "usage", f"The command is longer than {LONGEST_COMMAND} characters. Put it into a shell script."
        )
    folder = Path(getattr(given, "directory", "") or ".")
    try:
        if not folder.is_dir():
            raise UsageError("usage", f"No such folder: {folder}")
        return fitted(await function(given, notify))
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageError(
            "mcp-no-answer", f"The system refused a path of {name} ({error.strerror}). Check its paths."
        ) from None


def input_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON Schema of a tool's arguments."""
    _, components = msgspec.json.schema_components([kind])
    schema: dict[str, Any] = components[kind.__name__]
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


# -- what a call means ------------------------------------------------------------------------------------------------


def _within(directory: str, path: str) -> str:
    """Absolute form of a path that was given relative to a folder; "", URLs and patterns are kept."""
    if not path or "://" in path:
        return path
    return os.path.normpath(Path(directory or ".").absolute() / Path(path).expanduser())


def _job(command: Sequence[str], directory: str) -> dict[str, Any]:
    """Arguments that name the job in a further call; {} without a command."""
    return {"command": list(command), "directory": directory} if command else {}


def _uncontained(wanted: bool) -> list[str]:
    return ["--uncontained"] if wanted else []


def _change(given: Judge, scratch: Path) -> tuple[str, list[str]]:
    """Verb and options for the change to judge. A diff given as text is written to a file."""
    diff = given.diff
    if _is_text(diff):
        (scratch / "change.patch").write_text(diff if diff.endswith("\n") else f"{diff}\n", encoding="utf-8")
        diff = str(scratch / "change.patch")
    until_loss = str(given.until_loss) if given.until_loss is not None else ""
    options = [("--diff", diff), ("--ref", given.ref), ("--args", given.args), ("--metric", given.metric)]
    options += [("--until-loss", until_loss), *(("--env", f"{name}={value}") for name, value in given.env.items())]
    words = [word for option, value in options if value for word in (option, value)]
    words += ["--lower-is-better"] if given.lower_is_better else []
    if words:
        return "judge", words
    return "try", [word for code in given.fixes for word in ("--fix", code)]


def judged_diff(results: Results, folder: Path) -> str:
    """Command that applies the best of the client's own winning changes from a file in the trial's folder. That is the
    judged state, even if the client's file has changed since. "" if none won, or if it does not apply to the present
    files: one that adds a file, or was compared with an earlier commit."""
    won = [each for stage, each in results.judgements if stage == 0 and each.verdict is TrialVerdict.ADOPT]
    own = [each for each in won if each.variant.sources and not each.variant.proposal and each.speed is not None]
    if not own or results.plan.baseline.sources:
        return ""
    best = max(own, key=lambda each: each.speed.value if each.speed is not None else 0.0).variant
    directory = Path(results.plan.directory)
    try:
        old = {path: (directory / path).read_bytes().decode() for path, _ in best.sources}
    except (OSError, UnicodeDecodeError):  # a file that the change adds
        return ""
    patch = Patch(directory, tuple((Path(path), old[path], new) for path, new in best.sources if old[path] != new))
    if not patch.files:
        return ""
    file = folder / f"{best.name}.patch"
    write_whole(file, patch.diff.encode())
    return patch.apply_command(file)


def _is_text(diff: str) -> bool:
    return "\n" in diff


def _same_job(given: Judge) -> str:
    """Path of the recording, checked to be of the client's command. Raises UsageError."""
    path = _within(given.directory, given.recording)
    manifest = load(Path(path)).manifest
    _check_command(manifest.command, manifest.directory, given, given.recording)
    return path


def _resumed(given: Judge) -> tuple[str, list[str], list[str]]:
    path = _within(given.directory, given.resume)
    plan = read_results(Path(path)).plan
    _check_command(plan.command, plan.directory, given, given.resume)
    if not is_our_trial(Path(path)):
        raise UsageError(
            "trial-foreign",
            f"This account did not plan the trial {path}, or did so too long ago, and a trial contains code. "
            "Start a new one, or let the user review the folder and run steptime judge --resume "
            f"{shlex.quote(path)}.",
        )
    own = any(variant.proposal for variant in plan.variants)
    return "try" if own else "judge", ["--resume", path], []


def _check_command(command: Sequence[str], directory: str, given: Judge, path: str) -> None:
    here = Path(given.directory or ".").resolve()
    if list(command) != given.command or Path(directory).resolve() != here:
        raise UsageError(
            "usage",
            f"{path} records another job ({shlex.join(command)} in {directory}). Give that command and "
            "directory, or no recording.",
        )


async def _report(path: str) -> Report:
    anyio = importlib.import_module("anyio")
    report: Report = await anyio.to_thread.run_sync(partial(diagnose_anywhere, (path,)))
    return report


async def _steptime(words: Sequence[str], directory: str, notify: Notify, wanted: Path | None = None) -> str:
    """Output of a steptime command line. wanted: folder in which it leaves its answer, whatever its exit status. Each
    of its messages goes to `notify`. Raises UsageError with its last message if there is no answer. If the client
    cancels, it is interrupted, and the job with it."""
    anyio = importlib.import_module("anyio")
    process = await anyio.open_process(
        own_python("steptime", *words), cwd=directory or None, stdin=-3, start_new_session=True
    )
    printed, message = bytearray(), list[str]()

    async def listen() -> None:
        async for line in anyio.streams.text.TextReceiveStream(process.stderr, errors="replace"):
            for sentence in filter(None, re.split(r"[\r\n]+", line)):
                message.append(sentence.removeprefix("steptime: "))
                await notify(message[-1])

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            async for chunk in process.stdout:
                printed += chunk
        await process.wait()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with anyio.CancelScope(shield=True):
                await process.wait()
    answered = any(wanted.glob("report.json")) if wanted is not None else process.returncode == 0
    if not answered:
        last = SLUG.fullmatch(message[-1] if message else "")
        ended = f"steptime {words[0]} ended with status {process.returncode} and without an answer"
        raise UsageError(last["slug"], last["sentence"]) if last else UsageError("mcp-no-answer", f"{ended}.")
    return printed.decode(errors="replace")


# -- the server -------------------------------------------------------------------------------------------------------


def import_mcp() -> Any:
    """Package `mcp`. Raises UsageError (mcp-missing)."""
    try:
        importlib.import_module("mcp.server.stdio")
        return importlib.import_module("mcp")
    except ImportError:
        raise UsageError(
            "mcp-missing", "steptime mcp needs the package mcp, which is not installed: pip install 'steptime[mcp]'"
        ) from None


def new_server() -> Any:
    mcp = import_mcp()
    types = mcp.types

    async def list_tools(context: Any, parameters: Any) -> Any:
        tools = [
            types.Tool(name=name, description=" ".join((kind.__doc__ or "").split()), input_schema=input_schema(kind))
            for name, (kind, _) in TOOLS.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, parameters: Any) -> Any:
        count = 0

        async def notify(sentence: str) -> None:
            nonlocal count
            count += 1
            await context.session.report_progress(count, None, sentence)

        failed = False
        try:
            text = await answered(parameters.name, parameters.arguments or {}, notify)
        except SteptimeError as error:
            text, failed = str(error), True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return mcp.server.Server(
        "steptime", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def run() -> int:
    """Serves until the client leaves. Returns the exit status. Raises SteptimeError."""
    mcp = import_mcp()
    server = new_server()

    async def serve() -> None:
        async with mcp.server.stdio.stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    importlib.import_module("anyio").run(serve)
    return 0
