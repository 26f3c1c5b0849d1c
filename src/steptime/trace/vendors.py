"""What the names in a trace mean. Everything that the accounts know of PyTorch by name stands here."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from steptime.arrays import Bool
from steptime.trace.cached_per_trace import once
from steptime.trace.table import Trace

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
"""Operators that inside another one set up its output: aten::sum fills its result, aten::addmm copies its bias
there."""
WRAPPERS = PREPARING - {"fill_", "copy_"} | {"repeat", "constant_pad_nd", "pad"}
"""Operators that leave their work to the filling or copying inside them."""

ENGINE = re.compile(r"^(autograd::engine::|(struct )?torch::(autograd|jit)::|[A-Za-z_]\w*Backward\d*$)")
"""Autograd's own frames around the operators of a backward function."""
GUARDS = re.compile(r"^(TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper)")
"""What torch.compile does before and after its code at each call: checks, no work."""
COMPILED = re.compile(r"^(Compiled\w*$|## Call CompiledFxGraph|(graph_\d+_)?cpp_fused_)|Torch-Compiled Region")
"""Code that torch.compile generated: it computes, although no operator shows inside."""
ANNOTATION = re.compile(
    r"^(ProfilerStep[#*]|Optimizer\.|enumerate\(|DistributedDataParallel\.|## |\[|PyTorch Profiler)"
)
"""Annotations that files of 2021 list among the operators."""
LOADER = re.compile(r"^enumerate\((DataLoader|DataPipe)\)#")
STEP = re.compile(r"^ProfilerStep[#*]\d*$")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step(#|$)")
ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad(#|$)")
COMPILING = re.compile(r"\(dynamo_timed\)|^(compile_fx|compile_inner|_compile|TorchDynamo compile)", re.IGNORECASE)
"""Annotations of TorchDynamo's dynamo_timed, which wraps every part of a compilation."""
COLLECTIVE = re.compile(r"^(c10d::|_c10d_functional::|(gloo|nccl|mpi|ucc|xccl|hccl)::?|record_param_comms)")
COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|oneccl|nvshmem|cross_device_reduce|ccl_kernel|multimem|(one|two)_shot_all_reduce", re.IGNORECASE
)
SYNCHRONISATION = re.compile(r"(Synchronize(_ptsz)?|^(cuda|hip)Memcpy(WithStream|2D|DtoH|HtoD)?)$")
"""Runtime calls that return only when the device is done: *Synchronize and the copies without Async."""
_ALLOCATING = "Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemAlloc|MemFree|MemCreate|MemMap|MemUnmap|MemRelease"
ALLOCATION = re.compile(rf"^(cuda|hip|cu|mu|mc|xpu)({_ALLOCATING})(?!.*Async)")
"""Runtime calls that go to the driver for memory. They may make the device idle: freeing waits for it."""
PROFILER = re.compile(r"torch/(autograd/)?profiler(/profiler)?\.py\(\d+\): ")
"""Functions of torch's own profiler, as it records them when it starts."""
COPY_CALL = re.compile(r"Memcpy")


@once
def matching(trace: Trace, test: Callable[[str], object]) -> Bool:
    """Which events have a name that passes the test; each name is tested once."""
    passed = of_symbols(trace, test)
    return passed[trace.events.name] if len(passed) else np.zeros(len(trace.events), np.bool_)


@once
def of_symbols(trace: Trace, test: Callable[[str], object]) -> Bool:
    """Which of the names in a trace pass the test."""
    return np.fromiter((bool(test(symbol)) for symbol in trace.symbols), np.bool_, len(trace.symbols))


def is_free(name: str) -> bool:
    """True for an operator that does no work of its own, whatever its namespace. A collective has its own account."""
    passing = GUARDS.match(name) or COLLECTIVE.match(name)
    return name.rsplit("::", 1)[-1] in FREE_OPERATORS or passing is not None


def is_preparing(name: str) -> bool:
    """True for an operator that gives a tensor its first values."""
    return name.rsplit("::", 1)[-1] in PREPARING


def is_wrapper(name: str) -> bool:
    """True for an operator that does nothing but what the one inside it does."""
    return name.rsplit("::", 1)[-1] in WRAPPERS


def is_engine(name: str) -> bool:
    """True for autograd's own frames, which compute nothing themselves."""
    return ENGINE.match(name) is not None and not is_compiled(name)


def is_compiled(name: str) -> bool:
    """True for code that torch.compile generated."""
    return COMPILED.search(name) is not None
