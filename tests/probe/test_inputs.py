"""What a model is called with: samples and tokens where the first dimension is surely the batch's, and nothing where it
may be something else."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steptime.probe.discovery import Discovery  # noqa: E402
from steptime.probe.inputs import LEAST_ODD, LOOK_PERIOD, LOOKS, PERIOD, InputCheck, Inputs, RowsWithout, size_of  # noqa: E402

Step = Callable[[], None]
IDS = torch.zeros(4, 12, dtype=torch.long)


class Text(nn.Module):  # type: ignore[misc]
    """Predicts the next token; its loss is part of it where it is given targets."""

    def __init__(self, *, flat: bool = False, scalar: bool = False) -> None:
        super().__init__()
        self.embedding, self.head, self.flat, self.scalar = nn.Embedding(50, 8), nn.Linear(8, 50), flat, scalar

    def forward(self, ids: Any, targets: Any = None) -> Any:
        logits = self.head(self.embedding(ids))
        if targets is None:
            return logits
        loss = nn.functional.cross_entropy(logits.view(-1, 50), targets.view(-1))
        return loss if self.scalar else (logits.view(-1, 50) if self.flat else logits, loss)


class Table(nn.Module):  # type: ignore[misc]
    """Reads classes, column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 1)

    def forward(self, columns: Any) -> Any:
        return self.head(self.embedding(columns).sum(1))[:, 0]


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 6, batch_first=batch_first)

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0]


class Image(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3)

    def forward(self, x: Any) -> Any:
        return self.convolution(x).flatten(-2).mean(-1)


def loss_of(result: Any) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    return sum(each.float().mean() for each in parts)


def found(step: Step, optimizers: int = 1) -> tuple[str, int, int | None] | None:
    """Of two such steps."""
    discovery = Discovery()
    assert discovery.start()
    try:
        step()
        step()
    finally:
        inputs = discovery.stop().inputs(optimizers)
    return (inputs.name, inputs.rows, inputs.tokens) if inputs is not None else None


