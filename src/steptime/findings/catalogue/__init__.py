"""All built-in rules, one file each, in the order of their codes."""

from __future__ import annotations

from steptime.findings.catalogue.allocator_retries import allocator_retries
from steptime.findings.catalogue.allocator_stalls import allocator_stalls
from steptime.findings.catalogue.awkward_dimensions import awkward_dimensions
from steptime.findings.catalogue.background_load import background_load
from steptime.findings.catalogue.batch_preparation import batch_preparation
from steptime.findings.catalogue.checkpoint_in_step import checkpoint_in_step
from steptime.findings.catalogue.copies_and_casts import copies_and_casts
from steptime.findings.catalogue.debug_switch import debug_switch
from steptime.findings.catalogue.dense_embedding_gradient import dense_embedding_gradient
from steptime.findings.catalogue.detect_anomaly import detect_anomaly
from steptime.findings.catalogue.deterministic_left_on import deterministic_left_on
from steptime.findings.catalogue.device_not_traced import device_not_traced
from steptime.findings.catalogue.dispatch_loop import dispatch_loop
from steptime.findings.catalogue.dominant_operator import dominant_operator
from steptime.findings.catalogue.exploding_gradient import exploding_gradient
from steptime.findings.catalogue.exposed_communication import exposed_communication
from steptime.findings.catalogue.exposed_copies import exposed_copies
from steptime.findings.catalogue.few_steps import few_steps
from steptime.findings.catalogue.garbage_collection import garbage_collection
from steptime.findings.catalogue.host_sync import host_sync
from steptime.findings.catalogue.host_time import host_time
from steptime.findings.catalogue.idle_matrix_units import idle_matrix_units
from steptime.findings.catalogue.indexing_in_loop import indexing_in_loop
from steptime.findings.catalogue.input_wait import input_wait
from steptime.findings.catalogue.late_rank import late_rank
from steptime.findings.catalogue.launch_bound import launch_bound
from steptime.findings.catalogue.list_conversion import list_conversion
from steptime.findings.catalogue.logging_in_step import logging_in_step
from steptime.findings.catalogue.memory_bound_pointwise import memory_bound_pointwise
from steptime.findings.catalogue.memory_fragmentation import memory_fragmentation
from steptime.findings.catalogue.memory_leak import memory_leak
from steptime.findings.catalogue.memory_near_capacity import memory_near_capacity
from steptime.findings.catalogue.metrics_in_step import metrics_in_step
from steptime.findings.catalogue.missing_no_sync import missing_no_sync
from steptime.findings.catalogue.optimizer_memory import optimizer_memory
from steptime.findings.catalogue.optimizer_share import optimizer_share
from steptime.findings.catalogue.overflow_skipped import overflow_skipped
from steptime.findings.catalogue.padding import padding
from steptime.findings.catalogue.per_sample_fetch import per_sample_fetch
from steptime.findings.catalogue.pipeline_bubble import pipeline_bubble
from steptime.findings.catalogue.profiler_left_on import profiler_left_on
from steptime.findings.catalogue.rank_imbalance import rank_imbalance
from steptime.findings.catalogue.recompilation import recompilation
from steptime.findings.catalogue.recompute import recompute
from steptime.findings.catalogue.rollout_share import rollout_share
from steptime.findings.catalogue.single_tensor_optimizer import single_tensor_optimizer
from steptime.findings.catalogue.slow_arithmetic import slow_arithmetic
from steptime.findings.catalogue.slow_checkpoint import slow_checkpoint
from steptime.findings.catalogue.slow_collate import slow_collate
from steptime.findings.catalogue.slow_evaluation import slow_evaluation
from steptime.findings.catalogue.slow_transfer import slow_transfer
from steptime.findings.catalogue.small_buckets import small_buckets
from steptime.findings.catalogue.thread_oversubscription import thread_oversubscription
from steptime.findings.catalogue.tiny_kernels import tiny_kernels
from steptime.findings.catalogue.too_few_threads import too_few_threads
from steptime.findings.catalogue.too_few_workers import too_few_workers
from steptime.findings.catalogue.too_many_workers import too_many_workers
from steptime.findings.catalogue.unflashed_attention import unflashed_attention
from steptime.findings.catalogue.unstable_steps import unstable_steps
from steptime.findings.catalogue.unused_parameter_search import unused_parameter_search
from steptime.findings.catalogue.workers_restarted import workers_restarted
from steptime.findings.catalogue.zeroed_gradients import zeroed_gradients
from steptime.findings.rule import Rule

CATALOGUE: tuple[Rule, ...] = (
    input_wait,
    too_few_workers,
    too_many_workers,
    workers_restarted,
    per_sample_fetch,
    slow_collate,
    slow_transfer,
    padding,
    batch_preparation,
    host_time,
    garbage_collection,
    logging_in_step,
    checkpoint_in_step,
    metrics_in_step,
    list_conversion,
    dispatch_loop,
    launch_bound,
    host_sync,
    recompilation,
    tiny_kernels,
    allocator_stalls,
    indexing_in_loop,
    memory_bound_pointwise,
    copies_and_casts,
    idle_matrix_units,
    awkward_dimensions,
    unflashed_attention,
    exposed_copies,
    dominant_operator,
    slow_arithmetic,
    optimizer_share,
    dense_embedding_gradient,
    single_tensor_optimizer,
    zeroed_gradients,
    detect_anomaly,
    profiler_left_on,
    deterministic_left_on,
    overflow_skipped,
    exploding_gradient,
    debug_switch,
    recompute,
    memory_leak,
    memory_fragmentation,
    memory_near_capacity,
    allocator_retries,
    optimizer_memory,
    thread_oversubscription,
    background_load,
    unstable_steps,
    few_steps,
    exposed_communication,
    late_rank,
    missing_no_sync,
    small_buckets,
    unused_parameter_search,
    rank_imbalance,
    pipeline_bubble,
    device_not_traced,
    too_few_threads,
    slow_evaluation,
    slow_checkpoint,
    rollout_share,
)
