"""Times callables of the user's, with the user's own torch. Run by path with the user's interpreter, and imported by
`steptime.bench` in the user's own process: no part of steptime is imported here.

    python bench_script.py REQUEST

REQUEST is JSON (see `measure`); the answer is written to its file "answer", so that whatever the callables print stays
theirs.

A block is so many calls that it lasts BLOCK_SECONDS, between two waits for the whole device: launching is
asynchronous, and a callable may launch on streams of its own. With cold caches each call is timed by itself: on a
device between two events, because a wait for it takes longer than many a kernel. Blocks of all callables are taken in
turns, in another order each round, so that what the machine does meanwhile (clocks, other programs) meets them alike.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

BLOCK_SECONDS = 0.02
"""Duration of a block, seconds. Reading the clock and waiting for a device cost some 20 µs, a thousandth of this."""
LEAST_ROUNDS = 6
"""Fewest rounds: enough for the interval of a median."""
WARM_SECONDS = 0.5
"""Most seconds for a callable to settle after its first calls: clocks rise, caches fill, libraries choose kernels."""
SETTLED = 0.05
"""Relative spread of three blocks below which a callable has settled."""
FRESH_CALLS = 15
"""Pairs of calls, one with new and one with old values, that show whether results are cached."""
FLUSH_BYTES = 256 * 2**20
"""Bytes that are overwritten to empty the caches: more than any cache has."""
REST_NS = 50_000
"""Longest wait for an idle device, ns. After a longer one, a callable's own streams were still working."""
EXACT = 8
"""Allowed difference of two results in units in the last place, relative to a result in higher precision."""
LOOSE = 64
"""Allowed difference without a higher precision, in which sums may be taken in any order."""

NEGLIGIBLE = 1e-6
"""Fraction of the largest gradient that counts as zero: a float32 sum of terms that large that cancel out leaves
1e-7."""
MOST_SETTINGS = 64
"""Most inputs that are taken from a function that yields them."""
FAR = 0.1
"""Relative difference from which on a float64 result is something else, such as other random numbers."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def main(answer_to: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    request = json.loads(sys.argv[1])
    try:
        answer = answer_to(request)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    give(answer, request)


def give(answer: dict[str, Any], request: dict[str, Any]) -> None:
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Answer to a request whose "callables" are places ("file.py:name" or "module:name") and whose "inputs" is such a
    function or null; its other keys are as for `measure`."""
    try:
        found = {place: loaded(place) for place in request["callables"]}
        inputs = loaded(request["inputs"]) if request["inputs"] else None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
        return {"failed": sentence_of(error)}
    return measure(found, inputs, request)


def loaded(place: str) -> Any:
    """Callable at the place "file.py:name" or "module:name". The file is imported as `python file.py` would find it,
    but not as main."""
    where, _, name = place.rpartition(":")
    found = module_of(where)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@functools.cache
