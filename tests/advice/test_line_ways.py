"""A line that takes long is said to be written better where its form is what costs, and not where something else is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from advice.healthy import MS, about, categories, line, phases
from advice.planted import BASE

from steptime.advice.engine import examine
from steptime.advice.evidence import Case, LineUse, PathUse
from steptime.advice.line_ways import way_of_line
from steptime.advice.repeat_evidence import Looked, work_uses
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import RepeatUse, WorkUse
from steptime.quantities import SourceLine
from steptime.recording.recording import LineWork, OutsideCall, RepeatFacts

FILE = "/job/train.py"


def at(text: str, number: int = 30, function: str = "main") -> SourceLine:
    return SourceLine(FILE, number, function, text)


def way(
    text: str,
    mostly: Collection[str] = (),
    *,
    read: str = "",
    calls: str = "",
    around: dict[str, float] | None = None,
    loads: bool = False,
    hits: float = 1.0,
) -> str:
    """What is said of a line. read: the container that it goes through; around: other lines of its function with their
    executions per step."""
    made = line(text, 5 * MS, calls=calls)
    others = [
        replace(line(each, MS), source=at(each, 40 + number), hits=often)
        for number, (each, often) in enumerate((around or {}).items())
    ]
    case = replace(
        BASE,
        lines=(replace(made, source=at(text), hits=hits), *others),
        works=(WorkUse(at(text), "container", f"the {read} (6,017 entries)", about(5 * MS), 1.0),) if read else (),
        paths=(PathUse(5 * MS, "input", (at(text),)),) if loads else (),
    )
    return way_of_line(at(text), case, mostly)


@pytest.mark.parametrize(
    ("text", "mostly", "more", "said"),
    [
        ("window.insert(0, value)", ["insert"], {}, "appendleft"),
        ("oldest = self.queue.pop(0)", ["pop"], {}, "popleft"),
        ("fresh = [each for each in picked if each not in seen]", [], {"read": "list seen"}, "a set of what is in"),
        ("at = names.index(name)", ["index"], {"calls": "builtins.list.index"}, "keep a dictionary"),
        ("index = {each: n for n, each in enumerate(names)}", [], {"read": "list names"}, "makes a dictionary"),
        ("known = set(self.names)", [], {"read": "list self.names"}, "makes a set"),
        ("return random.sample(list(self.memory), count)", [], {"read": "deque self.memory"}, "in a ring"),
        ("json.dump(history, file)", [], {"read": "list history"}, "append the new entry only"),
        ('self.text += f"{value:.3f},"', [], {}, "io.StringIO"),
        ("history = np.append(history, row[None], axis=0)", ["append"], {}, "append the new rows to a list"),
        ("self.bank = torch.cat([self.bank, x])", ["cat"], {}, "append the new rows to a list"),
        ("bank = torch.cat((bank[8:], x))", ["cat"], {}, "over the oldest"),
        ("bank = torch.cat([bank, x])", ["cat"], {"around": {"bank = bank[8:]": 1.0}}, "over the oldest"),
        ("worst = sorted(losses, reverse=True)[:32]", ["sorted"], {}, "heapq.nlargest"),
        ("order = np.argsort(losses)", ["argsort"], {"around": {"return order[:count]": 1.0}}, "argpartition"),
        ("rows = np.random.choice(size, 64, replace=False)", ["prod"], {}, "default_rng()"),
        ("rows = np.random.choice(size, 64, p=weights / weights.sum())", ["cumsum"], {}, "searchsorted"),
        ("rows = torch.randperm(size)[:64]", ["randperm"], {}, "torch.randint"),
        ("best = copy.deepcopy(net.state_dict())", ["deepcopy"], {}, "copy_(value)"),
        ('when = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")', ["_strptime_datetime"], {}, "fromisoformat"),
        ("row = json.loads(self.lines[i])", ["loads"], {"loads": True}, "Parse each row once"),
        ("ids = self.tokenizer.encode(self.texts[i])", ["encode"], {"loads": True}, "turn it into numbers once"),
        ("row = self.frame.iloc[i]", [], {"calls": "pandas.core.indexing.__getitem__"}, "self.frame[columns]"),
        ("x = row[:64].to_numpy()", [], {"calls": "pandas.core.series.Series.__getitem__",
         "around": {"row = self.frame.iloc[i]": 1.0}}, "self.frame[columns]"),
        ("for at, row in frame.iterrows():", [], {"calls": "pandas.core.frame.DataFrame.iterrows"}, "frame[columns]"),
        ("image = image.resize((64, 64))", ["resize"], {"loads": True, "around": {"x = Image.open(p)": 1.0}}, "draft"),
        ("torch.save(part, path)", ["save"], {"around": {"part = features[low:high]": 1.0}}, "save part.clone()"),
        ('torch.save({"step": step, "part": features[low:high]}, path)', ["save"], {}, "features[…].clone()"),
        ("if each not in seen:", [], {"read": "list seen"}, "ask the set"),
    ],
)  # fmt: skip
def test_the_form_of_a_line_says_how_to_write_it_better(
    text: str, mostly: list[str], more: dict[str, object], said: str
) -> None:
    found = way(text, mostly, **more)  # type: ignore[arg-type]
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("text", "mostly", "more"),
    [
        ("window.insert(at, value)", ["insert"], {}),
        ("fresh = [each for each in picked if each not in seen]", [], {}),
        ("window.insert(0, decode(path))", ["decode"], {}),
        ("at = text.index(word)", ["index"], {"calls": "builtins.str.index"}),
        ('self.count += len(f"{value}")', [], {}),
        ('text += f"{value}"', [], {}),
        ('self.lines += [f"{value}"]', [], {}),
        ("x = torch.cat([x, skip], dim=1)", ["cat"], {"hits": 8.0}),
        ("x = torch.cat([x, x.flip(0)])", ["cat"], {"around": {"for x, y in loader:": 1.0}}),
        ("both = torch.cat([x, y])", ["cat"], {}),
        ("order = np.argsort(losses)", ["argsort"], {"around": {"rows = values[order]": 1.0}}),
        ("order = sorted(losses)", ["sorted"], {"around": {"low, all = order[0], sum(order)": 1.0}}),
        ("values = torch.sort(x)[0]", ["sort"], {}),
        ("rows = generator.choice(size, 64, replace=False)", ["choice"], {}),
        ("order = torch.randperm(size)", ["randperm"], {}),
        ("image = image.resize((64, 64))", ["resize"], {"around": {"image = Image.open(path)": 1.0}}),
        ("tokens = self.tokens[i].float()", ["float"], {"loads": True}),
        ('data = text.encode("utf-8")', ["encode"], {"loads": True}),
        ("mean = self.normal.loc[i]", [], {}),
        ("torch.save(part, path)", ["save"], {"around": {"part = features[low:high].clone()": 1.0}}),
        ("torch.save(net.state_dict(), path)", ["save"], {}),
        ("log.debug(summary(x))", [], {}),
        ("rows = np.random.choice(", ["choice"], {}),
        ("replace=False)", [], {}),
        ("", [], {}),
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_is_needed_or_of_what_something_else_costs(
    text: str, mostly: list[str], more: dict[str, object]
) -> None:
    assert way(text, mostly, **more) == ""  # type: ignore[arg-type]


def test_a_statement_may_have_many_lines() -> None:
    texts = ("x = make(size)", "rows = np.random.choice(", "size, 64,", "replace=False,")
    uses = [replace(line(each, MS), source=at(each, 30 + number)) for number, each in enumerate(texts)]
    case = replace(BASE, lines=(*uses, replace(uses[0], source=at("best = top(", 35))))
    for number in (1, 2, 3):
        assert "default_rng()" in way_of_line(at(texts[number], 30 + number), case, ())
    assert way_of_line(at(texts[0]), case, ()) == ""


def in_python(made: LineUse) -> Case:
    """A step whose Python is this line's."""
    spent = made.duration.value
    return replace(BASE, lines=(made,), categories=categories(python=spent), phases=phases(rest=spent))


