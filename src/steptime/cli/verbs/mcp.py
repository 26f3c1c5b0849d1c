"""`steptime mcp`: serves steptime's tools to coding agents."""

from __future__ import annotations

import click


@click.command("mcp")
def command() -> int:
    """Serve diagnose, explain, judge, what_if and compare to a coding agent over the Model Context Protocol, on
    standard input and output. Needs the extra: pip install 'steptime[mcp]'. Once configured, a client starts it by
    itself (docs/agents.md).
    """
    from steptime.cli.mcp import run

    return run()