def module_of(where: str) -> Any:
    path = Path(where)
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        return importlib.import_module(where)
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def measure(callables: dict[str, Any], inputs: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Measures all callables on all settings of inputs.

    inputs: function that makes the arguments, or None. request: "shapes" (for each setting a list with a shape per
    argument), "dtypes", "modes", "device", "backward", "cold", "seconds" (per callable and setting), "host_memory"
    (True if torch's profiler can measure the CPU's memory). Returns {"torch", "device", "name", "threads", "settings":
    [{"shapes", "dtype", "inputs", "candidates": […]}]}."""
    device = request["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        return {"failed": f"this machine has no device {device!r}"}
    request = {**request, "device": device}
    settings = [
        setting
        for shapes in request["shapes"] or [None]
        for dtype in request["dtypes"] or [None]
        for setting in settings_of(callables, inputs, request, shapes, dtype)
    ]
    return {
        "torch": str(torch.__version__),
        "device": device,
        "name": torch.cuda.get_device_name() if device == "cuda" else "",
        "threads": torch.get_num_threads(),
        "settings": settings,
    }


def matmul_dtype(values: list[Any], device: str) -> str:
    """Name of the dtype in which matmuls of these tensors run, as in the peaks: "float32", "tf32", …; "" for none."""
    floating = [each for each in values if each.is_floating_point()]
    found = str(max(floating, key=torch.numel).dtype).removeprefix("torch.") if floating else ""
    if found == "float32" and device == "cuda":
        with contextlib.suppress(Exception):  # torch refuses to say so where old and new settings of it are mixed
            return "tf32" if torch.backends.cuda.matmul.allow_tf32 else found
    return found


def settings_of(callables: dict[str, Any], inputs: Any, request: dict[str, Any], shapes: Any, dtype: Any) -> list[Any]:
    """Results for inputs of these shapes and dtype: one setting, or one for each input that the function yields."""
    kind = getattr(torch, dtype) if dtype else None
    asked, found = {"shapes": shapes, "dtype": dtype or ""}, list[Any]()
    arguments = made(inputs, next(iter(callables.values())), shapes, kind, request["device"])
    while len(found) < MOST_SETTINGS:
        try:
            given = next(arguments, None)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
            return [*found, {**asked, "failed": sentence_of(error)}]
        if given is None:
            break
        found.append({**asked, **one_setting(callables, given, request, kind)})
    return found or [{**asked, "failed": "the function of --inputs yields nothing"}]


def one_setting(callables: dict[str, Any], arguments: Arguments, request: dict[str, Any], kind: Any) -> dict[str, Any]:
    modes = request["modes"] or ["eager"]
    candidates = [
        Candidate(place, target, mode, arguments, kind, request)
        for place, target in callables.items()
        for mode in modes
    ]
    usable = [each for each in candidates if each.survives(each.start)]
    with quiet() if request.get("own_process") else contextlib.nullcontext(int) as printed:
        usable = [each for each in usable if each.survives(each.settle)]
        take_turns(usable, request["seconds"])
        usable = [each for each in usable if each.survives(each.check_values)]
        compare(usable, callables, arguments, request)
        for each in usable:
            each.survives(each.weigh)
    return {
        "format": matmul_dtype(usable[0].tensors() if usable else [], request["device"]),
        "inputs": ", ".join(described(each) for each in (*arguments[0], *arguments[1].values())),
        "printed": printed(),
        "candidates": [each.answer for each in candidates],
    }


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], int]]:
    """Redirects standard output to a file, in a process of our own, since thousands of calls may print. Yields a
    function that returns the file's size in bytes after the end."""
    sys.stdout.flush()
    before = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        size = 0
        try:
            yield lambda: size
        finally:
            sys.stdout.flush()
            size = os.fstat(file.fileno()).st_size
            os.dup2(before, 1)
            os.close(before)


def made(inputs: Any, target: Any, shapes: Any, dtype: Any, device: str) -> Iterator[Arguments]:
    """Yields the arguments for `target`: of the user's function (several if it yields them), of the shapes, or none."""
    torch.manual_seed(0)
    if inputs is not None:
        given = {"shape": shapes[0] if shapes else None, "shapes": shapes, "dtype": dtype, "device": device}
        accepted = inspect.signature(inputs).parameters
        found = inputs(**{name: value for name, value in given.items() if name in accepted and value is not None})
        several = found if isinstance(found, Iterator) else iter([found])
    elif shapes:
        count = len(shapes) if len(shapes) > 1 else required(target)
        several = iter([tuple(torch.randn(shapes[number % len(shapes)]) for number in range(count))])
    else:
        several = iter([()])
    for each in several:
        words, named = packed(each)
        yield tuple(cast(one, dtype, device) for one in words), {k: cast(v, dtype, device) for k, v in named.items()}


def packed(given: Any) -> Arguments:
    """Positional and named arguments from a tuple or list, a dictionary by name, or a single value."""
    if isinstance(given, dict):
        return (), given
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def required(target: Any) -> int:
    """Number of arguments without a default; 1 if unknown."""
    try:
        words = inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target).parameters
    except (TypeError, ValueError):  # a builtin
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in words.values()) or 1


