"""Names in a trace, and what they mean: PyTorch's own, the runtime calls of every vendor, and the collective libraries.

A new vendor is a row of `VENDORS`, a category of its trace events, or both; no other module knows a vendor's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.arrays import Bool, looked_up
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.table import EventKind, Trace

_FREE = """
alias as_strided as_strided_ chunk contiguous data detach detach_ empty empty_like empty_strided expand expand_as
flatten is_nonzero item lift_fresh movedim narrow new_empty new_empty_strided numpy_T permute reshape reshape_as
resize_ resize_as_ resolve_conj resolve_neg requires_grad_ result_type select set_ set_data size slice split
split_with_sizes squeeze squeeze_ stride swapaxes t t_ tensor_split to transpose transpose_ type_as unbind unflatten
unsqueeze unsqueeze_ view view_as _local_scalar_dense _nested_tensor_size _reshape_alias _unsafe_view _version
"""
FREE_OPERATORS = frozenset(_FREE.split())
"""Operators that make or change a tensor's description, or allocate: they move no data of their own."""
_PREPARING = """
fill_ zero_ zeros zeros_like ones ones_like full full_like new_zeros new_full scalar_tensor copy_ _to_copy clone
"""
PREPARING = frozenset(_PREPARING.split())
"""Operators that inside another one set up its output: aten::sum fills its result, aten::addmm copies its bias."""
WRAPPERS = PREPARING - {"fill_", "copy_"} | {"repeat", "constant_pad_nd", "pad"}
"""Operators whose work is done by the filling or copying inside them."""
PRODUCTS = frozenset(f"aten::{name}" for name in ("mm", "addmm", "bmm", "matmul", "mv", "addmv", "_sparse_addmm"))
"""Operators that take sparse matrices, too, whose work their shapes do not show."""
DETACH = "aten::detach"
"""What takes a tensor out of its graph, in backward, too."""
RECURRENT_OPERATORS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

