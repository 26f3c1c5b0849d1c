"""What the runtime calls of each vendor do, by names that the vendors' references and published traces hold."""

from __future__ import annotations

import pytest

from steptime.trace.vendors import (
    ALLOCATION,
    COPY_CALL,
    FREEING,
    LAUNCH,
    QUEUEING,
    STREAM_WAIT,
    SYNCHRONISATION,
    WAITED_FOR,
)

LAUNCHES = """
cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaGraphLaunch cuLaunchKernel cuLaunchKernelEx
hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel hipGraphLaunch musaLaunchKernel
muLaunchKernel mcLaunchKernel zeCommandListAppendLaunchKernel zeCommandQueueExecuteCommandLists
urEnqueueKernelLaunch aclnnMatmul AscendCL@aclmdlRIExecuteAsync
"""
COPIES = """
cudaMemcpyAsync cudaMemcpy2DAsync cuMemcpyHtoDAsync_v2 hipMemcpyAsync musaMemcpyAsync zeCommandListAppendMemoryCopy
urEnqueueUSMMemcpy aclrtMemcpyAsync AscendCL@aclrtMemcpyAsync
"""
BLOCKING_COPIES = """
cudaMemcpy cudaMemcpy2D cuMemcpyDtoH_v2 hipMemcpyWithStream hipMemcpyDtoH musaMemcpy aclrtMemcpy
"""
SYNCHRONISATIONS = """
cudaDeviceSynchronize cudaStreamSynchronize cudaStreamSynchronize_ptsz cudaEventSynchronize cuCtxSynchronize
hipStreamSynchronize hipDeviceSynchronize musaStreamSynchronize zeEventHostSynchronize zeCommandQueueSynchronize
urQueueFinish urEventWait aclrtSynchronizeStream AscendCL@aclrtSynchronizeStreamWithTimeout aclrtSynchronizeDevice
"""
FREES = """
cudaFree cudaFreeHost cuMemFree_v2 hipFree hipHostFree musaFree muMemFree zeMemFree urUSMFree aclrtFree
"""
ALLOCATIONS = """
cudaMalloc cudaHostAlloc cudaMallocHost cudaHostRegister cudaHostUnregister cuMemCreate cuMemMap cuMemUnmap
cuMemRelease hipMalloc hipHostMalloc hipExtMallocWithFlags musaMalloc muMemAlloc xpuMalloc mcMalloc zeMemAllocDevice
urUSMDeviceAlloc aclrtMalloc aclrtMallocHost
"""
OTHERS = """
cudaMallocAsync cudaFreeAsync hipMallocAsync cudaEventRecord cudaEventQuery cudaStreamIsCapturing hipGetDeviceCount
cudaFuncGetAttributes cudaStreamCreateWithFlags cudaLaunchHostFunc cuGetProcAddress aclrtRecordEvent INVALID
"""
ROLES = {
    "launch": LAUNCH,
    "copy": COPY_CALL,
    "synchronise": SYNCHRONISATION,
    "stream wait": STREAM_WAIT,
    "allocate": ALLOCATION,
    "free": FREEING,
}


def roles(name: str) -> set[str]:
    return {role for role, pattern in ROLES.items() if pattern.match(name)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (LAUNCHES, {"launch"}),
        (COPIES, {"copy"}),
        (BLOCKING_COPIES, {"copy", "synchronise"}),
        (SYNCHRONISATIONS, {"synchronise"}),
        ("cudaStreamWaitEvent hipStreamWaitEvent urEnqueueEventsWait aclrtStreamWaitEvent", {"stream wait"}),
        (ALLOCATIONS, {"allocate"}),
        (FREES, {"allocate", "free"}),
        (OTHERS, set()),
    ],
)
def test_every_vendors_calls_are_what_its_reference_says(names: str, expected: set[str]) -> None:
    assert {name: roles(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_a_copy_from_device_to_device_does_not_block_the_host() -> None:
    assert {name: roles(name) for name in ("cuMemcpyDtoD_v2", "hipMemcpyDtoD")} == {
        "cuMemcpyDtoD_v2": {"copy"},
        "hipMemcpyDtoD": {"copy"},
    }


def test_launches_copies_and_fills_put_work_on_a_device() -> None:
    names = [
        *LAUNCHES.split(),
        *COPIES.split(),
        "cudaMemsetAsync",
        "cudaMemPrefetchAsync",
        "urEnqueueUSMFill",
        "aclrtMemsetAsync",
    ]
    assert [name for name in names if not QUEUEING.match(name)] == []


@pytest.mark.parametrize(
    ("name", "waited_for"),
    [
        ("cudaStreamSynchronize", "stream"),
        ("aclrtSynchronizeStreamWithTimeout", "stream"),
        ("zeCommandQueueSynchronize", "stream"),
        ("urQueueFinish", "stream"),
        ("cudaEventSynchronize", "event"),
        ("zeEventHostSynchronize", "event"),
        ("aclrtSynchronizeEvent", "event"),
        ("cudaDeviceSynchronize", None),
    ],
)
def test_a_synchronising_call_says_what_it_waits_for(name: str, waited_for: str | None) -> None:
    assert [kind for kind, pattern in WAITED_FOR.items() if pattern.search(name)] == (
        [waited_for] if waited_for else []
    )
