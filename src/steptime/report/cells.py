"""Cells of a notebook by their number: "In [5], line 3", not the file that the kernel keeps them in."""

from __future__ import annotations

import json as builtin_json
import re
import sys
from pathlib import PurePosixPath

from steptime.report import json
from steptime.report.report import Report


def with_cells(report: Report) -> Report:
    """The report with the cells of the notebook that this is by their numbers; as it is elsewhere."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    names: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    text = whole = json.render(report)
    for file, number in names.items():
        cell, short = f"In [{number}]", builtin_json.dumps(PurePosixPath(file).name)[1:-1]
        text = re.sub(rf'"[^"]*{re.escape(builtin_json.dumps(file)[1:-1])}"', f'"{cell}"', text)
        text = re.sub(rf"(?<![\w./\\-]){re.escape(short)}:(\d+)", rf"{cell}, line \1", text)
    return report if text == whole else json.read(text.encode(), report.source)
