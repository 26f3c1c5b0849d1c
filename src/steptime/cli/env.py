"""`steptime env`: this machine, what is installed, and the ceilings that a training step is judged against."""

from __future__ import annotations

import click

from steptime.cli.border import say, tell


@click.command("env", short_help="Show this machine and its measured ceilings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--remeasure", is_flag=True, help="Measure the ceilings again, even if they are known.")
@click.option("--python", metavar="PATH", help="Interpreter whose torch measures. Default: the first that has torch.")
def command(as_json: bool, remeasure: bool, python: str | None) -> int:
    """Show this machine, the versions in use, and its ceilings: matrix products by number format, copy bandwidth, cost
    of an operator. They are measured once (some seconds) with your torch and remembered.

    \b
    steptime env
    steptime env --remeasure --json
    """
    from steptime.hardware.environment import describe

    environment = describe(python, remeasure=remeasure, tell=say)
    if as_json:
        from steptime.report.json import document

        tell(document(environment))
    else:
        from steptime.cli.environment_text import environment_text

        tell(environment_text(environment))
    return 0
