"""RM4xx: threads, allocators and the processor."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from steptime.advice.evidence import Case
from steptime.advice.fix import EnvironmentEdit, Option, Promise, StatementEdit, SwitchEdit, fix
from steptime.advice.models import fitting_threads, idle_cpus
from steptime.advice.run_uses import SettingsUse, StepSummary
from steptime.advice.savings import modelled, partly
from steptime.analysis.operators import OperatorUse
from steptime.changes import Change
from steptime.launcher.launch import PRELOAD, find_library

LARGEST_KEPT = 32 << 20
"""Bytes: glibc asks the system for every larger block, and gives it back when it is freed, whatever it has learned from
earlier ones (DEFAULT_MMAP_THRESHOLD_MAX of malloc/malloc.c on 64 bits)."""
TENSORS = 3.0
"""Read and written by a pointwise operator, at most, of one size: its result has a third of its bytes at least."""
LEAST_SHARE_KEPT_MEMORY = 0.1
"""Fraction of the step in operators with such results."""
VARIABLES = (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "68719476736"))
"""No block comes from the system directly, and the heap is not trimmed below 64 GiB (mallopt(3))."""
LIBRARIES = ("jemalloc", "tcmalloc")
NAME, VALUE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
UNCACHED = 100.0
"""Calls per step, from which on nothing is cached at all (ST306): segments cannot help there."""
LIKELY_EXPANDABLE_SEGMENTS = 0.5
LEAST_SHARE_CUDNN_BENCHMARK = 0.2
"""Fraction of the step in convolutions."""
LIKELY_CUDNN_BENCHMARK, MOST = 0.1, 0.4
"""Fraction of their time: the heuristic is mostly right, and now and then far off."""


@fix("RM401", "fitting-threads", addresses={"ST801", "ST808"}, promise=Promise.SAME_CURVE, risk=1)
def threads_for_cpus(settings: SettingsUse, case: Case) -> Option | None:
    """As many threads as there are CPUs for them

    What it changes: The number of threads of one operator on the CPU. steptime tries fewer, so that each thread of
    the training processes and of a loader's workers has a CPU; or more, if CPUs are idle.

    What it promises: A loss curve like that of another seed: sums over several threads are taken in another order.

    What it should gain: No model predicts it. Threads that wait for each other on a crowded CPU have made steps ten
    times as long; small operators gain nothing from more threads.

    When to leave it: When the other load on the machine is the reason, and goes away; when idle CPUs are somebody
    else's.
    """
    best, threads = fitting_threads(settings, case.loader), settings.intra_op_threads
    room = idle_cpus(case.contention) if case.contention is not None else 0.0
    if best == threads or (2 * room < best - threads):
        return None
    change = Change("threads", arguments=(("intra_op", best),))
    return Option(f"{best} threads", (change,), None, _edit(settings, best))


def _edit(settings: SettingsUse, best: int) -> EnvironmentEdit | SwitchEdit:
    """The variable, unless the job sets another number than that, or than what torch would choose by itself."""
    asked, threads = settings.omp_num_threads, settings.intra_op_threads
    if asked != str(threads) if asked else threads > settings.logical_cpus:
        return SwitchEdit("set_num_threads", f"torch.set_num_threads({best})", str(best))
    return EnvironmentEdit((("OMP_NUM_THREADS", str(best)),))


@fix("RM402", "kept-memory", addresses={"ST401", "ST402", "ST501"}, promise=Promise.SAME_BITS, risk=3)
def kept_memory(step: StepSummary, operators: tuple[OperatorUse, ...] = ()) -> Iterator[Option]:
    """CPU memory that the allocator keeps instead of returning it to the system

    What it changes: Two variables are set: MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_. The allocator of the C
    library then keeps large blocks for the next tensor. If jemalloc or tcmalloc is installed, steptime also tries it
    in place of that allocator (LD_PRELOAD). Only on Linux, for training on the CPU.

    What it promises: Equal losses: only addresses change.

    What it should gain: Without the fix, a tensor of more than 32 MiB is new memory from the system each time, and
    its pages are cleared one by one on the first write. With kept memory, a chain of operators on 64 MiB took half of
    the time. The gain depends on the system (huge pages, a virtual machine) and is not predicted.

    When to leave it: When memory is short: other processes cannot use what is kept, and holes between blocks stay.
    """
    if step.device != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    moving = (use for use in operators if use.bound == "memory" and use.calls > 0)
    spent = sum(use.duration for use in moving if (use.bytes or 0.0) / use.calls / TENSORS > LARGEST_KEPT)
    if spent < LEAST_SHARE_KEPT_MEMORY * step.duration.value:
        return
    change = Change("environment", arguments=VARIABLES)
    yield Option("large blocks kept by malloc", (change,), None, EnvironmentEdit(VARIABLES))
    for name in LIBRARIES:
        path = find_library(name)
        if path:
            path = ":".join(filter(None, (path, os.environ.get(PRELOAD))))  # as the change does it
            yield Option(f"{name} preloaded", (Change("preload", name),), None, EnvironmentEdit(((PRELOAD, path),)))


@fix(
    "RM403", "expandable-segments", addresses={"ST306", "ST703", "ST705"}, promise=Promise.SAME_BITS, risk=1, frees=0.1
)
def expandable_segments(step: StepSummary, case: Case) -> Option | None:
    """Device memory in segments that grow

    What it changes: expandable_segments:True is added to the variable PYTORCH_CUDA_ALLOC_CONF. The allocator then
    grows a segment instead of asking the driver for another one, so changing sizes leave no holes.

    What it promises: Equal losses: only addresses change.

    What it should gain: Half of the time in which the device idles for calls to the driver, and the memory lost to
    fragmentation. Calls that an empty_cache() in the loop causes are not saved.

    When to leave it: When tensors are shared between processes by their handles (older versions of torch refuse that).
    """
    if not step.device.startswith("cuda") or not (case.allocations or case.memory is not None):
        return None
    if sum(use.calls for use in case.allocations) >= UNCACHED:
        return None
    present = case.settings.allocator if case.settings is not None else ""
    if "expandable_segments" in present:
        return None
    idle = sum(use.idle.value for use in case.allocations)
    value = ",".join(filter(None, (present, VALUE)))
    saving, variables = partly(idle, LIKELY_EXPANDABLE_SEGMENTS, 0.0, step), ((NAME, value),)
    return Option(VALUE, (Change("environment", arguments=variables),), saving, EnvironmentEdit(variables))


@fix(
    "RM404",
    "cudnn-benchmark",
    addresses={"ST402", "ST403", "ST404", "ST407", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=1,
)
def cudnn_benchmark(step: StepSummary, settings: SettingsUse, case: Case) -> Option | None:
    """Convolutions by the algorithm that is fastest here

    What it changes: torch.backends.cudnn.benchmark = True: cuDNN tries its algorithms for every new shape and keeps the
    fastest, instead of choosing by a rule. CUDA devices only.

    What it promises: A loss curve like that of another seed: algorithms sum in different orders, and the choice may
    differ from run to run.

    What it should gain: A tenth of the time of convolutions is likely; the first steps become slower.

    When to leave it: When shapes change from step to step: each new one is tried out, which takes longer than a step.
    """
    if not step.device.startswith("cuda") or settings.cudnn_benchmark:
        return None
    if settings.deterministic:
        return None
    device = sum(use.duration for use in case.kernels if "convol" in use.operator)
    spent = device or sum(use.duration for use in case.operators if "convol" in use.name)
    if spent < LEAST_SHARE_CUDNN_BENCHMARK * step.duration.value:
        return None
    statement = "torch.backends.cudnn.benchmark = True"
    saving = modelled(LIKELY_CUDNN_BENCHMARK * spent, 0.0, MOST * spent, step.steady)
    return Option("cudnn.benchmark", (Change("cudnn-benchmark"),), saving, StatementEdit(statement, "torch"))


@fix("RM405", "flushed-denormals", addresses={"ST408"}, promise=Promise.SAME_CURVE, risk=1)
def flushed_denormals(step: StepSummary, settings: SettingsUse) -> Option | None:
    """Denormal numbers flushed to zero

    What it changes: torch.set_flush_denormal(True) before training: the processor takes numbers smaller in magnitude
    than 1.2e-38 (float32) for zero. Threads that are started later do the same.

    What it promises: A loss curve like that of another seed: what was denormal is zero.

    What it should gain: Nearly all of the time of the operators that the finding names, if denormals are the
    reason; nothing if the reason is the layout of their operands. Only the trial shows which.

    When to leave it: When values smaller than 1.2e-38 matter.
    """
    if step.device != "cpu" or settings.denormals_flushed:
        return None
    statement = "torch.set_flush_denormal(True)"
    edit = StatementEdit(statement, "torch")
    return Option(statement.removeprefix("torch."), (Change("flush-denormal"),), None, edit)
