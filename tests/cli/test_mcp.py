"""`steptime mcp` next to the protocol's own client, over standard input and output: what an agent asks, is told, and
can do next."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from advice.healthy import HEALTHY, MS, line, operator, optimizer
from machines import remember_peaks
from preloading import python, steptime_words

from steptime.advice.engine import examine
from steptime.advice.evidence import PathUse
from steptime.answer.answer import Answer
from steptime.answer.brief import as_brief, fitted, place_of
from steptime.cli import answers
from steptime.cli.main import main
from steptime.cli.mcp import answered, judged_diff
from steptime.diagnosis import diagnose_anywhere
from steptime.errors import SteptimeError
from steptime.quantities import Estimate, SourceLine
from steptime.trials.results import PatchResult, Plan, Results
from steptime.trials.trial import BASELINE, Agreement, Judgement, Run, TrialVerdict, Variant

if importlib.util.find_spec("mcp") is None:  # it is imported by those that use it: a second for each worker
    pytest.skip("mcp is not installed", allow_module_level=True)

GOLD = Path(__file__).parent.parent / "report" / "gold"
GPU = Path(__file__).parent.parent / "data" / "gpu"
REPORTS = sorted(path for path in GOLD.glob("*.json") if path.name not in ("comparison.json", "memory.json"))
FRAME = {"answer", "confidence", "line", "saves", "fixes", "next"}
TOKEN = re.compile(r"[^\W\d_]{1,4}|\d{1,2}|[^\w\s]+|_+")
"""Smaller than those of language models: words of four letters, two digits, a row of signs."""
TRAINING = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1200):
    x = torch.randn(16, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BROKEN = """\
--- a/train.py
+++ b/train.py
@@ -3,3 +3,3 @@
 torch.manual_seed(0)
-model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
+model = torch.nn.Sequential(torch.nn.Linear(64, 63), torch.nn.ReLU(), torch.nn.Linear(64, 1))
 optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


@dataclass
class Reported:
    """A tool's answer. progress: what was said meanwhile."""

    text: str
    failed: bool
    progress: list[str]

    @property
    def document(self) -> dict[str, Any]:
        assert not self.failed, self.text
        found: dict[str, Any] = json.loads(self.text)
        assert set(found) >= FRAME
        assert len(TOKEN.findall(self.text)) < 1500
        assert {"tool", "arguments"} == set(found["next"])
        return found