def logged(spent: int) -> Case:
    """A line that makes a text for a logger, whose own call takes `spent` ns: 0 where it was too short to be kept."""
    source = at('log.debug(f"{x.tolist()}")')
    calls = (OutsideCall("logging.Logger.debug", spent),) if spent else ()
    work = LineWork(source, 1.0, 12 * MS, own=12 * MS - spent, calls=calls)
    called = {(source.file, source.line): ("logging.Logger.debug",)}
    inside = LineWork(replace(source, function=f"{source.function}.<locals>.<genexpr>"), 9.0, 6 * MS, own=6 * MS)
    works = work_uses([Looked(RepeatFacts(0, 1, 0, 4, works=(work, inside)))], called, (), 20 * MS)
    made = line(source.text, 12 * MS, calls="torch.Tensor.tolist logging.Logger.debug")
    return replace(in_python(replace(made, source=source)), works=works)


def test_a_logger_that_drops_what_is_made_for_it_is_asked_first() -> None:
    for spent in (0, 5_000):
        found = next(each for each in examine(logged(spent), CATALOGUE).findings if each.name == "logging-in-step")
        assert "formats messages that are never written" in found.summary
        assert "`if log.isEnabledFor(logging.DEBUG):`" in found.advice
    writes = next(each for each in examine(logged(200_000), CATALOGUE).findings if each.name == "logging-in-step")
    assert writes.advice.startswith("Log every n-th step")


