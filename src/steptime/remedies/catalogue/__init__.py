"""All built-in remedies, one file each, in the order of their codes."""

from __future__ import annotations

from steptime.remedies.catalogue.activation_checkpointing import activation_checkpointing
from steptime.remedies.catalogue.attention_backend import attention_backend
from steptime.remedies.catalogue.batched_fetch import batched_fetch
from steptime.remedies.catalogue.bfloat_autocast import bfloat_autocast
from steptime.remedies.catalogue.channels_last import channels_last
from steptime.remedies.catalogue.compiled_model import compiled_model
from steptime.remedies.catalogue.cuda_graphs import cuda_graphs
from steptime.remedies.catalogue.cudnn_benchmark import cudnn_benchmark
from steptime.remedies.catalogue.data_parallel_settings import data_parallel_settings
from steptime.remedies.catalogue.deeper_prefetch import deeper_prefetch
from steptime.remedies.catalogue.deferred_item import deferred_item
from steptime.remedies.catalogue.dropped_gradients import dropped_gradients
from steptime.remedies.catalogue.dynamic_shapes import dynamic_shapes
from steptime.remedies.catalogue.eight_bit_optimizer import eight_bit_optimizer
from steptime.remedies.catalogue.expandable_segments import expandable_segments
from steptime.remedies.catalogue.fewer_exchanges import fewer_exchanges
from steptime.remedies.catalogue.fewer_updates import fewer_updates
from steptime.remedies.catalogue.file_system_sharing import file_system_sharing
from steptime.remedies.catalogue.fitting_threads import threads_for_cpus
from steptime.remedies.catalogue.fitting_workers import fitting_workers
from steptime.remedies.catalogue.flushed_denormals import flushed_denormals
from steptime.remedies.catalogue.frozen_objects import frozen_objects
from steptime.remedies.catalogue.fused_optimizer import fused_optimizer
from steptime.remedies.catalogue.half_autocast import half_autocast
from steptime.remedies.catalogue.kept_memory import kept_memory
from steptime.remedies.catalogue.no_anomaly_detection import no_anomaly_detection
from steptime.remedies.catalogue.no_checkpointing import no_checkpointing
from steptime.remedies.catalogue.no_debug_switches import no_debug_switches
from steptime.remedies.catalogue.no_profiler import no_profiler
from steptime.remedies.catalogue.not_deterministic import not_deterministic
from steptime.remedies.catalogue.persistent_workers import persistent_workers
from steptime.remedies.catalogue.pinned_memory import pinned_memory
from steptime.remedies.catalogue.tensor_float import tensor_float
from steptime.remedies.catalogue.whole_tensor import whole_tensor
from steptime.remedies.remedy import Remedy

CATALOGUE: tuple[Remedy, ...] = (
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