def training(model: Any, *batches: Callable[[], tuple[Any, ...]]) -> Step:
    """A step with a backward for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for batch in batches:
            loss_of(model(*batch())).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("model", "batch", "size"),
    [
        (nn.Linear(6, 2), lambda: (torch.randn(5, 6),), ("Linear", 5, None)),
        (Text(), lambda: (IDS.clone(), IDS.clone()), ("Text", 4, 48)),
        (Text(flat=True), lambda: (IDS.clone(), IDS.clone()), ("Text", 4, 48)),
        (Text(scalar=True), lambda: (IDS.clone(), IDS.clone()), ("Text", 4, 48)),
        (Text(), lambda: (IDS.clone(),), ("Text", 4, 48)),
        (Table(), lambda: (IDS.clone(),), ("Table", 4, None)),
        (Recurrent(batch_first=True), lambda: (torch.randn(5, 9, 6),), ("Recurrent", 5, None)),
        (Image(), lambda: (torch.randn(7, 3, 8, 8),), ("Image", 7, None)),
    ],
    ids=["rows", "text", "flat logits", "only a loss", "without targets", "columns", "recurrent", "images"],
)
def test_the_first_dimension_is_the_batch(model: Any, batch: Any, size: Any) -> None:
    assert found(training(model, batch)) == size
    assert found(training(model, batch, batch)) == size, "of each call: micro-batches are counted by their calls"


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Recurrent(batch_first=False), lambda: (torch.randn(9, 5, 6),)),
        (Recurrent(batch_first=True), lambda: (torch.randn(9, 6),)),
        (Image(), lambda: (torch.randn(3, 8, 8),)),
        (nn.Linear(6, 1), lambda: (torch.randn(6),)),
        (nn.Embedding(50, 4), lambda: (IDS[0].clone(),)),
    ],
    ids=["time first", "a sequence alone", "an image alone", "a row alone", "tokens in one row"],
)
def test_what_may_be_no_batch_is_not_counted(model: Any, batch: Any) -> None:
    assert found(training(model, batch)) is None


def test_sizes_that_differ_from_call_to_call_are_not_counted() -> None:
    sizes = iter((5, 5, 5, 3))
    assert found(training(nn.Linear(6, 1), *[lambda: (torch.randn(next(sizes), 6),)] * 2)) is None


def test_a_model_that_is_called_twice_for_one_loss_is_not_counted() -> None:
    net = nn.Linear(6, 2)
    assert found(lambda: (net(torch.randn(4, 6)) - net(torch.randn(4, 6))).sum().backward()) is None


def test_the_same_batch_twice_in_a_step_is_not_counted() -> None:
    batch = torch.randn(4, 6)
    assert found(training(nn.Linear(6, 2), lambda: (batch,), lambda: (batch,))) is None
    assert found(training(nn.Linear(6, 2), lambda: (batch,))) == ("Linear", 4, None), "once in each step"


@pytest.mark.parametrize("calls", [1, 3])
def test_a_closure_that_is_called_again_works_at_the_same_samples(calls: int) -> None:
    net = nn.Linear(6, 2)

    class Closures(torch.optim.SGD):  # type: ignore[misc,name-defined]
        def step(self, closure: Any = None) -> Any:
            for _ in range(calls):
                closure()
            return super().step()

    optimizer = Closures(net.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).sum()
        loss.backward()
        return loss

    assert found(lambda: optimizer.step(closure)) == (("Linear", 4, None) if calls == 1 else None)


def test_two_towers_read_pairs_and_a_gan_reads_what_nobody_can_tell() -> None:
    one, other = nn.Linear(6, 2), nn.Linear(3, 2)
    towers = [each for net in (one, other) for each in net.parameters()]
    optimizer = torch.optim.SGD(towers, lr=0.1)

    def pairs() -> None:
        (one(torch.randn(4, 6)) * other(torch.randn(4, 3))).sum().backward()
        optimizer.step()

    assert found(pairs) == ("Linear", 4, None)
    assert found(pairs, optimizers=2) is None

    def adversaries() -> None:
        one(torch.randn(4, 6)).sum().backward()
        one(torch.cat((other(torch.randn(4, 3)), torch.randn(4, 4)), 1)).sum().backward()
        optimizer.step()

    assert found(adversaries) is None


def test_calls_without_gradients_and_again_in_backward_do_not_count() -> None:
    net, teacher = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)), nn.Linear(6, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        batch = torch.randn(4, 6)
        with torch.no_grad():
            aim = teacher(torch.cat((batch, batch)))[:4]
        result = torch.utils.checkpoint.checkpoint(net, batch, use_reentrant=False)
        (result - aim).square().sum().backward()
        optimizer.step()

    assert found(step) == ("Sequential", 4, None)


def test_only_plain_tensors_alongside_plain_values_tell_a_size() -> None:
    row = torch.randn(4, 6)
    assert size_of((row, 3, "mean", None), {"flag": True}) is not None
    for other in ([row, row], object(), torch.eye(4).to_sparse(), torch.randn(5, 6)):
        assert size_of((row, other), {}) is None
    for batch in ({"input_ids": IDS, "labels": torch.zeros(4)}, UserDict(input_ids=IDS)):
        size = size_of((batch,), {})
        assert size is not None
        assert (size.rows, size.length, size.named) == (4, 12, True)


def test_a_size_that_changes_for_good_holds_no_more() -> None:
    net, reported = nn.Linear(6, 1), list[bool]()
    check = InputCheck(Inputs(lambda: net, "Linear", 4, None), lambda: reported.append(True))
    now = 0
    for rows in [4, 4, 4, 4, 4, 4, 4, 4, 2] * 5:  # the last batch of an epoch
        now += PERIOD
        check.look(now, (torch.randn(rows, 6),), {})
    assert not reported
    for _ in range(20 * LEAST_ODD):
        if now + PERIOD >= check.due:
            now += PERIOD
            check.look(now, (torch.randn(8, 6),), {})
    assert reported == [True]


@pytest.mark.parametrize(
    ("quiet", "same"),
    [("another batch", [False]), ("the batch again", [True]), ("the batch before it trains", [True]), ("none", [])],
)
def test_calls_without_gradients_read_the_batch_of_the_step_or_another_one(quiet: str, same: list[bool]) -> None:
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        batch, following = torch.randn(5, 6), torch.randn(5, 6)
        with torch.no_grad():
            if quiet == "the batch before it trains":
                model(batch)
            if quiet == "another batch":
                model(following)
        loss_of(model(batch)).backward()
        optimizer.step()
        if quiet == "the batch again":
            with torch.no_grad():
                model(batch)

    discovery = Discovery()
    assert discovery.start()
    try:
        step()
        step()
    finally:
        found = discovery.stop()
    assert [call.same for call in found.without_gradients(model)] == 2 * same
    assert all(call.place is not None and call.place[0] == __file__ for call in found.without_gradients(model))


def test_the_place_of_a_call_is_outside_of_the_methods_of_its_module() -> None:
    class Actor(nn.Linear):  # type: ignore[misc]
        def act(self, x: Any) -> Any:
            return self(x).argmax(1)

    actor = Actor(6, 2)
    discovery = Discovery()
    assert discovery.start()
    try:
        with torch.no_grad():
            actor.act(torch.randn(5, 6))
    finally:
        (call,) = discovery.stop().without_gradients(actor)
    assert call.place is not None
    assert call.place[2] == "test_the_place_of_a_call_is_outside_of_the_methods_of_its_module"


@pytest.mark.parametrize(
    ("shapes", "reported"),
    [
        pytest.param([(1, 6)], [(1, 1.0)], id="one row"),
        pytest.param([(6,)], [(1, 1.0)], id="one sample without the batch's dimension"),
        pytest.param([(2, 12)], [(2, 2.0)], id="longer rows"),
        pytest.param([(8, 6), (8, 6), (1, 6)], [], id="batches of several sizes"),
        pytest.param([(2, 3, 6)], [], id="another dimension"),
    ],
)
def test_rows_of_calls_without_gradients(shapes: list[tuple[int, ...]], reported: list[tuple[int, float]]) -> None:
    net, seen, now = nn.Linear(6, 2), list[tuple[int, float]](), 0
    rows = RowsWithout(Inputs(lambda: net, "Linear", 4, None, 2, 24.0), lambda *each: seen.append(each))
    for number in range(3 * LOOKS):
        now += LOOK_PERIOD
        if now >= rows.due:
            rows.look(now, (torch.randn(shapes[number % len(shapes)]),), {})
    assert seen == reported
