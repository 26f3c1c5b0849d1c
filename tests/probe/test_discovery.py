"""What two steps under the profile function find, and that nothing of it stays."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.probe.discovery import (  # noqa: E402
    OPERATORS,
    Discovery,
    Found,
)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Data(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        self.scale = torch.nn.Linear(4, 4)
        self.normalize = torch.nn.ReLU()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.normalize(self.scale(torch.ones(4))).detach().cpu()


def train_step(net: Any, optimizer: Any, batch: Any) -> float:
    loss = net(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss > 1e9:
        return 0.0
    return float(loss.detach()) + float(loss.item())


def helper(value: Any) -> Any:
    return value


def discover(net: Any) -> Found:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    discovery = Discovery()
    assert discovery.start()
    try:
        for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
            train_step(net, optimizer, torch.nn.ReLU()(batch))
            for _ in range(100):
                helper(batch)
    finally:
        found = discovery.stop()
    return found


pytestmark = pytest.mark.skipif(
    sys.getprofile() is not None or sys.gettrace() is not None, reason="a profiler or tracer is on"
)


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled something, after which `if loss:` is not looked for."""
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        monkeypatch.setattr(dynamo, "counters", {})


def test_a_root_is_the_outermost_called_module_with_parameters_outside_of_the_loader() -> None:
    net = Net()
    found = discover(net)
    assert found.top_modules == [net]


def test_reads_of_tensors_are_found_by_line_and_counted() -> None:
    found = discover(Net())
    first = train_step.__code__.co_firstlineno
    sites = {
        (site["name"], site["site"]["line"] - first): site
        for kind, site in found.facts
        if kind == "site" and site["site"]["file"] == __file__
    }
    assert sites["item", 7]["count"] == 2
    assert sites["item", 7]["device"] == "cpu"
    assert sites["__bool__", 5]["count"] == 2
    assert sites["__float__", 7]["count"] == 2
    assert not [name for name, _ in sites if name == "cpu"], "inside the loader"


def test_what_a_line_calls_is_found_through_decorators_and_without_our_own() -> None:
    found = discover(Net())
    first = train_step.__code__.co_firstlineno
    called = {
        fact["line"] - first: fact["names"]
        for kind, fact in found.facts
        if kind == "called" and fact["file"] == __file__
    }
    assert "torch.Tensor.sum" in called[1]
    assert "torch.optim.optimizer.Optimizer.zero_grad" in called[2], "which is decorated"
    assert "torch._tensor.Tensor.backward" in called[3]
    assert called[5] == ["torch.Tensor.__bool__"]
    assert {"torch.Tensor.item", "torch.Tensor.__float__"} <= set(called[7])
    assert not [name for names in called.values() for name in names if name.startswith("steptime.")]


def test_functions_that_hold_forwards_and_updates_are_worth_timing_and_frequent_ones_are_not() -> None:
    found = discover(Net())
    codes = {code.co_name for code in found.functions}
    assert "train_step" in codes
    assert "helper" not in codes


def test_everything_is_as_before_afterwards() -> None:
    tensor = torch.ones(1)
    before = {name: getattr(torch.Tensor, name) for name in OPERATORS}
    discover(Net())
    assert sys.getprofile() is None
    assert not set(OPERATORS) & set(torch.Tensor.__dict__)
    assert {name: getattr(torch.Tensor, name) for name in OPERATORS} == before
    assert bool(tensor)
    assert float(tensor) == 1.0


def test_no_module_of_the_users_is_kept() -> None:
    net = Net()
    reference = weakref.ref(net)
    found = discover(net)
    found.top_modules.clear()
    del net
    gc.collect()
    assert reference() is None


def test_the_format_of_autocast_is_the_one_around_trained_modules() -> None:
    class Casting(Net):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(x)

    def around(net: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return net(torch.ones(2, 4))

    def found(call: Any) -> str | None:
        discovery = Discovery()
        assert discovery.start()
        call()
        return discovery.stop().autocast

    net = Net()
    assert found(lambda: None) is None
    assert found(lambda: net(torch.ones(2, 4))) == "off"
    assert found(lambda: Casting()(torch.ones(2, 4))) == "bfloat16"
    assert found(lambda: around(net)) == "float16"


def test_a_profiler_of_the_users_stays_and_ours_does_not_start() -> None:
    def theirs(*_: Any) -> None:
        return None

    sys.setprofile(theirs)
    try:
        assert not Discovery().start()
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


def test_a_profiler_that_the_user_starts_in_between_is_left_alone() -> None:
    def theirs(*_: Any) -> None:
        return None

    discovery = Discovery()
    assert discovery.start()
    sys.setprofile(theirs)
    try:
        discovery.stop()
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


def test_errors_of_the_users_pass_through_unchanged() -> None:
    discovery = Discovery()
    assert discovery.start()
    try:
        with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
            bool(torch.ones(2))
    finally:
        discovery.stop()


COUNTED = """
import torch, torch._dynamo
from steptime.probe import sites
from steptime.probe.compiler import hide_from_dynamo
from steptime.probe.discovery import Discovery
hide_from_dynamo()
model, rows = torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)

def forces(rows):
    return torch.autograd.grad(model(rows).sum(), rows)[0]

def frames():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.compile(forces, backend="eager")(rows)
    return dict(torch._dynamo.utils.counters["frames"])

frames()
bare = frames()
sites._whose.clear()
discovery = Discovery(10**9)
assert discovery.start()
try:
    found = frames()
finally:
    discovery.stop()
print(found == bare, bare, found)
"""


def test_dynamo_counts_no_frame_of_ours() -> None:
    """What discovery calls of the standard library, in the midst of a compiled function, is none of the job's."""
    done = subprocess.run([python(), "-c", COUNTED], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.startswith("True"), done.stdout


MODE = """
import torch
from steptime.probe.discovery import Discovery

class Heard(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        names.append(str(getattr(function, "__name__", function)))
        return function(*args, **(kwargs or {}))

heard = []
for discovery in (None, Discovery()):
    names = []
    assert discovery is None or discovery.start()
    with Heard():
        torch.ones(2).to(torch.float64).sum().item()
    if discovery is not None:
        discovery.stop()
    heard.append(names)
print("to" in heard[0], heard[0] == heard[1])
"""


def test_a_function_mode_of_the_jobs_is_asked_for_nothing_of_ours() -> None:
    """In a process of its own: torch remembers that there was a mode."""
    done = subprocess.run([python(), "-c", MODE], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "True True\n", done.stderr
