"""Which gradients and results of a real job nobody uses, as the observers see it."""

from __future__ import annotations

import dis
import functools
import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn: Any = torch.nn

from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

from steptime.probe import backwards, calls, rows, unread, used  # noqa: E402
from steptime.probe.modules import named_modules  # noqa: E402
from steptime.probe.used import UseObserver, is_zero, runs  # noqa: E402

STEPS = 3
Step = Callable[[], None]


class Adversaries:
    """A painter and a critic, each with its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.painter = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.paint = torch.optim.SGD(self.painter.parameters(), lr=1e-3)
        self.judge = torch.optim.SGD(self.critic.parameters(), lr=1e-3)

    def step(self, *, detached: bool, set_to_none: bool = True, seen: Callable[[Any], object] = bool) -> None:
        """seen: called with the painter, between the critic's backward and what drops the painter's gradients."""
        self.judge.zero_grad(set_to_none=set_to_none)
        images = self.painter(torch.randn(4, 8))
        error = self.critic(images.detach() if detached else images).mean()
        error.backward()
        self.judge.step()
        held = seen(self.painter)
        self.paint.zero_grad(set_to_none=set_to_none)
        del held
        self.critic.requires_grad_(False)
        self.critic(self.painter(torch.randn(4, 8))).mean().backward()
        self.critic.requires_grad_(True)
        self.paint.step()


def observed(step: Step, models: list[Any], optimizers: list[Any]) -> dict[str, Any]:
    """What the observers say of a few steps."""
    calls.install()
    backwards.install()
    observer = UseObserver(named_modules(models), 10**10)
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: observer.gradients.update(optimizer))
    observer.start()
    try:
        for _ in observer.steps_of(len(optimizers)):
            step()
    finally:
        hook.remove()
        found = observer.stop(optimizers)
        calls.remove_if_idle()
        backwards.remove_if_idle()
    assert observer.gradients.ours < 10**10
    return found


def dropped(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in found["passes"] if each["nothing"] or each["partly"]]


def of_adversaries(**options: Any) -> list[dict[str, Any]]:
    both = Adversaries()
    found = observed(lambda: both.step(**options), [both.painter, both.critic], [both.paint, both.judge])
    assert sum(each["count"] for each in found["passes"]) >= 2 * (STEPS - 1)
    return dropped(found)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_zeroed_before_an_optimizer_took_them_are_for_nothing(set_to_none: bool) -> None:
    [found] = of_adversaries(detached=False, set_to_none=set_to_none)
    assert found["elements"] == sum(each.numel() for each in Adversaries().painter.parameters())
    assert not found["unowned"]
    assert "backward()" in found["site"]["text"]
    assert "images = self.painter(" in found["made"]["text"]
    assert "self.critic(images" in found["passed"]["text"], "where detach() belongs"
    nothing = sum(last - first + 1 for first, last in found["nothing"])
    assert nothing == 5, "two products with their transposed weights, and the activation between them"
    assert len(found["partly"]) == 1, "the critic's first layer, which needs no gradient of its input"


def test_detached_images_have_no_gradients_to_drop() -> None:
    assert of_adversaries(detached=True) == []


def test_gradients_that_somebody_holds_or_scales_are_not_dropped() -> None:
    held: list[Any] = []

    def hold(painter: Any) -> None:
        held[:] = [each.grad for each in painter.parameters()]

    assert of_adversaries(detached=False, seen=hold) == []
    one = nn.Linear(4, 4)
    update = torch.optim.SGD(one.parameters(), lr=0.1)

    def accumulated() -> None:
        update.zero_grad()
        for _ in range(2):
            one(torch.randn(2, 4)).sum().backward()
            nn.utils.clip_grad_norm_(one.parameters(), 1e-3)
        update.step()

    found = observed(accumulated, [one], [update])
    assert dropped(found) == []
    assert [each["count"] for each in found["passes"]] == [2 * STEPS]


def test_what_no_optimizer_has_is_told_apart() -> None:
    teacher, student = nn.Linear(8, 8), nn.Linear(8, 8)
    update = torch.optim.SGD(student.parameters(), lr=0.1)

    def step() -> None:
        rows = torch.randn(4, 8)
        update.zero_grad()
        (teacher(rows) - student(rows)).square().mean().backward()
        update.step()

    [found] = dropped(observed(step, [teacher, student], [update]))
    assert found["unowned"]
    assert "teacher(rows)" in found["made"]["text"]
    flat = torch.optim.SGD([nn.Parameter(torch.zeros(10_000))], lr=0.1)
    assert dropped(observed(step, [teacher, student], [flat])) == [], "others are updated: that proves nothing"


def test_an_update_that_is_not_seen_takes_gradients_all_the_same() -> None:
    """A compiled one, or the loop's own."""
    net, other = nn.Linear(8, 8), nn.Linear(8, 8)
    update = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.randn(4, 8)).sum().backward()
        with torch.no_grad():
            for each in net.parameters():
                each -= 0.1 * each.grad
                each.grad = None

    assert dropped(observed(step, [net, other], [update])) == []