Ask = Callable[..., list[Reported]]
RECORDED = "the recording of the first answer"


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """ask((tool, arguments), …): the answers of one server, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    remember_peaks(tmp_path / "cache")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    async def converse(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Reported]:
        mcp, stdio = importlib.import_module("mcp"), importlib.import_module("mcp.client.stdio")
        command, *words = steptime_words("mcp")
        server = mcp.StdioServerParameters(command=command, args=words, env=environment, cwd=tmp_path)
        found = list[Reported]()
        async with mcp.Client(stdio.stdio_client(server)) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            assert set(listed) == {"diagnose", "explain", "judge", "what_if", "compare"}
            assert all(each.description and each.input_schema["type"] == "object" for each in listed.values())
            for tool, arguments in calls:
                progress: list[str] = []

                async def note(
                    count: float, total: float | None, message: str | None, into: list[str] = progress
                ) -> None:
                    into.append(message or "")

                known = {name: found[0].document["recording"] for name, each in arguments.items() if each is RECORDED}
                result = await client.call_tool(tool, {**arguments, **known}, progress_callback=note)
                found.append(Reported(result.content[0].text, bool(result.is_error), progress))
        return found

    def ask(*calls: tuple[str, Mapping[str, Any]]) -> list[Reported]:
        reported: list[Reported] = importlib.import_module("anyio").run(converse, calls)
        return reported

    return ask


def test_what_cannot_be_answered_is_one_sentence(ask: Ask, tmp_path: Path) -> None:
    trap = ["touch", str(tmp_path / "ran")]
    (tmp_path / "recording").mkdir()
    manifest = {"format_version": 1, "command": trap, "directory": str(tmp_path), "processes": []}
    (tmp_path / "recording" / "manifest.json").write_text(json.dumps(manifest))
    asked = {
        "Nothing to diagnose. Give a command, or the path of a recording or a trace. (usage)": ("diagnose", {}),
        "The arguments of judge are invalid: Expected `array`, got `str` - at `$.command`. (usage)": (
            "judge",
            {"command": "x"},
        ),
        "The arguments of explain are invalid: Object contains unknown field `page`. (usage)": (
            "explain",
            {"code": "ST101", "page": 2},
        ),
        "There is no tool 'shell'. Tools: diagnose, explain, judge, what_if, compare. (usage)": ("shell", {}),
        "No such folder: gone (usage)": ("diagnose", {"command": ["python", "x.py"], "directory": "gone"}),
        "Give fixes, or a change of yours (diff), not both. (usage)": (
            "judge",
            {"command": ["python", "x.py"], "fixes": ["RM101"], "diff": "x.patch"},
        ),
        "metric and loss need a change of yours: give diff, ref, env or args. (usage)": (
            "judge",
            {"command": ["python", "x.py"], "metric": "rate (.*)", "until_loss": 1.5},
        ),
        "The command is longer than 2000 characters. Put it into a shell script. (usage)": (
            "diagnose",
            {"command": ["python", "-c", "x" * 2001]},
        ),
        "There is no command no-such-program. Check its spelling, and that its environment is activated. "
        "(command-not-found)": ("diagnose", {"command": ["no-such-program"]}),
    }
    reported = ask(*asked.values(), ("judge", {"command": ["python", "train.py"], "recording": "recording"}))
    assert [each.text for each in reported[:-1]] == list(asked)
    assert all(each.failed for each in reported)
    assert "records another job" in reported[-1].text
    assert not (tmp_path / "ran").exists(), "a recording's own command is never run"


def test_every_report_and_page_is_answered_in_short_with_a_next_call(ask: Ask) -> None:
    calls: list[tuple[str, Mapping[str, Any]]] = [
        ("explain", {"code": code}) for code in ("ST101", "RM303", "no-torch")
    ]
    for path in REPORTS:
        calls += [("diagnose", {"path": str(path)}), ("what_if", {"path": str(path)})]
        calls.append(("explain", {"code": "ST101", "path": str(path)}))
    calls.append(("compare", {"before": str(GOLD / "run.json"), "after": str(GOLD / "ranks.json")}))
    documents = [reported.document for reported in ask(*calls)]
    assert documents[0]["fixes"] == ["RM101", "RM103", "RM109", "RM110"]
    for document in documents:
        assert document["answer"]
        assert document["confidence"].startswith(("Confident", "Likely", "Unclear", "A definition"))
        assert document["next"]["tool"] in ("diagnose", "explain", "judge", "what_if")
    # Nobody gave a command, and so none of them is to be run.
    assert not any(document["next"]["tool"] == "judge" for document in documents)


# Words, paths full of signs and digits (by bytes such a text has twice the tokens of prose), and another script.
@pytest.mark.parametrize("sign", ["é", "word ", "a1_/", "-1.", "日本"])
def test_an_answer_is_cut_but_for_what_a_call_needs(sign: str) -> None:
    next_ = answers.call("judge", command=["python", "train.py", "--name", "x" * 900], recording="/runs/a")
    findings = [{"code": f"ST{number}", "why": sign * 3000} for number in range(100)]
    text = fitted(as_brief(Answer("", "y" * 5000, "z" * 5000), next_, line="l" * 5000, found=findings))
    assert len(TOKEN.findall(text)) < 1500
    assert json.loads(text)["next"] == next_


JOB = {"command": ["python", "train.py"]}


def undecided(*runs: Run, proposal: str = "RM405", **more: Any) -> Results:
    """A trial of one variant that is not decided."""
    variant = Variant("one", proposal=proposal)
    judgement = Judgement(variant, TrialVerdict.UNDECIDED, Agreement.NOT_SEEN, "Too few rounds were run", **more)
    return Results(Plan(("python",), "/job", "/job/runs/a", (variant,), 0.03), runs, ((0, judgement),), None)


def ran(variant: str, rehearsal: bool) -> Run:
    return Run(variant, 0, 0, 0, 0, rehearsal, "", 100.0, step_ns=(10_000_000,) * 40)


def test_a_trial_that_goes_on_is_given_the_time_that_it_needs() -> None:
    none = undecided(ran(BASELINE, True), ran("one", True))
    reported = answers.of_trial(none, "/runs/t", JOB, "ST408")
    assert reported["next"]["arguments"]["resume"] == "/runs/t"
    assert reported["next"]["arguments"]["budget"] == "15m"  # two rounds of three processes, and half of that besides
    assert "first rounds take about 10 min" in reported["confidence"]
    some = undecided(*[ran(BASELINE, False)] * 5, speed=Estimate(1.07, 1.0, 1.14, 4, "1"), rounds=4)
    assert answers.of_trial(some, "/runs/t", JOB, "ST408")["next"]["arguments"]["budget"] == "25m"


@pytest.mark.parametrize("name", ["chargpt", "graphs"])
def test_the_first_sentence_is_the_headline_and_the_finding_whose_line_is_given(name: str) -> None:
    report = diagnose_anywhere((str(GPU / name),))
    reported = answers.of_report(report, JOB, "runs/a")
    first = report.processes[0].findings[0]
    assert reported["line"] == place_of(first.source)
    assert first.summary in reported["answer"]
    process = replace(report.processes[0], verdict=replace(report.processes[0].verdict, sentence="Computing takes it."))
    again = answers.of_report(replace(report, processes=(process,)), JOB, "runs/a")["answer"]
    assert again.startswith(f"Computing takes it. {first.code}: {first.summary}"), "a headline of something else"


def test_lines_that_take_much_are_reported_where_no_finding_names_them() -> None:
    report = diagnose_anywhere((str(GOLD / "run.json"),))
    loop, hook = line("table = parse(text)", 3 * MS), line("row = decode(blob)", 2 * MS, role="forward")
    hook = replace(hook, source=replace(hook.source, function="watch"))
    lines = (*HEALTHY.lines, loop, hook, line("for images in loader:", 4 * MS, role="input"))
    model = replace(operator("addmm", 12, 12 * MS, "compute"), source=SourceLine("model.py", 5, "forward"))
    below = SourceLine("features.py", 7, "use", "text.split()")
    case = replace(HEALTHY, lines=lines, operators=(model,), paths=(PathUse(5 * MS, "", (below, loop.source)),))
    process = replace(report.processes[0], case=case, findings=())
    reported = answers.of_report(replace(report, processes=(process,)), JOB, "runs/a")
    assert [each["line"] for each in reported["findings"]] == [place_of(below), place_of(loop.source)]
    assert reported["line"] == place_of(below)
    assert reported["next"]["arguments"]["diff"] == answers.CHANGE
    assert [source for source, _ in answers.dear_lines(process)] == [below, loop.source, hook.source]


def test_a_change_that_wins_when_its_judgement_goes_on_can_be_applied(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("slow = True\nprint(slow)\n")
    (tmp_path / "trial").mkdir()
    variant = Variant("diff-1", label="change.patch", sources=(("train.py", "slow = False\nprint(slow)\n"),))
    speed = Estimate(2.0, 1.8, 2.2, 3, "1")
    judgement = Judgement(variant, TrialVerdict.ADOPT, Agreement.SAME_BITS, "Losses are equal", speed=speed, rounds=3)
    plan = Plan(("python", "train.py"), str(tmp_path), "", (variant,), 0.03)
    runs = (ran(BASELINE, False),)
    results = Results(plan, runs, ((0, judgement),), None)
    command = judged_diff(results, tmp_path / "trial")
    reported = answers.of_trial(results, str(tmp_path / "trial"), JOB, "", command, resumed=True)
    assert reported["apply"] == command
    subprocess.run(command, shell=True, check=True)
    assert (tmp_path / "train.py").read_text() == "slow = False\nprint(slow)\n"
    assert judged_diff(results, tmp_path / "trial") == ""  # it is there
    (tmp_path / "train.py").write_text("slow = True\nprint(slow)\n")
    earlier = replace(plan, baseline=Variant(BASELINE, sources=(("train.py", "older = True\n"),)))
    assert judged_diff(replace(results, plan=earlier), tmp_path / "trial") == ""
    lost = replace(results, judgements=((0, replace(judgement, verdict=TrialVerdict.UNDECIDED)),))
    assert judged_diff(lost, tmp_path / "trial") == ""


def test_a_patch_that_was_not_run_by_itself_is_not_handed_out() -> None:
    found = undecided(ran(BASELINE, False), speed=Estimate(2.0, 1.8, 2.2, 4, "1"), rounds=4)
    won = replace(found.judgements[0][1], verdict=TrialVerdict.ADOPT)
    patch = PatchResult("--- a/x", (), (), None, apply="git -C / apply x")
    waiting = replace(found, judgements=((0, won),), patch=patch)
    reported = answers.of_trial(waiting, "/runs/t", JOB, "ST101")
    assert reported["apply"] == ""
    assert reported["next"]["arguments"] == {"resume": "/runs/t", "budget": "10m", **JOB}
    assert "the budget ended before the patch ran" in reported["confidence"]
    proved = replace(waiting, patch=replace(patch, judgement=won))
    assert answers.of_trial(proved, "/runs/t", JOB, "ST101")["apply"] == "git -C / apply x"


def test_fixes_that_the_sources_give_no_place_for_are_not_offered(tmp_path: Path) -> None:
    table = optimizer(6 * MS, elements=2_000_000, type="SGD", dense_embedding_elements=1_900_000)
    case = replace(HEALTHY, optimizers=(table,))
    report = diagnose_anywhere((str(GOLD / "run.json"),))
    report = replace(report, processes=(replace(report.processes[0], case=case, findings=examine(case).findings),))
    job, script = {**JOB, "directory": str(tmp_path)}, tmp_path / "train.py"
    for text, offered in (("table = Table(9, 9)\n", False), ("table = nn.Embedding(9, 9)\n", True)):
        script.write_text(text)
        assert ("RM204" in answers.of_report(report, job, "runs/a")["fixes"]) is offered
        assert ("RM204" in answers.of_what_if(report, job, "runs/a")["fixes"]) is offered


def test_small_fixes_that_stay_undecided_give_way_to_a_change_of_the_clients_own() -> None:
    again = undecided(ran(BASELINE, True), ran("one", True))
    reported = answers.of_trial(again, "/runs/t", JOB, "ST408", resumed=True)
    assert reported["next"]["arguments"]["diff"] == answers.CHANGE
    assert reported["how"] == answers.HOW
    own = undecided(ran(BASELINE, True), ran("one", True), proposal="")
    assert "resume" in answers.of_trial(own, "/runs/t", JOB, "ST408", resumed=True)["next"]["arguments"]


def test_without_the_package_it_is_one_sentence_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    assert main(["mcp"]) == 2
    assert "pip install 'steptime[mcp]' (mcp-missing)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_script_without_steps_is_judged_by_what_it_prints(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text("import sys\nprint('rate', 200 if '--fast' in sys.argv else 100)\n")
    asked = {"command": [sys.executable, "infer.py"], "args": "--fast", "metric": r"rate (\d+)", "budget": "60s"}
    (judged,) = ask(("judge", asked))
    reported = judged.document
    assert reported["answer"].startswith("--fast: faster, 2.00")
    assert reported["next"]["arguments"]["metric"] == r"rate (\d+)"


def test_a_job_is_measured_and_a_change_of_it_judged(ask: Ask, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "click.py").write_text("raise SystemExit('a file of the job is no module of ours')")
    job = {"command": [python(), "train.py"]}
    change = {"diff": BROKEN, "recording": RECORDED, "budget": "4m"}
    diagnosed, judged = ask(("diagnose", job), ("judge", job | change))
    assert any("measuring the unchanged job" in message for message in diagnosed.progress)
    assert Path(diagnosed.document["recording"]).is_dir()
    verdict = judged.document
    assert ": broken" in verdict["answer"]
    assert "mat1 and mat2 shapes cannot be multiplied" in verdict["candidates"][0]["why"]
    assert any("rehearsal" in message for message in judged.progress)
    assert (tmp_path / "train.py").read_text() == TRAINING
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "click.py", "runs", "cache"}


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 5000], ids=["a zero byte", "no Unicode", "too long"])
@pytest.mark.parametrize(
    ("tool", "argument"),
    [("diagnose", "path"), ("what_if", "path"), ("diagnose", "directory"), ("judge", "resume"), ("judge", "diff")],
)
def test_no_text_of_a_clients_is_more_than_refused(tool: str, argument: str, text: str) -> None:
    anyio = importlib.import_module("anyio")

    async def notify(sentence: str) -> None:
        """Nothing is started that could say anything."""

    given = {argument: text, **({"command": ["true"]} if tool == "judge" or argument == "directory" else {})}
    with pytest.raises(SteptimeError) as refused:
        anyio.run(answered, tool, given, notify)
    assert "\n" not in str(refused.value)


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("value", [10**30, -(10**30), nested(5000), {"a": nested(5000)}, float("nan"), None, True])
@pytest.mark.parametrize(("tool", "argument"), [("explain", "code"), ("judge", "command"), ("compare", "before")])
def test_no_value_of_a_clients_is_more_than_refused(tool: str, argument: str, value: object) -> None:
    async def notify(sentence: str) -> None:
        """Nothing is started that could say anything."""

    given = {"command": ["true"], "after": "x", argument: value}
    anyio = importlib.import_module("anyio")
    with pytest.raises(SteptimeError) as refused:
        anyio.run(answered, tool, given, notify)
    assert "\n" not in str(refused.value)
