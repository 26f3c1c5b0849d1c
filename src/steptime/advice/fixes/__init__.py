"""All built-in fixes, one file each, in the order of their codes."""

from __future__ import annotations

from steptime.advice.fix import Fix
from steptime.advice.fixes.compiling import (
    attention_backend,
    channels_last,
    compiled_model,
    cuda_graphs,
    dynamic_shapes,
    no_checkpointing,
)
from steptime.advice.fixes.input import (
    batched_fetch,
    deeper_prefetch,
    deferred_item,
    file_system_sharing,
    fitting_workers,
    frozen_objects,
    persistent_workers,
    pinned_memory,
    whole_tensor,
)
from steptime.advice.fixes.machine import (
    cudnn_benchmark,
    expandable_segments,
    flushed_denormals,
    kept_memory,
    threads_for_cpus,
)
from steptime.advice.fixes.optimizer import dropped_gradients, eight_bit_optimizer, fused_optimizer
from steptime.advice.fixes.precision import bfloat_autocast, half_autocast, tensor_float
from steptime.advice.fixes.ranks import data_parallel_settings, fewer_exchanges, fewer_updates
from steptime.advice.fixes.switches import (
    activation_checkpointing,
    no_anomaly_detection,
    no_debug_switches,
    no_profiler,
    not_deterministic,
)

CATALOGUE: tuple[Fix, ...] = (
    fitting_workers,
    persistent_workers,
    deeper_prefetch,
    pinned_memory,
    batched_fetch,
    deferred_item,
    frozen_objects,
    whole_tensor,
    file_system_sharing,
    fused_optimizer,
    eight_bit_optimizer,
    dropped_gradients,
    bfloat_autocast,
    tensor_float,
    compiled_model,
    channels_last,
    no_checkpointing,
    half_autocast,
    cuda_graphs,
    attention_backend,
    dynamic_shapes,
    threads_for_cpus,
    kept_memory,
    expandable_segments,
    cudnn_benchmark,
    flushed_denormals,
    no_anomaly_detection,
    not_deterministic,
    no_profiler,
    no_debug_switches,
    activation_checkpointing,
    data_parallel_settings,
    fewer_exchanges,
    fewer_updates,
)
