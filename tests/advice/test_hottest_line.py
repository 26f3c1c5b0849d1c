"""A finding takes its line from where its time goes below the loop."""

from __future__ import annotations

from dataclasses import replace

from advice.planted import PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import Case, LineUse, PathUse
from steptime.advice.hottest_line import at_hottest_line
from steptime.advice.line_evidence import at_calling_lines
from steptime.advice.rule import Finding, Part, Weight
from steptime.advice.run_uses import StepSummary
from steptime.analysis.operators import OperatorUse
from steptime.analysis.stragglers.comparison import Straggler
from steptime.quantities import Estimate, SourceLine
from steptime.recording.rule_facts import CalledFacts

STEP = StepSummary(Estimate(100.0, 99.0, 101.0, 50), 60, 50, 5, "optimizer", "cpu")
SOME, SAVED = Estimate(1.0, 1.0, 1.0, 5), Estimate(50.0, 49.0, 51.0, 5)
CALL = SourceLine("/job/train.py", 17, "main", "x = augment(batch)")
BACKWARD = SourceLine("/job/train.py", 19, "main", "loss.backward()")
LOOP = SourceLine("/job/augment.py", 14, "augment", "y += crop(i)")
CROP = SourceLine("/job/augment.py", 9, "crop", "y += hash(c)")
ITEM = SourceLine("/job/data.py", 8, "Reviews.__getitem__", "json.loads(row)")


def case(*paths: PathUse) -> Case:
    return Case(STEP, paths=paths, lines=(LineUse(BACKWARD, "backward", SOME, SOME, 1.0),))


def finding(category: Part, source: SourceLine | None) -> Finding:
    return Finding(
        "ST101", "a-rule", Weight.FINDING, "It takes long", "Do less.", Estimate(50.0, 49.0, 51.0, 5), category, source
    )


def test_the_line_with_most_time_below_the_known_one_is_named() -> None:
    seen = case(
        PathUse(40, "", (CROP, LOOP, CALL)), PathUse(20, "", (LOOP, CALL)), PathUse(90, "backward", (BACKWARD,))
    )
    placed = at_hottest_line(finding("input", CALL), seen)
    assert placed.source == CROP
    assert placed.evidence == ("It is reached through train.py:17.",)


def test_what_the_loader_runs_is_where_the_input_is_made() -> None:
    loader = SourceLine("/job/train.py", 5, "main", "loader = DataLoader(data)")
    seen = case(PathUse(40, "input", (ITEM, CALL)), PathUse(90, "backward", (BACKWARD,)))
    assert at_hottest_line(finding("input", loader), seen).source == ITEM
    assert at_hottest_line(finding("input", None), seen).source == ITEM


def test_where_a_loader_is_made_alongside_the_call_of_the_loop_nothing_of_the_step_is_its_line() -> None:
    """`fit()` is called by the function that makes the loader, so all of the step runs below that."""
    loader = SourceLine("/job/run.py", 5, "start", "loader = DataLoader(data)")
    fit = SourceLine("/job/run.py", 6, "start", "fit(loader)")
    seen = case(PathUse(90, "", (LOOP, CALL, fit)), PathUse(90, "backward", (BACKWARD, fit)))
    assert at_hottest_line(finding("input", loader), seen).source == loader


def test_what_a_model_runs_below_a_frameworks_loop_is_no_input() -> None:
    fit = SourceLine("/job/train.py", 77, "<module>", "Trainer(model, data_collator=collate).train()")
    model = SourceLine("/job/train.py", 48, "Network.forward", "return self.head(self.encoder(x))")
    seen = case(PathUse(90, "forward", (model, fit)), PathUse(40, "input", (ITEM, fit)))
    assert at_hottest_line(finding("input", fit), seen).source == ITEM


def test_little_time_and_many_equal_lines_change_nothing() -> None:
    assert at_hottest_line(finding("input", CALL), case(PathUse(7, "", (CROP, CALL)))).source == CALL
    lines = [SourceLine("/job/augment.py", number, "crop") for number in range(10)]
    seen = case(*(PathUse(10, "", (line, CALL)) for line in lines))
    assert at_hottest_line(finding("input", CALL), seen).source == CALL


def test_a_line_that_holds_next_to_nothing_of_the_saving_is_not_where_it_is() -> None:
    starts = SourceLine("/job/rl.py", 29, "rollout", "def rollout(steps):")
    inside = SourceLine("/job/rl.py", 38, "rollout", "s, r, done = env.step(a)")
    assert at_hottest_line(finding("overhead", starts), case(PathUse(0.2, "", (inside,)))).source == starts


