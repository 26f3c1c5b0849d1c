"""`%%steptime` in a real IPython shell: the cell trains as ever, and its lines have the cell's number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.quantities import SourceLine, format_source

SHELL = """
import json, steptime
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext steptime", store_history=True)
shell.run_cell("x = 1", store_history=True)
cell = '''import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def slow():
    time.sleep(0.002)
for step in range(60):
    slow()
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
trained = step'''
shell.run_cell("%%steptime runs/cell\\n" + cell, store_history=True)
shell.run_cell("%%steptime\\nraise RuntimeError('mine')", store_history=True)
shell.run_cell("%%steptime\\nx = 2", store_history=True)
loaded = steptime.load("runs/cell")
print("ANSWER" + json.dumps({
    "trained": shell.user_ns["trained"], "x": shell.user_ns["x"], "text": str(loaded), "html": loaded._repr_html_()[:4],
    "files": loaded.to_dict("lines")["file"],
}))
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SourceLine("In [5]", 3), "In [5], line 3"),
        (SourceLine("In [5]", 0), "In [5]"),
        (SourceLine("/home/ada/train.py", 3), "train.py:3"),
    ],
)
def test_a_cell_is_named_by_its_number(source: SourceLine, words: str) -> None:
    assert format_source(source) == words


def test_a_cell_is_measured_where_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if subprocess.run([sys.executable, "-c", "import IPython"], capture_output=True, check=False).returncode:
        pytest.skip("IPython is not installed")
    run = subprocess.run([sys.executable, "-c", SHELL], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout.partition("ANSWER")[2])
    assert (answer["trained"], answer["x"], answer["html"]) == (59, 2, "<div")
    assert run.stdout.count("<steptime.load(") == 1, "the diagnosis is shown below the cell that trained"
    assert "(too-few-steps)" in run.stderr
    assert "RuntimeError" in run.stdout + run.stderr
    assert "In [3]" in answer["files"], answer["files"]
    assert "In [3], line 6" in answer["text"] or "In [3], line 8" in answer["text"], answer["text"]
    assert "ipython-input" not in answer["text"]