def cast(value: Any, dtype: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype if dtype is not None and value.is_floating_point() else None)
    return value


def copied(arguments: Arguments, *, grad: bool = False, dtype: Any = None) -> Arguments:
    """Arguments with copied tensors, so that a callable that works in place changes no other's."""

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        floating = value.is_floating_point()
        new = value.detach().clone().to(dtype if dtype is not None and floating else value.dtype)
        return new.requires_grad_() if grad and floating else new

    words, named = arguments
    return tuple(own(each) for each in words), {name: own(value) for name, value in named.items()}


def tensors_of(value: Any) -> list[Any]:
    """All tensors in a result, in any nesting; NumPy arrays become tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "__array__"):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # an array of words, or of a foreign library
            return [torch.as_tensor(value)]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_of(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_of(each)]
    return [torch.tensor(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


class Candidate:
    """Callable in one mode, with its own arguments. answer: its results so far."""

    def __init__(self, place: str, target: Any, mode: str, arguments: Arguments, dtype: Any, request: Any) -> None:
        self.place, self.mode = place, mode
        self.backward, self.device, self.cold = request["backward"], request["device"], request["cold"]
        self.arguments = copied(arguments, grad=self.backward)
        self.answer: dict[str, Any] = {"place": place, "mode": mode, "blocks": [], "forward": [], "launches": []}
        self._target, self._dtype, self._host_memory = target, dtype, request["host_memory"]
        self._flush = torch.empty(FLUSH_BYTES // 4 if self.cold else 0, device=self.device)
        self.repeats = {True: 1, False: 1}

    def survives(self, step: Callable[[], object]) -> bool:
        """True if a step of the measurement succeeds; otherwise the error is in the answer."""
        try:
            step()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's own code runs here, and may do anything
            self.answer["failed"] = sentence_of(error)
        return "failed" not in self.answer

    def start(self) -> None:
        """Compiles the callable and calls it once. Raises TypeError if it only returns a generator or a coroutine."""
        self._eager = moved(self._target, self._dtype, self.device)
        before = [each.detach().clone() for each in tensors_of(self.arguments)]
        start = time.perf_counter_ns()
        self.function = in_mode(self._eager, self.mode, self.arguments)
        self.result = self.call()
        synchronize(self.device)
        self.answer["first_ns"] = time.perf_counter_ns() - start
        if inspect.isgenerator(self.result) or inspect.iscoroutine(self.result):
            raise TypeError("a call only returns a generator or a coroutine: name a function that consumes it")
        pairs = zip(before, tensors_of(self.arguments), strict=True)
        self.answer["changes"] = not all(torch.equal(*map(torch.nan_to_num, pair)) for pair in pairs)

    def call(self, *, backward: bool | None = None) -> Any:
        """Result of one call, made as it is timed; gradients are computed and discarded."""
        words, named = self.arguments
        if not self.backward:
            with torch.no_grad():
                return self.function(*words, **named)
        result = self.function(*words, **named)
        if backward is not False:
            self._differentiate(result)
        return result

    def _differentiate(self, result: Any) -> None:
        ends = [each for each in tensors_of(result) if each.requires_grad]
        if not ends:
            raise ValueError("no part of its result requires a gradient, so there is no backward")
        torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
        for leaf in self.leaves():
            leaf.grad = None

    def leaves(self) -> list[Any]:
        """Tensors among arguments and parameters that get a gradient."""
        words, named = self.arguments
        return [each for each in (*words, *named.values(), *self._owned()) if getattr(each, "requires_grad", False)]

    def tensors(self) -> list[Any]:
        """All tensors among its arguments and parameters."""
        words, named = self.arguments
        return [*tensors_of((words, named)), *self._owned()]

    def _owned(self) -> list[Any]:
        return list(self.function.parameters()) if isinstance(self.function, torch.nn.Module) else []

    def settle(self) -> None:
        """Calls the candidate until the times of its blocks agree."""
        times: list[float] = []
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end or len(times) < 2:
            start = time.perf_counter_ns()
            times.append(self.block())
            self.repeats[True] = self._in_a_block(min(times), time.perf_counter_ns() - start, self.repeats[True])
            if len(times) > 3 and max(times[-3:]) < (1 + SETTLED) * min(times[-3:]):
                break
        if self.backward:
            start = time.perf_counter_ns()
            spent = self.block(backward=False)
            self.repeats[False] = self._in_a_block(spent, time.perf_counter_ns() - start, 1)

    def _in_a_block(self, call: float, passed: float, repeats: int) -> int:
        """Number of calls in a block, if one call takes `call` ns. With cold caches, emptying them counts too although
        it is not timed: it takes a thousand times as long as a small call."""
        return max(1, math.ceil(BLOCK_SECONDS * 1e9 / max(passed / repeats if self.cold else call, 1.0)))

    def block(self, *, backward: bool = True) -> float:
        """Mean time of a call in one block, ns."""
        repeats = self.repeats[backward]
        collecting = gc.isenabled()
        gc.disable()
        try:
            if not self.cold:
                return self._warm_block(repeats, backward)
            call = functools.partial(self.call, backward=backward)
            timed = timed_by_events if self.device == "cuda" else timed_by_clock
            return sum(timed(call, lambda: self._flush.add_(1)) for _ in range(repeats)) / repeats
        finally:
            if collecting:
                gc.enable()

    def take_turn(self) -> None:
        self.answer["blocks"].append(self.block())
        if self.backward:
            self.answer["forward"].append(self.block(backward=False))

    def _warm_block(self, repeats: int, backward: bool) -> float:
        synchronize(self.device)
        start = time.perf_counter_ns()
        for _ in range(repeats):
            self.call(backward=backward)
        launched = time.perf_counter_ns()
        synchronize(self.device)
        if backward and self.device != "cpu":
            self.answer["launches"].append((launched - start) / repeats)
        return (time.perf_counter_ns() - start) / repeats

    def check_values(self) -> None:
        """Checks whether the result follows the arguments: compares calls with new values and with the old ones."""
        words, named = self.arguments
        floats = [each for each in (*words, *named.values()) if isinstance(each, torch.Tensor) and each.numel() > 1]
        self.answer["follows"] = None
        if not floats or not tensors_of(self.result):
            return
        before = [each.detach().clone() for each in tensors_of(self.call(backward=False))]
        fresh: list[int] = []
        old: list[int] = []
        for number in range(FRESH_CALLS):
            for renew, times in ((True, fresh), (False, old)) if number % 2 else ((False, old), (True, fresh)):
                with torch.no_grad():
                    for each in floats:
                        new = renewed(each)  # in both cases: it fills the caches
                        each.copy_(new if renew else each.clone())
                synchronize(self.device)
                start = time.perf_counter_ns()
                after = self.call(backward=False)
                synchronize(self.device)
                times.append(time.perf_counter_ns() - start)
        found = tensors_of(after)
        same = len(found) == len(before) and all(
            one.shape == two.shape and torch.equal(one, two) for one, two in zip(before, found, strict=True)
        )
        self.answer.update(follows=not same, fresh=fresh, repeated=old)

    def keep_results(self, arguments: Arguments) -> None:
        """Stores results, and with --backward gradients, of a call on a copy of the original arguments."""
        self.arguments = copied(arguments, grad=self.backward)
        torch.manual_seed(0)
        if not self.backward:
            found = tensors_of(self.call())
        else:
            found = tensors_of(self.call(backward=False))
            ends = [each for each in found if each.requires_grad]
            leaves = self.leaves()
            gradients = torch.autograd.grad(ends, leaves, [upstream(each) for each in ends], allow_unused=True)
            found = [*found, *without_rounding([each for each in gradients if each is not None])]
        self.results = [each.detach().clone() for each in found]

    def weigh(self) -> None:
        """Measures FLOPs, bytes of arguments, results and parameters, and the peak memory of a call beyond them."""
        used, self.function = self.function, self._eager  # the counter's hooks would have it compiled again
        with contextlib.suppress(Exception), FlopCounterMode(display=False) as counter:  # an estimate, never an error
            self.call()
            self.answer["flops"] = counter.get_total_flops()
        self.function = used
        held = {id(each): each for each in (*self.tensors(), *tensors_of(self.result))}
        self.answer["bytes"] = sum(each.numel() * each.element_size() for each in held.values())
        if self.device != "cpu" or self._host_memory:
            with contextlib.suppress(Exception):  # an extra, never an error
                self.answer["peak_bytes"] = peak_memory(self.call, self.device)


def moved(target: Any, dtype: Any, device: str) -> Any:
    """Copy of a module in the dtype and on the device; a function is returned unchanged."""
    if isinstance(target, type):
        torch.manual_seed(0)  # each mode makes its own, of the same weights
        target = target()
    if not callable(target):
        raise TypeError(f"{type(target).__name__} cannot be called")
    return copy.deepcopy(target).to(device=device, dtype=dtype) if isinstance(target, torch.nn.Module) else target


def in_mode(function: Any, mode: str, arguments: Arguments) -> Any:
    """Function as it runs in a mode. Comparing it with eager shows whether a mode that traces has lost a branch."""
    words, named = arguments
    if mode == "eager":
        return function
    if mode == "jit-trace":
        return torch.jit.trace(function, words, example_kwarg_inputs=named or None, check_trace=False)
    if mode == "aot":
        program = torch.export.export(_as_module(function), words, named)
        package: Any = importlib.import_module("torch._inductor")  # the library that a C++ program would load
        return package.aoti_load_package(package.aoti_compile_and_package(program))
    if mode == "cudagraph":
        return torch.compile(function, backend="cudagraphs")
    return torch.compile(function, mode=None if mode == "compile" else mode)


def _as_module(function: Any) -> torch.nn.Module:
    if isinstance(function, torch.nn.Module):
        return function
    made = torch.nn.Module()
    made.forward = function
    return made


def renewed(tensor: Any) -> Any:
    """Tensor of the same kind with other values: shuffled, so that indices stay valid, and floats times 0.75."""
    order = torch.randperm(tensor.numel(), device=tensor.device)
    new = tensor.detach().flatten()[order].view(tensor.shape)
    return new * 0.75 if tensor.is_floating_point() else new


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed_by_clock(call: Callable[[], object], prepare: Callable[[], object]) -> float:
    """Time of a call on a CPU, ns."""
    prepare()
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def timed_by_events(call: Callable[[], object], prepare: Callable[[], object], cuda: Any = torch.cuda) -> float:
    """Time of a call on a device, ns, between two events on the current stream. The CPU launches the call while the
    device is still busy with its preparation. Work on other streams after the second event counts as well."""
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    prepare()
    start.record()
    call()
    end.record()
    end.synchronize()
    passed = time.perf_counter_ns()
    cuda.synchronize()
    rest = time.perf_counter_ns() - passed
    return float(1e6 * start.elapsed_time(end)) + (rest if rest > REST_NS else 0.0)


def take_turns(candidates: list[Candidate], seconds: float) -> None:
    """Measures one block of each candidate per round, in a new order each round. Removes candidates that fail."""
    order = random.Random(0)
    end = time.perf_counter() + seconds * len(candidates)
    rounds = 0
    for each in candidates:
        each.answer["launches"].clear()  # those of its warm-up
    while candidates and (rounds < LEAST_ROUNDS or time.perf_counter() < end):
        for each in order.sample(candidates, len(candidates)):
            each.survives(each.take_turn)
        candidates[:] = [each for each in candidates if "failed" not in each.answer]
        rounds += 1


def compare(candidates: list[Candidate], callables: dict[str, Any], arguments: Arguments, request: Any) -> None:
    """Compares candidates' results with the first one's, and if possible all with the first callable's in float64."""
    able = [each for each in candidates if each.survives(functools.partial(each.keep_results, arguments))]
    if not able:
        return
    results = [each.results for each in able]
    if not any(results):  # what works in place is judged by its arguments
        results = [tensors_of(each.arguments) for each in able]
    first = results[0]
    exact = exact_results(callables[able[0].place], arguments, request, first)
    for each, own in zip(able, results, strict=True):
        if [tuple(tensor.shape) for tensor in own] != [tuple(tensor.shape) for tensor in first]:
            each.answer["differs"] = "its results have other shapes" if own else "it returns no result"
            continue
        error = worst(own, first)
        if not math.isfinite(error):
            each.answer["differs"] = "its result is not finite in other places than the first one's"
            continue
        each.answer["error"] = error
        if exact is not None:
            same = worst(own, exact) <= max(4 * worst(first, exact), EXACT * unit(own))
        else:
            digit = max(unit(own), torch.finfo(getattr(torch, request.get("coarsest") or "float64")).eps)
            same = error <= (LOOSE if digit < 1e-6 else EXACT) * digit
        each.answer["same"] = same