def test_where_a_function_starts_or_a_loader_is_made_any_line_that_runs_says_more() -> None:
    starts = SourceLine("/job/data.py", 5, "Reviews.__getitem__", "def __getitem__(self, index):")
    lines = [SourceLine("/job/data.py", number, "Reviews.__getitem__") for number in range(6, 16)]
    seen = case(*(PathUse(4 + (line.line == 9), "input", (line, CALL)) for line in lines))
    assert at_hottest_line(finding("input", starts), seen).source == lines[3]
    assert at_hottest_line(finding("input", starts), case()).source == starts, "nothing was timed"


def test_lines_of_the_user_come_before_those_of_a_package() -> None:
    package = SourceLine("/usr/lib/python3.11/json/decoder.py", 355, "raw_decode")
    seen = case(PathUse(40, "input", (package, ITEM, CALL)), PathUse(3, "input", (ITEM, CALL)))
    assert at_hottest_line(finding("input", None), seen).source == ITEM


def test_all_of_the_loop_is_no_part_of_one_of_its_lines() -> None:
    other = SourceLine("/job/train.py", 21, "main", "log(loss)")
    assert at_hottest_line(finding("python", other), case(PathUse(90, "backward", (BACKWARD,)))).source == other


def test_operators_stay_in_the_function_that_calls_them() -> None:
    seen = case(PathUse(40, "", (CROP, LOOP, CALL)), PathUse(30, "forward", (LOOP, CALL)))
    assert at_hottest_line(finding("compute", CALL), seen).source == CALL
    first = SourceLine("/job/augment.py", 12, "augment", "def augment(x):")
    assert at_hottest_line(finding("compute", first), seen).source == LOOP


def test_a_method_is_that_of_its_own_class() -> None:
    gelu = SourceLine("/job/model.py", 9, "GELU.forward", "return 0.5 * x * (1 + torch.tanh(x))")
    attention = SourceLine("/job/model.py", 20, "Attention.forward", "y = self.project(y)")
    seen = case(PathUse(30, "forward", (gelu, attention)), PathUse(60, "forward", (attention,)))
    assert at_hottest_line(finding("compute", SourceLine("/job/model.py", 8, "forward")), seen).source == gelu
    assert at_hottest_line(finding("compute", SourceLine("/job/model.py", 15, "forward")), seen).source == attention
    last = SourceLine("/job/model.py", 30, "forward")
    assert at_hottest_line(finding("compute", last), seen).source == last


def test_a_late_ranks_line_is_its_own_whichever_rank_tells_it() -> None:
    late = Straggler((1,), "", 50, 1.0, "input", 40.0, (), Estimate(40.0, 39.0, 41.0, 5), source=CROP)
    seen = replace(case(PathUse(40, "input", (ITEM, CALL))), straggler=late)
    assert at_hottest_line(finding("", CROP), seen).source == CROP


def test_an_operator_is_at_the_line_that_was_seen_to_call_it() -> None:
    starts = SourceLine("/job/model.py", 20, "forward", "def forward(self, x):")
    convert, linear, other = (
        SourceLine("/job/model.py", line, function)
        for line, function in ((21, "Layer.forward"), (22, "Layer.forward"), (40, "Head.forward"))
    )
    paths = [PathUse(5, "forward", (convert,)), PathUse(90, "forward", (linear,)), PathUse(9, "forward", (other,))]
    called = [
        CalledFacts("/job/model.py", 21, ("torch.Tensor.double", "torch.Tensor.contiguous")),
        CalledFacts("/job/model.py", 22, ("torch.nn.modules.module.Module._wrapped_call_impl", "torch.relu")),
        CalledFacts("/job/model.py", 40, ("torch.Tensor.float",)),
    ]

    def line_of(name: str) -> SourceLine | None:
        return at_calling_lines([OperatorUse(name, 4, 10, "memory", "forward", source=starts)], called, paths)[0].place

    assert line_of("aten::copy_") == convert
    assert line_of("aten::threshold_backward") == starts, "nothing of that name was called"
    assert line_of("aten::relu") == linear
    assert line_of("aten::addmm") == starts, "a module called it"


def test_what_collates_is_named_by_its_own_line_whatever_items_take() -> None:
    padding = SourceLine("/job/train.py", 9, "pad_batch", "rows.append(row + [0] * (longest - len(row)))")
    paths = (PathUse(8e6, "input", (ITEM, CALL)), PathUse(4e6, "input", (padding, CALL)))
    (found,) = (each for each in examine(replace(PLANTED["slow-collate"]["fires"], paths=paths)).findings
                if each.name == "slow-collate")  # fmt: skip
    assert found.source == padding
