"""Entry point: `steptime VERB …`, one module per verb.

`run` and its imports need only click, because a job must not wait for numpy.

The standard streams cannot fail: a closed, full or hung-up one loses its text, but does not change the exit status of a
job. One law: a job gets the user's own descriptors. If one of the three is closed, a placeholder takes its number here,
so that no file of steptime's gets it. The placeholder is closed when a job starts, which then finds the descriptor
closed, as without steptime."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import select
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from steptime._version import __version__
from steptime.answer.screen import notify
from steptime.cli.exit_codes import say, shield
from steptime.errors import CommandError, RecordingError, SnapshotError, TraceError, UsageError

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


class Outlet(io.FileIO):
    """Output descriptor, written to until that fails; later output is dropped. failure: the error, None before."""

    failure: OSError | None = None
    taken = False
    """True if a reader took some of the output."""

    def write(self, data: Any, /) -> int:
        """Writes all of the data, or a part of it; waits while a non-blocking pipe is full."""
        try:
            while self.failure is None:
                written = super().write(data)
                if written is not None:
                    self.taken |= bool(written)
                    return written
                select.select([], [self], [])
        except OSError as error:
            self.failure = error
        return memoryview(data).nbytes


def secure() -> Outlet:
    """Replaces the standard streams; returns standard output's outlet."""
    while (number := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) <= STANDARD_ERROR:
        pass  # the lowest free number: one of the three was closed, and what is written to it fails
    os.close(number)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    output, error = Outlet(STANDARD_OUTPUT, "w", closefd=False), Outlet(STANDARD_ERROR, "w", closefd=False)
    sys.stdout, sys.stderr = _text(output, sys.stdout), _text(error, sys.stderr, lines=True)
    return output


def _text(outlet: Outlet, before: TextIO | None, *, lines: bool = False) -> TextIO:
    """Text stream with the interpreter's settings for the original one."""
    lines |= bool(getattr(before, "line_buffering", False))
    encoding, errors = getattr(before, "encoding", "utf-8"), getattr(before, "errors", "backslashreplace")
    return io.TextIOWrapper(io.BufferedWriter(outlet), encoding, errors, line_buffering=lines)


def lost(outlet: Outlet) -> str:
    """Reason why output is missing; "" if none is, or its reader had stopped reading."""
    if outlet.failure is None or (outlet.failure.errno == errno.EPIPE and outlet.taken):
        return ""
    reasons = {errno.EPIPE: "nobody reads it", errno.EBADF: "it is closed"}
    number = outlet.failure.errno or 0
    return reasons.get(number) or os.strerror(number)


GROUPS = {
    "Measure": {
        "run": "Run a training job and report where its time goes.",
        "attach": "Measure a running job without restarting it.",
        "watch": "Watch a running job, live.",
    },
    "Understand": {
        "diagnose": "Diagnose a recording, or a trace of torch, nsys or rocprof.",
        "report": "Write the full report of a recording to a file.",
        "explain": "Explain a finding, a fix, a category or a message.",
        "compare": "Compare runs: what changed, beyond noise.",
        "history": "List recordings, and find when a job became slower.",
    },
    "Make faster, with proof": {
        "try": "Try the fixes for the findings, and prove which of them pay.",
        "judge": "Judge a change: is the job faster, and the same training?",
        "lab": "Run a job in bfloat16, compiled and without input.",
        "bench": "Time callables on the same inputs, in turns.",
        "bench-loader": "Time a data loader with other workers and settings.",
        "kernel": "Show what Inductor makes of the hottest chain of operators.",
    },
    "Find what went wrong": {
        "nan": "Find the first value that is not finite, and its line.",
        "memory": "Show who owns the memory, what leaks, what would free it.",
        "hang": "Find out from flight-recorder dumps why a job hangs.",
    },
    "Set up": {
        "env": "Show this machine and its measured peaks.",
        "mcp": "Serve these tools to coding agents (MCP).",
        "skill": "Print SKILL.md, for coding agents without MCP.",
        "new": "Write a training script with the usual knobs.",
    },
}
"""Verbs by purpose, in the order of work, with their line of the help: printing it imports no verb."""
VERBS = {verb: line for verbs in GROUPS.values() for verb, line in verbs.items()}
LOST = 1
"""Exit status if standard output failed, the same as for a report that cannot be written."""
MODULES = {"try": "verbs.trial", "bench-loader": "verbs.bench_loader"} | {
    verb: f"verbs.{verb}" for verb in ("lab", "judge", "nan", "watch", "mcp", "env")
}
"""Modules of verbs whose options are apart from their work, which imports more than their help may cost."""
READING = frozenset({"diagnose", "explain", "report", "compare", "history", "memory", "hang"})
"""Verbs that start no job, so that changes of their environment affect no other process."""


class Verbs(click.Group):
    """Command group that imports only the module of the requested verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of work, not alphabetically."""
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<{width}}", line) for verb, line in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs with their lines, and our own options."""
        named = [CompletionItem(verb, help=line) for verb, line in VERBS.items() if verb.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a verb; the error for an unknown one suggests a similar verb, or one for its argument."""
        if args[0] in VERBS or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"No such command {args[0]!r}.{_meant(args)}", ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Command of a verb, from the module of its name."""
        if cmd_name not in VERBS:
            return None
        if cmd_name in READING:  # numpy starts a thread for each CPU, which nothing here needs: half of its import
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        command: click.Command = importlib.import_module(f"steptime.cli.{MODULES.get(cmd_name, cmd_name)}").command
        return command


def _meant(words: Sequence[str]) -> str:
    """Suggestion for an unknown verb; "" without one."""
    import difflib

    near = difflib.get_close_matches(words[0].lower(), VERBS, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    if words[0].endswith((".py", ".sh")) or shutil.which(words[0]):
        return f" Did you mean: steptime run -- {shlex.join(words)}?"
    return f" Did you mean: steptime diagnose {shlex.quote(words[0])}?" if Path(words[0]).exists() else ""


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="steptime %(version)s")
@click.pass_context
def steptime(context: click.Context) -> None:
    """Tells where every millisecond of a PyTorch training step goes.

    \b
    steptime run -- python train.py --epochs 3
    steptime diagnose runs/train-20260801-101500
    """
    if context.invoked_subcommand is None:
        notify(f"{context.get_help()}\n")


def main(argv: Sequence[str]) -> int:
    """Runs a command line and returns the exit status."""
    return shield(lambda: _followed(list(argv)))


def _followed(words: list[str]) -> int:
    """Raises the verb's errors; for a file that another verb takes, an error that names that verb."""
    try:
        return int(steptime.main(words, prog_name="steptime", standalone_mode=False) or 0)
    except (CommandError, RecordingError, SnapshotError, TraceError, UsageError) as error:
        from steptime.cli.wrong_kind import wrong_kind  # looks into files

        raise wrong_kind(words) or error from None


def entry() -> NoReturn:
    """Main function of the console script `steptime`."""
    gc.set_threshold(100_000)  # ours makes few cycles, and looking for them takes a twentieth of a diagnosis
    output = secure()
    status = main(sys.argv[1:])
    sys.stdout.flush()
    if reason := lost(output):
        say(f"Standard output could not be written ({reason}): the printed text is incomplete. (output-lost)")
        status = status or LOST
    sys.exit(status)
