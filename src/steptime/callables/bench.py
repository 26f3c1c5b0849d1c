"""Callables compared with each other: time of each, ratio to the first, and whether results still agree.

The blocks come from `machine/bench_script.py`, run in a few fresh processes. Two processes of one program differ (in
the location of memory, in what libraries choose), and an interval that predicts another run must include that.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from steptime.arrays import Float64
from steptime.errors import NothingMeasuredError
from steptime.machine.machine import BUSY_CPUS, Machine
from steptime.machine.peaks import OtherLoad, known, remembered
from steptime.quantities import Estimate, format_share, median_of

SCRIPTS = Path(__file__).parent.parent / "machine"
SCRIPT = SCRIPTS / "bench_script.py"
Answer = TypeVar("Answer")
LIKE = 0.02
"""Relative difference up to which two callables count as alike; a smaller one is of no practical use."""
NEARLY_ALL = 0.8
"""Fraction of the pairs of calls that must agree; noise affects either side."""
KEPT_RESULT = 2.0
"""Ratio of a call with new values to one with old values above which results are cached between calls. Sorting,
branches and sparsity are not affected by a shuffle; the processor's caches affect both alike."""
MOST_BLOCKS = 120
"""Most blocks per callable that are kept for the plot."""
OVER_PEAK = 1.15
"""Ratio of FLOP/s to the measured peak that no clock and no better kernel explains."""


class Standing(Enum):
    """Verdict on a callable, relative to the first one."""

    FIRST = "first"
    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "no difference"
    UNDECIDED = "undecided"
    OTHER_RESULT = "other result"
    SUSPICIOUS = "suspicious"
    FAILED = "failed"


