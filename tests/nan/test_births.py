"""What the look at operators finds: the operator that made something that is not finite, its line, and the cause."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from steptime.nan.cause import cause_of  # noqa: E402
from steptime.nan.nonfinite import NonFiniteOrigin  # noqa: E402
from steptime.probe.numerics.batches import Batches  # noqa: E402
from steptime.probe.numerics.instrument import _origin  # noqa: E402
from steptime.probe.numerics.operators import OperatorObserver  # noqa: E402
from steptime.probe.numerics.values import ModuleNames  # noqa: E402

Job = Callable[[], tuple[Any, list[Any]]]
"""Returns a loss and the tensors whose gradients count."""


def broken(error: Exception) -> None:
    raise error


def born(job: Job) -> NonFiniteOrigin | None:
    """What the loss, or else the gradients, of a job come from; None where both are finite."""
    torch.manual_seed(0)
    watch = OperatorObserver(Batches(), ModuleNames(), broken)
    watch.active, watch.step = True, 1
    with watch:
        loss, leaves = job()
        bad = [loss] if not torch.isfinite(loss) else []
        if not bad:
            loss.backward()
            bad = [leaf.grad for leaf in leaves if not torch.isfinite(leaf.grad).all()]
    if not bad:
        return None
    found = _origin([watch.origins[each] for each in watch.origins_of(bad)])
    assert found is not None
    return msgspec.convert(found.facts, NonFiniteOrigin)


def leaf(*values: float) -> Any:
    return torch.tensor(values or (1.0, 2.0, 3.0), dtype=torch.float32, requires_grad=True)


# -- jobs with a fault -------------------------------------------------------------------------------------------------


def log_of_zero() -> Any:
    x = leaf(1, 0, 2)
    return torch.log(x).sum(), [x]  # here


def log_of_negative() -> Any:
    x = leaf(1, -1, 2)
    return torch.log(x).sum(), [x]  # here


def square_root_at_zero() -> Any:
    x = leaf(1, 0, 2)
    return x.square().sqrt().sum(), [x]  # here


def norm_in_two_lines() -> Any:
    x = leaf(0, 0, 0)
    distance = x.square().sum().sqrt()  # here
    return distance * 2, [x]


def not_selected() -> Any:
    x = leaf(1, 0, 2)
    inverse = 1 / x  # here
    return torch.where(x > 0, inverse, x).sum(), [x]


def zero_by_zero() -> Any:
    x = leaf(0, 0)
    return (x / x.abs().max()).sum(), [x]  # here


def half_overflow() -> Any:
    x = leaf(300, 2).half().detach().requires_grad_()
    return (x * x).sum(), [x]  # here


def cast_overflow() -> Any:
    x = leaf(1e5, 2)
    return x.half().float().sum(), [x]  # here


def exponential() -> Any:
    x = leaf(100, 2)
    return torch.exp(x).sum(), [x]  # here


def exponential_brain() -> Any:
    x = leaf(90, 2)
    return torch.exp(x.bfloat16()).float().sum(), [x]  # here


def masked_row() -> Any:
    x = torch.ones(3, 4, requires_grad=True)
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[1] = True
    scores = x.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1).sum(), [x]  # here


def mask_times_zero() -> Any:
    x = leaf()
    mask = torch.full((3,), float("-inf"))
    return (x * (mask * torch.zeros(3))).sum(), [x]  # here


def empty_mean() -> Any:
    x = leaf()
    return x[x > 10].mean(), [x]  # here


def every_target_ignored() -> Any:
    x = torch.ones(4, 3, requires_grad=True)
    targets = torch.full((4,), -100)
    return torch.nn.functional.cross_entropy(x, targets), [x]  # here


def matrix_overflow() -> Any:
    x = torch.full((2, 2), 1e30, requires_grad=True)
    return (x @ x).sum(), [x]  # here


def acos_beyond_one() -> Any:
    x = leaf(0.5, 1.0000001)
    return torch.acos(x * 1.01).sum(), [x]  # here


def variance_of_one() -> Any:
    x = torch.ones(3, 1, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of it, once
        return x.std(dim=1).sum(), [x]  # here


def power_in_place() -> Any:
    x = leaf(1e30, 2)
    y = x.clone()
    y.pow_(2)  # here
    return y.sum(), [x]


def own_function() -> Any:
    function: Any = torch.autograd.Function

    class Reciprocal(function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x + 1

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            (x,) = context.saved_tensors
            return gradients[0] / x  # here

    x = leaf(1, 0)
    return Reciprocal.apply(x).sum(), [x]


def recomputed() -> Any:
    from torch.utils.checkpoint import checkpoint

    def block(x: Any) -> Any:
        return (x * x).sqrt()  # here

    x = leaf(0, 1)
    return checkpoint(block, x, use_reentrant=False).sum(), [x]


FAULTS: list[tuple[Callable[[], Any], str, str]] = [
    (log_of_zero, "log-of-zero", "forward"),
    (log_of_negative, "log-of-negative", "forward"),
    (square_root_at_zero, "infinite-derivative", "backward"),
    (norm_in_two_lines, "infinite-derivative", "backward"),
    (not_selected, "division-by-zero", "forward"),
    (zero_by_zero, "division-by-zero", "forward"),
    (half_overflow, "overflow", "forward"),
    (cast_overflow, "overflow", "forward"),
    (exponential, "overflow-of-exponential", "forward"),
    (exponential_brain, "overflow-of-exponential", "forward"),
    (masked_row, "masked-row", "forward"),
    (mask_times_zero, "arithmetic-of-infinities", "forward"),
    (empty_mean, "empty-mean", "forward"),
    (every_target_ignored, "all-targets-ignored", "forward"),
    (matrix_overflow, "overflow", "forward"),
    (acos_beyond_one, "outside-domain", "forward"),
    (variance_of_one, "single-value-variance", "forward"),
    (power_in_place, "overflow", "forward"),
    (own_function, "division-by-zero", "backward"),
    (recomputed, "infinite-derivative", "backward"),
]


def line_of(origin: NonFiniteOrigin) -> str:
    site = origin.forward_site or origin.site
    assert site is not None
    return linecache.getline(site.file, site.line)


@pytest.mark.parametrize(("job", "cause", "phase"), FAULTS, ids=lambda each: getattr(each, "__name__", None))
def test_a_fault_has_its_line_its_phase_and_its_cause(job: Job, cause: str, phase: str) -> None:
    origin = born(job)
    assert origin is not None
    assert "# here" in line_of(origin)
    assert origin.phase == phase
    found = cause_of(origin)
    assert found.name == cause
    assert found.sentence.endswith(".")


# -- jobs in which infinities do no harm -------------------------------------------------------------------------------


def causal_mask() -> Any:
    x = torch.randn(4, 4, requires_grad=True)
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    return torch.softmax(x + mask, dim=-1).square().sum(), [x]


def mask_by_logarithm() -> Any:
    x = torch.randn(4, requires_grad=True)
    return torch.softmax(x + torch.tensor([1.0, 0, 1, 1]).log(), dim=0).square().sum(), [x]


def infinity_that_vanishes() -> Any:
    x = leaf(1000, 1)
    return (1 / (1 + torch.exp(x.detach())) + x).sum(), [x]


def inside_the_root() -> Any:
    x = leaf(0, 1)
    return (x.square() + 1e-8).sqrt().sum(), [x]


def some_targets_ignored() -> Any:
    x = torch.ones(4, 3, requires_grad=True)
    return torch.nn.functional.cross_entropy(x, torch.tensor([-100, 1, 2, -100])), [x]


def running_minimum() -> Any:
    x = leaf()
    best = torch.full((3,), float("inf"))
    return torch.minimum(best, x).sum(), [x]


@pytest.mark.parametrize(
    "job",
    [causal_mask, mask_by_logarithm, infinity_that_vanishes, inside_the_root, some_targets_ignored, running_minimum],
    ids=lambda each: each.__name__,
)
def test_an_infinity_that_does_no_harm_is_at_no_fault(job: Job) -> None:
    assert born(job) is None


def test_a_fault_alongside_a_mask_is_not_blamed_on_the_mask() -> None:
    def job() -> Any:
        x = torch.zeros(3, 3, requires_grad=True)
        mask = torch.triu(torch.full((3, 3), float("-inf")), diagonal=1)
        scaled = x / x.sum()  # here
        return torch.softmax(scaled + mask, dim=-1).sum(), [x]

    origin = born(job)
    assert origin is not None
    assert "# here" in line_of(origin)
    assert origin.operator == "aten::div"


def test_what_came_in_from_outside_is_not_blamed_on_the_operator_that_used_it() -> None:
    data = torch.tensor([1.0, float("nan")])

    def job() -> Any:
        x = leaf(1, 2)
        return (x * data).sum(), [x]

    origin = born(job)
    assert origin is not None
    assert origin.kind == "outside"
    assert cause_of(origin).name == "unseen"


def test_inputs_are_reported_as_they_were_before_the_operator_wrote_over_them() -> None:
    origin = born(power_in_place)
    assert origin is not None
    assert origin.inputs[0].high == pytest.approx(1e30)


def test_memory_that_is_used_again_carries_nothing_on() -> None:
    """What was not finite and is gone is not blamed for what lies at its address."""

    def job() -> Any:
        for _ in range(8):
            gone = torch.log(torch.zeros(1000))
            del gone
        x = torch.ones(1000, requires_grad=True)
        return (x * 1e30 * 1e30).sum(), [x]  # here

    origin = born(job)
    assert origin is not None
    assert origin.operator == "aten::mul"
    assert "# here" in line_of(origin)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("filled", "kind"), [(False, "collective"), (True, "outside")])
def test_memory_that_another_rank_wrote_to_is_its_own_again_when_it_is_filled(filled: bool, kind: str) -> None:
    def job() -> Any:
        data, x = torch.ones(2), leaf(1, 2)
        torch.distributed.all_reduce(data)
        if filled:
            data.fill_(3)
        data.numpy()[1] = float("nan")  # as a collective does: no operator is seen
        return (x * data).sum(), [x]

    origin = born(job)
    assert origin is not None
    assert origin.kind == kind


def test_operators_are_looked_at_without_drawing_random_numbers_or_changing_results() -> None:
    def train() -> tuple[Any, Any]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
        return torch.cat([each.flatten() for each in model.parameters()]), torch.get_rng_state()

    plain = train()
    watch = OperatorObserver(Batches(), ModuleNames(), broken)
    watch.active = True
    with watch:
        watched = train()
    assert watch.looked_at > 50
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
