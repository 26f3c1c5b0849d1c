"""Edits around the training loop: what is written runs, means what the change meant, and applies with git."""

from __future__ import annotations

import itertools
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from examples import examples
from steptime.advice.fix import AutocastEdit, CallEdit, Edit, LoopEdit, ModelEdit, SingleEdit, StatementEdit, SwitchEdit
from steptime.quantities import SourceLine
from steptime.trials.edits import apply_edit, replaced_arguments
from steptime.trials.patch import make_patch, unified_diff

COMPILED = "{model} = {torch}.compile({model})"


def line(source: str, part: str) -> SourceLine:
    """The first line with a text."""
    lines = source.split("\n")
    number = next(number for number, text in enumerate(lines, 1) if part in text)
    return SourceLine("train.py", number, "", lines[number - 1].strip())


def autocast(source: str, forward: str = "model(", backward: str = ".backward()") -> AutocastEdit:
    return AutocastEdit(line(source, forward), line(source, backward), "cpu", "bfloat16", "with torch.autocast: …")


def compiled(source: str, *, in_place: str = "") -> ModelEdit:
    return ModelEdit(COMPILED, line(source, "model("), line(source, "SGD("), "…", prefixed=True, in_place=in_place)


def innermost(source: str) -> ModelEdit:
    return ModelEdit(
        "{model} = {model}.to(memory_format={torch}.channels_last)",
        line(source, "model("),
        line(source, "SGD("),
        "…",
        "{batch} = {batch}.to(memory_format={torch}.channels_last)",
    )


def frozen(source: str) -> LoopEdit:
    return LoopEdit(("gc.collect()", "gc.freeze()"), "gc", line(source, "model("), "…")


# -- what is written runs, in every style -----------------------------------------------------------------------------

PLAIN = """\
# A job.
{import_torch}
import jobs

model = jobs.Model()
# the optimiser
optimizer = {torch}.optim.SGD(model.parameters())
for epoch in range(2):

    for images, labels in jobs.batches():
        # forward
        output = model(images)  # why
        loss = jobs.criterion(
            output,
            labels,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
IN_FUNCTION = """\
'''A job.'''
from __future__ import annotations

{import_torch}
import jobs


def main(steps=2):
    model = jobs.Model()
    optimizer = {torch}.optim.SGD(model.parameters())
    if steps:
        while steps:
            for images, labels in jobs.batches():
                optimizer.zero_grad()
                loss = jobs.criterion(model(images), labels); jobs.note()
                loss.backward()
                optimizer.step()
            steps -= 1


if __name__ == "__main__":
    main()
"""
HANDED_ON = """\
{import_torch}
import jobs

