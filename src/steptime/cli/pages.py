"""Page of the site with the help of every verb."""

from __future__ import annotations

import click

from steptime.cli.main import VERBS, steptime

_HEAD = """# Commands

What `steptime VERB --help` prints, verb by verb.

## Exit status

| status | when |
| --- | --- |
| 0 | done |
| 1 | refused, for the reason that is reported; or standard output took no more |
| 1 | `compare --fail-on`: a bound is exceeded; `judge`: a change is worse; `nan`: something is not finite |
| 1 | `bench`: a callable fails, gives another result, or cheats |
| 2 | the command line cannot be followed |
| 3 | `judge`: nothing is known to be worse, and something may be |
| 70 | a bug of steptime |
| 126, 127 | the command of `run`, `try`, `lab` or `nan` cannot be executed, or is not there |
| 130 | interrupted by Ctrl-C |

`steptime run` ends as the job did: with its status, or by its signal. It ends with 1 instead of 0 when a report was
asked for with `-o` or `--json` and there is none to give.

## Completion

click's own: verbs, options, files, and the codes of `steptime explain`. One line in the file that your shell reads at
its start:

```sh
eval "$(_STEPTIME_COMPLETE=bash_source steptime)"    # bash 4.4 or newer: ~/.bashrc
eval "$(_STEPTIME_COMPLETE=zsh_source steptime)"     # zsh: ~/.zshrc
_STEPTIME_COMPLETE=fish_source steptime | source     # fish: ~/.config/fish/completions/steptime.fish
```

"""


def page() -> str:
    """Page with the help of every verb, as Markdown."""
    parts = [_HEAD, _block("steptime", steptime)]
    top = click.Context(steptime, info_name="steptime", **steptime.context_settings)
    for verb in VERBS:
        command = steptime.get_command(top, verb)
        if command is not None:
            parts.append(f"\n## {verb}\n\n{_block(verb, command, top)}")
    return "".join(parts)


def _block(name: str, command: click.Command, parent: click.Context | None = None) -> str:
    settings = {**command.context_settings, "terminal_width": 100}
    with click.Context(command, info_name=name, parent=parent, **settings) as context:
        return f"```text\n{command.get_help(context)}\n```\n"
