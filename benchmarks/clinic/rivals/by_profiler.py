"""torch.profiler on generated jobs: the rows of key_averages() with the largest own time.

    python -m benchmarks.clinic.generate … --tool profiler="python -m benchmarks.clinic.rivals.by_profiler"

Started with a job's command line behind it. Rows have no lines: a row is taken for the part of the step that it blames.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.clinic.rivals.profiler import HEALTHY, ROWS
from benchmarks.clinic.rivals.rival import SCRIPTS

WORDS = {
    "DataLoader": "part: input", "Optimizer.": "part: optimizer", "aten::isnan": "detect-anomaly", "gloo": "late-rank",
}  # fmt: skip
"""What is in a row's name, and what the textbook reads in it."""


def main() -> None:
    *command, script = sys.argv[1:]
    if len(command) > 1:
        raise SystemExit("one process only")
    words = [*command, str(SCRIPTS / "profiled.py"), script]
    done = subprocess.run(words, cwd=Path(script).parent, capture_output=True, text=True, check=True)
    rows = [(name, share) for name, _, share in json.loads(done.stdout.splitlines()[-1])[:ROWS]]
    print(json.dumps({"findings": [{"cause": word(name), "share": share} for name, share in rows]}))


def word(row: str) -> str:
    """Products of matrices are what a model is made of; any other operator stands for itself."""
    if row in HEALTHY:
        return "part: model"
    return next((said for part, said in WORDS.items() if part in row), "dominant-operator")


if __name__ == "__main__":
    main()
