"""Gradients of torch.autograd.grad that its caller does not read: what is advised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import HEALTHY

from steptime.advice.engine import examine
from steptime.analysis.unused import UnusedPass
from steptime.quantities import SourceLine
from steptime.recording.recording import PassFacts


@pytest.mark.parametrize(
    ("call", "read", "wanted"),
    [
        ("grads = torch.autograd.grad(loss, fast, create_graph=True)", (6, 7), "fast[-2:]"),
        ("grads = grad(outputs=loss, inputs=self.weights)", (0, 1, 2), "self.weights[:3]"),
        ("grads = torch.autograd.grad(loss, fast)", (1, 4), "the 2 that the caller reads"),
        ("grads = torch.autograd.grad(loss, list(net.parameters()))", (6, 7), "the 2 that the caller reads"),
        ("grads = take(loss)", (7,), "the 1 that the caller reads"),
    ],
)
def test_the_advice_names_what_to_ask_for(call: str, read: tuple[int, ...], wanted: str) -> None:
    site = SourceLine("meta.py", 41, "adapted", call)
    use = UnusedPass(PassFacts(30, site, elements=9000, asked=8, read=read), 0.6, 0.0)
    (found,) = (each for each in examine(replace(HEALTHY, dropped=(use,))).findings if each.code == "ST506")
    assert found.summary.startswith(f"Nobody reads {8 - len(read)} of the 8 gradients that torch.autograd.grad takes: ")
    assert found.advice.startswith(f"Ask for the gradients of {wanted} only")
    assert found.source == site
