"""All built-in remedies, one file each, in the order of their codes."""

from __future__ import annotations

from steptime.remedies.catalogue.batched_fetch import batched_fetch
from steptime.remedies.catalogue.bfloat_autocast import bfloat_autocast
from steptime.remedies.catalogue.channels_last import channels_last
from steptime.remedies.catalogue.compiled_model import compiled_model
from steptime.remedies.catalogue.deferred_item import deferred_item
from steptime.remedies.catalogue.fewer_threads import fewer_threads
from steptime.remedies.catalogue.fitting_workers import fitting_workers
from steptime.remedies.catalogue.frozen_objects import frozen_objects
from steptime.remedies.catalogue.fused_optimizer import fused_optimizer
from steptime.remedies.catalogue.no_anomaly_detection import no_anomaly_detection
from steptime.remedies.catalogue.no_checkpointing import no_checkpointing
from steptime.remedies.catalogue.not_deterministic import not_deterministic
from steptime.remedies.catalogue.persistent_workers import persistent_workers
from steptime.remedies.catalogue.pinned_memory import pinned_memory
from steptime.remedies.catalogue.tensor_float import tensor_float
from steptime.remedies.remedy import Remedy

CATALOGUE: tuple[Remedy, ...] = (
    fitting_workers,
    persistent_workers,
    pinned_memory,
    batched_fetch,
    deferred_item,
    frozen_objects,
    fused_optimizer,
    bfloat_autocast,
    tensor_float,
    compiled_model,
    channels_last,
    no_checkpointing,
    fewer_threads,
    no_anomaly_detection,
    not_deterministic,
)
