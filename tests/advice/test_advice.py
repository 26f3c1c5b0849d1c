"""Advice knows the configuration in force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import MS
from advice.planted import ITEM, PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import CompilationUse
from steptime.advice.rule import Finding, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.rules.overhead import recompilation, recompile_limit


def finding(rule: str, name: str) -> Finding:
    return next(found for found in examine(PLANTED[rule][name], CATALOGUE).findings if found.name == rule)


@pytest.mark.parametrize(
    ("rule", "name", "message"),
    [
        ("too-few-workers", "fires", "num_workers=3"),
        ("too-few-workers", "fires-one-is-not-enough", "num_workers=3"),
        ("too-few-workers", "fires-sleeping-items-on-two-cpus", "num_workers=2"),
        ("too-few-workers", "fires-iterable", "get_worker_info"),
        (
            "avoidable-item-work",
            "fires",
            "training and keep. Workers only spread it (num_workers=3)",
        ),
        ("avoidable-item-work", "fires-on-a-small-function", "before the loop or in __init__"),
        ("avoidable-item-work", "fires-on-a-call", "crop first"),
        ("too-many-workers", "fires", "num_workers=0"),
        ("too-many-workers", "fires-more-than-cpus", "num_workers=1"),
        ("per-sample-fetch", "fires", "__getitems__"),
        ("per-sample-fetch", "fires-with-workers", "num_workers=0"),
        ("input-wait", "fires", "More workers would not help"),
        ("input-wait", "fires-mostly-for-the-collector", "see ST202"),
        ("input-wait", "fires-from-a-trace", "no workers: try two"),
        ("host-sync", "fires-from-a-trace", "every n-th step"),
        ("overhead-bound", "fires-on-one-stall", "trace later steps"),
        ("overhead-bound", "fires-where-breaks-are-known", "fix its graph breaks (ST308)"),
        ("overhead-bound", "fires-in-recurrent-layers-of-torch", "no compiler takes apart"),
        ("overhead-bound", "fires-on-several-stalls", "trace later steps"),
        ("dispatch-loop", "fires-by-a-timed-line-of-the-function", "Vectorize: replace the loop"),
        ("dispatch-loop", "fires-on-a-loop-over-parameters", "torch._foreach_*"),
        ("dispatch-loop", "fires-on-a-recurrent-cell", "nn.LSTMCell is called 64 times per step, and nn.LSTM takes"),
        ("overhead-bound", "fires-on-many-micro-batches", "fewer, larger micro-batches (16 per step now)"),
        ("allocator-stalls", "fires", "empty_cache()"),
        ("tensor-cores-unused", "fires", 'set_float32_matmul_precision("high")'),
        ("tensor-cores-unused", "fires-without-tf32", "float16 and a GradScaler"),
        ("copies-and-casts", "fires-casts-on-a-device", "one dtype"),
        ("slow-transfer", "fires-from-a-trace", "pinned memory"),
        ("slow-transfer", "fires", "pin_memory=True"),
        ("slow-transfer", "fires-pinned", "add non_blocking=True"),
        ("optimizer-share", "fires", "accumulate gradients"),
        ("single-tensor-optimizer", "fires", "fused=True"),
        ("single-tensor-optimizer", "fires-on-cuda", "foreach=True"),
        ("single-tensor-optimizer", "fires-on-several-of-few-tensors", "each of them with fused=True"),
        ("thread-oversubscription", "fires", "OMP_NUM_THREADS=2"),  # its workers rest
        ("thread-oversubscription", "fires-on-workers-that-never-rest", "OMP_NUM_THREADS=1"),
        ("thread-oversubscription", "fires-with-doubt", "OMP_NUM_THREADS=1"),
        ("recompilation", "fires", "dynamic=True"),
        ("garbage-collection", "fires", "Take gc.collect() out"),
        ("work-without-gradient", "fires", "register_buffer"),
        ("work-without-gradient", "fires-on-a-head-that-no-loss-uses", "Leave it out"),
        ("work-without-gradient", "fires-on-a-call-for-a-metric", "reuse the loss's outputs"),
        ("gradients-for-nothing", "fires-on-a-teacher", "torch.no_grad()"),
        ("gradients-for-nothing", "fires-on-images-that-are-not-detached", "detach() what Painter gives"),
        ("gradients-for-nothing", "fires-on-a-critic-in-the-generators-pass", "requires_grad_(False) on Critic"),
        ("computed-again", "fires-on-weights", "once per step"),
        ("unused-rows", "fires", "before Net.head computes"),
        ("unread-result", "fires-on-attention", "need_weights=False"),
        ("unread-result", "fires-on-attention-that-drops", "only with a dropout of 0"),
        ("unread-result", "fires-on-another-module", "Leave the result out"),
        ("gradients-for-nothing", "fires-on-a-judge-behind-what-is-trained", "gradients still flow through"),
        ("steps-changed", "fires", "does differently"),
        ("steps-changed", "fires-while-others-use-the-cpus", "others used its CPUs"),
        ("outlier-steps", "fires", "in these steps"),
        ("outlier-steps", "fires-while-others-use-the-cpus", "others used its CPUs"),
        ("list-conversion", "fires", "np.stack"),
        ("list-conversion", "fires-on-a-mask-in-forward", "register_buffer"),
        ("outside-model", "fires-on-a-line-of-operators", "If the loss or its gradients depend on it"),
        ("outside-model", "fires-on-a-forward-that-is-called-by-its-name", "The loss depends on it"),
        ("outside-model", "fires-on-a-loss-in-the-loop", "each step needs it"),
        ("slow-evaluation", "fires-with-gradients-on", "under torch.no_grad()"),
        ("outside-model", "fires-on-a-line-of-the-loops-own-python", "Ask whether each step needs it"),
        ("workers-restarted", "fires", "Set persistent_workers=True"),
        ("workers-restarted", "fires-where-each-epoch-makes-a-loader", "Make the DataLoader once"),
        ("garbage-collection", "fires-hidden", "gc.freeze()"),
    ],
)
def test_advice_fits_the_job(rule: str, name: str, message: str) -> None:
    assert message in finding(rule, name).advice


def test_a_line_that_saw_one_of_few_collections_is_not_named_for_all_of_them() -> None:
    assert finding("garbage-collection", "fires").source is not None
    assert finding("garbage-collection", "fires-in-a-line-by-chance").source is None


def test_a_line_that_the_loss_is_made_of_is_not_saved_whole() -> None:
    found = finding("outside-model", "fires-on-a-loss-in-the-loop")
    assert found.savings is not None
    assert found.savings.value < 0.5 * finding("outside-model", "fires-on-a-line-of-operators").savings.value  # type: ignore[union-attr]
    assert "on the way to the loss" in found.summary


def test_what_grows_is_named_with_the_line_that_fills_it_and_the_line_that_costs_more_for_it() -> None:
    found = finding("steps-changed", "fires-with-the-list-that-gets-longer")
    assert found.evidence[0] == "It gets longer at train.py:23: self.scores.append(scores)."
    assert found.source == ITEM


def test_copies_of_profiled_steps_that_took_longer_save_no_more_than_usual_steps_spend_on_them() -> None:
    saving = finding("slow-transfer", "fires-in-a-run-on-a-line-of-no-role").savings
    assert saving is not None
    copying, staging = 13 * MS * 15 / 16, 3 * MS * 6 / 8  # what came back, and what item() waited for, is not theirs
    assert saving.value == pytest.approx(copying + staging, rel=0.001)


def test_a_loops_own_python_and_its_small_operators_are_savings_the_latter_at_most() -> None:
    saving = finding("dispatch-loop", "fires-by-a-timed-line-of-the-function").savings
    assert saving is not None
    loop = 9 / 9.5  # of the function's forward, and so of its operators
    dispatch, python, small = 9 * MS * loop, 1 * MS, 1.8 * MS * loop
    assert saving.value == pytest.approx(dispatch + python + small, rel=0.001)
    assert dispatch < saving.low < saving.value - 0.99 * small


def test_what_small_matrix_products_of_a_loop_lose_by_their_size_is_saved_in_part() -> None:
    saving = finding("dispatch-loop", "fires-with-small-products-far-from-the-rate").savings
    assert saving is not None
    own, dispatch, small = 1 * MS, 2 * MS * 200 / 304, 0.6 * MS
    slow = 4 * MS - 1 * MS  # 1e8 FLOP at 1e11 a second; the large ones are left out
    assert saving.value == pytest.approx(own + dispatch + small + 0.5 * slow, rel=0.01)
    assert saving.high - saving.value > 0.5 * (0.5 * slow)


def test_the_call_of_another_function_of_that_name_is_not_charged() -> None:
    source = finding("dispatch-loop", "fires-in-a-function-that-the-optimizer-has-too").source
    assert source is not None
    assert (source.line, source.text) == (9, "")


@pytest.mark.parametrize(
    ("rule", "name", "unsaid"),
    [
        ("per-sample-fetch", "fires", "num_workers"),
        ("slow-transfer", "fires-pinned", "pin_memory"),
        ("optimizer-share", "fires", "fused=True"),
        ("memory-bound-pointwise", "fires-although-compiled", "Compile the model"),
        ("too-few-workers", "fires-one-is-not-enough", "persistent_workers"),
    ],
)
def test_nothing_is_advised_that_is_on_already_or_harms(rule: str, name: str, unsaid: str) -> None:
    assert unsaid not in finding(rule, name).advice


def test_the_time_of_several_optimizers_is_not_said_of_one() -> None:
    case = PLANTED["optimizer-share"]["fires"]
    several = replace(case, optimizers=(*case.optimizers, replace(case.optimizers[0], type="RMSprop")))
    assert any(each.summary.startswith("AdamW and RMSprop take ") for each in examine(several).findings)


def test_what_the_collector_takes_of_a_wait_is_reported_apart() -> None:
    assert finding("input-wait", "fires-while-garbage-is-collected").summary.endswith(", 7.30 ms in gc")
    assert "gc" not in finding("input-wait", "fires").summary


@pytest.mark.parametrize(
    ("rule", "name", "line"),
    [
        ("python-time", "fires", "weights = schedule(step, history)"),
        ("logging-in-step", "fires", "log.write("),
        ("checkpoint-in-step", "fires", "save(model, path)"),
        ("dispatch-loop", "fires-by-a-timed-line-of-the-function", "self.cell"),
        ("parametrization-again", "fires", "self.rec(h)"),
        ("backward-again", "fires", "retain_graph"),
        ("dispatch-loop", "fires-by-the-call-of-the-function", "update_averages(model)"),
        ("recompute", "fires-by-the-line", "checkpoint(block, x)"),
        ("batch-preparation", "fires", "next_batch"),
        ("host-sync", "fires", "loss.item()"),
        ("host-sync", "fires-with-the-gap-and-the-line", "loss.item()"),
        ("input-wait", "fires", "__getitem__"),
        ("slow-transfer", "fires-in-a-run-on-a-line-of-no-role", "batch.to(device)"),
        ("slow-transfer", "fires-in-a-run-on-a-line-that-was-seen-to-call", "batch.to(device)"),
        ("slow-transfer", "fires-in-a-run-whose-lines-were-not-timed", "batch.to(device)"),
    ],
)
def test_a_finding_points_at_its_line(rule: str, name: str, line: str) -> None:
    source = finding(rule, name).source
    assert source is not None
    assert line in source.text


def test_what_was_compiled_in_torchs_own_code_is_named_by_the_line_that_called_it() -> None:
    found = finding("recompilation", "fires-in-torchs-own-code")
    assert found.source is not None
    assert found.source.text == "output = model(images)"


def test_cheaper_items_save_the_wait_that_workers_cannot_hide() -> None:
    found = finding("too-few-workers", "fires-sleeping-items-on-two-cpus")
    assert found.savings is not None
    assert found.savings.value < 30 * MS <= found.savings.high
    assert "which only a cheaper item saves" in found.advice


def test_slow_steps_are_reported_with_their_lines_in_one_sentence() -> None:
    reported = finding("caught-steps", "fires")
    assert reported.summary.endswith(": 90 % of that at train.py:55, 10 % at train.py:57")
    assert reported.evidence == (
        "Steps 100, 200, 300",
        "Steps 500, 600 were named in advance and profiled, on every rank that traces: see the trace files.",
        "Step 700 was next at that distance and profiled, and took no longer than others.",
    )


def test_gradients_for_nothing_are_those_of_the_backbone_and_not_of_the_head_above_it() -> None:
    found = finding("gradients-for-nothing", "fires-on-a-backbone-below-a-small-head")
    assert "of Probe.backbone, which" in found.summary
    assert found.source is not None
    assert found.source.text == "return self.head(self.backbone(rows))"
    assert found.savings is not None
    assert found.savings.value == pytest.approx(9 * MS)
    assert finding("gradients-for-nothing", "fires-on-a-teacher").source is not None, "the optimizer's, at least"


GIVEN_UP = PLANTED["recompile-limit"]["fires"]


def test_a_function_that_was_given_up_says_how_often_and_how_long_it_was_compiled_and_its_guard() -> None:
    compiler = GIVEN_UP.compiler
    assert compiler is not None
    source = compiler.limits[0].source
    eight = tuple(CompilationUse(source, 4_500_000_000, False, "size mismatch") for _ in range(8))
    (found,) = recompile_limit(replace(GIVEN_UP, compilations=eight))
    assert "was compiled 8 times in 36 s and runs uncompiled" in found.summary
    assert found.advice.endswith(f"({compiler.recompilations[-1].reason}).")
    assert recompilation(replace(GIVEN_UP, compilations=eight)) == (), "it is said once"


def test_compilations_are_told_by_function() -> None:
    (found,) = recompilation(PLANTED["recompilation"]["fires-in-the-warm-up"])
    assert found.summary.startswith("Compiled again 8 times in the first ")
    assert found.evidence == ("forward (model.py:10): 8 compilations, 16 s",)
    assert found.weight is Weight.NOTE, "steady steps save nothing"


def test_a_pipelines_bubble_is_told_by_schedule() -> None:
    """Four equal stages and 16 micro-batches: 3 of 19 slots in 1F1B, 3 of 35 with twice as many or two chunks."""
    message = (
        "The group's 4 ranks, as equal stages, idle 16 % in 1F1B with 16 micro-batches, "
        "8.6 % with twice as many, or interleaved with two chunks per stage."
    )
    assert message in finding("pipeline-bubble", "fires").evidence
