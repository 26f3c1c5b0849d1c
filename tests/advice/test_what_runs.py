"""What runs at a place: which of a function's calls belong to a line, and what a finding says of them."""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import about
from advice.planted import BASE

from steptime.advice.engine import examine
from steptime.advice.evidence import LineUse, PathUse, RunUse
from steptime.advice.places import advice_on, short_name, with_what_runs
from steptime.advice.rule import Finding, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.what_runs import run_uses
from steptime.analysis.user_code import CallUse, FunctionUse
from steptime.quantities import SourceLine

MS = 1_000_000.0
EIGH = SourceLine("/job/train.py", 25, "Side.refresh", "values, vectors = torch.linalg.eigh(self.statistics)")
ROOT = SourceLine("/job/train.py", 27, "Side.refresh", "self.root = vectors @ scale @ vectors.T")
REFRESH = FunctionUse(
    SourceLine("train.py", 24, "refresh"),
    "optimizer",
    1 * MS,
    9 * MS,
    (
        CallUse("aten::linalg_eigh", 12.0, 8 * MS, "[[96, 96]]"),
        CallUse("aten::matmul", 24.0, 1 * MS),
        CallUse("", 0.0, 1 * MS),
    ),
)
PATHS = (PathUse(4 * MS, "optimizer", (EIGH,)), PathUse(1 * MS, "optimizer", (ROOT,)))


def at(line: SourceLine, runs: tuple[RunUse, ...]) -> list[str]:
    return [run.name for run in runs if not run.whole and run.source == line]


def test_calls_are_at_the_lines_that_name_them_or_have_their_sign() -> None:
    runs = run_uses([REFRESH], PATHS, (), {})
    assert at(EIGH, runs) == ["aten::linalg_eigh"]
    assert at(ROOT, runs) == ["aten::matmul"]
    whole = [run for run in runs if run.whole]
    assert [(run.name, round(run.share, 2)) for run in whole] == [("aten::linalg_eigh", 0.8), ("aten::matmul", 0.1)]
    assert all(run.share <= 1 for run in runs)


def test_a_call_that_no_line_names_is_at_the_longest_one_left() -> None:
    hidden = replace(EIGH, text="values, vectors = decompose(self.statistics)")
    paths = (PathUse(4 * MS, "optimizer", (hidden,)), PATHS[1])
    assert at(hidden, run_uses([REFRESH], paths, (), {})) == ["aten::linalg_eigh"]


def test_a_function_of_the_jobs_own_is_no_operator_of_its_name() -> None:
    line = LineUse(SourceLine("/job/train.py", 60, "main", "centre = recent.mean(x)"), "python", about(2 * MS),
                   about(0.0), 1.0, calls=("__main__.Recent.mean",))  # fmt: skip
    backward = LineUse(
        SourceLine("/job/train.py", 61, "main", "loss.backward()"), "backward", about(2 * MS), about(0.0), 1.0
    )
    loop = FunctionUse(None, "rest", 0.0, 2 * MS, (CallUse("aten::mean", 2.0, 1 * MS),))
    assert run_uses([loop], (), (line, backward), {}) == ()
    torchs = replace(line, calls=("torch.mean",))
    assert at(line.source, run_uses([loop], (), (torchs, backward), {})) == ["aten::mean"]


def test_without_stacks_the_only_function_that_a_line_calls_is_known() -> None:
    called = {("/job/train.py", 25): ("torch._C._linalg.linalg_eigh",)}
    assert at(EIGH, run_uses([], PATHS, (), called)) == ["torch._C._linalg.linalg_eigh"]
    assert run_uses([], PATHS, (), {("/job/train.py", 25): ("torch.mm", "torch.cat")}) == ()
    assert at(EIGH, run_uses([], PATHS, (), {})) == ["torch.linalg.eigh"], "a line that is one call"
    own = PathUse(3 * MS, "", (replace(ROOT, line=40, function="eigh"),))
    assert run_uses([], (PATHS[0], own), (), {}) == (), "a function of the job's own has lines of its own"


def finding(**more: object) -> Finding:
    made = Finding("ST201", "python-time", Weight.FINDING, "It takes 5 ms", "Move it.", about(5 * MS), source=EIGH)
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_finding_says_what_takes_most_of_its_place() -> None:
    case = replace(BASE, runs=run_uses([REFRESH], PATHS, (), {}))
    found = with_what_runs(finding(), case, general=True)
    assert found.summary == "It takes 5 ms; mostly linalg_eigh, 12 times per step"
    assert found.evidence[0] == "It runs linalg_eigh (100 % of train.py:25, 12 times per step, 96 × 96)."
    assert "every n-th step" in found.advice
    assert "Move it." not in found.advice
    kept = with_what_runs(finding(), case, general=False)
    assert kept.advice.startswith("Move it. linalg_eigh: ")


def test_what_takes_little_of_a_finding_is_evidence_only() -> None:
    case = replace(BASE, runs=run_uses([REFRESH], PATHS, (), {}))
    found = with_what_runs(finding(savings=about(50 * MS)), case, general=True)
    assert found.summary == "It takes 5 ms"
    assert found.advice == "Move it."
    assert found.evidence, "what runs there is named all the same"
    assert with_what_runs(finding(source=replace(EIGH, line=5, function="other")), case, general=True).evidence == ()