def test_a_better_way_comes_before_the_advice_on_a_place() -> None:
    source = at("window.insert(0, value)")
    made = replace(line(source.text, 12 * MS, 12 * MS, calls="builtins.list.insert"), source=source)
    found = next(each for each in examine(in_python(made), CATALOGUE).findings if each.source == source)
    assert "appendleft" in found.advice
    assert "Move this out" not in found.advice


def test_what_a_line_goes_through_takes_no_longer_than_the_line_did_when_it_was_timed() -> None:
    source, below = at("copied = copy.deepcopy(state)"), at("return clone(state)", 9, "Copier.__call__")
    work = LineWork(source, 1.0, 19 * MS, own=19 * MS, calls=(OutsideCall("copy.deepcopy", 19 * MS),))
    looked = [Looked(RepeatFacts(0, 1, 0, 4, works=(work,)))]
    timed = [replace(line(source.text, 8 * MS), source=source)]
    comprehension = PathUse(8 * MS, "", (replace(source, function="main.<locals>.<listcomp>"), source))
    assert work_uses(looked, {}, (), 20 * MS, timed, [comprehension])[0].duration.value == 8 * MS
    calls_the_jobs_own = [PathUse(11 * MS, "", (below, source))]
    assert work_uses(looked, {}, (), 20 * MS, timed, calls_the_jobs_own)[0].duration.value == 19 * MS


@pytest.mark.parametrize(
    ("text", "held", "saved"),
    [
        ("features = torch.load(self.files[i])", 48 * 64_000, 0.9 * 9 * MS * 47 / 48),
        ("return torch.load(path(i))", 48 * 64_000, 0.9 * 9 * MS * 47 / 48),
        ("features = torch.load(self.files[i])", 64_000, 0.0),
        ("features = torch.load(self.files[i], mmap=True)", 48 * 64_000, 0.0),  # reads what is used
        ("features = torch.load(self.files[i])[0]", 48 * 64_000, 0.0),  # of what was saved as a whole
    ],
)
def test_a_file_with_all_of_a_views_tensor_is_written_anew(text: str, held: int, saved: float) -> None:
    work = LineWork(at(text), 16.0, 9 * MS, "input", own=9 * MS, held=held, used=64_000)
    works = work_uses([Looked(RepeatFacts(0, 1, 0, 4, works=(work,)))], {}, phases(input=12 * MS), 20 * MS)
    case = replace(BASE, works=works, categories=categories(input=12 * MS))
    found = [each for each in examine(case, CATALOGUE).findings if each.name == "goes-through-all"]
    assert [each.savings.value for each in found if each.savings] == ([pytest.approx(saved)] if saved else [])
    assert all("save view.clone()" in each.advice for each in found)


def test_what_a_loader_gives_again_is_at_the_line_of_its_dataset() -> None:
    takes, makes = at("for x, y in loader:"), at("pixels = decode(self.paths[i])", 12, "Images.__getitem__")
    calls = "torch.utils.data.dataloader._BaseDataLoaderIter.__next__"
    case = replace(
        in_python(replace(line(takes.text, 9 * MS, role="input", calls=calls), source=takes)),
        paths=(PathUse(9 * MS, "input", (makes, takes)),),
        repeats=(RepeatUse(takes, about(9 * MS), 32.0, 30.0, 8, 4, "input"),),
    )
    found = next(each for each in examine(case, CATALOGUE).findings if each.name == "computed-again")
    assert found.source == makes
    rows = replace(case.lines[0], calls=("__main__.rows",))
    elsewhere = examine(replace(case, lines=(rows,)), CATALOGUE).findings
    assert next(each for each in elsewhere if each.name == "computed-again").source == takes
