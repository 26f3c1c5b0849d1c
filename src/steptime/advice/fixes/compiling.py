"""RM30x: compilation, layouts and kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steptime.advice.activations import activation_in
from steptime.advice.device_uses import ChainUse
from steptime.advice.evidence import Case, CompilationUse, RecomputeUse
from steptime.advice.fix import (
    ActivationEdit,
    CallEdit,
    DecoratorEdit,
    JointEdit,
    Option,
    Promise,
    Snippet,
    fix,
    model_edit,
)
from steptime.advice.kernels import POINTWISE, moving, plain_name
from steptime.advice.line_evidence import AT_WORK, function_of, loop_functions, steady_time
from steptime.advice.run_uses import StepSummary
from steptime.advice.savings import modelled, named, of_kernels, partly, ratio
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.changes import Change
from steptime.quantities import Estimate, SourceLine, format_source

LIKELY_COMPILED_MODEL = 2 / 3
"""Fraction of the dispatching: fused code still launches, and a graph break leaves all of it. And of the pointwise
operators: three in one save two writes and two reads of six (the optimizer's stay outside). By the profiler, 0.65 and
0.72 of what they took went on a CPU (the planted jobs `pointwise_chain` and `large_tensors`, torch 2.13); a job that
compiles each length of its sequences again lost a third of its speed (benchmarks/results/fixes-epyc-2cpu.md)."""
LIKELY_ON_CPU = 0.9
"""Fraction of the dispatching on a CPU, which is all that small operators take there: four trials of the planted job
`small_operators` reached 0.94 to 1.13 of it."""
TANH = "tanh"
COMPILED_TANH, TANH_BYTES = 1.65, 8.0
"""ns of one in code that is compiled for a CPU, which takes a more exact routine than torch's own kernel; and bytes
that the kernel moves for it. By hand (torch 2.13) 1.65 with AVX-512, where the kernel took 0.6 and 1.2; on a
processor with AVX2 two trials of `pointwise_chain` lost 4 for each. exp, sigmoid, gelu and log cost no more."""
TANHS = 2
"""For each: backward computes it again instead of keeping it."""
MODEL = ("forward", "backward")
"""Phases that are compiled; operators of theirs by name have one of these, too."""
STATEMENT_COMPILED_MODEL = "{model} = {torch}.compile({model})"
MASKS = "dropout masks"
TUNED = "max-autotune"
STATEMENT_TUNED_MODEL = f'{{model}} = {{torch}}.compile({{model}}, mode="{TUNED}")'
EXAMPLE_TUNED_MODEL = f'model = torch.compile(model, mode="{TUNED}")  # before the optimizer is made'
EXAMPLE_COMPILED_MODEL = "model = torch.compile(model)  # before the optimizer is made from its parameters"
CAPTURED_STEP = """\
static = [each.cuda() for each in next(iter(loader))]  # inputs that keep their addresses

def train():
    optimizer.zero_grad(set_to_none=True)
    loss = loss_function(model(static[0]), static[1])
    loss.backward()
    optimizer.step()  # Adam needs capturable=True
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):  # warm-up: three real updates on the first batch
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train()

for batch in loader:  # with drop_last=True
    for one, new in zip(static, batch):
        one.copy_(new, non_blocking=True)
    graph.replay()  # overwrites loss: clone it to keep it beyond the next replay"""
GRAPHED_MODEL = """\
images = next(iter(loader))[0].cuda()  # with drop_last=True: other shapes need a graph of their own
model = torch.cuda.make_graphed_callables(model, (images,))  # without hooks, before DistributedDataParallel"""
LIKELY_CHANNELS_LAST = 0.2
"""Fraction of the convolutions' time: 14 to 25 % were measured on networks of images on CPUs."""
LEAST_SHARE = 0.2
"""Fraction of the step: with fewer convolutions the layout does not matter."""
STATEMENT_CHANNELS_LAST = "{model} = {model}.to(memory_format={torch}.channels_last)"
BATCH = "{batch} = {batch}.to(memory_format={torch}.channels_last)"
EXAMPLE_CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)"
IMAGES = "images = images.to(memory_format=torch.channels_last)"
LIKELY_CUDA_GRAPHS = 0.6
"""Fraction of what a step in one launch would save by the replay: the optimizer and the loss stay outside."""
LEAST_CUDA_GRAPHS = 0.03
"""Fraction of the step: with less to gain they are not worth a process, which compiles for half a minute."""
STATEMENT_CUDA_GRAPHS = '{model} = {torch}.compile({model}, mode="reduce-overhead")'
IN_PLACE = '{model}.compile(mode="reduce-overhead")'
HALF = frozenset({"float16", "bfloat16", "half"})
"""Formats that the flash kernel takes; the memory-efficient one takes float32, too."""
PINNED = """from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel(SDPBackend.{backend}):
    output = model(batch)"""