def test_a_loop_over_single_values_is_told_by_its_rounds() -> None:
    """A function of Python runs so often that only single values can go through it, and takes little of the place."""
    inner = SourceLine("/job/train.py", 25, "distance", "row[j] = min(row[j] + 1, last)")
    rare, often = (RunUse(inner, "builtins.min", 0.2, 1 * MS, calls) for calls in (900.0, 90_000.0))
    case = replace(BASE, runs=(often,), paths=(PathUse(5 * MS, "", (inner,)),))
    found = with_what_runs(finding(source=inner), case, general=True)
    assert found.advice.startswith("In distance, min runs 90,000 times per step: take what is the same ")
    assert with_what_runs(finding(source=inner), replace(case, runs=(rare,)), general=True).advice == "Move it."


def test_a_loop_over_single_values_is_told_by_how_often_its_lines_run() -> None:
    """Whether the lines below the loop were timed, or those of the training loop itself."""
    head, inner = (
        SourceLine("/job/train.py", at, "spread", text) for at, text in ((24, "for j in row:"), (25, "x += j"))
    )
    paths = (PathUse(4 * MS, "", (inner,), 52_345.0), PathUse(1 * MS, "", (head,), 52_347.0))
    found = with_what_runs(finding(source=inner), replace(BASE, paths=paths), general=True)
    assert found.advice.startswith(
        "Here a Python loop runs tens of thousands of rounds per step: vectorize it: compute all rounds at once"
    )
    lines = tuple(
        LineUse(path.lines[0], "python", about(path.duration), about(path.duration), path.ran) for path in paths
    )
    assert with_what_runs(finding(source=inner), replace(BASE, lines=lines), general=True).advice == found.advice
    other = replace(inner, line=40, text="optimizer.step()")
    assert with_what_runs(finding(source=other), replace(BASE, lines=lines), general=True).advice == "Move it."
    seldom = tuple(replace(path, ran=200.0) for path in paths)
    assert with_what_runs(finding(source=inner), replace(BASE, paths=seldom), general=True).advice == "Move it."


def test_wrapped_again_and_again() -> None:
    run = RunUse(EIGH, "torch.utils.data.dataset.__getitem__", 0.9, 4 * MS, 128.0, depth=21.0)
    assert advice_on(run).startswith("each call leads to 20 more")
    assert advice_on(RunUse(EIGH, "odd.thing", 0.9, 4 * MS, 1.0)) == ""


def test_private_modules_are_no_part_of_a_name() -> None:
    assert short_name("numpy._core.fromnumeric.argsort") == "numpy.argsort"
    assert short_name("torch._C._linalg.linalg_eigh") == "linalg_eigh"
    assert short_name("json.dumps") == "json.dumps"


def test_the_own_line_of_an_optimizer_names_its_operator() -> None:
    optimizers = (replace(BASE.optimizers[0], type="Shampoo", duration=about(6 * MS)),)
    case = replace(BASE, optimizers=optimizers, paths=PATHS, runs=run_uses([REFRESH], PATHS, (), {}))
    found = next(each for each in examine(case, CATALOGUE).findings if each.name == "optimizer-share")
    assert found.summary.endswith("; mostly linalg_eigh, 12 times per step")


def test_what_a_device_computes_is_not_said_by_the_cpus_time() -> None:
    case = replace(BASE, runs=run_uses([REFRESH], PATHS, (), {}), step=replace(BASE.step, device="cuda"))
    assert with_what_runs(finding(category="compute"), case, general=True) == finding(category="compute")
    assert with_what_runs(finding(category="python"), case, general=True).evidence


def test_what_each_step_needs_is_not_advised_to_be_done_less_often() -> None:
    case = replace(BASE, runs=run_uses([REFRESH], PATHS, (), {}))
    needed = finding(advice="The loss depends on it, so each step needs it: compile it.")
    found = with_what_runs(needed, case, general=False)
    assert found.advice == needed.advice
    assert "linalg_eigh" in found.summary


def test_nesting_that_became_deeper_is_what_grows() -> None:
    run = RunUse(EIGH, "torch.utils.data.dataset.__getitem__", 0.9, 4 * MS, 128.0, depth=41.0, shallow=7.0)
    assert "40 more and to 6 earlier in the run; each step wraps it once more" in advice_on(run)


def test_a_line_that_calls_a_function_of_the_jobs_own_has_what_runs_below() -> None:
    calling = SourceLine("/job/train.py", 80, "main", "side.refresh()")
    paths = tuple(replace(path, lines=(*path.lines, calling)) for path in PATHS)
    case = replace(BASE, paths=paths, runs=run_uses([REFRESH], paths, (), {}))
    found = with_what_runs(finding(source=calling), case, general=True)
    assert found.evidence[0].startswith("It runs linalg_eigh (80 % of train.py:80, 12 times per step")


def test_operators_are_not_what_python_mostly_does() -> None:
    case = replace(BASE, runs=run_uses([REFRESH], PATHS, (), {}))
    found = with_what_runs(finding(category="python"), case, general=True)
    assert found.summary == "It takes 5 ms"
    assert "linalg_eigh" in found.evidence[0]
