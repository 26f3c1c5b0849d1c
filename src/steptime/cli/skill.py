"""`steptime skill`: prints a file that teaches coding agents to make a training job faster with steptime."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.answer.screen import notify

SKILL = Path(__file__).with_name("SKILL.md")


@click.command("skill")
def command() -> int:
    """Print SKILL.md, which teaches a coding agent to make a training job faster, and to prove it, in five commands.
    Put it where your agent looks for skills:

    \b
    steptime skill > .claude/skills/steptime/SKILL.md
    steptime skill >> AGENTS.md
    """
    notify(SKILL.read_text(encoding="utf-8"))
    return 0