WRITTEN = """# softmax(q @ k.transpose(-2, -1) / sqrt(d) + mask) @ v  ->
torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)"""
BACKENDS = {"efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION"}
LIKELY_READY_MADE = 0.5
"""Fraction of forward and backward of a formula, by hand on two CPUs (torch 2.13, 131,072 and 2,097,152 numbers): gelu
by tanh 0.45 to 0.58, exact 0.59 to 0.77, silu 0.03 to 0.47."""
LEAST_OF_FUNCTION = 0.05
"""Fraction of the step, in pointwise operators of one function: what two thirds of less gain is lost in noise."""
RANDOM = frozenset(
    {"bernoulli", "native_dropout", "_fused_dropout", "dropout", "uniform", "normal", "random", "exponential"}
)
FUSED = POINTWISE | {"where", "clamp_max", "sub"}
LIKELY_DYNAMIC_SHAPES, SURE_DYNAMIC_SHAPES = 0.8, 0.3
"""Fraction of the compilations after warm-up: each is paid a last time for a size of its own, and some reasons are no
sizes."""


@fix(
    "RM303",
    "compiled-model",
    addresses={"ST301", "ST302", "ST305", "ST401", "ST402", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=4,
    phases=MODEL,
)
def compiled_model(step: StepSummary, case: Case) -> Iterator[Option]:
    """The model compiled by torch.compile

    What it changes: The module that your loop calls is compiled (TorchInductor, default mode). The first steps take
    seconds to minutes; the trial excludes and reports them. On a CUDA device, steptime also tries
    mode="max-autotune". That mode times several kernels for each matmul and convolution while it compiles, which
    takes minutes more, and launches them as CUDA graphs. On a CPU, steptime lab --compile-modes times that mode.

    What it promises: A loss curve like that of another seed: dropout masks come from another generator. The trial
    compares the gradients of the first step, parameter by parameter, with dropout off. The reason: compilers have
    returned zero gradients next to a correct loss.

    What it should gain: On a device whose steps can be replayed, the predicted step is the longer of two times: the
    device's with its pointwise chains fused, and the CPU's with fewer kernels to launch. Elsewhere the gain is the
    sum of two parts: two thirds of the time for dispatching small operators (nine tenths on a CPU), and two thirds of
    the time of chains of pointwise operators, because fused ones read and write memory once. On a CPU, two thirds of
    the Python and autograd between the model's operators are added, but of no more of it than the dispatching takes.
    The extra time of a compiled tanh, which is slower there, is subtracted. Nothing is predicted if the profiled
    steps differ in shapes or in the number of operators: only the trial shows what is compiled again, and how often.

    When to leave it: When shapes change all the time, or runs are shorter than the compilation.
    """
    if not case.compilable:
        return
    saving, reach = _saving(case) if not case.changing_work else (None, 0.0)
    edit = model_edit(case, STATEMENT_COMPILED_MODEL, EXAMPLE_COMPILED_MODEL, in_place="{model}.compile()")
    yield Option("torch.compile(model)", (Change("compile"),), saving, edit, MASKS, reach=reach)
    if step.device.startswith("cuda") and not case.changing_work:
        change = Change("compile", arguments=(("mode", TUNED),))
        in_place = f'{{model}}.compile(mode="{TUNED}")'
        tuned = model_edit(case, STATEMENT_TUNED_MODEL, EXAMPLE_TUNED_MODEL, in_place=in_place)
        yield Option(f'torch.compile(model, mode="{TUNED}")', (change,), None, tuned, MASKS, reach=reach)


def _saving(case: Case) -> tuple[Estimate | None, float]:
    """(what compiling saves, the time of all that it acts on), ns per step."""
    calibration = case.replay.calibration if case.replay is not None else None
    if calibration is not None and calibration.known:
        fused = _in_chains(case)
        likely = calibration.saved_by_kernels(
            LIKELY_COMPILED_MODEL * fused, {"dispatch": 1 - _fewer_launches(case.kernels, case.chains)}
        )
        most = calibration.saved_by_kernels(fused, {"dispatch": 1 - LIKELY_COMPILED_MODEL})
        return (modelled(likely, 0.0, most, case.step.steady), most) if most else (None, 0.0)
    launch = named(case.categories, "overhead")
    dispatching = launch.duration.value if launch is not None else 0.0
    around = min(dispatching, _between(case)) if case.step.device == "cpu" else 0.0
    fused = _in_chains(case) + around
    gain = dispatching + fused
    share = LIKELY_ON_CPU if case.step.device == "cpu" else LIKELY_COMPILED_MODEL
    likely = share * dispatching + LIKELY_COMPILED_MODEL * fused - _slower(case)
    return modelled(likely, 0.0, gain, case.step.steady) if gain else None, gain


def _fewer_launches(kernels: tuple[KernelUse, ...], chains: tuple[ChainUse, ...]) -> float:
    """Share of a device's launches that go where each chain becomes one kernel. The rest is launched one by one, from
    generated Python: for a GPT of 10.7 M parameters the CPU took 0.92 of its time when compiled (H200, torch 2.11,
    CUDA 13.0)."""
    launches = sum(use.calls for use in kernels)
    return min(LIKELY_COMPILED_MODEL, ratio(sum(each.kernels - each.calls for each in chains), launches))


def _in_chains(case: Case) -> float:
    """ns per step of what fusion makes less of: what a device's chains move in between, else pointwise operators that
    move bytes, on the scale of the steady steps."""
    if case.chains:
        return sum(chain.duration * ratio(chain.saved, chain.bytes) for chain in case.chains)
    return _steady(case, moving(case.operators, case.machine))


def _slower(case: Case) -> float:
    """ns per step that code compiled for a CPU takes longer for what torch's own kernels do quicker."""
    if case.step.device != "cpu":
        return 0.0
    kernels = [use for use in case.operators if plain_name(use.name) == TANH]
    moved = sum(use.bytes or 0.0 for use in kernels)
    fused = set(moving(case.operators, case.machine)) & set(kernels)
    left = _steady(case, kernels) - LIKELY_COMPILED_MODEL * _steady(case, fused)
    return max(0.0, TANHS * COMPILED_TANH * moved / TANH_BYTES - left)


def _steady(case: Case, chosen: Iterable[OperatorUse]) -> float:
    return steady_time(chosen, case.operators, case.categories, case.machine)


def _between(case: Case) -> float:
    """ns per step of forward and backward in which no operator runs: modules that are called, autograd's own work."""
    inside = sum(phase.duration.value for phase in case.phases if phase.name in MODEL)
    at_work = sum(category.duration.value for category in case.categories if category.name in AT_WORK)
    elsewhere = [use for use in case.operators if use.phase not in MODEL]
    at_work -= _steady(case, elsewhere)
    python = named(case.categories, "python")
    return min(max(0.0, inside - at_work), python.duration.value if python is not None else 0.0)


@fix(
    "RM304",
    "channels-last",
    addresses={"ST402", "ST403", "ST407", "ST413", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=2,
)
def channels_last(step: StepSummary, case: Case) -> Option | None:
    """Images with their channels innermost in memory

    What it changes: Weights of 2-D convolutions, and the batches that enter the model, are stored as channels_last.
    Parameters stay the same objects, and shapes stay the same.

    What it promises: A loss curve like that of another seed: sums are taken in another order, dropout masks land on
    other elements.

    What it should gain: About a fifth of the time of convolutions, as measured on CPUs; more with half precision on an
    accelerator.

    When to leave it: When the model reshapes its features with view(), which asks for the usual order.
    """
    device = sum(use.duration for use in case.kernels if "convolution" in use.operator or "conv2d" in use.operator)
    host = sum(use.duration for use in case.operators if "convolution" in use.name or "conv2d" in use.name)
    spent = device or host  # on a device the CPU's operators only launch
    if spent < LEAST_SHARE * step.duration.value:
        return None
    saving = modelled(LIKELY_CHANNELS_LAST * spent, 0.0, 2 * LIKELY_CHANNELS_LAST * spent, step.steady)
    saving = of_kernels(saving, case.replay)
    edit = model_edit(case, STATEMENT_CHANNELS_LAST, f"{EXAMPLE_CHANNELS_LAST}\n{IMAGES}", BATCH)
    return Option("channels_last", (Change("channels-last"),), saving, edit, "where dropout masks land")


@fix("RM305", "no-checkpointing", addresses={"ST701"}, promise=Promise.SAME_BITS, risk=3)
def no_checkpointing(recompute: RecomputeUse) -> Option | None:
    """Activations kept instead of computed twice

    What it changes: The job's own calls of torch.utils.checkpoint become plain calls.

    What it promises: Equal losses: checkpointing restores the random numbers of the forward that it repeats.

    What it should gain: The measured time of the operators that run again inside backward, and of the Python around
    them.

    When to leave it: When memory does not suffice without checkpointing: the trial then fails and says so. A trial
    that succeeds reports peak memory, too.
    """
    snippet = Snippet("block(x)  # instead of checkpoint(block, x, …)")
    change = Change("checkpointing", arguments=(("enabled", False),))
    return Option("no activation checkpointing", (change,), recompute.duration, snippet)


@fix(
    "RM307",
    "cuda-graphs",
    addresses={"ST301", "ST302", "ST305", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=5,
    phases=MODEL,
)
def cuda_graphs(step: StepSummary, case: Case) -> Option | None:
    """The model's kernels launched as one graph

    What it changes: The module that your loop calls is compiled with mode="reduce-overhead": forward and backward are
    recorded as CUDA graphs and launched by one call each. The compiler decides what can be recorded, and keeps to plain
    launches where it cannot (changing shapes, copies to the CPU).

    What it promises: A loss curve like that of another seed: dropout masks come from another generator. Gradients
    of the first step are compared parameter by parameter.

    What it should gain: A replay of the trace predicts the step as if it were one launch. What it saves is the time
    in which the device waits for launches. Three fifths of that are likely, because optimizer and loss stay outside
    the graphs. Without a replay, the breakdown's overhead is used instead.

    When to leave it: When memory is short (graphs keep their own), when shapes change, or when outputs of a step are
    kept beyond the next one without a copy.
    """
    if not step.device.startswith("cuda") or not case.compilable:
        return None
    replayed = _one_launch(case)
    launch = named(case.categories, "overhead")
    gain = replayed or (launch.duration if launch is not None else None)
    if gain is not None and gain.value < LEAST_CUDA_GRAPHS * step.duration.value:
        return None
    saving = modelled(LIKELY_CUDA_GRAPHS * gain.value, 0.0, gain.high, step.steady) if gain is not None else None
    change = Change("compile", arguments=(("mode", "reduce-overhead"),))
    example = 'model = torch.compile(model, mode="reduce-overhead")'
    edit = model_edit(case, STATEMENT_CUDA_GRAPHS, example, in_place=IN_PLACE)
    return Option(example.partition("= ")[2], (change,), saving, edit, MASKS)


@fix("RM312", "captured-step", addresses={"ST302"}, promise=Promise.SAME_CURVE, risk=5)
def captured_step(step: StepSummary, case: Case) -> Iterator[Option]:
    """The model or the whole step captured as CUDA graphs, by hand

    What it changes: The trial captures the model's forward and backward on the first batch, with
    torch.cuda.make_graphed_callables. A call runs without the graph if its shapes differ, or if the backward of the
    call before it has not run yet. You must write a graph of the whole step (forward, backward, update) yourself. The
    suggestion has an example: static inputs that each batch is copied into, because a graph reads the addresses that
    it was captured with; a warm-up on a side stream, so that one-time allocations are not captured; and the replay.

    What it promises: A loss curve like that of another seed: dropout masks come from another generator.

    What it should gain: The device's idle time between launches. A graph of the whole step includes the optimizer
    and the loss, which mode="reduce-overhead" does not.

    When to leave it: If nothing was captured. The trial says why: a line that waits for a value from the device,
    hooks, arguments that are not tensors, weights that move. If shapes change from step to step (pad to a few lengths,
    and capture a graph for each). Lines of the step that wait for a value from the device are named; move them after
    the replay. In a graph of the whole step, Adam needs capturable=True, a scheduled learning rate must be a tensor,
    and GradScaler cannot skip a step whose gradients overflow.
    """
    replayed = _one_launch(case)
    if not step.device.startswith("cuda") or step.graphs is not None or replayed is None:
        return
    if replayed.value < LEAST_CUDA_GRAPHS * step.duration.value:
        return
    if not case.changing_work:
        saving = modelled(LIKELY_CUDA_GRAPHS * replayed.value, 0.0, replayed.high, step.steady)
        change = Change("graphed-callables")
        yield Option(
            "torch.cuda.make_graphed_callables(model, …)", (change,), saving, Snippet(GRAPHED_MODEL), streams=MASKS
        )
    advice = "Capture the step as one CUDA graph."
    waits = dict.fromkeys(format_source(site.source) for site in case.sites if site.device != "cpu" and site.calls > 0)
    if waits:
        advice += f" First take out of it what waits for the device: {', '.join(waits)}."
    if case.changing_work:
        advice += " Its work changes from step to step: pad to a few shapes, and capture a graph for each."
    yield Option("one CUDA graph for the step", edit=Snippet(CAPTURED_STEP), advice=advice)


def _one_launch(case: Case) -> Estimate | None:
    """Savings of the step's replay as one launch, ns."""
    predictions = case.replay.predictions if case.replay is not None else ()
    return next((each.saved for each in predictions if each.change == "one graph launch"), None)


@fix("RM308", "attention-backend", addresses={"ST405"}, promise=Promise.SAME_CURVE, risk=3, low_precision=True)
def attention_backend(step: StepSummary, kernels: tuple[KernelUse, ...] = ()) -> Iterator[Option]:
    """Attention in a fused kernel

    What it changes: scaled_dot_product_attention may use one fused kernel only: the memory-efficient one, or flash if
    the job computes in half precision. By default torch chooses, and takes the slow path if an argument does not fit.
    If attention is written out (a matmul, a softmax, a matmul), only you can replace it by that function.

    What it promises: A loss curve like that of another seed: sums are taken in another order, and dropout masks land
    elsewhere.

    What it should gain: Most of the time of the passes over attention's weights; the finding's savings are the best
    estimate.

    When to leave it: When the weights themselves are needed. When the kernel refuses an argument (a mask, a head
    size); the trial then fails and says so.
    """
    if not step.device.startswith("cuda"):
        return
    formats = {use.dtype for use in kernels}
    for backend in ("efficient", *(["flash"] if formats & HALF else [])):
        change = Change("sdpa-backend", arguments=(("backend", backend),))
        snippet = Snippet(PINNED.format(backend=BACKENDS[backend]))
        yield Option(f"attention by the {backend} kernel", (change,), None, snippet, "where dropout masks land")
    advice = "Where attention is written out, call scaled_dot_product_attention."
    yield Option("scaled_dot_product_attention", edit=Snippet(WRITTEN), advice=advice)


@fix("RM309", "dynamic-shapes", addresses={"ST304"}, promise=Promise.SAME_CURVE, risk=2)
def dynamic_shapes(step: StepSummary, compilations: tuple[CompilationUse, ...]) -> Option | None:
    """Code that is compiled once for all sizes

    What it changes: The job's torch.compile gets dynamic=True: sizes are symbols from the first compilation on, and a
    new batch size or sequence length compiles nothing.

    What it promises: A loss curve like that of another seed: code for symbolic sizes may sum in another order.

    What it should gain: Likely four fifths of the measured time of compilations after the warm-up. Nothing, if a flag
    or a Python value is their reason, and not a size.

    When to leave it: When there are few sizes: code that is compiled for fixed sizes is faster. Padding to a few
    lengths is another way.
    """
    late = [each for each in compilations if each.after_warm_up]
    if not late:
        return None
    spent = sum(each.duration for each in late) / max(1, step.steady)
    saving = partly(spent, LIKELY_DYNAMIC_SHAPES, SURE_DYNAMIC_SHAPES, step)
    edit = CallEdit("torch.compile", (("dynamic", "True"),))
    return Option("torch.compile(dynamic=True)", (Change("dynamic-shapes"),), saving, edit)


@fix(
    "RM310",
    "compiled-function",
    addresses={"ST207", "ST301", "ST302", "ST305", "ST401"},
    promise=Promise.SAME_CURVE,
    risk=3,
    phases=("rest",),
)
def compiled_function(step: StepSummary, case: Case) -> Option | None:
    """A function next to the model compiled by torch.compile

    What it changes: One function of yours outside of the model gets the decorator @torch.compile: the one in which
    pointwise operators take most of the step, usually a loss. The trial runs the edited source. The first calls take
    seconds; the trial excludes and reports them.

    What it promises: A loss curve like that of another seed: fused code sums and rounds in another order.

    What it should gain: Two thirds of the time of the function's pointwise operators and of their backward: fused
    operators read and write memory once.

    When to leave it: When its arguments change their shapes all the time, or when it branches on values of tensors,
    where the compiler has to stop.
    """
    within = _outside_model(case)
    if not within or case.second_order:
        return None
    chosen = max(within, key=lambda key: sum(use.duration for use in within[key]))
    spent = _steady(case, within[chosen])
    if spent < LEAST_OF_FUNCTION * step.duration.value:
        return None
    timed = [each.source for each in case.lines if function_of(each.source) == chosen]
    timed += [use.line for use in within[chosen] if use.line is not None]
    saving = modelled(LIKELY_COMPILED_MODEL * spent, 0.0, spent, step.steady)
    name, example = chosen[1], f"@torch.compile\ndef {chosen[1]}(…):"
    if not timed:
        return Option(f"torch.compile({name})", saving=saving, edit=Snippet(example), advice=f"Compile {name}.")
    edit = JointEdit((DecoratorEdit(timed[0], name),), Snippet(example, timed[0]))
    advice = f"Put @torch.compile before {name}."
    called = {plain_name(use.name) for use in case.operators if use.source and function_of(use.source) == chosen}
    streams = "its random numbers" if called & RANDOM else ""
    return Option(f"@torch.compile {name}", (), saving, edit, streams, advice=advice, as_written=True)


@fix(
    "RM311",
    "ready-made-activation",
    addresses={"ST207", "ST302", "ST401", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=2,
    phases=(*MODEL, "rest"),
)
def ready_made_activation(step: StepSummary, case: Case) -> Option | None:
    """A written-out activation replaced by one function

    What it changes: A formula of one variable in your source that equals gelu (exact, or by tanh) or silu is
    replaced by the function of torch.nn.functional. Only lines that were seen to run are changed. The trial runs the
    edited source.

    What it promises: A loss curve like that of another seed: the same function, rounded once instead of after each
    of its operators.

    What it should gain: One pass over memory instead of one for each operator, and one tensor kept for the backward
    instead of several. On a CPU that is half of the line's time, and as much again in backward. On a device a
    line's own time is not known, and nothing is predicted.

    When to leave it: When the model is compiled, which fuses the formula as well.
    """
    if any(model.compiled for model in case.top_modules):
        return None
    places = [use.place for use in case.operators if use.place is not None] + [each.source for each in case.lines]
    known = {line: found for line in places if line.text and (found := activation_in(line.text)) is not None}
    if not known:
        return None
    forward = sum(each.duration.value for each in case.lines if each.source in known and each.role == "forward")
    spent = min(2 * forward, step.duration.value) if step.device == "cpu" else 0.0
    saving = modelled(LIKELY_READY_MADE * spent, 0.0, spent, step.steady) if spent else None
    first, activation = next(iter(known.items()))
    edit = JointEdit(tuple(map(ActivationEdit, known)), Snippet(f"torch.nn.functional.{activation.call}", first))
    advice = f"Write torch.nn.functional.{activation.call} in the place of the formula."
    label = f"{activation.call} in one call" + (f", and {len(known) - 1} more" if len(known) > 1 else "")
    return Option(label, (), saving, edit, advice=advice, as_written=True)


def _outside_model(case: Case) -> dict[tuple[str, str], list[OperatorUse]]:
    """Pointwise operators by the function that calls them, and those that autograd runs for them: of functions that run
    outside of the model, and are not the loop itself."""
    loops = {function_of(SourceLine(file, 0, name)) for file, name in loop_functions(case.lines)}
    loops |= {function_of(each.source) for each in case.lines if each.role != "python"}
    found: dict[tuple[str, str], list[OperatorUse]] = {}
    for use in case.operators:
        if use.source is not None and plain_name(use.name) in FUSED:
            found.setdefault(function_of(use.source), []).append(use)
    phases = {function: {use.phase for use in uses} for function, uses in found.items()}
    apart = {function for function, known in phases.items() if "rest" in known and "forward" not in known}
    return {function: found[function] for function in apart - loops if function[1].isidentifier()}