def train(model, batches, optimizer):
    for images, labels in batches:
        output = model(images)
        loss = jobs.criterion(output, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def main():
    model = jobs.Model()
    optimizer = {torch}.optim.SGD(model.parameters())
    for epoch in range(2):
        train(model, jobs.batches(), optimizer)

main()
"""
SHAPES = {"plain": PLAIN, "in a function": IN_FUNCTION, "handed on": HANDED_ON}


@dataclass(frozen=True)
class Style:
    """How a file is written."""

    shape: str
    indent: str
    newline: str
    alias: bool
    last_newline: bool

    def text(self) -> str:
        torch = "t" if self.alias else "torch"
        source = SHAPES[self.shape].format(import_torch=f"import torch{' as t' * self.alias}", torch=torch)
        lines = source.split("\n")
        depths = [len(each) - len(each.lstrip(" ")) for each in lines]
        lines = [self.indent * (depth // 4) + each.lstrip(" ") for depth, each in zip(depths, lines, strict=True)]
        text = self.newline.join(lines)
        return text if self.last_newline else text.rstrip("\r\n")


STYLES = st.builds(
    Style,
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(["    ", "\t", "  "]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
EDITS: dict[str, Callable[[str], SingleEdit]] = {
    "autocast": autocast,
    "compile": compiled,
    "channels": innermost,
    "freeze": frozen,
}


@given(STYLES, st.sampled_from(sorted(EDITS)))
@settings(max_examples=examples(30), deadline=None)
def test_an_edit_parses_runs_and_changes_only_its_lines(style: Style, kind: str) -> None:
    source = style.text()
    edit: Any = EDITS[kind](source.replace("\r", ""))
    new = apply_edit(edit, source)
    assert new is not None
    events = run(new)
    assert (new.count("\r\n") == new.count("\n")) == (source.count("\r\n") == source.count("\n"))
    assert new.count("\n") - source.count("\n") <= 3
    assert kept(source, new)
    assert apply_edit(edit, new) is None or kind != "autocast"
    before = run(source)
    assert [each for each in events if each in before] == before
    if kind == "autocast":
        assert_forward_and_loss_inside(events)
    elif kind == "compile":
        assert events[0] == "compile"
        assert events.count("compile") == 1
        assert "forward compiled" in events
    elif kind == "channels":
        assert events.count("layout") == 1 + events.count("forward")
    else:
        assert "freeze" in events[: events.index("forward")]


@given(STYLES, st.sampled_from(sorted(EDITS)))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_diff_applies_with_git(tmp_path: Path, style: Style, kind: str) -> None:
    source = style.text()
    new = apply_edit(EDITS[kind](source.replace("\r", "")), source)
    assert new is not None
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    (folder / "train.py").write_bytes(source.encode())
    (folder / "patch.diff").write_bytes(unified_diff(Path("train.py"), source, new).encode())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "apply", "patch.diff"], cwd=folder, check=True, capture_output=True)
    assert (folder / "train.py").read_bytes() == new.encode()


def kept(old: str, new: str) -> bool:
    """Whether every line of the old text is in the new one, in its order, at most indented further."""
    rest = iter(each.strip() for each in new.split("\n"))
    return all(each.strip() in rest for each in old.split("\n") if each.strip() and "import" not in each)


def assert_forward_and_loss_inside(events: list[str]) -> None:
    depth = 0
    for event in events:
        depth += {"enter": 1, "exit": -1}.get(event, 0)
        if event in ("forward", "loss"):
            assert depth == 1
        elif event in ("backward", "step", "zero"):
            assert depth == 0, events


def run(source: str) -> list[str]:
    """What a job does, with a torch that only notes it."""
    events: list[str] = []
    names = ("torch", "jobs", "gc")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(zip(names, (_torch(events), _jobs(events), _gc(events)), strict=True))
    try:
        exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return events


def _torch(events: list[str]) -> Any:
    torch: Any = types.ModuleType("torch")

    @contextmanager
    def autocast(device: str, dtype: object) -> Iterator[None]:
        assert (device, dtype) == ("cpu", torch.bfloat16)
        events.append("enter")
        yield
        events.append("exit")

    def compiler(model: Any) -> Any:
        events.append("compile")
        model.name = "forward compiled"
        return model

    class SGD:
        def __init__(self, parameters: object, lr: float = 0.0) -> None: ...

        def step(self) -> None:
            events.append("step")

        def zero_grad(self) -> None:
            events.append("zero")

    torch.autocast, torch.compile, torch.bfloat16, torch.channels_last = autocast, compiler, object(), object()
    torch.optim = types.SimpleNamespace(SGD=SGD)
    return torch


class _Layout:
    """What can be converted."""

    def __init__(self, events: list[str], name: str) -> None:
        self.events, self.name = events, name

    def to(self, memory_format: object) -> Any:
        self.events.append("layout")
        return self

    def __call__(self, images: object) -> Any:
        if self.name != "forward":
            self.events.append(self.name)
        self.events.append("forward")
        return self

    def parameters(self) -> list[int]:
        return []

    def backward(self) -> None:
        self.events.append("backward")


def _jobs(events: list[str]) -> Any:
    jobs: Any = types.ModuleType("jobs")

    def criterion(output: object, labels: object) -> Any:
        events.append("loss")
        return _Layout(events, "loss")

    jobs.Model = lambda: _Layout(events, "forward")
    jobs.batches = lambda: [(_Layout(events, "images"), 0)] * 3
    jobs.criterion, jobs.note = criterion, lambda: None
    return jobs


def _gc(events: list[str]) -> Any:
    module: Any = types.ModuleType("gc")
    module.collect, module.freeze = lambda: None, lambda: events.append("freeze")
    return module


# -- what is not certain is not written --------------------------------------------------------------------------------

LOOP = """\
import torch
model = make()
optimizer = torch.optim.SGD(model.parameters())
for x, y in batches:
    {body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "loss = criterion(model(x), y); loss.backward()",
        "criterion(model(x), y).backward()",
        "if (loss := model(x)):\n        loss.backward()",
        "with torch.autocast('cpu'): loss = model(x)\n    loss.backward()",
        "for part in x: loss = model(part)\n    loss.backward()",
        "loss = [model(x)][0]\n    if y:\n        loss.backward()",
    ],
)
def test_autocast_is_not_written_where_forward_and_backward_are_not_apart_in_one_block(body: str) -> None:
    source = LOOP.format(body=body)
    assert apply_edit(autocast(source), source) is None


