"""Slow ways that the text of a function shows: what they are, what is written in their place, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import MS, about
from advice.planted import BASE, PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import PathUse, RunUse
from steptime.advice.rules import CATALOGUE
from steptime.advice.rules.overhead import dispatch_loop
from steptime.advice.run_uses import PassUse, SegmentLine, SegmentUse
from steptime.advice.written_ways import Passes, WrittenLoop, loop_around, making_results, passes_of, written_ways
from steptime.analysis.operators import OperatorUse
from steptime.quantities import SourceLine
from steptime.recording.rule_facts import CalledFacts, FunctionText


def function(*lines: str, arguments: str = "a, b, k") -> FunctionText:
    text = f"    def f({arguments}):\n" + "".join(f"        {line}\n" for line in lines)
    return FunctionText("/job/train.py", "Net.f", 10, text)


def better(*lines: str) -> list[str]:
    return [each.better for each in written_ways(function(*lines))]


@pytest.mark.parametrize(
    ("lines", "expression"),
    [
        (("return torch.linalg.inv(a) @ b",), "torch.linalg.solve(a, b)"),
        (
            (
                "cost = torch.cdist(a, b)",
                "cost = cost.view(k, 8, -1)",
                "parts = cost.split(sizes, -1)",
                "return [match(each[i]) for i, each in enumerate(parts)]",
            ),
            "Compute cost for each sample by itself",
        ),
        (
            ("for i, each in enumerate(torch.split(a, sizes, 2)):", "    found.append(match(each[i, :, 0]))"),
            "Compute a for each sample by itself",
        ),
        (("inverted = a.inverse()", "return torch.bmm(inverted, b)"), "torch.linalg.solve(a, b)"),
        (("return b.T @ torch.inverse(a) @ b",), "torch.linalg.solve(a, b.T, left=False)"),
        (("return torch.diag_embed(a) @ b",), "a.unsqueeze(-1) * b"),
        (("return torch.matmul(b, torch.diag(a))",), "b * a.unsqueeze(-2)"),
        (("return MultivariateNormal(a, torch.diag_embed(b.exp()))",), "Normal(a, b.exp().sqrt())"),
        (("return D.MultivariateNormal(a, scale_tril=b.diag())",), "Normal(a, b)"),
        (("scores = a @ b.T", "return scores.diag()"), "(a * b).sum(-1)"),
        (("return torch.diagonal(torch.cdist(a, b, p=2.0))",), "(a - b).norm(dim=-1)"),
        (("return (a @ b.t()).trace()",), "(a * b).sum()"),
        (("return a.argsort(dim=1)[:, :5]",), "torch.topk(a, 5, dim=1, largest=False)[1]"),
        (("values, index = a.sort(descending=True)", "return values[:k], index[:k]"), "torch.topk(a, k)[0]"),
        (("return torch.sort(a, -1, True).values[..., 0]",), "torch.topk(a, 1).values"),
        (("return sum(a)",), "a.sum(0)"),
        (("return sorted(a[:, 0])",), "a[:, 0].sort().values"),
        (("return [m(a) for m in self.members][k]",), "self.members[k](a)"),
        (("outs = [m(a, b) for m in self.members]", "return outs[k]"), "self.members[k](a, b)"),
        (("out = a[:0]", "for row in b:", "    out = torch.cat([out, row])", "return out"), "torch.cat(the list)"),
        (("return a.logdet() + b @ torch.inverse(a)",), "torch.linalg.cholesky(a)"),
        (
            ("outs = torch.stack([m(a) for m in b])", "return outs[k, torch.arange(len(a))]"),
            "Draw k first, and run each member only on its own rows",
        ),
        (("outs = [m(a) for m in b]", "return torch.stack(outs, 1)[torch.arange(8), k]"), "Draw k first"),
        (("return F.linear(a, self.base + 2 * torch.kron(b, k))",), "(b @ F.linear(x.unflatten"),
        (
            (
                "every = jacobian(f, a, create_graph=True)",
                "return torch.stack([every[i, :, i] for i in range(len(a))])",
            ),
            "the Jacobian of f(a).sum(0) by a",
        ),
        (
            ("j = torch.func.jacrev(f)(a)", "n = torch.arange(len(j))", "return j[n, :, n]"),
            "vmap(torch.func.jacrev(f))",
        ),
        (("return jacobian(f, a).diagonal(dim1=0, dim2=2)",), "the Jacobian of f(a).sum(0) by a"),
        (("return torch.einsum('bibj->bij', jacobian(f, a))",), "the Jacobian of f(a).sum(0) by a"),
        (
            ("for i in range(len(a)):", "    found.append(torch.autograd.grad(b[i, 0], a, retain_graph=True)[0][i])"),
            "torch.autograd.grad of each number of b.sum(0)",
        ),
        (("weight = torch.kron(b, k).to(a.dtype)", "return a @ weight.T"), "(b @ F.linear(x.unflatten"),
    ],
)
def test_a_slow_way_is_named_with_the_expression_that_is_faster(lines: tuple[str, ...], expression: str) -> None:
    assert expression in " ".join(better(*lines))


@pytest.mark.parametrize(
    "lines",
    [
        ("for i, each in enumerate(a.split(k)):", "    found.append(each.sum() * i)"),
        ("for i, each in enumerate(a.split(k)):", "    found.append(each[i] + each[0])"),
        ("inverted = a.inverse()", "return inverted @ b, inverted"),  # the inverse itself is needed
        ("inverted = a.inverse()", "for each in b:", "    use(inverted @ each)"),  # one inverse for many products
        ("a = a.inverse()", "a = a + 1", "return a @ b"),
        ("scores = a @ b.T", "return scores.diag() - scores.logsumexp(1)",),  # all of it is needed
        ("values, index = a.sort()", "return values[:k], index"),
        ("return a.argsort().argsort()",),
        ("return a.argsort(dim=1)[:5]",),  # rows of a sorted matrix
        ("return a.sort()[0][3:7]",),
        ("return a.sort(descending=k)[0][:5]",),  # of which end is not known
        ("return (torch.eye(k) * a) @ b",),  # a may be a matrix
        ("return list(a)",),
        ("outs = [m(a) for m in self.members]", "return torch.stack(outs).mean(0)"),
        ("for m in b:", "    a = torch.cat([a, m(a)])", "return a"),  # each round reads it
        ("return sum([a, b])", ),
        ("return max(a, b)",),
        ("return torch.diag(a) + b",),
        ("outs = torch.stack([m(a) for m in b])", "return outs[k, torch.arange(8)] + outs.mean(0)"),  # all are needed
        ("return torch.stack([m(x) for m, x in zip(b, a)])[k, torch.arange(8)]",),  # each has rows of its own
        ("return torch.stack([m(a) for m in b])[:, torch.arange(8)]",),
        ("return torch.stack([a * m for m in b])[k, torch.arange(8)]",),
        ("weight = torch.kron(b, k)", "return a @ weight, weight.norm()"),
        ("return torch.linalg.eigh(torch.kron(b, k))",),
        ("weight = weight + torch.kron(b, k)",),
        ("return torch.kron(b, k)",),  # nobody is seen to multiply it
        ("j = jacobian(f, a)", "return j[k, :, k], j.norm()"),  # all derivatives are needed
        ("return jacobian(f, a)[k, k]",),  # the diagonal of a square one
        ("return jacobian(f, a)[0, :, 0]",),
        ("return jacobian(f, a, vectorize=True)[k, :, k]",),  # one pass, whose savings were not measured
        ("return torch.func.vmap(torch.func.jacrev(f))(a)",),
        ("for i in range(len(a)):", "    found.append(torch.autograd.grad(b[i], a, retain_graph=True)[0])"),
        ("for i in range(3):", "    found.append(torch.autograd.grad(b[:, i].sum(), a, retain_graph=True)[0][:, i])"),
        ("return torch.autograd.grad(b[k], a)[0][k]",),
    ],
)  # fmt: skip
def test_what_is_needed_elsewhere_or_is_no_slow_way_is_left_alone(lines: tuple[str, ...]) -> None:
    assert better(*lines) == []


def test_what_is_made_for_pairs_alone_is_counted_with_them() -> None:
    text = function(
        "far = torch.cdist(a, b)", "near = far.exp()", "cost = far + near", "sizes = [len(each) for each in k]",
        "return [match(each[i]) for i, each in enumerate(cost.split(sizes, -1))]",
    )  # fmt: skip
    assert [each.lines for each in written_ways(text)] == [(11, 12, 13, 15)]


def test_the_lines_are_those_of_the_file_and_a_broken_text_says_nothing() -> None:
    (found,) = written_ways(function("inverted = a.inverse()", "return inverted @ b"))
    assert (set(found.lines), found.function, found.first_line) == ({11, 12}, "f", 10)
    assert written_ways(FunctionText("/job/train.py", "f", 1, "def f(:\n")) == ()


def test_passes_are_apart_where_none_takes_what_another_gave() -> None:
    apart = function("one = self.net(a)", "two = self.net(b)", "return self.loss(one, two)")
    assert passes_of(apart) == (Passes("self.net", (11, 12), 2),)
    assert passes_of(function("return [self.net(each) for each in a]")) == (Passes("self.net", (11,), 0),)
    inner = function("one = self.head(self.net(a))", "two = self.head(self.net(b))")
    assert passes_of(inner) == (Passes("self.net", (11, 12), 2),), "the head takes what the net gave"


@pytest.mark.parametrize(
    "lines",
    [
        ("a = self.act(self.one(a))", "return self.act(self.two(a))"),
        ("return self.net(self.net(a))",),
        ("one = net(a)", "loss(one).backward()", "optimizer.step()", "two = net(b)"),
        ("one = net(a)", "two = net(a)"),
        ("self.state = self.cell(a, self.state)", "self.state = self.cell(b, self.state)"),
        ("one = net(a)", "with torch.no_grad():", "    two = net(b)"),
        ("one = net(a)", "if k:", "    two = net(b)"),
        ("return [each(a) for each in self.members]",),
    ],
)
def test_passes_that_need_each_other_or_other_weights_are_not(lines: tuple[str, ...]) -> None:
    assert passes_of(function(*lines)) == ()


def test_a_loop_carries_a_name_or_nothing() -> None:
    apart = function(
        "for i in range(len(a)):", "    row = a[i] * 2", "    out[i] = row.softmax(0)", "    s += row.sum()"
    )
    assert loop_around(apart, 12) == WrittenLoop(11, "")
    scan = function(
        "for t in range(k):", "    h = torch.tanh(self.inner(a[:, t]) + self.outer(h))", "    out.append(h)"
    )
    assert loop_around(scan, 12) == WrittenLoop(11, "h")
    joined = function("for i in range(k):", "    out = torch.cat([out, a[i]])")
    assert loop_around(joined, 12) == WrittenLoop(11, "")


@pytest.mark.parametrize(
    "body",
    [
        "out.append(self.heads[i](a))",  # other modules
        "out.append(a[i, : lengths[i]].mean())",  # of other sizes
        "out.append(a[i] if k else b[i])",
        "a[i].sum().backward()",
        "out.append(a.sum())",  # the tensor is not taken apart
    ],
)
def test_of_a_loop_whose_rounds_differ_nothing_is_said(body: str) -> None:
    assert loop_around(function("for i in range(k):", f"    {body}"), 12) is None


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        ("out[i] = (x[i] @ keys).tanh()", "No round of the loop reads what another wrote"),
        ("h = (x[i] @ keys + h).tanh()", "Each round takes h from the one before"),
        ("h = cells[i](h)", "Vectorize: replace the loop by one operator"),
    ],
)
def test_a_dispatch_loop_is_advised_by_whether_its_rounds_need_each_other(body: str, advice: str) -> None:
    case = PLANTED["dispatch-loop"]["fires"]
    text = f"def f(x):\n    for i in range(64):\n        {body}\n"
    case = replace(case, texts=(FunctionText("model.py", "forward", 29, text),))
    (found,) = (each for rule in CATALOGUE if rule.name == "dispatch-loop" for each in rule(case))
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(("loop", "named"), [(True, True), (False, False)])
def test_the_caller_whose_loop_runs_a_function_is_named(loop: bool, named: bool) -> None:
    case = PLANTED["dispatch-loop"]["fires"]
    inside = next(each for each in dispatch_loop(case)).source
    assert inside is not None
    body = FunctionText(inside.file, "forward", inside.line - 1, f"def forward(x):\n    {inside.text}\n")
    text = (
        "def forward(self, x):\n    days = []\n    for day in range(28):\n        days.append(self.tower(x[:, day]))\n"
    )
    outer = SourceLine("visitor.py", 43, "Visitor.forward", "days.append(self.tower(x[:, day]))")
    text = text if loop else text.replace("for day in range(28):", "with torch.no_grad():")
    main = SourceLine("train.py", 9, "<module>", "loss = model(x)")
    case = replace(
        case,
        texts=(body, FunctionText(outer.file, "forward", 40, text)),
        paths=(PathUse(9 * MS, "forward", (inside, outer, main)),),
    )
    (found,) = (each for each in examine(case, (dispatch_loop,)).findings)
    assert found.source == (outer if named else inside)
    assert ("visitor.py:43 calls" in found.summary) is named
    assert ("No round of the loop reads what another wrote" in found.advice) is named


@pytest.mark.parametrize(("milliseconds", "batch", "said"), [(20, 16, True), (1, 16, False), (20, 1, False)])
def test_pairs_of_all_samples_are_told_where_each_alone_saves_its_dispatch(
    milliseconds: int, batch: int, said: bool
) -> None:
    text = function("cost = torch.cdist(a, b)", "for i, each in enumerate(cost.split(k, -1)):", "    match(each[i])")
    line = SourceLine(text.file, 11, "Net.f", "cost = torch.cdist(a, b)")
    assert BASE.loader is not None
    case = replace(
        BASE,
        step=replace(BASE.step, duration=about(50 * MS)),
        texts=(text,),
        called=(CalledFacts(text.file, 12, ("torch.Tensor.split",)),),
        paths=(PathUse(milliseconds * MS, "forward", (line,)),),
        runs=(RunUse(line, "aten::cdist", 1.0, milliseconds * MS, 80.0),),
        loader=replace(BASE.loader, batch_size=batch),
    )
    (rule,) = (each for each in CATALOGUE if each.name == "better-way")
    found = examine(case, (rule,)).findings
    assert bool(found) is said
    if said:
        assert found[0].savings is not None
        assert found[0].savings.value <= milliseconds * MS * (1 - 1 / batch)
        assert found[0].savings.low < found[0].savings.value < found[0].savings.high


CHANGE, SHAPES = "        return torch.kron(self.outer, self.inner)\n", "[[{rows}, 512], [512, 512], [512]]"


@pytest.mark.parametrize(
    ("rows", "use", "said"),
    [
        (32, "F.linear(x, self.weight + self.change())", True),
        (4096, "F.linear(x, self.weight + self.change())", False),
        (32, "F.linear(x, self.change().inverse())", False),
    ],
)
def test_a_kronecker_product_that_another_function_multiplies_is_built_for_few_rows_in_vain(
    rows: int, use: str, said: bool
) -> None:
    """Many rows are multiplied faster by the whole matrix."""
    change = FunctionText("/job/adapter.py", "Adapted.change", 10, f"    def change(self):\n{CHANGE}")
    forward = FunctionText(
        "/job/adapter.py", "Adapted.forward", 20, f"    def forward(self, x):\n        return {use}\n"
    )
    line = SourceLine(change.file, 11, "Adapted.change", CHANGE.strip())
    multiplies = SourceLine(forward.file, 21, "Adapted.forward", use)
    case = replace(
        BASE,
        step=replace(BASE.step, duration=about(50 * MS)),
        texts=(change, forward),
        called=(CalledFacts(change.file, 11, ("torch.kron",)),),
        paths=(PathUse(20 * MS, "forward", (line, multiplies)),),
        runs=(RunUse(multiplies, "aten::linear", 0.6, 5 * MS, 6.0, SHAPES.format(rows=rows)),),
    )
    (rule,) = (each for each in CATALOGUE if each.name == "better-way")
    found = examine(case, (rule,)).findings
    assert [each.source and each.source.line for each in found] == [11] * said


@pytest.mark.parametrize(("size", "said"), [(1.0, True), (0.001, False)])
def test_members_are_too_many_where_large_operators_take_their_time(size: float, said: bool) -> None:
    """The dispatch of small ones is the same for fewer rows. size: ms of each operator."""
    text = function("outs = torch.stack([m(a) for m in b])", "return outs[k, torch.arange(len(a))]")
    line = SourceLine(text.file, 11, "Net.f", "outs = torch.stack([m(a) for m in b])")
    case = replace(
        BASE,
        step=replace(BASE.step, duration=about(50 * MS)),
        texts=(text,),
        paths=(PathUse(20 * MS, "forward", (line,)),),
        operators=(OperatorUse("aten::addmm", 20 / size, 20 * MS, "compute", "forward"),),
    )
    (rule,) = (each for each in CATALOGUE if each.name == "better-way")
    assert bool(examine(case, (rule,)).findings) is said


def test_a_slow_way_at_the_hottest_line_of_rollouts_is_what_they_are_about() -> None:
    text = function("outs = torch.stack([m(a) for m in b])", "return outs[k, torch.arange(len(a))]")
    line = SourceLine(text.file, 11, "Net.f", "outs = torch.stack([m(a) for m in b])")
    play = SourceLine(text.file, 90, "main", "state = world.sample(state, action)")
    use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, 0.2, (SegmentLine(play, 0.6, within=line),), 1, 1.2)
    case = replace(BASE, segments=(use,))
    rule = next(each for each in CATALOGUE if each.name == "rollout-share")
    (found,) = examine(replace(case, texts=(text,)), (rule,)).findings
    assert found.summary == "Every member computes all rows, and one result per row is picked: 60 % of the rollouts"
    assert found.evidence[0] == "Rollouts took 70 % of the run"
    assert found.source is not None
    assert found.source.line == 11
    (found,) = examine(case, (rule,)).findings
    assert found.summary.startswith("Rollouts took")


def test_lines_that_make_some_results_alone_are_known() -> None:
    text = function(
        "logits = self.net(a)", "guess = logits.argmax(1)", "wrong, right = self.errors(guess, b)",
        "return loss(logits, b), wrong, right",
    )  # fmt: skip
    assert making_results(text, (1, 2)) == {12, 13}
    assert making_results(text, (1,)) == set(), "the same line makes the other one, too"
    assert making_results(text, (3,)) == set()
    assert making_results(function("wrong = errors(a)", "return loss(a) + wrong, wrong"), (1,)) == set()
    assert making_results(function("wrong = errors(a)", "if k:", "    return a", "return a, wrong"), (1,)) == set()


@pytest.mark.parametrize(("other", "found"), [(11, ["better-way"]), (12, ["better-way", "passes-through-one-graph"])])
def test_derivatives_of_all_rows_replace_the_passes_of_their_own_line(other: int, found: list[str]) -> None:
    """Passes that another line starts stay a finding. other: line of the passes."""
    text = function("every = jacobian(f, a)", "b = inner(a)", "return every[k, :, k]")
    line, passes = (SourceLine(text.file, at, "Net.f") for at in (11, other))
    case = replace(
        BASE,
        step=replace(BASE.step, duration=about(50 * MS)),
        texts=(text,),
        called=(CalledFacts(text.file, 11, ("torch.autograd.functional.jacobian",)),),
        paths=(PathUse(20 * MS, "forward", (line,)), PathUse(19 * MS, "forward", (passes,))),
        passes=PassUse(passes, 72.0, about(20 * MS), shared=True),
    )
    rules = [each for each in CATALOGUE if each.name in ("better-way", "passes-through-one-graph")]
    assert sorted(each.name for each in examine(case, rules).findings) == found
