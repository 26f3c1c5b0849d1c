"""`steptime.bench` and `steptime bench`: known service times, known work, other results, callables that cheat."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from preloading import python

import steptime
from steptime.answer.markdown import as_markdown
from steptime.answer.page.frame import as_page
from steptime.answer.text import as_text
from steptime.api import Benched
from steptime.callables.bench import (
    Bench,
    BenchOptions,
    BenchSetting,
    Contender,
    Standing,
    _Answer,
    _Setting,
    _Timed,
    assembled,
    that_ran,
    thinned,
)
from steptime.callables.bench_answer import answer_of, headline
from steptime.cli.main import main
from steptime.machine import bench_script
from steptime.machine.bench_script import timed_by_events
from steptime.machine.machine import Machine, Rate
from steptime.machine.peaks import cache_path, remember
from steptime.quantities import Estimate

SERVICE_NS = 2_000_000


@pytest.fixture(autouse=True)
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long caches and clocks take to settle is no matter of these tests."""
    monkeypatch.setattr(bench_script, "WARM_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of an operator wait for each other where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def timed(*callables: Callable[..., object], **words: Any) -> Bench:
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


def test_no_call_takes_less_than_its_service_time_and_the_first_is_what_others_are_alongside() -> None:
    short, long = only(timed(once, five_times))
    assert short.standing is Standing.FIRST
    assert short.time is not None
    assert short.time.low >= SERVICE_NS
    assert long.time is not None
    assert long.time.low >= 5 * SERVICE_NS
    assert long.speed is not None
    assert long.speed.low <= long.speed.value <= long.speed.high
    assert long.standing is not Standing.FASTER


def test_one_setting_is_drawn_block_after_block() -> None:
    found = timed(torch.relu, torch.sigmoid, inputs=(torch.randn(8),))
    assert all(len(each.blocks) >= 6 for each in only(found))
    page = as_page(answer_of(found))
    assert "Time per call, by block" in page
    assert page.count('class="course owner') == 2
    assert thinned([float(number) for number in range(400)])[:2] == (1.5, 5.5)


def test_emptying_the_caches_does_not_make_a_short_call_endless() -> None:
    """What empties them takes a thousand times as long as the call, so a block has few calls."""
    calls = 0

    def short(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + 1

    found = timed(short, inputs=(torch.randn(8),), cold=True)
    assert only(found)[0].time is not None
    assert calls < 2000
    assert "cold caches" in as_text(answer_of(found))


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


def by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = in_blocks(x, y)
    centred = hidden - hidden.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def normalised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(product(x, y), (64,))


def halved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = normalised(x, y)
    return (hidden + hidden.detach()) / 2


def test_gradients_behind_a_layer_norm_are_compared_and_not_their_rounding() -> None:
    """The gradient of the sum of its results is zero but for rounding."""
    _, same, other = only(timed(normalised, by_hand, halved, inputs=matrices, backward=True))
    assert same.standing not in (Standing.OTHER_RESULT, Standing.SUSPICIOUS), same.sentence
    assert other.standing is Standing.OTHER_RESULT, "its gradients are half as large"


def test_a_result_that_is_kept_from_call_to_call_is_found_out() -> None:
    found = timed(product, remembering(), inputs=matrices)
    _, cheat = only(found)
    assert cheat.standing is Standing.SUSPICIOUS
    assert "does not change with its arguments" in cheat.sentence
    assert headline(found) == f"No comparison: {cheat.name} (suspicious)."
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
    assert "with new argument values" in cheat.sentence


def test_other_shapes_and_exceptions_are_reported_and_the_others_are_timed_all_the_same() -> None:
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
    assert (empty.standing, empty.sentence) == (Standing.OTHER_RESULT, "it returns no result")
    assert infinite.standing is Standing.OTHER_RESULT
    assert "is not finite in other places" in infinite.sentence
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
    text, page = as_text(answer_of(found)), as_page(answer_of(found))
    assert text.count("Sequential") >= 4
    assert "Time of a call over inputs" in page
    assert "backward" in as_markdown(answer_of(found))


def test_whoever_yields_inputs_has_a_setting_for_each() -> None:
    def sizes() -> Iterator[torch.Tensor]:
        for size in (4, 8):
            yield torch.randn(size)
        raise OSError("the disk is gone")

    def none() -> Iterator[torch.Tensor]:
        yield from ()

    found = timed(torch.relu, inputs=sizes)
    assert [setting.inputs for setting in found.settings] == ["4 float32", "8 float32", ""]
    assert "the disk is gone" in as_text(answer_of(found))
    assert headline(timed(torch.relu, inputs=none)) == "Nothing was timed: the function of --inputs yields nothing."


def test_what_fails_late_does_no_work_or_works_in_place_is_reported() -> None:
    calls = iter(range(20))

    def tires(x: torch.Tensor) -> torch.Tensor:
        next(calls)
        return x

    def lazy(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x

    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.clamp_(0)

    found = timed(torch.relu, tires, lazy, in_place, inputs=(torch.randn(8),))
    first, tired, generator, changing = only(found)
    assert (first.changes, tired.standing, tired.sentence) == (False, Standing.FAILED, "StopIteration")
    assert generator.standing is Standing.FAILED
    assert "consumes it" in generator.sentence
    assert changing.changes
    assert "changes its arguments: each call starts from the values that the last one left" in as_text(answer_of(found))


def test_arrays_of_numpy_are_results_too() -> None:
    _, alike, other = only(
        timed(torch.relu, lambda x: x.numpy().clip(0), lambda x: x.numpy() + 1, inputs=(torch.randn(8),))
    )
    assert alike.error == 0
    assert other.standing is Standing.OTHER_RESULT
    assert "of the largest value" in other.sentence


class Noise(torch.nn.Module):  # type: ignore[misc]
    """With weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_class_of_modules_has_the_same_weights_each_time() -> None:
    _, other = only(timed(Noise, Noise, shapes=[(2, 4)]))
    assert other.error == 0


def machine(device: str, name: str, product: float, copy: float) -> Machine:
    def rate(value: float) -> Estimate:
        return Estimate(value, value, value, 9, "1")

    return Machine(device, name, (Rate("float32", rate(product)),), rate(copy), measured=True)


OWN_CPU, OWN_GPU = machine("cpu", "a processor", 1e12, 120e9), machine("cuda", "a device", 50e12, 4.25e12)


def of_device(device: str, name: str, machines: tuple[Machine, ...]) -> Bench:
    """A copy of 2 GB in 2 ms, and a product of 20 GFLOP in 2 ms, in a bench of one block each."""
    blocks = [2e6] * 8
    candidates = [_Timed("k:copy", "eager", blocks, bytes=2 * 10**9), _Timed("k:mm", "eager", blocks, flops=2 * 10**10)]
    answer = _Answer("2.13.0", device, name, 2, [_Setting("", "float32", 0, "8 float32", candidates)])
    return assembled(BenchOptions(("k:copy", "k:mm")), [answer], that_ran(answer, machines), 0.0)


def test_nothing_is_alongside_a_first_one_that_failed_in_the_middle() -> None:
    tired = _Timed("k:first", "eager", [1e6] * 8, failed="OSError: tired")
    answer = _Answer("2", "cpu", settings=[_Setting(candidates=[tired, _Timed("k:other", "eager", [1e6] * 8)])])
    first, other = only(assembled(BenchOptions(("k:first", "k:other")), [answer], None, 0.0))
    assert (first.standing, first.sentence) == (Standing.FAILED, "OSError: tired")
    assert other.speed is None
    assert other.sentence == "the first callable failed, so there is no comparison"


def test_rates_are_alongside_the_peaks_of_the_device_that_ran_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path))
    both = (OWN_CPU, OWN_GPU)
    assert "1 TB/s (24 % of a copy)" in as_text(answer_of(of_device("cuda", "a device", both)))
    assert "10 TFLOP/s (20 % of float32 peak)" in as_text(answer_of(of_device("cuda", "a device", both)))
    for unknown in (of_device("cuda", "another device", both), of_device("cuda", "a device", (OWN_CPU,))):
        assert unknown.machine is None
        assert "%" not in as_text(answer_of(unknown)).partition("interval")[2]
    loaded = replace(OWN_GPU, other_cpus=3.0)
    assert of_device("cuda", "a device", (OWN_CPU, loaded)).machine is None


def test_peaks_that_were_remembered_are_those_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path))
    for each in (OWN_CPU, OWN_GPU):
        remember(each, cache_path(each.device, each.name, "2.13.0", None))
    known = of_device("cuda", "a device", ()).machine
    assert known is not None
    assert (known.device, known.copy) == ("cuda", OWN_GPU.copy)
    assert of_device("cuda", "another device", ()).machine is None


def test_no_share_is_above_all_of_it() -> None:
    text = as_text(answer_of(of_device("cpu", "", (OWN_CPU,))))
    assert "1 TB/s (more than a copy)" in text
    assert "less work than" not in text
    _, product = only(of_device("cpu", "", (OWN_CPU,)))
    assert product.standing is Standing.SUSPICIOUS, "ten times what this processor can"
    tf32 = replace(OWN_CPU, matrix=(*OWN_CPU.matrix, Rate("tf32", Estimate(2e13, 2e13, 2e13, 9, "1"))))
    assert "10 TFLOP/s (50 % of tf32 peak)" in as_text(answer_of(of_device("cpu", "", (tf32,))))


@pytest.mark.parametrize(
    ("ends", "standing", "words"),
    [
        ((0.9996, 1.0, 1.0004), Standing.ALIKE, "No difference: fast is 0.9996 to 1.0004 times as fast as slow: "),
        ((0.98, 1.0, 1.015), Standing.ALIKE, "No difference: fast is 0.98 to 1.01 times as fast as slow: "),
        ((1.012, 1.02, 1.03), Standing.FASTER, "fast is 1.02 times as fast as slow (1.01 to 1.03 times): "),
        ((11.2, 12.34, 13.0), Standing.FASTER, "fast is 12.3 times as fast as slow (11.2 to 13 times): "),
        ((0.3, 0.4, 0.45), Standing.SLOWER, "fast is slower, 0.4 times as fast as slow (0.3 to 0.45 times): "),
    ],
)
def test_the_answer_says_a_difference_with_the_digits_that_it_needs(
    ends: tuple[float, float, float], standing: Standing, words: str
) -> None:
    low, value, high = ends
    time = Estimate(2e6, 2e6, 2e6, 9)
    own = (Contender("slow", "eager", Standing.FIRST, time=time),
           Contender("fast", "eager", standing, time=time, speed=Estimate(value, low, high, 9, "1")))  # fmt: skip
    found = Bench(BenchOptions(("k:slow", "k:fast")), "2", "cpu", "", 1, 3, 0.0, (BenchSetting("8", "", own),))
    assert headline(found).startswith(words)


class Elapsed:
    """As torch.cuda.Event, of a device that takes 3 ms for whatever it is given."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Elapsed.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Elapsed) -> float:
        return end.at - self.at


def test_a_cold_call_on_a_device_is_what_lies_between_its_events_and_what_goes_on_after_them() -> None:
    def work() -> None:
        Elapsed.now += 3.0

    device = SimpleNamespace(Event=Elapsed, synchronize=lambda: None)
    assert timed_by_events(work, work, device) == pytest.approx(3e6)
    device.synchronize = lambda: spin(SERVICE_NS)
    assert timed_by_events(work, work, device) >= 3e6 + SERVICE_NS, "it left work on a stream of its own"


@pytest.mark.gpu
def test_a_device_is_timed_warm_and_cold_alongside_its_own_peaks() -> None:
    """A copy of 256 MiB, which no cache holds: both take as long, and no more than memory gives."""
    values = torch.ones(2**26, device="cuda")
    (warm,), (cold,) = (only(timed(torch.clone, inputs=(values,), cold=cold)) for cold in (False, True))
    assert warm.time is not None
    assert cold.time is not None
    assert 0.8 < warm.time.value / cold.time.value < 1.25
    assert warm.launch is not None
    assert warm.launch < 0.5 * warm.time.value
    text = as_text(answer_of(timed(torch.clone, inputs=(values,))))
    assert "more than a copy" not in text


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(
        "import torch\n"
        "print('imported')\n"
        "def slow(x):\n    return torch.stack([row.sum() for row in x])\n"
        "def fast(x):\n    return x.sum(1)\n"
        "def chatty(x):\n    print('called')\n    return x.sum(1)\n"
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
    reported = json.loads(out)
    slow, fast = reported["bench"]["settings"][0]["contenders"]
    assert (reported["bench"]["processes"], slow["name"], fast["name"]) == (2, "slow", "fast")
    assert fast["speed"]["value"] > 1
    assert "imported" in err
    assert "fast" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_traced_function_and_a_library_ahead_of_time_do_the_same(
    kernels: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernels.write_text("import torch\n\ndef scaled(x, by=2.0):\n    return torch.tanh(x) * by\n")
    words = [f"{kernels}:scaled", "--shapes", "8x8", "--modes", "eager,jit-trace,aot", "--processes", "1", "--json"]
    assert main(["bench", *words, "--seconds", "0.1s", "--python", python()]) == 0
    contenders = json.loads(capfd.readouterr().out)["bench"]["settings"][0]["contenders"]
    assert [each["mode"] for each in contenders] == ["eager", "jit-trace", "aot"]
    assert all(each["error"] < 1e-6 for each in contenders[1:])
    assert contenders[2]["first_call"] > 10 * contenders[1]["first_call"], "the first call includes compiling it"


READY_MADE = """
import torch
from torch.nn import functional

def norm(x, shape, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

def norm_inputs():
    return torch.randn(64, 96), (96,), torch.rand(96), 1e-6

def loss(hidden, weight, targets):
    return functional.cross_entropy(hidden @ weight, targets)

def chunked(hidden, weight, targets):  # never holds all logits
    pairs = zip(hidden.split(16), targets.split(16))
    return sum(functional.cross_entropy(one @ weight, own, reduction="sum") for one, own in pairs) / len(targets)

def forgetful(hidden, weight, targets):  # leaves the last part out
    return chunked(hidden[:48], weight, targets[:48])

def loss_inputs():
    return torch.randn(64, 32), torch.randn(32, 200), torch.randint(200, (64,))
"""


def test_ready_made_kernels_are_judged_by_their_results_and_gradients(
    kernels: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch's RMSNorm next to a written one, and a cross-entropy in parts: the same in float64, or told."""
    kernels.write_text(READY_MADE)
    short = ["--backward", "--processes", "1", "--seconds", "0.1s", "--json", "--python", python()]

    def of(*places: str, inputs: str) -> tuple[int, list[dict[str, Any]]]:
        status = main(["bench", *places, "--inputs", f"{kernels}:{inputs}", *short])
        return status, json.loads(capfd.readouterr().out)["bench"]["settings"][0]["contenders"]

    status, (_, fused) = of(f"{kernels}:norm", "torch.nn.functional:rms_norm", inputs="norm_inputs")
    assert (status, fused["error"] < 1e-5) == (0, True), fused
    status, (_, chunked, forgetful) = of(*(f"{kernels}:{name}" for name in ("loss", "chunked", "forgetful")),
                                         inputs="loss_inputs")  # fmt: skip
    assert (status, chunked["standing"] != "other result", forgetful["standing"]) == (1, True, "other result")
    assert chunked["error"] < 1e-5


def test_what_thousands_of_calls_print_is_not_displayed(kernels: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [f"{kernels}:fast", f"{kernels}:chatty", "--shapes", "8x8", "--processes", "1", "--seconds", "0.1s"]
    assert main(["bench", *words, "--python", python()]) == 0
    out, err = capfd.readouterr()
    assert err.count("called") == 1
    assert "They print while timed" in out


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["kernels.py"], 2, "is not a callable. Expected FILE:NAME"),
        (["kernels.py:fast", "--shapes", "64*64"], 2, "is not a shape"),
        (["kernels.py:fast", "--dtypes", "float12"], 2, "Expected: float16"),
        (["nowhere.py:fast", "--processes", "1"], 1, "The callables cannot be timed: FileNotFoundError"),
        (["kernels.py:fastest", "--processes", "1"], 1, "has no attribute 'fastest'"),
        (["kernels.py:fast", "--processes", "1", "--device", "quantum"], 1, "this machine has no device 'quantum'"),
        (["kernels.py:fast", "-o", "bench.pdf"], 1, "has no known report format"),
    ],
)
def test_what_cannot_be_timed_is_refused_in_a_sentence(
    words: list[str], status: int, sentence: str, kernels: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(kernels.parent)
    assert main(["bench", *words, "--python", python()]) == status
    assert sentence in capfd.readouterr().err
