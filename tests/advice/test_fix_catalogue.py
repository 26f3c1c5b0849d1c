"""Each fix proposes itself where the case holds the evidence for it, and not where it is in force already."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import replace

import pytest
from advice.healthy import HEALTHY, MS, US, about, categories, contention, loader, operator, optimizer, phases, step
from advice.planted import PLANTED

from steptime.advice.device_uses import (
    AllocationUse,
    CollectiveUse,
    GradientUse,
    MachineUse,
    ReplayUse,
)
from steptime.advice.engine import examine
from steptime.advice.evidence import Case, CompilationUse, RecomputeUse, SiteUse, TopModuleUse
from steptime.advice.explain import find_fix
from steptime.advice.fix import (
    AutocastEdit,
    CallEdit,
    EnvironmentEdit,
    Goal,
    LoopEdit,
    ModelEdit,
    Option,
    Snippet,
    StatementEdit,
    SwitchEdit,
)
from steptime.advice.fixes import CATALOGUE
from steptime.advice.fixes.compiling import CAPTURED_STEP
from steptime.advice.kernels import least_step, moving
from steptime.advice.propose import propose
from steptime.advice.rule import Finding, Weight
from steptime.advice.rules import CATALOGUE as RULES
from steptime.advice.run_uses import MemoryUse, SettingsUse
from steptime.analysis.graph_launches import GraphUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.what_if.what_if import Prediction
from steptime.changes import Change
from steptime.quantities import SourceLine, format_share

SETTINGS = SettingsUse(intra_op_threads=1, usable_cpus=8, logical_cpus=8, cudnn_benchmark=False)
CUDA = replace(HEALTHY, step=step(device="cuda"), settings=SETTINGS)
FAST = MachineUse("H", True, 50e12, 3e12, 5e3, (("float32", 50e12), ("bfloat16", 800e12), ("float16", 800e12)))
DDP = TopModuleUse("DistributedDataParallel", 12, 100_000_000, "cuda")


def options(code: str, case: Case) -> tuple[Option, ...]:
    fix = find_fix(code)
    assert fix is not None
    return fix(case)


def only(code: str, case: Case) -> Option:
    (option,) = options(code, case)
    return option


def change(option: Option) -> Change:
    (found,) = option.changes
    return found


def test_every_fix_answers_rules_that_there_are() -> None:
    known = {rule.code for rule in RULES}
    for fix in CATALOGUE:
        assert fix.addresses
        assert fix.addresses <= known, fix.code


ANSWERS = {
    "too-few-workers": "RM101",
    "workers-restarted": "RM102",
    "host-sync": "RM106",
    "garbage-collection": "RM107",
    "dispatch-loop": "RM108",
    "list-conversion": "RM108",
    "single-tensor-optimizer": "RM201",
    "memory-bound-pointwise": "RM303",
    "overhead-bound": "RM303",
    "zeroed-gradients": "RM203",
    "recompute": "RM305",
    "recompilation": "RM309",
    "slow-arithmetic": "RM405",
    "thread-oversubscription": "RM401",
    "too-few-threads": "RM401",
    "detect-anomaly": "RM501",
    "deterministic-left-on": "RM502",
    "profiler-left-on": "RM503",
    "debug-switch": "RM504",
    "argument-checks": "RM505",
}


@pytest.mark.parametrize(("rule", "code"), ANSWERS.items())
def test_a_planted_fault_gets_its_fix(rule: str, code: str) -> None:
    case = PLANTED[rule]["fires"]
    assert code in {proposal.fix.code for proposal in propose(case, examine(case).findings)}


def test_a_healthy_job_gets_what_changes_how_it_computes() -> None:
    assert {each.finding for each in propose(HEALTHY, examine(HEALTHY).findings)} == {"ST908"}


# -- input -----------------------------------------------------------------------------------------------------------


def test_more_batches_in_store_are_for_items_that_vary_not_for_too_few_workers() -> None:
    keeps_up = replace(
        HEALTHY, loader=loader(3 * MS, 0.3 * MS, workers=2, prefetch_factor=2, persistent_workers=True), contention=None
    )
    option = only("RM103", keeps_up)
    assert change(option).argument("prefetch_factor") == 8
    assert option.saving is not None
    assert option.saving.high <= 3.1 * MS
    assert isinstance(option.edit, CallEdit)
    too_few = replace(keeps_up, loader=loader(3 * MS, 3 * MS, workers=2, prefetch_factor=2))
    deep = replace(keeps_up, loader=loader(3 * MS, 0.3 * MS, workers=2, prefetch_factor=16))
    none = replace(keeps_up, loader=loader(3 * MS, 0.3 * MS, workers=0))
    assert [options("RM103", case) for case in (too_few, deep, none)] == [(), (), ()]


def test_another_number_of_workers_is_tried_only_where_it_may_be_as_good() -> None:
    def tried(case: Case) -> list[object]:
        return [option.changes[0].argument("num_workers") for option in options("RM101", case)]

    alone = replace(HEALTHY, settings=None, contention=None)
    hidden_by_one = replace(alone, loader=loader(8 * MS, 0.25 * MS, workers=0, usable_cpus=4))
    assert tried(hidden_by_one) == [1, 2]
    long = replace(alone, step=replace(HEALTHY.step, duration=about(100 * MS)))
    needs_all = replace(long, loader=loader(80 * MS, 2.5 * MS, workers=0, usable_cpus=2))
    assert tried(needs_all) == [2]


def test_batches_are_handed_over_by_name_where_workers_keep_up_and_the_training_waits_all_the_same() -> None:
    late = replace(HEALTHY, loader=loader(6 * MS, 0.1 * MS, workers=2), contention=None)
    option = only("RM109", late)
    assert change(option).argument("strategy") == "file_system"
    assert option.saving is not None
    assert option.saving.high == pytest.approx(6 * MS)
    assert option.saving.value == pytest.approx(3 * MS)
    assert option.edit == StatementEdit('torch.multiprocessing.set_sharing_strategy("file_system")', "torch")
    busy = replace(HEALTHY, loader=loader(6 * MS, 6 * MS, workers=2), contention=None)
    none = replace(HEALTHY, loader=loader(6 * MS, 0.1 * MS, workers=0), contention=None)
    assert [options("RM109", case) for case in (busy, none)] == [(), ()]


def test_advice_has_the_line_of_the_finding_and_its_upper_bound() -> None:
    case = PLANTED["dispatch-loop"]["fires"]
    findings = examine(case).findings
    proposal = next(each for each in propose(case, findings) if each.fix.code == "RM108")
    finding = next(each for each in findings if each.code == proposal.finding)
    assert proposal.advice_only
    assert isinstance(proposal.option.edit, Snippet)
    assert proposal.option.edit.site == finding.source
    assert finding.savings is not None
    most = case.step.duration.value / (case.step.duration.value - finding.savings.value)
    assert f"At most {most:.2f}×" in proposal.option.advice


# -- optimizer -------------------------------------------------------------------------------------------------------


def test_an_optimiser_in_8_bits_needs_its_package_and_a_device() -> None:
    large = optimizer(8 * MS, elements=50_000_000)
    case = replace(CUDA, optimizers=(large,), settings=replace(SETTINGS, packages=("torchao",)))
    option = only("RM202", case)
    assert change(option) == Change("optimizer-8bit", arguments=(("package", "torchao"),))
    without = replace(case, settings=SETTINGS)
    on_cpu = replace(case, step=step())
    sgd = replace(case, optimizers=(optimizer(8 * MS, elements=50_000_000, type="SGD"),))
    assert [options("RM202", each) for each in (without, on_cpu, sgd)] == [(), (), ()]


def test_gradients_are_dropped_where_zeroing_them_is_seen() -> None:
    case = PLANTED["zeroed-gradients"]["fires"]
    option = only("RM203", case)
    asked = next(use.source for use in case.lines if "set_to_none" in use.source.text)
    assert option.edit == CallEdit("zero_grad", (("set_to_none", "True"),), asked)
    assert option.saving is not None
    assert option.saving.low == pytest.approx(0.8 * MS)
    assert option.saving.value == pytest.approx(2.4 * MS)
    accumulating = only("RM203", replace(case, step=replace(case.step, micro_batches=4.0)))
    assert accumulating.saving is not None
    assert accumulating.saving.value == pytest.approx(0.8 * MS)
    assert options("RM203", PLANTED["zeroed-gradients"]["clean-zeros-of-the-model"]) == ()


# -- precision, layout, compilation ----------------------------------------------------------------------------------


def test_float16_is_for_devices_that_are_slower_in_bfloat16() -> None:
    turing = replace(FAST, rates=(("float32", 8e12), ("float16", 60e12)))
    option = only("RM306", replace(CUDA, machine=turing))
    assert change(option) == Change("autocast", arguments=(("dtype", "float16"), ("device", "cuda")))
    assert option.saving is not None
    assert option.saving.high == pytest.approx(CUDA.categories[0].duration.value * (1 - 8 / 60))
    assert options("RM306", replace(CUDA, machine=FAST)) == ()
    assert options("RM306", replace(HEALTHY, machine=turing)) == ()


def test_autocast_and_compilation_are_written_where_the_loop_is_known() -> None:
    fast = replace(HEALTHY.machine or FAST, rates=(("float32", 1e11), ("bfloat16", 3e11)))
    case = replace(HEALTHY, machine=fast, top_modules=(TopModuleUse("Net", 12, 800_000),))
    forward, backward = case.lines[0].source, case.lines[1].source
    source = SourceLine("train.py", forward.line + 1, "main", "loss.backward()")
    case = replace(case, lines=(case.lines[0], replace(case.lines[1], source=source)))
    edit = only("RM301", case).edit
    assert isinstance(edit, AutocastEdit)
    assert (edit.forward, edit.backward, edit.device, edit.dtype) == (forward, source, "cpu", "bfloat16")
    compiled = only("RM303", case).edit
    assert isinstance(compiled, ModelEdit)
    assert (compiled.prefixed, compiled.in_place) == (True, "{model}.compile()")
    assert compiled.optimizer == case.optimizers[0].site
    own = replace(case, top_modules=(TopModuleUse("Sequential", 12, 800_000, own=True),))
    edit = only("RM303", own).edit
    assert isinstance(edit, ModelEdit)
    assert edit.in_place == ""  # torch passes over a Sequential that is compiled in place
    twice = replace(case, lines=(*case.lines, replace(case.lines[1], source=backward)))
    assert isinstance(only("RM301", twice).edit, Snippet)
    assert isinstance(only("RM303", twice).edit, Snippet)


def test_what_is_compiled_is_not_compiled_again() -> None:
    compiled = replace(CUDA, top_modules=(TopModuleUse("OptimizedModule", 12, 800_000, "cuda", compiled=True),))
    for code in ("RM303", "RM307"):
        assert options(code, CUDA)
        assert options(code, compiled) == ()
    assert options("RM307", HEALTHY) == ()  # graphs are CUDA's


def test_kernels_are_tuned_on_a_device_whose_work_stays_the_same() -> None:
    _, tuned = options("RM303", CUDA)
    assert change(tuned).argument("mode") == "max-autotune"
    assert tuned.saving is None  # which kernels win is not known
    assert [each.changes for each in options("RM303", HEALTHY)] == [(Change("compile"),)]


def test_what_compiling_gains_is_not_predicted_where_every_step_is_another() -> None:
    assert options("RM303", CUDA)[0].saving is not None
    assert options("RM303", replace(CUDA, changing_work=False))[0].saving is not None
    assert only("RM303", replace(CUDA, changing_work=True)).saving is None


def test_fusing_a_chain_saves_two_thirds_of_it() -> None:
    chain = operator("mul", 8, 6 * MS, "memory", bytes=1e8)
    launch = categories(overhead=1 * MS)
    alone = only("RM303", replace(HEALTHY, operators=(), categories=launch)).saving
    companions = only("RM303", replace(HEALTHY, operators=(chain,), categories=launch)).saving
    of_the_update = only(
        "RM303", replace(HEALTHY, operators=(replace(chain, phase="optimizer"),), categories=launch)
    ).saving
    assert alone is not None
    assert companions is not None
    assert companions.value - alone.value == pytest.approx(4 * MS)
    assert of_the_update == alone


def test_compiling_on_a_cpu_saves_python_between_the_operators_of_the_model() -> None:
    work = (operator("mul", 200, 2 * MS, "latency"), operator("add_", 40, 0.5 * MS, "latency", "optimizer"))
    spent = categories(4 * MS, overhead=2.5 * MS, python=1.5 * MS)
    case = replace(HEALTHY, operators=work, categories=spent, phases=phases(forward=1 * MS, backward=2 * MS))
    tight = replace(case, phases=phases(forward=1 * MS, backward=1 * MS))
    loose = replace(case, phases=phases(forward=9 * MS, backward=9 * MS))
    saved = [only("RM303", each).saving for each in (tight, case, loose)]
    values = [each.value for each in saved if each is not None]
    dispatching = 0.9 * 2.5 * MS
    assert values == pytest.approx([dispatching, dispatching + 2 / 3 * MS, dispatching + 2 / 3 * 1.5 * MS])
    device = replace(loose, step=replace(HEALTHY.step, device="cuda"))
    on_device = options("RM303", device)[0].saving
    assert on_device is not None
    assert on_device.value == pytest.approx(2 / 3 * 2.5 * MS)


def test_compiling_on_a_cpu_makes_a_quick_tanh_slower_and_leaves_a_slow_one() -> None:
    def saved(name: str, duration: float) -> float:
        plain = operator("mul", 20, 30 * MS, "memory", bytes=400e6)
        use = operator(name, 2, duration, "memory", bytes=16e6)
        spent = categories(30 * MS + duration, overhead=1 * MS)
        saving = only("RM303", replace(HEALTHY, operators=(plain, use), categories=spent)).saving
        assert saving is not None
        return saving.value

    compiled = 2 * 1.65 * 2e6  # ns, forward and again in backward
    quick, slow, slowest = 1.2 * MS, 6 * MS, 9 * MS
    assert saved("exp", quick) - saved("tanh", quick) == pytest.approx(compiled - quick / 3)
    assert saved("exp", slow) - saved("tanh", slow) == pytest.approx(compiled - slow)
    assert saved("exp", slowest) == saved("tanh", slowest)


def test_what_computes_is_reported_by_what_plain_operators_reach_alongside_it() -> None:
    def names(rate: float) -> list[str]:
        plain = operator("mul", 4, 1e9 / rate, "memory", bytes=1.0)
        slow = operator("sigmoid", 1, 1e9 / 4.8e9, "memory", bytes=1.0)
        return [use.name for use in moving([plain, slow], replace(FAST, copy_bytes=40e9))]

    assert names(6.8e9) == ["aten::mul", "aten::sigmoid"], "new memory each time is as slow for all"
    assert names(30e9) == ["aten::mul"]


def test_compiling_does_not_save_the_random_numbers_of_dropout() -> None:
    moving = operator("mul", 40, 4 * MS, "memory", bytes=80e6)
    drawn = operator("bernoulli_", 14, 3 * MS, "memory", bytes=2.4e6)
    spent = categories(7 * MS, overhead=1 * MS)
    without, companions = (replace(HEALTHY, operators=work, categories=spent) for work in ((moving,), (moving, drawn)))
    assert only("RM303", companions).saving == only("RM303", without).saving


def test_bfloat16_is_for_products_and_for_what_they_make() -> None:
    fast = replace(HEALTHY.machine or FAST, rates=(("float32", 1e11), ("bfloat16", 4e11)))
    product = operator("addmm", 12, 12 * MS, "compute", flops=1.2e9, bytes=30e6)
    moving = operator("mul", 11, 4 * MS, "memory", bytes=8e6)
    case = replace(HEALTHY, machine=fast, operators=(product, moving), categories=categories())
    saving = only("RM301", case).saving
    assert saving is not None
    assert saving.high == pytest.approx(0.75 * 12 * MS + 0.5 * 4 * MS)
    assert saving.value == pytest.approx(0.9 * 0.75 * 12 * MS + 0.45 * 0.5 * 4 * MS)
    assert options("RM301", replace(case, operators=(moving,))) == ()  # autocast casts nothing
    waiting = replace(case, operators=(replace(product, bound="memory"), moving))
    read = only("RM301", waiting).saving
    assert read is not None
    assert read.high == pytest.approx(0.5 * 4 * MS), "weights are read in single precision to be cast"


def test_workers_that_live_on_still_make_the_first_batch_of_an_epoch() -> None:
    source = replace(loader(1 * MS, 100 * US, workers=1), start=about(60 * MS), starts=9, steps_per_start=10.0)
    first = 100 * US * (source.batch_size or 1) + (source.collate.value if source.collate else 0.0)
    saving = only("RM102", replace(HEALTHY, loader=source)).saving
    assert saving is not None
    assert saving.value == pytest.approx((60 * MS - 2 * first) / 10)
    assert only("RM102", replace(HEALTHY, loader=replace(source, item=None))).saving == about(6 * MS)
    settling = only("RM102", replace(HEALTHY, loader=replace(source, settling=9 * MS))).saving
    assert settling is not None
    assert settling.value == pytest.approx(saving.value + 0.9 * MS)


def test_workers_are_not_kept_where_each_epoch_makes_another_loader() -> None:
    source = replace(loader(1 * MS, 100 * US, workers=1), start=about(60 * MS), starts=9, steps_per_start=10.0)
    assert options("RM102", replace(HEALTHY, loader=replace(source, made_anew=True))) == ()


def test_compiling_saves_more_of_the_dispatching_on_a_cpu() -> None:
    for case, part in ((HEALTHY, 0.9), (replace(HEALTHY, step=replace(HEALTHY.step, device="cuda")), 2 / 3)):
        option = options("RM303", replace(case, operators=(), categories=categories(overhead=1 * MS)))[0]
        assert option.saving is not None
        assert option.saving.value == pytest.approx(part * MS)
        assert option.reach == pytest.approx(1 * MS), "all of it, whatever the finding is about"


def test_graphs_save_what_the_replay_as_one_launch_says() -> None:
    saved = Prediction("one graph launch", about(4 * MS), 5 * MS)
    case = replace(CUDA, replay=ReplayUse(0.02, 4, (), (saved,)))
    option = only("RM307", case)
    assert option.saving is not None
    assert option.saving.value == pytest.approx(0.6 * 4 * MS)
    assert change(option).argument("mode") == "reduce-overhead"


def test_a_step_to_be_captured_names_what_must_leave_it_and_gives_the_code() -> None:
    saved = Prediction("one graph launch", about(4 * MS), 5 * MS)
    case = replace(CUDA, replay=ReplayUse(0.02, 4, (), (saved,)), sites=(), changing_work=False)
    model, option = options("RM312", case)
    assert change(model).kind == "graphed-callables"
    assert model.saving is not None
    assert model.saving.value == pytest.approx(0.6 * 4 * MS)
    assert (option.changes, option.advice) == ((), "Capture the step as one CUDA graph.")
    reading = SiteUse("item", "cuda", 1.0, SourceLine("/job/train.py", 31))
    advice = only("RM312", replace(case, sites=(reading,), changing_work=True)).advice
    assert "train.py:31" in advice
    assert "a graph for each" in advice
    in_use = replace(case, step=replace(case.step, graphs=GraphUse(2.0, 0.0, 400.0, 0.9, 0.0, 0.0, 0.0)))
    assert options("RM312", in_use) == options("RM312", HEALTHY) == options("RM312", CUDA) == ()


def test_the_code_of_a_captured_step_is_python_and_uses_what_torch_has() -> None:
    torch = pytest.importorskip("torch")
    compile(CAPTURED_STEP, "example", "exec")
    assert [name for name in re.findall(r"torch\.cuda\.(\w+)", CAPTURED_STEP) if not hasattr(torch.cuda, name)] == []


@pytest.mark.gpu
def test_a_captured_step_trains_as_the_plain_one() -> None:
    torch = pytest.importorskip("torch")
    names = {
        "torch": torch,
        "loader": [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(4)],
        "model": torch.nn.Linear(4, 2).cuda(),
        "loss_function": torch.nn.functional.mse_loss,
    }
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    exec(CAPTURED_STEP, names)
    before = float(names["loss"])
    for _ in range(50):
        names["graph"].replay()
    assert float(names["loss"]) < before


def test_attention_tries_flash_only_in_half_precision() -> None:
    kernel = KernelUse("softmax", "aten::_softmax", 12, 4 * MS, "memory", dtype="float32")
    single = options("RM308", replace(CUDA, kernels=(kernel,)))
    half = options("RM308", replace(CUDA, kernels=(replace(kernel, dtype="bfloat16"),)))
    assert [[each.argument("backend") for each in option.changes] for option in single] == [["efficient"], []]
    assert [[each.argument("backend") for each in option.changes] for option in half] == [["efficient"], ["flash"], []]
    assert options("RM308", HEALTHY) == ()


def test_sizes_become_symbols_only_where_they_are_compiled_again_late() -> None:
    late = CompilationUse(SourceLine("train.py", 3), 2_000_000_000, True)
    early = replace(late, after_warm_up=False)
    option = only("RM309", replace(HEALTHY, compilations=(late, late, early)))
    assert option.saving is not None
    assert option.saving.high == pytest.approx(4e9 / HEALTHY.step.steady)
    assert option.edit == CallEdit("torch.compile", (("dynamic", "True"),))
    assert options("RM309", replace(HEALTHY, compilations=(early,))) == ()


def test_tensor_float_is_not_proposed_where_it_is_in_force() -> None:
    assert isinstance(only("RM302", CUDA).edit, StatementEdit)
    assert options("RM302", replace(CUDA, settings=replace(SETTINGS, matmul_precision="high"))) == ()


# -- the machine -----------------------------------------------------------------------------------------------------

STALLS = (AllocationUse("cudaMalloc", 3, about(1 * MS), about(2 * MS)),)


def test_segments_that_grow_are_added_to_what_is_set_already() -> None:
    case = replace(CUDA, allocations=STALLS, settings=replace(SETTINGS, allocator="max_split_size_mb:128"))
    option = only("RM403", case)
    value = "max_split_size_mb:128,expandable_segments:True"
    assert change(option) == Change("environment", arguments=(("PYTORCH_CUDA_ALLOC_CONF", value),))
    assert option.edit == EnvironmentEdit((("PYTORCH_CUDA_ALLOC_CONF", value),))
    on = replace(case, settings=replace(SETTINGS, allocator="expandable_segments:True"))
    uncached = replace(case, allocations=(replace(STALLS[0], calls=400),))
    assert options("RM403", on) == options("RM403", uncached) == options("RM403", replace(HEALTHY)) == ()


LARGE = operator("mul", 4, 9 * MS, "memory", bytes=4 * 3 * (48 << 20))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc's allocator only")
def test_large_tensors_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["steptime.advice.fixes.machine"]
    monkeypatch.setattr(module, "find_library", {"jemalloc": "/lib/j.so"}.get)
    case = replace(HEALTHY, operators=(LARGE,))
    kept, preloaded = options("RM402", case)
    assert change(kept).argument("MALLOC_MMAP_MAX_") == "0"
    assert change(preloaded) == Change("preload", "jemalloc")
    assert preloaded.edit == EnvironmentEdit((("LD_PRELOAD", "/lib/j.so"),))
    small = replace(case, operators=(replace(LARGE, bytes=4 * 3 * (16 << 20)),))
    rare = replace(case, operators=(replace(LARGE, duration=1 * MS),))
    assert [options("RM402", each) for each in (small, rare, HEALTHY, replace(case, step=step(device="cuda")))] == [
        ()
    ] * 4


def test_threads_are_set_where_the_job_sets_them() -> None:
    many = replace(SETTINGS, intra_op_threads=16, omp_num_threads="16")
    assert only("RM401", replace(HEALTHY, settings=many, loader=None)).edit == EnvironmentEdit(
        (("OMP_NUM_THREADS", "8"),)
    )
    own = SwitchEdit("set_num_threads", "torch.set_num_threads(8)", "8")
    for asked in (None, "1"):
        case = replace(HEALTHY, settings=replace(many, omp_num_threads=asked), loader=None)
        assert only("RM401", case).edit == own


def test_more_threads_are_for_idle_cpus() -> None:
    few = replace(HEALTHY, settings=replace(SETTINGS, omp_num_threads="1"), loader=None)
    assert only("RM401", few).edit == EnvironmentEdit((("OMP_NUM_THREADS", "8"),))
    assert options("RM401", replace(few, contention=contention(other=6.0, job=1.0))) == ()
    assert options("RM401", replace(few, settings=replace(SETTINGS, omp_num_threads="1", trainers_on_host=8))) == ()


def test_cudnn_chooses_by_trying_where_convolutions_matter() -> None:
    convolutions = (OperatorUse("aten::cudnn_convolution", 20, 9 * MS, "compute"),)
    case = replace(CUDA, operators=convolutions)
    assert change(only("RM404", case)) == Change("cudnn-benchmark")
    on = replace(case, settings=replace(SETTINGS, cudnn_benchmark=True))
    repeatable = replace(case, settings=replace(SETTINGS, deterministic=True))
    few = replace(case, operators=(replace(convolutions[0], duration=1 * MS),))
    assert [options("RM404", each) for each in (on, repeatable, few, replace(case, step=step()))] == [()] * 4


# -- switches, memory ------------------------------------------------------------------------------------------------


def test_switches_that_are_off_are_left_alone() -> None:
    on = replace(HEALTHY, settings=replace(SETTINGS, detect_anomaly=True, deterministic=True, profiler=True))
    assert isinstance(only("RM501", on).edit, SwitchEdit)
    assert isinstance(only("RM502", on).edit, SwitchEdit)
    assert change(only("RM503", on)) == Change("profiler-off")
    assert [options(code, HEALTHY) for code in ("RM501", "RM502", "RM503")] == [(), (), ()]


def test_debugging_variables_are_switched_off_where_they_act() -> None:
    left = (("CUDA_LAUNCH_BLOCKING", "1"), ("PYTHONDEVMODE", "1"), ("PYTHONMALLOC", "debug"), ("OF_A_PLUGIN", "1"))
    on = replace(HEALTHY, settings=replace(SETTINGS, debug_switches=left))
    assert only("RM504", on).edit == EnvironmentEdit((("PYTHONDEVMODE", ""), ("PYTHONMALLOC", "default")))
    assert options("RM504", HEALTHY) == ()


def test_what_nobody_can_predict_is_tried_before_what_gains_little() -> None:
    case = replace(
        PLANTED["zeroed-gradients"]["fires"], settings=replace(SETTINGS, debug_switches=(("PYTHONDEVMODE", "1"),))
    )
    tried = [proposal.fix.code for proposal in propose(case, examine(case).findings)]
    assert tried.index("RM504") < tried.index("RM203")


def test_denormals_are_flushed_where_they_are_not_yet() -> None:
    slow = PLANTED["slow-arithmetic"]["fires"]
    unset = replace(slow, settings=replace(SETTINGS, denormals_flushed=False))
    assert only("RM405", unset).edit == StatementEdit("torch.set_flush_denormal(True)", "torch")
    flushed = replace(slow, settings=replace(SETTINGS, denormals_flushed=True))
    assert [options("RM405", each) for each in (flushed, replace(slow, settings=None))] == [(), ()]


def test_checks_of_distributions_are_switched_off_and_their_gain_is_known_where_no_rollouts_are() -> None:
    checked = PLANTED["argument-checks"]["fires"]
    option = only("RM505", checked)
    assert option.edit == StatementEdit("torch.distributions.Distribution.set_default_validate_args(False)", "torch")
    assert option.saving is not None
    acting = replace(checked, segments=PLANTED["rollout-share"]["fires"].segments)
    assert only("RM505", acting).saving is None
    assert options("RM505", HEALTHY) == ()


def test_objects_are_frozen_before_the_loop_that_is_known() -> None:
    known = replace(HEALTHY, lines=(HEALTHY.lines[0], replace(HEALTHY.lines[1], source=_below(HEALTHY))))
    assert isinstance(only("RM107", replace(HEALTHY, lines=())).edit, Snippet)
    assert isinstance(only("RM107", known).edit, LoopEdit)


def _below(case: Case) -> SourceLine:
    first = case.lines[0].source
    return SourceLine(first.file, first.line + 1, first.function, "loss.backward()")


def test_activations_are_computed_again_only_where_memory_stalls() -> None:
    full = replace(CUDA, allocations=(replace(STALLS[0], name="cudaFree"),))
    assert change(only("RM601", full)) == Change("checkpointing")
    assert options("RM601", replace(CUDA, allocations=STALLS)) == options("RM601", CUDA) == ()


def test_memory_that_is_short_gets_advice_and_no_trial() -> None:
    case = replace(CUDA, memory=MemoryUse("cuda", peak=78 << 30, capacity=80 << 30))
    note = Finding("ST704", "memory-near-capacity", Weight.NOTE, "It is nearly full.", "Use less.")
    (proposal,) = propose(case, (note,))
    assert proposal.fix.code == "RM601"
    assert proposal.advice_only
    assert proposal.option.advice == "activation checkpointing would take less memory."
    roomy = replace(case, memory=MemoryUse("cuda", peak=8 << 30, capacity=80 << 30))
    assert propose(roomy, (note,)) == ()
    fragmented = replace(note, code="ST703", name="memory-fragmentation")
    assert [each.fix.code for each in propose(case, (fragmented,))] == ["RM403"]


def test_whoever_wants_memory_gets_all_that_frees_some_whatever_was_found() -> None:
    roomy = replace(CUDA, memory=MemoryUse("cuda", peak=8 << 30, capacity=80 << 30))
    proposals = propose(roomy, (), goal=Goal.MEMORY)
    assert {"RM601", "RM301"} <= {each.fix.code for each in proposals}
    assert all(each.fix.frees and each.option.changes and each.option.saving is None for each in proposals)
    assert proposals[0].fix.code == "RM601", "what may free most, for its risk, comes first"
    again = replace(roomy, recompute=RecomputeUse(about(MS)))
    assert "RM601" not in {each.fix.code for each in propose(again, (), goal=Goal.MEMORY)}


# -- several ranks ---------------------------------------------------------------------------------------------------

EXCHANGE = CollectiveUse("allreduce", "0", 8, about(6 * MS), about(5 * MS), bytes=400e6)
RANKS = replace(
    CUDA,
    top_modules=(DDP,),
    collectives=(EXCHANGE,),
    categories=categories(communication=5 * MS),
    step=step(device="cuda"),
)


def test_buckets_grow_where_there_are_many_collectives() -> None:
    views, buckets = options("RM701", RANKS)
    assert dict(change(views).arguments) == {"static_graph": True, "gradient_as_bucket_view": True}
    assert change(buckets).argument("bucket_cap_mb") == 100
    few = replace(RANKS, collectives=(replace(EXCHANGE, calls=1),))
    assert change(options("RM701", few)[1]).argument("bucket_cap_mb") == 5
    assert options("RM701", replace(RANKS, top_modules=())) == ()


def test_rows_of_like_length_come_into_one_batch() -> None:
    case = replace(CUDA, loader=loader(MS, MS))
    option = only("RM111", case)
    assert change(option) == Change("similar-lengths", arguments=(("site", "train.py:12"),))
    assert (option.saving, option.other_data) == (None, True)
    assert options("RM111", replace(case, loader=loader(MS, MS, iterable=True))) == ()
    assert options("RM111", replace(case, loader=loader(MS, MS, batch_size=1))) == ()
    assert options("RM111", replace(case, top_modules=(replace(DDP, compiled=True),))) == ()


def sized(index: int, expected: int, actual: int) -> CompilationUse:
    reason = f"0/1: tensor 'x' size mismatch at index {index}. expected {expected}, actual {actual}"
    return CompilationUse(SourceLine("train.py", 3), 2_000_000_000, True, reason)


def test_a_smaller_last_batch_is_left_out_where_it_is_compiled_for() -> None:
    ends = replace(loader(MS, MS), length=1000, batch_size=32, batches=32)
    case = replace(HEALTHY, loader=ends, compilations=(sized(0, 32, 8),))
    option = only("RM112", case)
    assert option.edit == CallEdit("DataLoader", (("drop_last", "True"),), ends.site)
    assert option.as_written
    assert option.other_data
    assert options("RM112", replace(case, compilations=(sized(1, 32, 8),))) == (), "rows differ, not their number"
    assert options("RM112", replace(case, loader=replace(ends, batches=31))) == (), "it is dropped already"
    assert options("RM112", replace(case, loader=replace(ends, length=1024, batches=32))) == ()


def test_lengths_are_padded_to_a_few_that_pad_least() -> None:
    sizes = (30, 31, 62, 64, 120, 128, 250)
    case = replace(HEALTHY, compilations=tuple(sized(1, sizes[0], size) for size in sizes[1:]))
    option = only("RM113", case)
    assert option.label == "4 lengths"
    assert re.search(r"3 lengths pad \d+ %, 4 lengths pad (\d\.\d) %, 5 lengths", option.advice)
    padded = 1 - sum(sizes) / (2 * 32 + 2 * 64 + 2 * 128 + 256)
    assert f"4 lengths pad {format_share(padded)}, " in option.advice
    assert option.advice.endswith("in place of 7 compiled shapes.")
    assert isinstance(option.edit, Snippet)
    assert option.edit.text.startswith("BOUNDS = [32, 64, 128, 256] ")
    compile(option.edit.text, "pasted", "exec")
    assert options("RM113", replace(HEALTHY, compilations=(sized(1, 30, 31),))) == (), "too few sizes were seen"
    assert options("RM113", replace(HEALTHY, compilations=tuple(sized(0, 30, size) for size in sizes))) == ()


def test_a_sharded_models_parameters_are_gathered_once() -> None:
    gathers = replace(EXCHANGE, name="_allgather_base", exposed=about(4 * MS))
    case = replace(RANKS, top_modules=(replace(DDP, type="FSDPModel"),), collectives=(gathers, EXCHANGE))
    kept, early = options("RM704", case)
    assert change(kept) == Change("sharding", arguments=(("keep", True),))
    assert kept.saving is not None
    assert kept.saving.value == 2 * MS
    assert (change(early).argument("prefetch"), early.saving) == (True, None)
    assert options("RM704", RANKS) == ()


def test_replicas_are_split_over_the_ranks_for_memory() -> None:
    state, model = options("RM705", RANKS)
    assert (change(state), change(model)) == (Change("shard-optimizer"), Change("shard-model"))
    assert options("RM705", replace(RANKS, top_modules=(replace(DDP, type="FSDPModel"),))) == ()


def test_gradients_are_exchanged_once_an_update() -> None:
    accumulating = replace(RANKS, step=replace(RANKS.step, micro_batches=4.0))
    option = only("RM702", accumulating)
    assert change(option) == Change("no-sync")
    assert option.saving is not None
    assert option.saving.value == pytest.approx(0.75 * 5 * MS)
    assert option.label == "no_sync() in 3 of 4 backwards"
    once = replace(accumulating, collectives=(replace(EXCHANGE, bytes=100e6),))
    assert options("RM702", once) == options("RM702", RANKS) == ()


def test_a_trace_tells_of_exchanges_buckets_and_searches() -> None:
    used = GradientUse(4.0, 4.0, 30.0, 10_000_000, about(1 * MS))
    case = replace(RANKS, top_modules=(), gradients=used)
    search, views, buckets = options("RM701", case)
    assert change(search).arguments == (("find_unused_parameters", False),)
    assert search.saving == used.search
    assert (change(views).argument("static_graph"), change(buckets).argument("bucket_cap_mb")) == (True, 100)
    assert only("RM702", case).label == "no_sync() in 3 of 4 backwards"
    assert options("RM702", replace(case, gradients=replace(used, synchronised=1.0))) == ()


def test_accumulating_is_advice_and_never_tried() -> None:
    assert only("RM703", RANKS).changes == ()
    assert options("RM703", replace(RANKS, step=replace(RANKS.step, micro_batches=4.0))) == ()


def test_what_a_step_needs_at_least_is_known_of_an_accelerator_only() -> None:
    products = (operator("mm", 4, MS, "compute", flops=1e12), operator("mul", 4, MS, "memory", flops=1e12))
    rates = MachineUse("H100", True, 5e13, 2e12, 1e4, (("bfloat16", 1e14), ("float32", 5e13)))
    case = replace(HEALTHY, step=step(device="cuda:0"), operators=products, machine=rates)
    assert least_step(case) == pytest.approx(10 * MS)
    recomputed = replace(case, recompute=RecomputeUse(about(MS)))
    unknown = (recomputed, replace(case, machine=None), replace(case, machine=replace(rates, under_load=True)))
    assert [least_step(each) for each in (*unknown, replace(case, step=step()))] == [0.0] * 4