def upstream(end: Any) -> Any:
    """Random gradient, equal for all callables. The gradient of a plain sum is often only rounding (behind a layer norm
    or a softmax)."""
    drawn = torch.randn(end.shape, generator=torch.Generator().manual_seed(end.numel()), dtype=torch.float64)
    return drawn.to(end.device, end.dtype)


def without_rounding(gradients: list[Any]) -> list[Any]:
    """Gradients with zeros in place of tensors below NEGLIGIBLE of the largest, whose digits are only rounding."""
    largest = max((float(each.abs().max()) for each in gradients if each.numel()), default=0.0)
    return [
        torch.zeros_like(each) if each.numel() and float(each.abs().max()) < NEGLIGIBLE * largest else each
        for each in gradients
    ]


def exact_results(target: Any, arguments: Arguments, request: Any, first: list[Any]) -> list[Any] | None:
    """Result of the first callable in float64; None if it cannot run in float64, or if the result differs too much from
    its own."""
    with contextlib.suppress(Exception):  # many functions know one dtype only
        wide = copied(arguments, dtype=torch.float64)
        own = Candidate("", target, "eager", wide, torch.float64, {**request, "cold": False})
        own.function = moved(target, torch.float64, request["device"])
        own.keep_results(wide)
        found = own.results
        wide_enough = all(each.dtype == torch.float64 or not each.is_floating_point() for each in found)
        if wide_enough and len(found) == len(first) and worst(first, found) < FAR:
            return found
    return None


