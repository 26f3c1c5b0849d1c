"""Environment variables for debugging that cost time in every step: effects, when they are on, how to end them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OFF = ("", "0")
ANY = "*"


@dataclass(frozen=True, slots=True)
class DebugSwitch:
    """Environment variable for debugging. name: the variable's. what: its effect on each step. off: value that switches
    it off. on: values that switch it on, in lower case; () for any except "" and "0". device: the only device that it
    affects ("" for all). backend: the only backend of torch.distributed that it affects ("": no process group needed;
    ANY: any)."""

    name: str
    what: str
    off: str = "0"
    on: tuple[str, ...] = ()
    device: str = ""
    backend: str = ""

    def is_on(self, value: str) -> bool:
        """True if a value of the variable switches it on."""
        return value.lower() in self.on if self.on else value not in OFF

    def acts(self, device: str, backend: str | None) -> bool:
        """True if the switch affects steps on a device, with a process group of a backend (None: without one)."""
        if self.device not in ("", device):
            return False
        return not self.backend or (backend is not None and self.backend in (ANY, backend))


DEBUG_SWITCHES = (
    DebugSwitch("CUDA_LAUNCH_BLOCKING", "each launch waits until its kernel has ended", device="cuda"),
    DebugSwitch("PYTORCH_NO_CUDA_MEMORY_CACHING", "each tensor asks the driver for its memory", device="cuda"),
    DebugSwitch(
        "TORCH_DISTRIBUTED_DEBUG", "each collective is checked by further ones", "OFF", ("detail",), backend=ANY
    ),
    DebugSwitch("NCCL_P2P_DISABLE", "devices of a host exchange through its memory", backend="nccl"),
    DebugSwitch("NCCL_SHM_DISABLE", "devices of a host exchange through its network", backend="nccl"),
    DebugSwitch("NCCL_IB_DISABLE", "hosts exchange through sockets", backend="nccl"),
    DebugSwitch("ONEDNN_VERBOSE", "each matmul and convolution prints a line", device="cpu"),
    DebugSwitch("DNNL_VERBOSE", "each matmul and convolution prints a line", device="cpu"),
    DebugSwitch("MKL_VERBOSE", "each call of the library prints a line", device="cpu"),
    DebugSwitch("MALLOC_PERTURB_", "all memory is filled when it is taken and when it is freed"),
    DebugSwitch("PYTHONDEVMODE", "the interpreter checks itself", ""),
    DebugSwitch(
        "PYTHONMALLOC", "each of Python's blocks is filled and checked", "default",
        ("debug", "malloc_debug", "pymalloc_debug", "mimalloc_debug"),
    ),
    DebugSwitch("PYTHONTRACEMALLOC", "the interpreter notes where each of its blocks was taken"),
)  # fmt: skip
"""Known debugging variables. Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; PyTorch, "CUDA
Environment Variables" and torch.distributed, "Debugging torch.distributed applications"; NCCL, "Environment Variables";
oneDNN, "Verbose Mode"; mallopt(3); Python, "Command line and environment"."""


def switched_on(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value) of the switches that are on in an environment; its other variables are not read."""
    found = ((switch, environment.get(switch.name)) for switch in DEBUG_SWITCHES)
    return tuple((switch.name, value) for switch, value in found if value is not None and switch.is_on(value))


def acting(
    variables: Iterable[tuple[str, str]], device: str, backend: str | None
) -> tuple[tuple[DebugSwitch, str], ...]:
    """(switch, value) of the variables that affect a job. Unknown names are ignored."""
    known = {switch.name: switch for switch in DEBUG_SWITCHES}
    found = ((known.get(name), value) for name, value in variables)
    return tuple((switch, value) for switch, value in found if switch is not None and switch.acts(device, backend))