NOT_TO_BE_TAKEN = (Standing.SUSPICIOUS, Standing.OTHER_RESULT, Standing.FAILED)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a bench. callables, inputs: "file.py:name" or "module:name" (inputs "" for none). shapes: for each
    setting, a shape per argument. seconds: time per callable and setting, over all processes. coarsest: dtype of
    intermediate values whose rounding a fused kernel may leave out, "" for that of the results."""

    callables: tuple[str, ...]
    inputs: str = ""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    device: str = ""
    backward: bool = False
    cold: bool = False
    seconds: float = 3.0
    processes: int = 3
    coarsest: str = ""

    def request(self) -> dict[str, Any]:
        """Request to the script for one process."""
        asked = {name: getattr(self, name) for name in BenchOptions.__slots__}
        asked |= {"inputs": self.inputs or None, "seconds": self.seconds / self.processes}
        return {**asked, "host_memory": True, "own_process": True}


class _Timed(msgspec.Struct, frozen=True):
    """Times of a callable, as the script returns them."""

    place: str
    mode: str
    blocks: list[float] = []
    forward: list[float] = []
    launches: list[float] = []
    failed: str = ""
    first_ns: float = 0.0
    changes: bool = False
    follows: bool | None = None
    fresh: list[float] = []
    repeated: list[float] = []
    error: float | None = None
    same: bool | None = None
    differs: str = ""
    flops: int = 0
    bytes: int = 0
    peak_bytes: int | None = None


class _Setting(msgspec.Struct, frozen=True):
    dtype: str = ""
    format: str = ""
    printed: int = 0
    inputs: str = ""
    candidates: list[_Timed] = []
    failed: str = ""


class _Answer(msgspec.Struct, frozen=True):
    torch: str = ""
    device: str = ""
    name: str = ""
    threads: int = 0
    settings: list[_Setting] = []
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Contender:
    """Callable in one mode, with its results on one setting of inputs.

    name: its place, with its mode if there are several. time: median of a call, ns, with --backward of both passes;
    forward: median of the forward pass alone. speed: speed relative to the first callable. first_call: ns, with
    compilation; pays_after: number of calls after which compilation is paid back, None if it is not certainly faster.
    error: largest difference to the first's result, relative to its largest magnitude. flops: per call, by torch's
    counter (matmuls, convolutions, attention); bytes: of arguments, results and parameters, which must at least be
    moved. peak_bytes: memory taken in addition to what was held before. launch: CPU time to launch a call, ns, None on
    a CPU and with cold caches. blocks: ns of a call in each block in the order of time, means of neighbours if there
    are many; iqr: interquartile range of all blocks, ns. changes: True if it changes its arguments, so that each call
    goes on with what the last one left. sentence: explanation of the standing, "" if nothing is to be reported."""

    name: str
    mode: str
    standing: Standing
    sentence: str = ""
    time: Estimate | None = None
    forward: Estimate | None = None
    speed: Estimate | None = None
    first_call: float | None = None
    pays_after: float | None = None
    error: float | None = None
    flops: int = 0
    bytes: int = 0
    peak_bytes: int | None = None
    launch: float | None = None
    changes: bool = False
    blocks: tuple[float, ...] = ()
    iqr: float | None = None

    @property
    def rate(self) -> float | None:
        """Rate of a call, FLOP/s; None if no FLOPs were counted."""
        return self.flops / self.time.value * 1e9 if self.time is not None and self.flops else None

    @property
    def bandwidth(self) -> float | None:
        """Lower bound of the bandwidth, B/s."""
        return self.bytes / self.time.value * 1e9 if self.time is not None and self.bytes else None


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """Results of all callables on the same inputs. inputs: description; dtype: "" if not requested. failed: error
    message if nothing was timed, else "". format: dtype of matmuls on these inputs, as the peaks are named, "" if they
    are no floats. printed: bytes written to standard output during the timing."""

    inputs: str
    dtype: str
    contenders: tuple[Contender, ...]
    failed: str = ""
    format: str = ""
    printed: int = 0


@dataclass(frozen=True, slots=True)
class Bench:
    """Results of a bench. processes: number of fresh processes that were timed. machine: device with its peaks, None if
    unknown or measured under load. other_cpus: CPUs that other programs kept busy meanwhile, on average."""

    options: BenchOptions
    torch: str
    device: str
    device_name: str
    threads: int
    processes: int
    other_cpus: float
    settings: tuple[BenchSetting, ...]
    machine: Machine | None = field(default=None)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return tuple(each for setting in self.settings for each in setting.contenders)

    @property
    def under_load(self) -> bool:
        """True if other programs took so much of the machine that times are longer than necessary."""
        return self.other_cpus > BUSY_CPUS


def bench(
    options: BenchOptions,
    executable: str,
    machines: Sequence[Machine],
    notify: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> Bench:
    """Times the callables in fresh processes. machines: known peaks of this machine's devices. variables: environment
    of the processes. Raises NothingMeasuredError."""
    load = OtherLoad()
    answers = []
    for number in range(1, options.processes + 1):
        notify(f"timing, process {number} of {options.processes}")
        answers.append(answer := answer_of(SCRIPT, options.request(), executable, _Answer, variables))
        if answer.failed:
            raise NothingMeasuredError("bench-failed", f"The callables cannot be timed: {answer.failed}.")
    return assembled(options, answers, that_ran(answers[0], machines), load.since()[0])


def that_ran(answer: _Answer, machines: Sequence[Machine]) -> Machine | None:
    """Machine of the device in an answer, None if no peaks of it are known."""
    own = [each for each in machines if each.device == answer.device]
    if answer.device != "cpu":  # of which a host may have several kinds
        own = [each for each in own if each.name == answer.name] or list(filter(None, (known(answer.name),)))
    return next((each for each in own if not each.under_load), None)


def bench_here(callables: dict[str, Any], inputs: Any, options: BenchOptions) -> Bench:
    """Times callables in this process. Raises ImportError without torch."""
    from steptime.machine import bench_script  # imports torch

    load = OtherLoad()
    request = {**options.request(), "host_memory": False}  # torch's profiler would print into the user's output
    answer = msgspec.convert(bench_script.measure(callables, inputs, request), _Answer)
    here = remembered(answer.device, answer.torch, name=answer.name)
    return assembled(options, [answer], that_ran(answer, () if here is None else (here,)), load.since()[0])


def answer_of(
    script: Path, request: Mapping[str, Any], executable: str, kind: type[Answer],
    variables: Mapping[str, str] | None = None,
) -> Answer:  # fmt: skip
    """Answer of a script to a request, in a fresh process. Raises NothingMeasuredError."""
    with tempfile.TemporaryDirectory(prefix="steptime-bench-") as folder:
        path = Path(folder) / "answer.json"
        words = json.dumps({**request, "answer": str(path)})
        run = subprocess.run(
            [executable, str(script), words],
            env={
                **os.environ,
                "KINETO_LOG_LEVEL": "99",
                **(variables or {}),
            },  # torch 2.13 writes a line on stderr for each profile
            stdout=2,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except OSError:
            raise NothingMeasuredError(
                "bench-failed",
                f"The timing process ended with status {run.returncode} and without a result. Its output is above.",
            ) from None


def assembled(options: BenchOptions, answers: Sequence[_Answer], machine: Machine | None, other_cpus: float) -> Bench:
    first = answers[0]
    settings = tuple(
        _setting([answer.settings[place] for answer in answers], machine, options)
        for place in range(min(len(answer.settings) for answer in answers))
    )
    return Bench(
        options, first.torch, first.device, first.name, first.threads, len(answers), other_cpus, settings, machine
    )


def _setting(found: Sequence[_Setting], machine: Machine | None, options: BenchOptions) -> BenchSetting:
    first = found[0]
    failed = next((each.failed for each in found if each.failed), "")
    if failed:
        return BenchSetting(first.inputs, first.dtype, (), failed, first.format)
    timed = list(zip(*(each.candidates for each in found), strict=True))
    names = short_names(options.callables)
    contenders = tuple(_contender(each, timed[0], machine, options, names) for each in timed)
    printed = sum(each.printed for each in found)
    return BenchSetting(first.inputs, first.dtype, contenders, "", first.format, printed)


def _contender(
    own: Sequence[_Timed],
    base: Sequence[_Timed],
    machine: Machine | None,
    options: BenchOptions,
    names: Mapping[str, str],
) -> Contender:
    one = own[0]
    name = f"{names[one.place]}, {one.mode}" if len(options.modes) > 1 else names[one.place]
    failed = next((each.failed for each in own if each.failed), "")
    if failed:
        return Contender(name, one.mode, Standing.FAILED, failed)
    time = over_processes([np.array(each.blocks) for each in own])
    ratios = [_ratio(each, first) for each, first in zip(own, base, strict=True)]
    companions = own is not base and all(map(len, ratios)) and not any(each.failed for each in base)
    speed = over_processes(ratios, "1") if companions else None
    standing, sentence = _standing(own, base, speed, time, machine)
    blocks = [block for each in own for block in each.blocks]
    usual = over_processes([np.array(each.blocks) for each in base]).value if all(each.blocks for each in base) else 0.0
    saved = usual - time.value if standing is Standing.FASTER else 0.0
    extra = one.first_ns - base[0].first_ns
    return Contender(
        name, one.mode, standing, sentence, time,
        forward=over_processes([np.array(each.forward) for each in own]) if one.forward else None,
        speed=speed,
        first_call=one.first_ns,
        pays_after=extra / saved if saved > 0 and extra > 0 else None,
        error=one.error if own is not base else None,
        flops=one.flops if standing is not Standing.SUSPICIOUS else 0,
        bytes=one.bytes if standing is not Standing.SUSPICIOUS else 0,
        peak_bytes=one.peak_bytes,
        launch=_middle(np.concatenate([each.launches for each in own])) if one.launches else None,
        changes=one.changes,
        blocks=thinned(blocks),
        iqr=float(np.subtract(*np.quantile(blocks, (0.75, 0.25)))),
    )  # fmt: skip


def thinned(blocks: Sequence[float]) -> tuple[float, ...]:
    """Block times reduced to at most MOST_BLOCKS values, by means of neighbours."""
    stride = max(1, -(-len(blocks) // MOST_BLOCKS))
    return tuple(float(np.mean(blocks[at : at + stride])) for at in range(0, len(blocks), stride))


def short_names(places: Sequence[str]) -> dict[str, str]:
    """Name of each callable by its place: its own name, unless another one has the same."""
    own = [place.rpartition(":")[2] for place in places]
    return {place: name if own.count(name) == 1 else place for place, name in zip(places, own, strict=True)}


def _ratio(own: _Timed, base: _Timed) -> Float64:
    """Speed relative to the first, round by round, since each round met one state of the machine."""
    count = min(len(own.blocks), len(base.blocks))
    ratios: Float64 = np.array(base.blocks[:count]) / np.array(own.blocks[:count])
    return ratios


def over_processes(values: Sequence[Float64], unit: str = "ns") -> Estimate:
    """Median of all blocks, with an interval that includes each process's median."""
    whole = median_of(np.concatenate(values), unit)
    middles = [float(np.median(each)) for each in values]
    return Estimate(whole.value, min(whole.low, *middles), max(whole.high, *middles), whole.samples, unit)


