"""What each step makes and few steps read is made where it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import MS, about, line
from advice.planted import BASE

from steptime.advice.engine import examine
from steptime.advice.evidence import PathUse, SeldomUse
from steptime.advice.rules import CATALOGUE
from steptime.advice.seldom_read import lines_of_unread, made_in_vain, seldom_uses
from steptime.analysis.unused import UnreadUse
from steptime.quantities import SourceLine
from steptime.recording.recording import CodeFacts, CodeLine, UnreadFacts
from steptime.recording.rule_facts import FunctionText

FILE = "/job/train.py"
MAKES, READS = SourceLine(FILE, 31, "main", "text = summary(net)"), SourceLine(FILE, 33, "main", "print(text)")
HELPER = SourceLine(FILE, 9, "summary", "lines.append(repr(weight))")
FORWARD = SourceLine(FILE, 14, "Net.forward", "return self.layers(x)")


def found(
    made: CodeLine, hits: float = 0.0, role: str = "python", other: str = "", line_of_other: str = "return x"
) -> tuple[SeldomUse, ...]:
    """A loop with a line that makes something, and one that reads `text`, `hits` times per step. other: a name that
    the function report() reads, in its line `line_of_other`."""
    loop = CodeFacts(0, FILE, "main", 20, True, (made, CodeLine(33, READS.text, (), ("print", "text"))))
    report = CodeFacts(100, FILE, "report", 50, False, (CodeLine(51, line_of_other, (), (other,)),))
    timed = replace(line(made.text, 5 * MS, role=role), source=replace(MAKES, text=made.text))  # type: ignore[arg-type]
    reads = (replace(line(READS.text, MS), source=READS, hits=hits),) if hits else ()
    return seldom_uses((loop, report), (timed, *reads))


SUMMARY = CodeLine(31, MAKES.text, ("text",), ("net", "summary"))


def test_a_text_that_few_steps_print_is_made_in_each() -> None:
    assert found(SUMMARY) == (SeldomUse(MAKES, "text", READS),)
    made = replace(SUMMARY, text="text = str(loss.item()) + json.dumps(sizes)")
    assert [use.name for use in found(made)] == ["text"]
    assert found(SUMMARY, hits=0.2) == (SeldomUse(MAKES, "text", READS),)


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (SUMMARY, {"hits": 1.0}),
        (SUMMARY, {"other": "text"}),
        (SUMMARY, {"role": "forward"}),
        (replace(SUMMARY, text="text = text + str(loss)", loads=("loss", "str", "text")), {}),
        (replace(SUMMARY, text="text = clip_grad_norm_(weights)"), {}),
        (replace(SUMMARY, text="text = environment.act(action)"), {}),
        (replace(SUMMARY, text="text = str(environment.act(action))"), {}),
        (replace(SUMMARY, text="text = str(np.random.rand(9))"), {}),
        (
            replace(SUMMARY, text="text = report(net)", loads=("net", "report")),
            {"other": "net", "line_of_other": "self.count = 1"},
        ),
        (replace(SUMMARY, text="for text in rows:"), {}),
        (replace(SUMMARY, stores=("unread",)), {}),
        (replace(SUMMARY, stores=()), {}),
    ],
)
def test_what_is_read_carried_on_or_does_more_is_needed(made: CodeLine, more: dict[str, object]) -> None:
    assert found(made, **more) == ()  # type: ignore[arg-type]


def test_what_runs_below_such_a_line_is_said_to_be_moved_with_it() -> None:
    paths = (PathUse(9 * MS, "", (HELPER, MAKES)), PathUse(5 * MS, "forward", (FORWARD,)))
    case = replace(BASE, paths=paths, seldom=found(SUMMARY))
    said = "Only train.py:33 reads text, and in few steps: move train.py:31 there"
    assert made_in_vain(HELPER, case).startswith(said)
    assert made_in_vain(MAKES, case).startswith(said)
    assert made_in_vain(FORWARD, case) == ""
    elsewhere = PathUse(9 * MS, "", (HELPER, replace(MAKES, line=40)))
    assert made_in_vain(HELPER, replace(case, paths=(*paths, elsewhere))) == "", "another line needs it"
    evaluates = PathUse(5 * MS, "forward", (FORWARD, MAKES))
    assert made_in_vain(MAKES, replace(case, paths=(*paths, evaluates))) == "", "a model runs below it"


SCORES = SourceLine(FILE, 16, "Net.forward", "scores = self.score(logits, labels)")
CALLS = SourceLine(FILE, 31, "main", "loss, scores = net(batch)")
EDITS = SourceLine(FILE, 51, "Score.__call__", "edits = sum(map(distance, logits, labels))")
UNREAD = UnreadFacts("Net", "Net", CALLS, (1,), 1.0)
TEXT = "def forward(self, x, labels):\n    logits = self.layers(x)\n    scores = self.score(logits, labels)\n"
TEXT += "    return loss(logits, labels), scores\n"


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("edits = sum(map(distance, logits, labels))", True),
        ("found = []\n    found.append(distance(logits, labels))\n    edits = sum(found)", True),
        ("self.total += sum(map(distance, logits, labels))", False),  # the metric is read elsewhere
        ("self.found.append(sum(map(distance, logits, labels)))", False),
        ("print(sum(map(distance, logits, labels)))", False),
        ("", False),  # what it does is not known
    ],
)
def test_lines_of_results_that_nobody_reads_are_what_they_cost(inside: str, said: bool) -> None:
    score = FunctionText(FILE, "Score.__call__", 50, f"def __call__(self, logits, labels):\n    {inside}\n")
    case = replace(
        BASE,
        step=replace(BASE.step, duration=about(50 * MS)),
        texts=(FunctionText(FILE, "Net.forward", 14, TEXT), *([score] if inside else [])),
        paths=(PathUse(30 * MS, "forward", (EDITS, SCORES, CALLS)), PathUse(9 * MS, "forward", (FORWARD, CALLS))),
        lines=(*BASE.lines, replace(line(EDITS.text, 20 * MS, role="forward"), source=EDITS)),
    )
    assert lines_of_unread(UNREAD, case) == ([(SCORES, 20 * MS)] if said else [])
    rule = next(each for each in CATALOGUE if each.name == "unread-result")
    found = examine(replace(case, unread=(UnreadUse(UNREAD, 0.0, 0.0),)), (rule,)).findings
    assert [each.source for each in found] == [SCORES] * said
    assert all(each.summary.startswith("Nobody reads result 2 of Net in training: 20 ms per step") for each in found)
