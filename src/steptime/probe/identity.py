"""Facts about a process: its rank, memory, settings, optimizers and modules. Reading them initializes nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch

from steptime.debug_switches import switched_on
from steptime.probe import sites
from steptime.probe.free_memory import address_space, groups
from steptime.probe.objects import modules_of, parameters_of
from steptime.probe.ours import pass_on
from steptime.probe.recorder import write_whole


def memory_limit() -> int | None:
    """Memory that limits this process, bytes: that of the CUDA device in use; else the least of the process's own
    limit, its control groups' and the machine's memory. Initializes nothing."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    own = address_space()
    return min([machine, *([own] if own is not None else []), *(limit for limit, _ in groups())])


RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables that launchers put into the environment: torchrun, SLURM's srun, Open MPI, MPICH and Intel MPI."""
MOST_TRACED = 16
"""Ranks that trace in a larger job. Traces are megabytes each, and the step table of all ranks shows the straggler."""


@dataclass(frozen=True)
class RankPlace:
    """Rank of this process; fields are None if unknown. A single process has no rank."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None

    @property
    def alone(self) -> bool:
        """True if the process trains alone, as far as is known."""
        return self.rank is None or (self.world_size or 1) < 2


def process_group() -> Any:
    """Returns torch.distributed if the job has initialized it, else None."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def ranks() -> int:
    """Returns the number of ranks of the job's default group, 1 before it has joined one."""
    group = process_group()
    return int(group.get_world_size()) if group is not None else 1


def device_of(top_modules: Iterable[torch.nn.Module]) -> tuple[str, str]:
    """Returns kind and name of the first parameter's device; ("cpu", "") without parameters."""
    parameter = next((parameter for top_module in top_modules for parameter in parameters_of(top_module)), None)
    kind = parameter.device.type if parameter is not None else "cpu"
    return kind, torch.cuda.get_device_name(parameter.device) if parameter is not None and kind == "cuda" else ""


def place() -> RankPlace:
    """Returns the rank from torch.distributed once it is initialized (mp.spawn sets no environment), else from the
    launcher's environment."""
    local = _number(LOCAL_RANK)
    if (distributed := process_group()) is not None:
        return RankPlace(int(distributed.get_rank()), local, int(distributed.get_world_size()))
    if os.environ.get("RANK", "").isdigit():
        return RankPlace(_number(RANK[:1]), local, _number(WORLD_SIZE[:1]))
    world = _number(WORLD_SIZE[1:])
    return RankPlace(_number(RANK[1:]), local, world) if world is not None and world > 1 else RankPlace()


def ranks_here() -> int:
    """Number of the job's ranks on this machine: all ranks if no launcher states it, as with mp.spawn."""
    return max(1, _number(LOCAL_SIZE) or place().world_size or 1)


def traces(here: RankPlace, wanted: Sequence[str]) -> bool:
    """True if this rank records traces. wanted: rank numbers as text, "auto" for a sample of a large job, "all"."""
    if here.alone or here.rank is None or not wanted or "all" in wanted or str(here.rank) in wanted:
        return True
    world = here.world_size or 1
    if "auto" not in wanted:
        return False
    if world <= MOST_TRACED:
        return True
    sample = {round(number * (world - 1) / (MOST_TRACED - 1)) for number in range(MOST_TRACED)}
    return here.rank in sample