def _standing(
    own: Sequence[_Timed], base: Sequence[_Timed], speed: Estimate | None, time: Estimate, machine: Machine | None
) -> tuple[Standing, str]:
    """(standing of a callable, reason). A wrong result takes precedence over speed."""
    trick = _trick(own, base, time, machine)
    if trick:
        return Standing.SUSPICIOUS, trick
    wrong = next((each for each in own if each.differs or each.same is False), None)
    if wrong is not None:
        by = format_share(wrong.error or 0.0)
        how = wrong.differs or f"its result differs by {by} of the largest value, more than rounding explains"
        return Standing.OTHER_RESULT, how
    if own is base:
        return Standing.FIRST, ""
    if speed is None:
        return Standing.UNDECIDED, "the first callable failed, so there is no comparison"
    if speed.low > 1 and speed.value > 1 + LIKE / 2:
        return Standing.FASTER, ""
    if speed.high < 1 and speed.value < 1 - LIKE / 2:
        return Standing.SLOWER, ""
    if speed.low > 1 - LIKE and speed.high < 1 + LIKE:
        return Standing.ALIKE, ""
    return Standing.UNDECIDED, "more seconds would decide it: --seconds"


def _trick(own: Sequence[_Timed], base: Sequence[_Timed], time: Estimate, machine: Machine | None) -> str:
    """Description of a sign that no honest callable shows; "" for none."""
    if all(each.follows is False for each in own) and (own is base or any(each.follows for each in base)):
        known = "" if own is base else ", and the first one's does not"
        if own is not base or _kept(own):
            return f"its result does not change with its arguments{known}: it returns a cached result"
    if _kept(own):
        ratio = min(_middle(_new_over_old(each)) for each in own)
        return f"a call takes {ratio:.3g} times as long with new argument values: it caches results"
    # Of any format: a matmul may be done in another one than that of its arguments.
    peak = max((each.rate.value for each in machine.matrix), default=0.0) if machine is not None else 0.0
    if peak and own[0].flops and own[0].flops / time.high * 1e9 > OVER_PEAK * peak:
        return "it exceeds this machine's peak FLOP/s: it skips a part of the work"
    return ""


def _kept(own: Sequence[_Timed]) -> bool:
    """True if results are cached: in every process, in nearly all pairs of calls."""
    return all(each.fresh and np.mean(_new_over_old(each) > KEPT_RESULT) > NEARLY_ALL for each in own)


def _new_over_old(timed: _Timed) -> Float64:
    """Ratio of the new-value call to the old-value call, for each pair."""
    ratios: Float64 = np.array(timed.fresh) / np.maximum(timed.repeated, 1)
    return ratios


def _middle(values: Float64) -> float:
    return float(np.median(values))