def worst(own: list[Any], reference: list[Any]) -> float:
    """Largest difference of results, relative to the largest magnitude of its tensor. Infinite if one is not finite."""
    found = 0.0
    for one, two in zip(own, reference, strict=True):
        left, right = one.to(torch.float64), two.to(torch.float64)
        if torch.equal(torch.isfinite(left), torch.isfinite(right)):
            distance = torch.nan_to_num(left - right, 0.0, 0.0, 0.0).abs()
            scale = torch.nan_to_num(right, 0.0, 0.0, 0.0).abs()
            if distance.numel() and (most := float(distance.max())):
                found = max(found, most / (float(scale.max()) or 1.0))
        else:
            found = math.inf
    return found


def unit(tensors: list[Any]) -> float:
    """Machine epsilon of the coarsest floating-point dtype among the results; 0 without one."""
    return max((torch.finfo(each.dtype).eps for each in tensors if each.is_floating_point()), default=0.0)


def peak_memory(call: Callable[[], object], device: str) -> int:
    """Peak memory of a call in addition to what was held before, bytes."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events: Any = profiler.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    held = most = 0
    for _, size in changes:  # negative for a free
        held += size
        most = max(most, held)
    return most


def sentence_of(error: BaseException) -> str:
    words = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


if __name__ == "__main__":
    main(answer_to)
