"""`steptime.bench` and `steptime bench`: known service times, known work, other results, callables that cheat."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from preloading import python

import steptime
from steptime.api import Benched
from steptime.callables.bench import Bench, Contender, Standing
from steptime.callables.page import render
from steptime.callables.text import headline, render_markdown, render_text
from steptime.cli.main import main

SERVICE_NS = 2_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of an operator wait for each other where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def timed(*callables: Callable[..., object], **words: object) -> Bench:
    found: Benched = steptime.bench(*callables, seconds=0.05, **words)
    return found.result


def only(found: Bench) -> tuple[Contender, ...]:
    (setting,) = found.settings
    return setting.contenders


def spin(length: int) -> None:
    end = time.perf_counter_ns() + length
    while time.perf_counter_ns() < end:
        pass


def once() -> None:
    spin(SERVICE_NS)


def five_times() -> None:
    spin(5 * SERVICE_NS)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def in_blocks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([part @ y for part in x.split(16)])


def in_bfloat16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.bfloat16() @ y.bfloat16()).float()


def remembering() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    kept: dict[int, torch.Tensor] = {}

    def by_identity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if id(x) not in kept:
            kept[id(x)] = x @ y
        return kept[id(x)]

    return by_identity


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 64), torch.randn(64, 64)


def test_no_call_takes_less_than_its_service_time_and_the_first_is_what_others_are_beside() -> None:
    short, long = only(timed(once, five_times))
    assert short.standing is Standing.FIRST
    assert short.time is not None
    assert short.time.low >= SERVICE_NS
    assert long.time is not None
    assert long.time.low >= 5 * SERVICE_NS
    assert long.speed is not None
    assert long.speed.low <= long.speed.value <= long.speed.high
    assert long.standing is not Standing.FASTER


def test_work_is_what_the_shapes_say() -> None:
    (one,) = only(timed(product, inputs=matrices))
    assert one.flops == 2 * 64**3
    assert one.bytes == 3 * 64 * 64 * 4
    assert one.time is not None
    assert one.rate == pytest.approx(one.flops / one.time.value * 1e9)


def test_another_order_of_the_same_sums_is_the_same_result_and_a_coarser_format_is_not() -> None:
    _, reordered, coarse = only(timed(product, in_blocks, in_bfloat16, inputs=matrices))
    assert reordered.standing not in (Standing.OTHER_RESULT, Standing.SUSPICIOUS)
    assert coarse.standing is Standing.OTHER_RESULT
    assert "more than rounding explains" in coarse.sentence


def test_a_result_that_is_kept_from_call_to_call_is_found_out() -> None:
    found = timed(product, remembering(), inputs=matrices)
    _, cheat = only(found)
    assert cheat.standing is Standing.SUSPICIOUS
    assert "stays the same when its arguments change" in cheat.sentence
    assert "Not to be taken" in headline(found)
    assert cheat.rate is None


def test_a_result_that_is_kept_by_value_is_found_out_by_what_new_values_take() -> None:
    kept: dict[float, None] = {}

    def by_value(x: torch.Tensor) -> torch.Tensor:
        key = float(x.sum())
        if key not in kept:
            spin(SERVICE_NS)
            kept[key] = None
        return x * 2

    (cheat,) = only(timed(by_value, inputs=(torch.randn(8),)))
    assert cheat.standing is Standing.SUSPICIOUS
    assert "when the values of its arguments are new" in cheat.sentence


def test_other_shapes_and_exceptions_are_told_and_the_others_are_timed_all_the_same() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x[::2]

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    def leaves(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)

    def nothing(x: torch.Tensor) -> None:
        return None

    def overflows(x: torch.Tensor) -> torch.Tensor:
        return x / 0

    found = timed(torch.relu, half, fails, leaves, nothing, overflows, inputs=(torch.randn(8, 8),))
    first, other, failed, left, empty, infinite = only(found)
    assert (left.standing, left.sentence) == (Standing.FAILED, "SystemExit: 3")
    assert (empty.standing, empty.sentence) == (Standing.OTHER_RESULT, "it gives no result")
    assert infinite.standing is Standing.OTHER_RESULT
    assert "is not finite where" in infinite.sentence
    assert first.time is not None
    assert (other.standing, other.sentence) == (Standing.OTHER_RESULT, "its results have other shapes")
    assert (failed.standing, failed.sentence) == (Standing.FAILED, "ValueError: not today")


def test_where_nothing_could_be_called_the_answer_says_why() -> None:
    def fails() -> None:
        raise ValueError("not today")

    assert headline(timed(fails)) == (
        "Nothing was timed. test_where_nothing_could_be_called_the_answer_says_why.<locals>.fails failed: "
        "ValueError: not today."
    )


def test_a_callable_that_works_in_place_spoils_the_inputs_of_no_other() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(0.5)

    def anew(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    _, other = only(timed(in_place, anew, inputs=(torch.ones(64),)))
    assert other.error == 0


def test_a_module_is_timed_forward_and_backward_in_each_dtype_and_shape() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    before = [each.clone() for each in net.parameters()]
    found = timed(net, shapes=[(4, 8), (16, 8)], dtypes=["float32", "bfloat16"], backward=True)
    assert [setting.inputs for setting in found.settings] == [
        "4x8 float32", "4x8 bfloat16", "16x8 float32", "16x8 bfloat16",
    ]  # fmt: skip
    for (one,) in (setting.contenders for setting in found.settings):
        assert one.forward is not None
        assert one.time is not None
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    assert all(each.grad is None and each.dtype is torch.float32 for each in net.parameters())
    text, page = render_text(found), render(found)
    assert text.count("Sequential") >= 4
    assert "Time of a call over inputs" in page
    assert "backward" in render_markdown(found)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(
        "import torch\n"
        "print('imported')\n"
        "def slow(x):\n    return torch.stack([row.sum() for row in x])\n"
        "def fast(x):\n    return x.sum(1)\n"
        "def inputs(shape):\n    return torch.randn(shape)\n"
    )
    return path


def test_the_command_times_files_in_fresh_processes(
    kernels: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [f"{kernels}:slow", f"{kernels}:fast", "--inputs", f"{kernels}:inputs", "--shapes", "256x16"]
    page = tmp_path / "bench.html"
    assert (
        main(
            ["bench", *words, "--processes", "2", "--seconds", "0.2s", "--python", python(), "--json", "-o", str(page)]
        )
        == 0
    )
    out, err = capfd.readouterr()
    told = json.loads(out)
    slow, fast = told["bench"]["settings"][0]["contenders"]
    assert (told["bench"]["processes"], slow["name"], fast["name"]) == (2, "slow", "fast")
    assert fast["speed"]["value"] > 1
    assert "imported" in err
    assert "fast" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["kernels.py"], 2, "names no callable: expected FILE:NAME"),
        (["kernels.py:fast", "--shapes", "64*64"], 2, "is no shape"),
        (["kernels.py:fast", "--dtypes", "float12"], 2, "expected some of float16"),
        (["nowhere.py:fast", "--processes", "1"], 1, "Nothing can be timed: FileNotFoundError"),
        (["kernels.py:fastest", "--processes", "1"], 1, "has no attribute 'fastest'"),
        (["kernels.py:fast", "--processes", "1", "--device", "quantum"], 1, "there is no device 'quantum' here"),
        (["kernels.py:fast", "-o", "bench.pdf"], 1, "No report format belongs to"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_sentence(
    words: list[str], status: int, sentence: str, kernels: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(kernels.parent)
    assert main(["bench", *words, "--python", python()]) == status
    assert sentence in capfd.readouterr().err