def test_an_optimizer_that_steps_seldom_is_waited_for() -> None:
    both, steps = Adversaries(), iter(range(100))

    def step() -> None:
        both.judge.zero_grad()
        both.critic(both.painter(torch.randn(4, 8))).mean().backward()
        both.judge.step()
        both.paint.zero_grad()
        if next(steps) % 3 == 2:
            both.critic(both.painter(torch.randn(4, 8))).mean().backward()
            both.paint.step()

    found = observed(step, [both.painter, both.critic], [both.paint, both.judge])
    assert found["steps"] == 6
    assert any(each["nothing"] for each in dropped(found))


def test_inputs_that_want_gradients_use_what_is_in_front_of_them() -> None:
    net = nn.Linear(8, 8)
    update = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        rows = torch.randn(4, 8, requires_grad=True)
        net(rows).sum().backward()
        assert rows.grad is not None
        update.zero_grad()
        net(rows.detach() + rows.grad.sign()).sum().backward()
        update.step()

    [found] = dropped(observed(step, [net], [update]))
    assert not found["partly"] or found["elements"] == 72
    assert all(first > 0 for first, _ in found["nothing"]), "the sum and the product lead to the input, too"


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.options = options

    def forward(self, x: Any) -> Any:
        seen, _ = self.attend(x, x, x, **self.options)
        return seen


class First(Block):
    def forward(self, x: Any) -> Any:
        return self.attend(x, x, x, **self.options)[0]


class Reading(Block):
    def forward(self, x: Any) -> Any:
        seen, weights = self.attend(x, x, x, **self.options)
        return seen * weights.sum()


class Keeping(Block):
    def forward(self, x: Any) -> Any:
        both = self.attend(x, x, x)
        return both[0]


def results(net: Any) -> list[dict[str, Any]]:
    update = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        update.zero_grad()
        net(torch.randn(2, 4, 8)).sum().backward()
        update.step()

    found: list[dict[str, Any]] = observed(step, [net], [update])["unread"]
    return found


@pytest.mark.parametrize("kind", [Block, First])
def test_weights_that_the_caller_drops_are_unread(kind: Any) -> None:
    [found] = results(kind())
    assert (found["path"], found["type"], found["results"]) == (f"{kind.__name__}.attend", "MultiheadAttention", [1])
    assert found["calls"] == 1
    assert "self.attend(x, x, x" in found["site"]["text"]
    assert results(kind(need_weights=False)) == []


@pytest.mark.parametrize("kind", [Reading, Keeping])
def test_weights_that_are_read_or_kept_are_not(kind: Any) -> None:
    assert results(kind()) == []


def test_a_hook_may_read_what_the_caller_drops() -> None:
    net, seen = Block(), []
    net.attend.register_forward_hook(lambda module, args, result: seen.append(result[1].shape))
    assert results(net) == []
    assert seen


LOOP = """
for step in range(9):
    loss, score, extra, more = net(batch)
    loss.backward()
    {body}
{behind}
"""


@pytest.mark.parametrize(
    ("body", "behind", "results"),
    [
        ("pass", "", (1, 2, 3)),
        ("print(score)", "", (2, 3)),
        ("score += 1", "", (2, 3)),
        ("if step % 4 == 0:\n        loss, score, extra, more = net(held_out)\n        print(score)", "", (1, 2, 3)),
        ("with torch.no_grad():\n        _, score, *_ = net(held_out)\n    print(score)", "", (1, 2, 3)),
        ("if step:\n        score = 0\n    print(score)", "", (2, 3)),
        ("pass", "print(extra)", (1, 3)),
        ("pass", "def show():\n    print(more)", (1, 2)),
        ("pass", "print(vars())", ()),
        ("model.eval()", "", (1, 2, 3)),
        ("try:\n        stop()\n    except KeyboardInterrupt:\n        print(score)", "", (2, 3)),
    ],
)
def test_a_result_is_unread_where_no_way_reads_it_before_it_is_bound_again(
    body: str, behind: str, results: tuple[int, ...], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(body=body, behind=behind), encoding="utf-8")
    code = compile(script.read_text(encoding="utf-8"), script, "exec")
    instructions = list(dis.get_instructions(code))
    unpacks = next(number for number, each in enumerate(instructions) if each.opname == "UNPACK_SEQUENCE")
    assert unread._results(code, instructions[unpacks - 1].offset)[0] == results
    cell = compile(script.read_text(encoding="utf-8"), "<cell>", "exec")
    assert unread._results(cell, instructions[unpacks - 1].offset)[0] == (), "the next cell may read them"