def test_lines_that_have_changed_since_are_left_alone() -> None:
    source = LOOP.format(body="loss = model(x)\n    loss.backward()")
    edit = autocast(source)
    assert apply_edit(edit, source) is not None
    assert apply_edit(edit, source.replace("loss = model(x)", "loss = model(x, y)")) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import torch\ndef f(model):\n    return torch.optim.SGD(model.parameters())\n"
         "def g(model):\n    for x in y:\n        model(x).backward()\n", "the optimizer's function only borrows it"),
        ("import torch\nclass M:\n    def fit(self):\n        o = torch.optim.SGD(self.model.parameters())\n"
         "        for x in y:\n            self.model(x).backward()\n", "an attribute is part of another module"),
        ("import torch\ndef train(model):\n    model.parameters()\n    for x in y:\n        model(x).backward()\n"
         "o = SGD(all)\n", "it would be compiled at every call"),
        ("from torch.optim import SGD\nmodel = f()\no = SGD(model.parameters())\nfor x in y:\n    model(x)\n",
         "torch has no name here"),
        ("import torch\nmodel = f()\no = torch.optim.SGD(model.parameters())\n"
         "torch.save(model.state_dict(), 'a.pt')\nfor x in y:\n    model(x).backward()\n",
         "names in files would change"),
    ],
    ids=lambda value: value if " " in value and "\n" not in value else "",
)  # fmt: skip
def test_a_model_is_not_compiled_where_that_is_not_certain(source: str, reason: str) -> None:
    assert apply_edit(compiled(source), source) is None, reason


def test_a_model_that_is_saved_is_compiled_in_place() -> None:
    source = (
        "import torch\nmodel = f()\no = torch.optim.SGD(model.parameters())\n"
        "torch.save(model.state_dict(), 'a.pt')\nfor x in y:\n    model(x).backward()\n"
    )
    new = apply_edit(compiled(source, in_place="{model}.compile()"), source)
    assert new == source.replace("o = torch", "model.compile()\no = torch")


def test_without_a_known_optimiser_it_is_compiled_before_the_loop() -> None:
    source = (
        "import torch\nif a:\n    model = f()\nelse:\n    model = g()\nmodel.to(d)\nopt = model.configure()\n"
        "opt.add(model.parameters())\n\nwhile True:\n    for x in y:\n        model(x).backward()\n"
    )
    edit = ModelEdit(COMPILED, line(source, "model(x)"), None, "…", prefixed=True)
    new = apply_edit(edit, source)
    assert new == source.replace("\nwhile", "\nmodel = torch.compile(model)\nwhile")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("torch.autograd.set_detect_anomaly(True)\n", "torch.autograd.set_detect_anomaly(False)\n"),
        ("set_detect_anomaly( mode = True , check_nan=True)\n", "set_detect_anomaly( mode = False , check_nan=True)\n"),
        ("with set_detect_anomaly(True):\n\tpass\nset_detect_anomaly(True)\n",
         "with set_detect_anomaly(False):\n\tpass\nset_detect_anomaly(False)\n"),
        ("set_detect_anomaly(args.debug)\n", None),
        ("set_detect_anomaly()\n", None),
    ],
)  # fmt: skip
def test_a_switch_is_turned_off_where_it_is_turned_on(source: str, wanted: str | None) -> None:
    assert apply_edit(SwitchEdit("set_detect_anomaly", "…"), source) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("torch.set_num_threads(4 * len(cpus))\n", "torch.set_num_threads(1)\n"),
        ("torch.set_num_threads(2)\ntorch.set_num_threads(3)\n", None),
        ("torch.set_num_threads(*given)\n", None),
        ("pass\n", None),
    ],
)
def test_a_number_takes_the_place_of_the_only_one(source: str, wanted: str | None) -> None:
    assert apply_edit(SwitchEdit("set_num_threads", "…", "1"), source) == wanted


ALIASED = [
    ("from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m)\n", "m = DDP(m, static_graph=True)"),
    ("import torch.nn as nn\nm = nn.parallel.DistributedDataParallel(m,)\n", "DataParallel(m, static_graph=True,)"),
    ("from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m) if x else DDP(n)\n", None),
    ("m = DDP(m)\n", None),
    ("from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(*more)\n", None),
]  # fmt: skip


@pytest.mark.parametrize(("source", "wanted"), ALIASED)
def test_a_call_without_a_recorded_line_is_the_only_one_of_its_name(source: str, wanted: str | None) -> None:
    new = apply_edit(CallEdit("DistributedDataParallel", (("static_graph", "True"),)), source)
    assert (new is None) if wanted is None else (new is not None and wanted in new)


