"""Ranges around modules: which operators, backward ones too, belong to which module, and what the job sees of it."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.analysis.modules import ModuleUse, module_uses  # noqa: E402
from steptime.analysis.step_context import step_context  # noqa: E402
from steptime.analysis.trace_steps import find_steps  # noqa: E402
from steptime.memory.in_report import kept_by_module  # noqa: E402
from steptime.probe import identity  # noqa: E402
from steptime.probe.compiler import hide_from_dynamo  # noqa: E402
from steptime.probe.modules import MOST, ModuleRanges, module_facts, named_modules, without_update  # noqa: E402
from steptime.trace.compile_logs import is_limit  # noqa: E402
from steptime.trace.reader import read  # noqa: E402

ROWS, WIDTH, STEPS = 64, 32, 3


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def forward(self, rows: Any) -> Any:
        if self.checkpointed:
            return torch.utils.checkpoint.checkpoint(self.both, rows, use_reentrant=False)
        return self.both(rows)

    def both(self, rows: Any) -> Any:
        return self.outer(self.inner(rows).relu())


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(checkpointed=False), Block(checkpointed=True)])

    def forward(self, rows: Any) -> Any:
        for block in self.blocks:
            rows = block(rows)
        return rows


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleUse]:
    """The modules of a model that was trained for some profiled steps, by path."""
    net, loss = Net(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    named = list(named_modules([loss, net]))
    ranges = ModuleRanges(named)
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profile:
        ranges.start()
        for _ in range(STEPS + 1):
            optimizer.zero_grad()
            loss(net(torch.ones(ROWS, WIDTH)), torch.zeros(ROWS, WIDTH)).backward()
            optimizer.step()
        ranges.end()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    profile.export_chrome_trace(str(path))
    trace = read(Path(path))
    steps = step_context(trace, find_steps(trace).boundaries)
    known = tuple((path, kind, numbers, size) for path, kind, numbers, size in module_facts(named))
    return {use.path: use for use in module_uses(steps, known, kept_by_module(steps))}


def test_the_tree_has_every_module_that_was_called_and_what_contains_it(tree: dict[str, ModuleUse]) -> None:
    block = ["Net.blocks.{}", "Net.blocks.{}.inner", "Net.blocks.{}.outer"]
    inside = [each.format(number) for number in "01" for each in block]
    assert list(tree) == ["Net", "Net.blocks", *inside, "MSELoss"]
    assert [tree[path].type for path in ("Net.blocks", "Net.blocks.1", "Net.blocks.1.inner")] == [
        "ModuleList", "Block", "Linear",
    ]  # fmt: skip
    assert [tree[path].calls for path in ("Net", "Net.blocks", "Net.blocks.0.inner", "Net.blocks.1.inner")] == [
        1, 0, 1, 2,
    ]  # fmt: skip


def test_no_part_is_larger_than_its_whole(tree: dict[str, ModuleUse]) -> None:
    for path, use in tree.items():
        outer = tree.get(path.rpartition(".")[0])
        assert use.forward > 0 or use.backward > 0
        assert 0 < use.share <= 1
        if outer is not None:
            assert use.forward <= outer.forward
            assert use.backward <= outer.backward
            assert (use.flops or 0) <= (outer.flops or 0)
            assert use.parameters <= outer.parameters


def test_flops_of_both_passes_belong_to_the_module(tree: dict[str, ModuleUse]) -> None:
    product = 2 * ROWS * WIDTH * 2 * WIDTH
    assert tree["Net.blocks.0.inner"].flops == 2 * product, "forward and the weight's gradient: the input has none"
    assert tree["Net.blocks.0.outer"].flops == 3 * product
    assert tree["Net.blocks.1.inner"].flops == 4 * product, "once more in backward"


def test_what_a_checkpoint_lets_go_of_is_not_kept(tree: dict[str, ModuleUse]) -> None:
    whole, checkpointed = tree["Net.blocks.0"].kept, tree["Net.blocks.1"].kept
    assert whole is not None
    assert checkpointed is not None
    assert whole >= 4 * ROWS * 3 * WIDTH, "between its layers, and its output"
    assert checkpointed < 4 * ROWS * 2 * WIDTH


def test_parameters_are_counted_with_all_inside(tree: dict[str, ModuleUse]) -> None:
    layer = 2 * WIDTH * WIDTH
    assert tree["Net.blocks.0.inner"].parameters == layer + 2 * WIDTH
    assert tree["Net"].parameters == 2 * (2 * layer + 3 * WIDTH)
    assert tree["Net"].parameter_bytes == 4 * tree["Net"].parameters


def test_a_window_changes_nothing_of_a_module(tmp_path: Path) -> None:
    net, called = Net(), list[str]()
    fields = set(vars(net))
    net.register_forward_pre_hook(lambda module, arguments: called.append("before"))
    net.blocks[0].register_forward_hook(lambda module, arguments, output: called.append("after"))
    original = torch.nn.Module.__call__
    ranges = ModuleRanges(named_modules([net]))
    ranges.start()
    assert torch.nn.Module.__call__ is original
    assert set(vars(pickle.loads(pickle.dumps(Net())))) == set(vars(net)) == fields
    expected = net(torch.ones(1, WIDTH))
    ranges.end()
    assert called == ["before", "after"]
    assert torch.nn.Module.__dict__["__call__"] is original
    assert torch.equal(net(torch.ones(1, WIDTH)), expected)


def test_our_frame_is_in_no_traceback() -> None:
    net = Net()
    ranges = ModuleRanges(named_modules([net]))
    ranges.start()
    try:
        net(torch.ones(1, WIDTH + 1))
    except RuntimeError as error:
        files = {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}
    finally:
        ranges.end()
    assert "modules.py" not in files


def test_a_call_that_outlives_the_window_is_closed_with_it() -> None:
    class Ends(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, rows: Any) -> Any:
            ranges.end()
            profile.stop()
            return rows

    net = Ends()
    ranges, profile = ModuleRanges(named_modules([net])), torch.profiler.profile()
    profile.start()
    ranges.start()
    assert net(1) == 1
    assert sum(event.name == "nn.Module: Ends (Ends)" for event in profile.events()) == 1


def test_graph_breaks_are_reported_with_the_line_of_the_users_that_has_them() -> None:
    _, before = identity.graph_break_facts(0)

    def forward(values: Any) -> Any:
        if values.sum().item() > 0:
            values = values * 2
        return values + 1

    torch.compile(forward, backend="eager")(torch.ones(2))
    (fact,), seen = identity.graph_break_facts(before)
    assert (fact["site"]["file"], fact["site"]["text"]) == (__file__, "if values.sum().item() > 0:")
    assert "item" in fact["reason"]
    assert identity.graph_break_facts(seen) == ([], seen)


def test_a_function_that_the_compiler_gives_up_is_reported_by_its_name() -> None:
    _, before = identity.compilation_facts(0)

    def given_up(values: Any) -> Any:
        return values + 1

    compiled = torch.compile(given_up, backend="eager", dynamic=False)
    for size in range(2, 12):
        compiled(torch.ones(size))
    facts, _ = identity.compilation_facts(before)
    assert {(fact["function"], fact["file"]) for fact in facts} == {("given_up", __file__)}
    assert [is_limit(fact["failed"]) for fact in facts] == [False] * (len(facts) - 1) + [True]


@pytest.mark.parametrize("first", [True, False], ids=["before the window", "in the window"])
def test_a_compiled_model_is_compiled_as_without_a_window(first: bool) -> None:
    net = Net()
    net.blocks[1].checkpointed = False
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    hide_from_dynamo()
    compiled = torch.compile(net, backend=backend)
    if first:
        compiled(torch.ones(1, WIDTH))
    ranges = ModuleRanges(named_modules([compiled]))
    ranges.start()
    compiled(torch.ones(1, WIDTH))
    ranges.end()
    compiled(torch.ones(1, WIDTH))
    assert len(graphs) == 1, "one graph, and once"
    torch._dynamo.reset()


def test_a_shared_module_has_one_path() -> None:
    net = Net()
    net.again = net.blocks[0]
    paths = [path for path, _ in named_modules([net.blocks[1], net])]
    assert len(paths) == len(set(paths)) == 8 < MOST
    assert sum("again" in path for path in paths) in (0, 3)


def test_parameters_with_gradients_that_no_optimiser_has_are_reported() -> None:
    net, frozen, teacher = Net(), torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False), torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    named = list(named_modules([net, frozen, teacher]))
    rows = torch.ones(ROWS, WIDTH)
    assert without_update(named, [optimizer]) == [], "nothing has a gradient yet"
    (net(frozen(rows)) - teacher(rows)).square().mean().backward()
    assert without_update(named, [optimizer]) == [["Linear", WIDTH * WIDTH + WIDTH]]
    assert without_update(named, [optimizer, torch.optim.SGD(teacher.parameters(), lr=1e-3)]) == []


def test_where_copies_are_updated_no_parameter_is_reported_to_be_without_one() -> None:
    """As with masters in single precision: the optimizer has none of the modules' own tensors, or few."""
    net = Net()
    net(torch.ones(ROWS, WIDTH)).mean().backward()
    named = list(named_modules([net]))
    masters = [each.detach().clone() for each in net.parameters()]
    assert without_update(named, [torch.optim.SGD(masters, lr=1e-3)]) == []
    assert without_update(named, [torch.optim.SGD([*masters, net.blocks[0].inner.bias], lr=1e-3)]) == []
    assert without_update(named, []) == []