def _number(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


ENVIRONMENTS = frozenset({"gymnasium", "gym", "pettingzoo", "envpool", "dm_env"})
"""Libraries of environments for reinforcement learning."""
PACKAGES = ("bitsandbytes", "torchao")
"""Packages that a fix could use; searched, not imported."""


def clock_pair() -> tuple[int, int]:
    """Returns (epoch ns, monotonic ns) read together: the tightest of three readings."""
    readings = []
    for _ in range(3):
        before = time.perf_counter_ns()
        epoch = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, epoch, (before + after) // 2))
    _, epoch, monotonic = min(readings)
    return epoch, monotonic


def make_folder(recording: str, pid: int) -> str:
    """Makes a new folder for this process; appends a number if the system has used the pid before."""
    for attempt in range(1000):
        folder = os.path.join(recording, f"process-{pid}" + (f"-{attempt}" if attempt else ""))
        try:
            os.mkdir(folder)
        except FileExistsError:
            continue
        return folder
    raise OSError(17, "a thousand processes of one number", recording)


def say_left(recording: str) -> None:
    """Marks in the recording that the probe has left, and clears the environment for children. Raises OSError."""
    if json.dumps(recording, ensure_ascii=False) in os.environ.get("STEPTIME_PROBE", ""):  # else others have come
        for name in ("STEPTIME_PROBE", "STEPTIME_INJECT"):
            os.environ.pop(name, None)
    with open(os.path.join(recording, f"left-{os.getpid()}"), "x", encoding="ascii"):
        pass


def _process_started() -> int:
    """Returns the start of this process, epoch ns; 0 if /proc lacks it (proc(5): field 22, clock ticks since boot)."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        return time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(seconds * 1e9))
    except (OSError, ValueError, IndexError, AttributeError) as error:
        pass_on(error)
        return 0


def write_process(folder: str, device: str, device_name: str, changes: list[str] | None = None) -> None:
    """Writes process.json (`ProcessFacts`) atomically."""
    epoch, monotonic = clock_pair()
    here = place()
    facts = {
        "pid": os.getpid(),
        "argv": list(getattr(sys, "orig_argv", sys.argv)),
        "executable": sys.executable,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "host": socket.gethostname(),
        "epoch_ns": epoch,
        "monotonic_ns": monotonic,
        "process_started_epoch_ns": _process_started(),
        "rank": here.rank,
        "local_rank": here.local_rank,
        "world_size": here.world_size,
        "device": device,
        "device_name": device_name,
        "changes": changes or [],
    }
    write_whole(os.path.join(folder, "process.json"), facts)


def optimizer_facts(optimizer: Any, number: int) -> dict[str, Any]:
    """Returns the fields of `OptimizerFacts`. foreach and fused are those of the first group; None: torch chooses."""
    groups = getattr(optimizer, "param_groups", [])
    parameters = [parameter for group in groups for parameter in group["params"]]
    first = groups[0] if groups else {}
    return {
        "identity": number,
        "type": type(optimizer).__name__,
        "parameters": len(parameters),
        "elements": sum(parameter.numel() for parameter in parameters),
        "foreach": first.get("foreach"),
        "fused": first.get("fused"),
        "site": sites.site_of(optimizer),
        "groups": len(groups),
        "distinct_groups": len(set(map(_options, groups))),
    }


def _options(group: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a group of parameters, without tensors and options of single parameters."""
    plain = {key: value for key, value in group.items() if type(value) in (bool, int, float, str, tuple, type(None))}
    return tuple(sorted((key, repr(value)) for key, value in plain.items()))


def top_module_facts(module: torch.nn.Module, number: int) -> dict[str, Any]:
    parameters = list(parameters_of(module))
    return {
        "identity": number,
        "type": type(module).__name__,
        "parameters": len(parameters),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "device": parameters[0].device.type if parameters else "cpu",
        "compiled": type(module).__name__ == "OptimizedModule" or "_compiled_call_impl" in module.__dict__,
        "site": None,
        "dense_embedding_elements": _dense_embedding_elements(module),
        "own": type(module).__module__.startswith("torch.nn."),
    }


def _dense_embedding_elements(module: torch.nn.Module) -> int:
    """Returns the elements of embeddings with a dense gradient, except tables shared with an output layer, whose
    gradient is dense anyway."""
    tables = [each for each in modules_of(module) if isinstance(each, torch.nn.Embedding)]
    shared = {id(each.weight) for each in modules_of(module) if isinstance(each, torch.nn.Linear)}
    return sum(
        each.weight.numel()
        for each in tables
        if not each.sparse and each.weight.requires_grad and id(each.weight) not in shared
    )


def settings_facts() -> dict[str, Any]:
    """Returns the fields of `SettingsFacts`. Initializes nothing."""
    distributed = process_group()
    affinity = getattr(os, "sched_getaffinity", None)
    deterministic = torch.are_deterministic_algorithms_enabled()
    held = os.environ.get("OMP_NUM_THREADS") == str(torch.get_num_threads())
    return {
        "intra_op_threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "usable_cpus": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "logical_cpus": os.cpu_count() or 1,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "detect_anomaly": torch.is_anomaly_enabled(),
        "anomaly_site": sites.line_that_calls("detect_anomaly") if torch.is_anomaly_enabled() else None,
        "deterministic": deterministic,
        "deterministic_site": sites.line_that_calls("use_deterministic_algorithms") if deterministic else None,
        "threads_site": sites.line_that_calls("set_num_threads") if held else None,
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "float32_matmul_precision": _matmul_precision(),
        "denormals_flushed": flushes_denormals(),
        "distributed_backend": str(distributed.get_backend()) if distributed is not None else None,
        "memory_limit": memory_limit(),
        "packages": [name for name in PACKAGES if _is_installed(name)],
        "debug_switches": switched_on(os.environ),
        "environments": any(sys.modules.get(name) is not None for name in ENVIRONMENTS),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "",
    }


TRACERS = {
    "trace": ("sys.settrace", ".set_trace"),
    "profile": ("cProfile.Profile", "sys.setprofile"),
    "memory": ("tracemalloc.start",),
}
"""Ends of the names of functions that switch tracers on, by their kind."""
UNKNOWN = "?"


def tracers() -> list[dict[str, Any]]:
    """Returns the fields of `TracerFacts` of the tools that Python calls in this thread, while none of ours is on."""
    tracemalloc = sys.modules.get("tracemalloc")
    traces_memory = tracemalloc is not None and tracemalloc.is_tracing()
    tools = {
        "trace": _top_module(sys.gettrace()),
        "profile": _top_module(sys.getprofile()) or _monitoring_profiler(),
        "memory": "tracemalloc" if traces_memory else "",
    }
    return [
        {"kind": kind, "tool": tool, "site": next(filter(None, map(sites.line_that_calls, TRACERS[kind])), None)}
        for kind, tool in tools.items()
        if tool
    ]


def _monitoring_profiler() -> str:
    """Returns the name of the profiler that sys.monitoring calls, as cProfile is from Python 3.12 on, or ""."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None or not monitoring.get_tool(monitoring.PROFILER_ID):
        return ""
    return str(monitoring.get_tool(monitoring.PROFILER_ID)) if monitoring.get_events(monitoring.PROFILER_ID) else ""


def _top_module(tool: Any) -> str:
    """Returns the top module of a function, a method or an object, UNKNOWN if it has none; "" for None."""
    if tool is None:
        return ""
    name = getattr(tool if type(tool) in (FunctionType, MethodType) else type(tool), "__module__", "")
    return name.partition(".")[0] if isinstance(name, str) and name else UNKNOWN


def autocast_dtype() -> str:
    """Returns the dtype of this thread's autocast, such as "bfloat16", or "off". Initializes nothing."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return "off"


def flushes_denormals() -> bool:
    """True if the processor flushes denormals to zero in this thread. Python's arithmetic shows it: torch has no
    getter, and observers of operators would see one of ours."""
    return sys.float_info.min * 0.5 == 0.0


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError) as error:  # half removed, or replaced by an object of the job's own
        pass_on(error)
        return False


