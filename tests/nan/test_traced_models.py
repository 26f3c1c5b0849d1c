"""A model that torch.jit.trace traces is let alone by the checks of outputs: the tracer names values by variables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from preloading import python

pytest.importorskip("torch")

JOB = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(8, 16)
    optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
    assert "%output" not in str(torch.jit.trace(net, x).inlined_graph)
print("traced")
"""


def test_a_model_is_traced_as_without_the_search(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    words = ["nan", "--no-replay", "--quiet", "--recording", "found", "--", python(), "job.py"]
    done = subprocess.run(
        [python(), "-m", "steptime", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("traced"), done.stderr