class Tagger(nn.Module):  # type: ignore[misc]
    """A head over all positions, of which the loss takes some. kind: how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body = kind, nn.GRU(8, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 30))

    def forward(self, x: Any, labels: Any) -> Any:
        hidden, _ = self.body(x)
        if self.kind == "before":
            return nn.functional.cross_entropy(self.head(hidden[labels >= 0]), labels[labels >= 0])
        logits = self.head(hidden)
        if self.kind == "ignored":
            return nn.functional.cross_entropy(logits.view(-1, 30), labels.view(-1))
        if self.kind == "masked":
            return nn.functional.cross_entropy(logits[labels >= 0], labels[labels >= 0])
        if self.kind == "last":
            return logits[:, -1].square().mean()
        if self.kind == "slices":
            return logits[:2, 4:6].square().mean()
        if self.kind == "both ends":
            return logits[:, -1].square().mean() + logits[:, 0].square().mean()
        if self.kind == "neighbours":
            return (torch.ones(40, 40) @ logits.view(40, 30))[:8].square().mean()
        if self.kind == "features":
            return logits[..., :3].square().mean()
        return logits[:, 1:].square().mean()


def picked(kind: str) -> list[dict[str, Any]]:
    net = Tagger(kind)
    update = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        labels = torch.full((4, 10), -100)
        labels[:, :2] = 3
        update.zero_grad()
        net(torch.randn(4, 10, 8), labels).backward()
        update.step()

    [found] = observed(step, [net], [update])["passes"]
    return list(found["picked"])


@pytest.mark.parametrize(("kind", "kept"), [("ignored", 0.2), ("masked", 0.2), ("last", 0.1), ("slices", 0.1)])
def test_rows_that_the_loss_leaves_out_are_told_with_the_head_that_computes_them(kind: str, kept: float) -> None:
    [found] = picked(kind)
    assert found["kept"] == pytest.approx(kept)
    assert found["path"] == "Tagger.head"
    assert "logits = self.head(hidden)" in found["made"]["text"]


@pytest.mark.parametrize("kind", ["before", "both ends", "features", "all but one", "neighbours"])
def test_rows_that_are_used_or_picked_before_the_head_are_not(kind: str) -> None:
    assert picked(kind) == []


def test_labels_that_a_hook_has_packed_stay_packed() -> None:
    def unpack(_: Any) -> Any:
        raise AssertionError("unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = nn.functional.cross_entropy(torch.randn(4, 3, requires_grad=True), torch.tensor([-100, -100, -100, 1]))
    assert rows.kept(loss.grad_fn) == 1.0
    loss = nn.functional.cross_entropy(torch.randn(4, 3, requires_grad=True), torch.tensor([-100, -100, -100, 1]))
    assert rows.kept(loss.grad_fn) == 0.25


def test_nothing_of_ours_stays_and_the_job_is_the_same() -> None:
    def trained(watched: bool) -> tuple[bytes, list[int]]:
        both = Adversaries()
        if watched:
            observed(lambda: both.step(detached=False), [both.painter, both.critic], [both.paint, both.judge])
        else:
            for _ in range(STEPS):
                both.step(detached=False)
        numbers = torch.cat([each.flatten() for each in (*both.painter.parameters(), *both.critic.parameters())])
        gc.collect()
        return numbers.detach().numpy().tobytes(), [
            sys.getrefcount(each) + weakref.getweakrefcount(each) for each in both.painter.parameters()
        ]

    assert trained(watched=True) == trained(watched=False)


def test_a_graph_of_too_many_nodes_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used, "MOST_NODES", 20)
    both = Adversaries()
    found = observed(lambda: both.step(detached=False), [both.painter, both.critic], [both.paint, both.judge])
    assert found["steps"] == 1
    monkeypatch.setattr(unread, "KNOWN_CALLS", 0)
    unread._known.clear()
    assert results(Block()) == []


def test_zeros_and_runs() -> None:
    assert is_zero(torch.zeros(5))
    assert not is_zero(torch.tensor([0.0, 1e-30]))
    assert not is_zero(torch.zeros(4, 4).t()[1:]), "not looked at"
    assert runs([5, 3, 4, 9, 9]) == [[3, 5], [9, 9]]
    assert runs([]) == []


def _sliced(loss: Any, weights: list[Any]) -> Any:
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    return [weight - 0.1 * each for weight, each in zip(weights[-2:], gradients[-2:], strict=True)]


def _indexed(loss: Any, weights: list[Any]) -> Any:
    return [weights[3] - torch.autograd.grad(loss, weights)[3]]


def _in_a_branch(loss: Any, weights: list[Any]) -> Any:
    gradients = torch.autograd.grad(loss, weights)
    if loss > 100:
        return [gradients[-2]]
    return [gradients[3]]


def _unpacked(loss: Any, weights: list[Any]) -> Any:
    _, _, first, second = torch.autograd.grad(loss, weights)
    return [first, second]


def _all(loss: Any, weights: list[Any]) -> Any:
    return list(torch.autograd.grad(loss, weights))


def _index_and_pass_on(loss: Any, weights: list[Any]) -> Any:
    gradients = torch.autograd.grad(loss, weights)
    assert gradients[3] is not None
    return list(gradients)


def _variable(loss: Any, weights: list[Any], at: int = 3) -> Any:
    gradients = torch.autograd.grad(loss, weights)
    return [gradients[at]]


def _beside_another(loss: Any, weights: list[Any]) -> Any:
    gradients = torch.autograd.grad(loss, weights)
    return [gradients, weights[3]]


def _kept(loss: Any, weights: list[Any]) -> Any:
    gradients = torch.autograd.grad(loss, weights)
    return [(lambda: gradients[3])()]


def _mapped(loss: Any, weights: list[Any]) -> Any:
    gradients = list(map(functools.partial(torch.autograd.grad, inputs=weights), [loss]))
    return [gradients[0]]


def inner_steps(read: Callable[[Any, list[Any]], Any], *, hooked: bool = False) -> list[dict[str, Any]]:
    """What is known of passes of torch.autograd.grad with unread gradients, of two layers with a bias each."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    update, weights = torch.optim.SGD(net.parameters(), lr=1e-3), list(net.parameters())
    if hooked:
        weights[0].register_hook(lambda gradient: gradient * 2)

    def step() -> None:
        read(net(torch.randn(4, 8)).square().mean(), weights)
        update.zero_grad()
        net(torch.randn(4, 8)).mean().backward()
        update.step()

    return [each for each in observed(step, [net], [update])["passes"] if each.get("asked")]


