"""An example of an adapter: cProfile on the jobs of the clinic, read as its documentation teaches.

    python -m benchmarks.clinic.generate … --tool cprofile="python -m benchmarks.clinic.adapter"

Started with a job's command line behind it, it prints one JSON object: `findings`, each with `cause` (the tool's own
word, or a name from `rules` in truth.json), `line` ([file, line]) and `share` (of a step, one number or value, low and
high); `withheld` where it will not say.
cProfile names functions: the line of a finding is where the function starts.
"""

from __future__ import annotations

import json
import pstats
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = 3


def main() -> None:
    command, script = sys.argv[1:-1], Path(sys.argv[-1])
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        words = [*command, "-m", "cProfile", "-o", str(profile), str(script)]
        subprocess.run(words, check=True, capture_output=True, cwd=script.parent)
        totals = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in totals.values())
    users = [
        (cumulative, file, line, name)
        for (file, line, name), (_, _, _, cumulative, _) in totals.items()
        if Path(file).parent == script.parent and not name.startswith("<module")
    ]
    findings = [
        {"cause": name, "line": [file, line], "share": cumulative / whole}
        for cumulative, file, line, name in sorted(users, reverse=True)[:ROWS]
    ]
    print(json.dumps({"findings": findings}))


if __name__ == "__main__":
    main()