def _matmul_precision() -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError as error:
        pass_on(error)
        return "mixed"  # torch refuses to say when the old and the new interface were both used


MOST_GRAPH_BREAKS, LONGEST_REASON = 100, 2000
"""Most graph breaks of a process that are recorded, and most characters of a reason."""


def compilation_facts(after_us: int) -> tuple[list[dict[str, Any]], int]:
    """Returns `CompilationFacts` of the compilations that started after `after_us` (epoch, µs), and the start of the
    last one; none before Dynamo is loaded.

    torch._dynamo.utils.get_compilation_metrics keeps the newest 64 (torch 2.4 to 2.13)."""
    # Another thread may be in the middle of importing it.
    metrics_of = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    if metrics_of is None:
        return [], after_us
    every = metrics_of()
    metrics = [metric for metric in every if _started(metric) > after_us]
    functions = {_frame(metric): _function(metric) for metric in every if getattr(metric, "co_name", None)}
    epoch, monotonic = clock_pair()
    facts = [
        {
            **functions.get(_frame(metric), _function(metric)),
            "duration_ns": int(getattr(metric, "duration_us", 0) or 0) * 1000,
            "start": _started(metric) * 1000 - epoch + monotonic,
            "recompile_reason": str(getattr(metric, "recompile_reason", "") or ""),
            "graph_breaks": int(getattr(metric, "num_graph_breaks", 0) or 0),
            "failed": str(getattr(metric, "fail_reason", "") or "").partition("\n")[0][:LONGEST_REASON],
        }
        for metric in metrics
    ]
    return facts, max(map(_started, metrics), default=after_us)


def graph_break_facts(seen: int) -> tuple[list[dict[str, Any]], int]:
    """Returns (`GraphBreakFacts` of the graph breaks after the first `seen` at lines of the user's, new count).

    TorchDynamo keeps all in torch._dynamo.utils.graph_break_reasons (torch 2.4 to 2.13). The first MOST_GRAPH_BREAKS
    are enough, even if a job never stops compiling."""
    known = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ())
    found = list(known[min(seen, len(known)) : MOST_GRAPH_BREAKS])
    facts = []
    for each in found:
        stack = [frame for frame in getattr(each, "user_stack", ()) if sites.whose(frame.filename) == sites.USER]
        if stack:
            place = os.path.abspath(stack[-1].filename), int(stack[-1].lineno or 0), str(stack[-1].name)
            facts.append({"site": sites.line_at(place), "reason": str(each.reason)[:LONGEST_REASON]})
    return facts, min(seen, len(known)) + len(found)


def _frame(metric: Any) -> str:
    """Returns the compile id of the function. The metric of an abandoned compilation has no function name."""
    return str(getattr(metric, "compile_id", None)).partition("/")[0]


def _function(metric: Any) -> dict[str, Any]:
    return {
        "function": str(getattr(metric, "co_name", "") or ""),
        "file": str(getattr(metric, "co_filename", "") or ""),
        "line": int(getattr(metric, "co_firstlineno", 0) or 0),
    }


def _started(metric: Any) -> int:
    return int(getattr(metric, "start_time_us", 0) or 0)