ENGINE = re.compile(r"^(autograd::engine::|(struct )?torch::(autograd|jit)::|[A-Za-z_]\w*Backward\d*$)")
"""Autograd's own frames around the operators of a backward function."""
EVALUATED = re.compile(
    r"^(autograd::engine::evaluate_function: )?((struct )?torch::autograd::|aten::)?(Optimizer\.(step|zero_grad)#)?"
)
"""Prefixes of the name of an autograd function, an operator or an optimizer's method."""
GUARDS = re.compile(r"^(TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper)")
"""Work of torch.compile around each call of its code: checks that are no work of the job."""
COMPILED = re.compile(r"^(Compiled\w*$|## Call CompiledFxGraph|(graph_\d+_)?cpp_fused_)|Torch-Compiled Region")
"""Code that torch.compile generated: it computes, although it contains no operators."""
ANNOTATION = re.compile(
    r"^(ProfilerStep[#*]|Optimizer\.|enumerate\(|DistributedDataParallel\.|## |\[|PyTorch Profiler)"
)
"""Annotations that files of 2021 list among the operators."""
MODULE_RANGE = re.compile(r"^nn\.Module: (?P<path>.+) \((?P<type>\w+)\)$")
"""Name of the probe's range for a module call (`steptime.probe.modules`)."""
LOADER = re.compile(r"^enumerate\((DataLoader|DataPipe)\)#")
STEP = re.compile(r"^ProfilerStep[#*]\d*$")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step(#|$)")
SCALER = re.compile(r"^aten::_amp_(foreach_non_finite_check_and_unscale_|update_scale_)$")
"""Kernels of torch.amp.GradScaler."""
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad(#|$)")
COMPILING = re.compile(r"\(dynamo_timed\)|^(compile_fx|compile_inner|_compile|TorchDynamo compile)", re.IGNORECASE)
"""Annotations of TorchDynamo's dynamo_timed, which wraps every part of a compilation."""
PROFILER = re.compile(r"torch/(autograd/)?profiler(/profiler)?\.py\(\d+\): ")
"""Functions of torch's own profiler, as it records them when it starts."""
TORCH_FRAME = re.compile(r"(^|/)torch/.*\.py\(\d+\): ")
"""Functions of torch's own Python."""


NO_CALL = r"(?!)"
"""Pattern that never matches, for features without a call in an interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Runtime calls of one programming interface, by what they do. Every field but `interface` is a regular expression
    for the part of a call's name after `prefix`."""

    interface: str
    prefix: str
    launch: str
    """Puts kernels, or a graph of them, on a device."""
    copy: str
    """Copies memory to, from or on a device."""
    fill: str
    """Fills or prefetches memory on a device."""
    blocking_copy: str = NO_CALL
    """A copy that returns only when it is done."""
    synchronise: str
    """Returns only when the device, a stream or an event is done."""
    stream_wait: str
    """Makes a stream wait for another; the CPU goes on."""
    allocate: str = NO_CALL
    """Asks the driver for memory, or gives it back. The device may idle meanwhile. Stream-ordered calls
    (cudaMallocAsync, cudaFreeAsync) are none: the driver serves them from a pool."""
    free: str = NO_CALL
    """Calls of `allocate` that wait for the device before they free memory."""


VENDORS = (
    Vendor(
        interface="CUDA, and what takes its names: HIP (AMD), MUSA (Moore Threads), MACA (MetaX) and others",
        prefix="[a-z]{2,6}",
        launch=r"(Ext)?(Module)?Launch(?!HostFunc)\w*|GraphLaunch\w*",
        copy=r"Memcpy\w*",
        fill=r"Mem(set|Prefetch)\w*",
        blocking_copy=r"Memcpy(?!DtoD|Peer|\w*Async)\w*",
        synchronise=r"(Device|Stream|Event|Ctx)Synchronize\w*",
        stream_wait=r"StreamWaitEvent\w*",
        allocate=(
            r"(Ext)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister|MemAlloc|MemFree|MemCreate|"
            r"MemMap|MemUnmap|MemRelease|MemHostAlloc|MemHostRegister|MemHostUnregister)(?!\w*Async)\w*"
        ),
        free=r"(Host)?Free(Host)?|MemFree(Host)?(_v2)?",
    ),
    Vendor(
        interface="Level Zero (Intel)",
        prefix="ze",
        launch=r"CommandListAppendLaunch\w*Kernel\w*|CommandQueueExecuteCommandLists|CommandListImmediateAppend\w*",
        copy=r"CommandListAppend(Memory|Image)Copy\w*",
        fill=r"CommandListAppendMemory(Fill|Prefetch)\w*",
        synchronise=r"(CommandQueue|CommandList|Event|Fence)(Host)?Synchronize",
        stream_wait=r"CommandListAppendWaitOnEvents",
        allocate=r"Mem(Alloc|Free)\w*|PhysicalMem(Create|Destroy)|VirtualMem(Map|Unmap)",
        free=r"MemFree\w*",
    ),
    Vendor(
        interface="Unified Runtime (Intel)",
        prefix="ur",
        launch=r"Enqueue(Cooperative)?KernelLaunch\w*|EnqueueCommandBuffer\w*",
        copy=r"Enqueue(USMMemcpy|MemBuffer(Copy|Read|Write))\w*",
        fill=r"Enqueue(USM(Fill|Prefetch)|MemBufferFill)\w*",
        synchronise=r"QueueFinish|EventWait",
        stream_wait=r"EnqueueEventsWait\w*",
        allocate=r"USM((Device|Host|Shared)Alloc|Free)\w*|PhysicalMem(Create|Release)|VirtualMem(Map|Unmap)",
        free=r"USMFree\w*",
    ),
    Vendor(
        interface="MTIA (Meta)",
        prefix="",
        launch=r"runFunction.*",
        copy=r"enqueueCommand memcpy\w*",
        fill=r"enqueueCommand memset\w*",
        synchronise=r"synchronize(Stream|Event|Device)?",
        stream_wait=r"enqueueCommand waitOnEvent",
    ),
    Vendor(
        interface="AscendCL (Huawei)",
        prefix="(AscendCL@)?acl",
        launch=r"rtLaunch\w*|nn\w+|opExecute\w*|opCompileAndExecute\w*|mdl(RI)?Execute\w*",
        copy=r"rtMemcpy\w*",
        fill=r"rtMemset\w*",
        blocking_copy=r"rtMemcpy(?!\w*Async)\w*",
        synchronise=r"rtSynchronize(Device|Stream|Event)\w*",
        stream_wait=r"rtStreamWaitEvent\w*",
        allocate=r"rt(Malloc|Free|MapMem|UnmapMem)(?!\w*Async)\w*",
        free=r"rtFree\w*",
    ),
)
"""Runtime calls of each interface, from the vendors' references: CUDA Runtime and Driver API, HIP Runtime API, oneAPI
Level Zero core programming guide, Unified Runtime specification, CANN AscendCL API. Names may end in _v2 or _ptsz."""


def _calls(*parts: str) -> re.Pattern[str]:
    """Pattern of all vendors' calls that do one of these things, named as the fields of `Vendor`."""
    rows = (f"(?:{each.prefix})(?:{getattr(each, part)})" for each in VENDORS for part in parts)
    return re.compile(rf"^(?:{'|'.join(rows)})$")


LAUNCH = _calls("launch")
COPY_CALL = _calls("copy")
QUEUEING = _calls("launch", "copy", "fill")
"""Calls that put work on a device."""
SYNCHRONISATION = _calls("synchronise", "blocking_copy")
"""Calls that return only when the device is done."""
STREAM_WAIT = _calls("stream_wait")
ALLOCATION = _calls("allocate")
FREEING = _calls("free")
WAITED_FOR = {
    "stream": re.compile(r"(Stream|Queue|List)\w*Synchronize|[Ss]ynchronizeStream|QueueFinish"),
    "event": re.compile(r"(Event|Fence)\w*Synchronize|[Ss]ynchronizeEvent|EventWait"),
}
"""Target of a synchronizing call by its name; without a match, the whole device."""

GRAPH_LAUNCH = re.compile(r"^[a-z]{2,6}GraphLaunch\w*$")
CAPTURE_START = re.compile(r"^[a-z]{2,6}StreamBeginCapture\w*$")
CAPTURE_END = re.compile(r"^[a-z]{2,6}StreamEndCapture\w*$")
"""Calls that start and end the capture of a graph of work, in CUDA and interfaces with its names."""

COLLECTIVE_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")
"""Annotations of collectives whose library works on the CPU."""
COLLECTIVE_ON_DEVICE = re.compile(r"^(nccl|rccl|xccl|hccl):")
"""Annotations of collectives whose library works on devices only."""
OPERATOR_ON_DEVICE = re.compile(
    r"^aten::(cudnn_(convolution|batch_norm|affine)|_cudnn_(rnn|attention|ctc)|miopen_|"
    r"_(flash|efficient)_attention_(for|back)ward$)"
)
"""Operators with kernels for devices only (native_functions.yaml). Similar ones that torch also calls on a CPU are
excluded: cudnn_is_acceptable, and _scaled_dot_product_flash_attention up to torch 2.1."""
ANNOTATED_COLLECTIVE = re.compile(r"^(nccl|rccl|xccl|hccl|gloo|mpi|ucc):")
COLLECTIVE = re.compile(
    r"^(c10d::|_c10d_functional::|(gloo|nccl|rccl|mpi|ucc|xccl|hccl)::?|record_param_comms|_C_custom_ar::|"
    r"symm_mem::(one_shot|two_shot|multimem|nvshmem))"
)
"""Collective operators: what they launch communicates, whatever the kernel's name."""


COMMUNICATION_LIBRARIES = {
    "NCCL, RCCL, HCCL, xCCL, MSCCL, oneCCL": r"(?<![a-z])(n|r|h|x|ms|one)ccl|ccl_kernel|nccldev",
    "HCCL's tasks on Ascend": r"(?<![a-z])hcom_|AicpuKernel_?(AllReduce|AllGather|AllToAll)",
    "NVSHMEM and rocSHMEM": r"nvshmem|rocshmem",
    "DeepEP, also the copies of it in other projects": r"\b(internode|intranode)(_ll)?::",
    "MORI": r"\bmori::|\bEp(Dispatch|Combine)\w*Kernel",
    "symmetric memory of torch": r"multimem|(one|two)_shot_(all_reduce|reduce_scatter)",
    "all-reduces of vLLM, SGLang, aiter and FBGEMM": r"cross_device_reduce|quickreduce::",
    "TensorRT-LLM and FlashInfer": (
        r"all_?reduce_fusion|(one|two)ShotAllReduce|allreduce\w*lamport|lamport\w*allreduce|moe_?a2a|moeAllToAll"
    ),
    "user buffers of Transformer Engine": r"userbuffers",
}
"""Libraries whose kernels move data between devices, with case-insensitive patterns from sources and public traces."""
COMMUNICATION_KERNEL = re.compile("|".join(COMMUNICATION_LIBRARIES.values()), re.IGNORECASE)
GENERATED = re.compile(r"^triton_")
"""Kernels that torch.compile generated. They compute, although their names may contain other operators'."""
COMMUNICATION_KIND = re.compile(
    r"ccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll)", re.IGNORECASE
)
"""Kind of collective in the name of a communication kernel."""

COLLECTIVE_KINDS = {
    "all_reduce": re.compile(r"all_?reduce", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "broadcast": re.compile(r"^_?broadcast", re.IGNORECASE),
}
"""torch.distributed's name of each collective, with a pattern for all its names (allreduce, _allgather_base,
ncclDevKernel_AllReduce_…, c10d::alltoall_base_). Other names (send 0->1, barrier) stay as they are."""
GROUPED = "coalesced"
"""Name of several collectives or sends that torch passes to the library as one; the kernel's name shows which."""
SENDS = "SendRecv"
"""Name of NCCL's kernel for sends and receives, which an all-to-all uses too."""
LIBRARY_COPIES = re.compile(r"^(torch\.distributed\.ddp\.reducer::|torch::distributed::reducer::|fsdp::)")
"""Ranges and operators in which torch lays out data for communication: DDP's reducer.cpp, _fsdp_collectives.py."""
BUCKET_TO_GRADIENT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""Range in which DDP copies a bucket's part back into .grad, once per parameter, without gradient_as_bucket_view."""

COPY_DIRECTIONS = {
    "HtoD": re.compile(r"HtoD|HtoA|HostToDevice|Host -> Device", re.IGNORECASE),
    "DtoH": re.compile(r"DtoH|AtoH|DeviceToHost|Device -> Host", re.IGNORECASE),
    "DtoD": re.compile(r"DtoD|AtoD|DtoA|AtoA|DeviceToDevice", re.IGNORECASE),
    "PtoP": re.compile(r"PtoP|PeerToPeer", re.IGNORECASE),
    "HtoH": re.compile(r"HtoH|HostToHost", re.IGNORECASE),
}
"""Patterns for the direction of a copy in its name, by CUPTI's short names."""
HOST_MEMORY = re.compile(r"Pageable|Pinned", re.IGNORECASE)
"""Kind of host memory in the name of a copy."""

_CATEGORIES = {
    EventKind.OPERATOR: "cpu_op Operator",
    EventKind.ANNOTATION: "user_annotation",
    EventKind.RUNTIME: "glow_runtime Runtime",
    EventKind.KERNEL: "kernel Kernel",
    EventKind.MEMCPY: "gpu_memcpy Memcpy",
    EventKind.MEMSET: "gpu_memset Memset",
    EventKind.DEVICE_ANNOTATION: "gpu_user_annotation",
    EventKind.PYTHON: "python_function",
    EventKind.OVERHEAD: "overhead",
    EventKind.SPAN: "Trace",
    EventKind.OTHER: "cuda_event cuda_profiler_range external_correlation cpu_instant_event collective_comm "
    "mtia_insight mtia_counters ac2g fwdbwd async_cpu_to_gpu async_gpu",  # though some name a stream
}
CATEGORIES = {"": EventKind.OTHER} | {name: kind for kind, names in _CATEGORIES.items() for name in names.split()}
"""Categories of trace events: libkineto's ActivityType.cpp, and the capitalised names of 2021."""
LEGACY: dict[int | str | None, str] = {"CPU functions": "cpu_op"}
"""Category of events that torch's old autograd profiler lists without one, by their process's name."""
CATEGORY_ENDINGS = {
    "_runtime": EventKind.RUNTIME,
    "_driver": EventKind.RUNTIME,
    "_memcpy": EventKind.MEMCPY,
    "_memset": EventKind.MEMSET,
    "_user_annotation": EventKind.DEVICE_ANNOTATION,
    "_sync": EventKind.SYNC,
    "_kernel": EventKind.KERNEL,
}
"""Kinds of other categories by their endings: cuda_runtime, xpu_runtime, privateuse1_driver, cuda_sync."""
DEVICE_WORK_CATEGORIES = ("mtia_ccp_events", "mtia_workloadd", "hpu_op")
"""Categories of all device work of MTIA and Gaudi, copies and waits included; the event's name decides its kind."""
DEVICE_WORK_KINDS: tuple[tuple[re.Pattern[str], EventKind], ...] = (
    (re.compile(r"^(stream|event|notify)[ _]?(wait|record)|^wait[ _]?(event|value)", re.IGNORECASE), EventKind.SYNC),
    (re.compile(r"memcpy|^dma_", re.IGNORECASE), EventKind.MEMCPY),
    (re.compile(r"memset", re.IGNORECASE), EventKind.MEMSET),
)
"""Kind of a device event by its name, if its category does not decide; otherwise a kernel."""


def matching(trace: Trace, test: Callable[[str], object]) -> Bool:
    """Mask of the events whose name passes the test, which runs once per distinct name."""
    passed = of_symbols(trace, test)
    return looked_up(passed, trace.events.name) if len(passed) else np.zeros(len(trace.events), np.bool_)


@cached_per_trace
def of_symbols(trace: Trace, test: Callable[[str], object]) -> Bool:
    """Mask of a trace's symbols that pass the test."""
    return np.fromiter((bool(test(symbol)) for symbol in trace.symbols), np.bool_, len(trace.symbols))


def is_free(name: str) -> bool:
    """True for an operator, by its name, that does no work of its own. A collective has its own category."""
    passing = GUARDS.match(name) or COLLECTIVE.match(name)
    return name.rsplit("::", 1)[-1] in FREE_OPERATORS or passing is not None


def is_preparing(name: str) -> bool:
    """True for an operator that gives a tensor its first values, by its name."""
    return name.rsplit("::", 1)[-1] in PREPARING


def is_recurrent(name: str) -> bool:
    """True for an operator of torch, by its name, that loops over time steps, unchanged by torch.compile."""
    return name.rsplit("::", 1)[-1] in RECURRENT_OPERATORS


def is_wrapper(name: str) -> bool:
    """True for an operator, by its name, whose work is done by the operator inside it."""
    return name.rsplit("::", 1)[-1] in WRAPPERS


def communicates(name: str) -> bool:
    """True for a kernel, by its name, that moves data between devices."""
    return COMMUNICATION_KERNEL.search(name) is not None and GENERATED.match(name) is None


def collective_name(name: str) -> str:
    """torch.distributed's name for a collective that is given by any of its names."""
    return next((kind for kind, pattern in COLLECTIVE_KINDS.items() if pattern.search(name)), name)


def is_engine(name: str) -> bool:
    """True for autograd's own frames, by their name; they compute nothing themselves."""
    return ENGINE.match(name) is not None and not is_compiled(name)


def is_compiled(name: str) -> bool:
    """True for code that torch.compile generated, by its name."""
    return COMPILED.search(name) is not None