WORKERS = (("num_workers", "0"), ("persistent_workers", "False"))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("data, **options", 'data, **{**options, "num_workers": 0, "persistent_workers": False}'),
        ("data, **options, num_workers=4", 'data, **{**options, "persistent_workers": False}, num_workers=0'),
        ("data, **{'num_workers': n}", "data, **{'num_workers': 0, \"persistent_workers\": False}"),
        ("data, *more, **options", None),
        ("data, **options, **more", None),
    ],
)
def test_what_a_mapping_may_hold_is_set_over_it(given: str, wanted: str | None) -> None:
    edit = CallEdit("DataLoader", WORKERS, SourceLine("train.py", 1))
    new = apply_edit(edit, f"loader = DataLoader({given})\n")
    assert new == (None if wanted is None else f"loader = DataLoader({wanted})\n")
    assert new is None or apply_edit(edit, new) is None, "once is enough"


def test_a_mapping_that_is_overruled_is_reported() -> None:
    edit = CallEdit("DataLoader", WORKERS, SourceLine("train.py", 1))
    reported = replaced_arguments(edit, "loader = DataLoader(data, **options, num_workers=count)\n")
    assert reported == ["**options no longer sets persistent_workers", "num_workers=count is 0 now"]


def test_other_things_of_the_same_last_name_are_no_calls_of_it() -> None:
    source = "import re\nimport torch\np = re.compile('x')\nm = torch.compile(m, dynamic=False)\n"
    new = apply_edit(CallEdit("torch.compile", (("dynamic", "True"),)), source)
    assert new == source.replace("False", "True")
    positional = CallEdit("zero_grad", (("set_to_none", "True"),), SourceLine("train.py", 1))
    assert apply_edit(positional, "optimizer.zero_grad(False)\n") is None


def test_a_form_feed_in_a_file_does_not_break_the_diff(tmp_path: Path) -> None:
    source = "import torch\n\x0c\nmodel = make()\no = torch.optim.SGD(model.parameters())\nfor x in y:\n    model(x)\n"
    edit: SingleEdit = compiled(source)
    new = apply_edit(edit, source)
    assert new is not None
    (tmp_path / "train.py").write_bytes(source.encode())
    (tmp_path / "patch.diff").write_bytes(unified_diff(Path("train.py"), source, new).encode())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "patch.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_bytes() == new.encode()


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_order_of_edits_gives_one_patch(tmp_path: Path, shape: str) -> None:
    source = Style(shape, "    ", "\n", False, True).text()
    (tmp_path / "train.py").write_text(source)
    # What is not asked for is never run here: a keyword of the optimizer, on the line that the model's edit needs, too.
    more = CallEdit("SGD", (("lr", "0.1"),), line(source, "SGD("))
    edits: list[Edit] = [autocast(source), compiled(source), frozen(source), more]
    for order in list(itertools.permutations(edits))[:: 4 if shape == "plain" else 11]:
        patch = make_patch(order, tmp_path, None)
        assert patch.snippets == ()
        events = run(patch.files[0][2])
        assert_forward_and_loss_inside(events)
        assert events.count("compile") == 1
        assert "forward compiled" in events
        assert "freeze" in events
        assert "model.parameters(), lr=0.1)" in patch.files[0][2]


@pytest.mark.parametrize(
    "source",
    [
        "torch.autograd.set_detect_anomaly(True)\nwith torch.autograd.detect_anomaly():\n    train()\n",
        "torch.autograd.set_detect_anomaly(True)\ntorch.autograd.set_detect_anomaly(args.debug)\n",
    ],
)
def test_a_switch_that_may_be_on_in_another_way_is_left_to_the_user(source: str) -> None:
    assert apply_edit(SwitchEdit("set_detect_anomaly", "…", others=("detect_anomaly",)), source) is None


def test_a_statement_that_the_file_overrules_is_left_to_the_user() -> None:
    benchmark = StatementEdit("torch.backends.cudnn.benchmark = True", "torch")
    precision = StatementEdit('torch.set_float32_matmul_precision("high")', "torch")
    source = "import torch\nimport torch.backends.cudnn as cudnn\n"
    for edit in (benchmark, precision):
        assert apply_edit(edit, source) is not None
    assert apply_edit(benchmark, source + "cudnn.benchmark = False\n") is None
    assert apply_edit(precision, source + 'torch.set_float32_matmul_precision("highest")\n') is None


def test_a_call_that_is_not_the_only_one_of_its_kind_is_left_to_the_user() -> None:
    edit = CallEdit("torch.compile", (("dynamic", "True"),))
    source = "import re, torch\nwords = re.compile('x')\nstep = torch.compile(train)\n"
    assert apply_edit(edit, source) == source.replace("(train)", "(train, dynamic=True)")
    assert apply_edit(edit, source + "model.compile()\n") is None
    assert apply_edit(edit, source + "@torch.compile\ndef more(x):\n    return x\n") is None