@pytest.mark.parametrize(
    ("read", "places", "nodes"),
    [(_sliced, [2, 3], 3), (_in_a_branch, [2, 3], 3), (_unpacked, [2, 3], 3), (_indexed, [3], 4)],
)
def test_gradients_that_the_caller_of_grad_does_not_read_are_for_nothing(
    read: Any, places: list[int], nodes: int
) -> None:
    """nodes: the first layer with its transposed weight, and the activation; that of the second without its bias."""
    [found] = inner_steps(read)
    assert (found["asked"], found["read"], found["count"]) == (4, places, STEPS)
    assert found["elements"] >= 8 * 16 + 16
    assert "torch.autograd.grad(loss, weights" in found["site"]["text"]
    nothing = sum(last - first + 1 for first, last in found["nothing"])
    assert nothing == nodes
    assert len(found["partly"]) == 1, "the second layer, whose input needs no gradient"


@pytest.mark.parametrize("read", [_all, _index_and_pass_on, _variable, _beside_another, _kept, _mapped])
def test_gradients_that_the_caller_of_grad_may_read_are_not(read: Any) -> None:
    assert inner_steps(read) == []


def test_a_hook_reads_gradients_that_the_caller_of_grad_does_not() -> None:
    assert inner_steps(_sliced, hooked=True) == []


def test_gradients_of_weights_that_were_made_by_gradients() -> None:
    """Inner steps of meta learning: the head's weights are no leaves from the second on."""
    torch.manual_seed(0)
    net, head = nn.Linear(8, 16), nn.Linear(16, 4)
    update = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-3)

    def adapted(weights: list[Any]) -> list[Any]:
        rows = torch.tanh(nn.functional.linear(torch.randn(4, 8), *weights[:2]))
        loss = nn.functional.linear(rows, *weights[2:]).square().mean()
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        return weights[:2] + [weight - 0.1 * each for weight, each in zip(weights[2:], gradients[2:], strict=True)]

    def step() -> None:
        weights = [*net.parameters(), *head.parameters()]
        for _ in range(3):
            weights = adapted(weights)
        update.zero_grad()
        sum(each.square().sum() for each in weights).backward()
        update.step()

    found = [each for each in observed(step, [net, head], [update])["passes"] if each.get("asked")]
    assert sum(each["count"] for each in found) == 3 * STEPS
    assert all(each["read"] == [2, 3] and each["nothing"] for each in found)
    lengths = [sum(last - first + 1 for first, last in each["nothing"]) for each in found]
    assert lengths == sorted(lengths), "through the steps before, too"
    assert lengths[-1] > lengths[0]
