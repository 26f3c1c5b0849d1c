"""One law: a patch does all that the change of its trial did. What is in force in a real job is compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advice.healthy import HEALTHY, MS, about, line, loader, operator, optimizer, step
from advice.planted import PLANTED
from probe.variants import JOBS, Variant, run

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case, TopModuleUse
from steptime.advice.explain import find_fix
from steptime.advice.fix import Edit, JointEdit, Option, Snippet
from steptime.advice.run_uses import GarbageUse, SettingsUse
from steptime.analysis.lines import LineRoleName
from steptime.changes import Change, VariantOptions
from steptime.quantities import SourceLine
from steptime.trials.patch import make_patch

torch = pytest.importorskip("torch")

JOB = JOBS / "everything.py"
SETTINGS = SettingsUse(
    intra_op_threads=3,
    usable_cpus=2,
    logical_cpus=2,
    detect_anomaly=True,
    deterministic=True,
    denormals_flushed=False,
    cudnn_benchmark=False,
)
WHOLE = VariantOptions(steps=500, warm_up=0)
"""The job ends by itself."""
IN_FORCE = {
    "anomaly": False,
    "benchmark": True,
    "denormal": 0.0,
    "deterministic": [False, False],
    "dropped": [True] * 4,
    "dtype": "torch.bfloat16",
    "evaluated": "torch.float32",
    "frozen": True,
    "last": True,
    "loaders": [[2, True], [0, False]],
    "optimizers": [[None, True], [None, True]],
    "precision": "high",
    "threads": 2,
    "threshold": 50_000,
    "weight": True,
}
"""None of it is what the job asks for, the evaluation and the second loader excepted."""
CODES = ("RM101", "RM107", "RM201", "RM203", "RM301", "RM304", "RM401", "RM302", "RM404", "RM405", "RM501", "RM502")


def at(file: Path, text: str) -> SourceLine:
    """The line of a file that holds a text."""
    lines = file.read_text().splitlines()
    (number,) = (number for number, each in enumerate(lines, 1) if text in each)
    return SourceLine(str(file), number, "main", lines[number - 1].strip())


def case_of(file: Path) -> Case:
    """What a recording of the job would tell, as far as fixes ask for it."""
    timed: list[tuple[LineRoleName, str]] = [("forward", "out = model(batch)"), ("backward", "loss.backward()")]
    timed += [("optimizer", f"{name}.zero_grad(") for name in ("weights", "head")]
    made = (("AdamW", "weights = "), ("SGD", "head = "))
    return replace(
        HEALTHY,
        settings=SETTINGS,
        contention=None,
        loader=loader(8 * MS, 7 * MS, site=at(file, "loader = "), usable_cpus=2),
        lines=tuple(replace(line(text, MS, role=role), source=at(file, text)) for role, text in timed),
        optimizers=tuple(
            replace(optimizer(MS, type=kind, foreach=True, fused=False), site=at(file, text)) for kind, text in made
        ),
        top_modules=(TopModuleUse("Sequential", 4, 4000, own=True),),
        operators=(operator("mkldnn_convolution", 1, 8 * MS, "compute", flops=1e9), *_zeroing()),
        garbage=GarbageUse(about(MS), 1.0),
        machine=MachineUse("cpu", True, 1e11, 1e10, 1e3, (("float32", 1e11), ("bfloat16", 3e11), ("tf32", 8e11))),
    )


def _zeroing() -> tuple[Any, ...]:
    return PLANTED["zeroed-gradients"]["fires"].operators


def options_of(case: Case) -> dict[str, Option]:
    """The first way to apply each fix. Some look at a device only, of which no part is needed here."""
    device = replace(case, step=step(device="cuda"), settings=replace(SETTINGS, deterministic=False))
    found = {}
    for code in CODES:
        fix = find_fix(code)
        assert fix is not None
        options = fix(device if code in ("RM302", "RM404") else case)
        assert options, code
        found[code] = options[0]
    return found


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Change, ...]]:
    """(the job with all patches written into it, the changes that they stand for)."""
    folder = tmp_path_factory.mktemp("patched")
    file = Path(shutil.copy(JOB, folder / "everything.py"))
    options = options_of(case_of(file))
    edits = tuple(each.edit for each in options.values() if each.edit is not None)
    patch = make_patch(edits, folder, Path(file.name))
    assert patch.snippets == ()
    for path, _, new in patch.files:
        (folder / path).write_text(new)
    return file, tuple(change for each in options.values() for change in each.changes)


def seen(variant: Variant) -> dict[str, Any]:
    assert variant.status == 0, variant.output
    return variant.seen[-1]


def test_patches_put_in_force_what_the_changes_did(tmp_path: Path, patched: tuple[Path, tuple[Change, ...]]) -> None:
    file, changes = patched
    changed = seen(run(tmp_path, JOB, *changes, variant=WHOLE))
    edited = seen(run(tmp_path, file, variant=WHOLE))
    assert edited == changed == IN_FORCE


# -- copies of pinned memory -----------------------------------------------------------------------------------------

COPIES = """from torch.utils.data import DataLoader
loader = DataLoader(data, 8)
for batch, labels in loader:
    batch, labels = batch.to(device), labels.cuda()
    labels = labels.to(device, torch.long)
"""


def copies(folder: Path, *texts: str) -> Edit:
    """The edit of the fix for a job that copies at these lines."""
    file = folder / "train.py"
    file.write_text(COPIES)
    lines = tuple(replace(line(text, MS, role="transfer"), source=at(file, text)) for text in texts)
    case = replace(HEALTHY, step=step(device="cuda"), loader=loader(MS, MS, site=at(file, "loader = ")), lines=lines)
    fix = find_fix("RM104")
    assert fix is not None
    edit = fix(case)[0].edit
    assert edit is not None
    return edit


def test_pinned_memory_is_written_together_with_copies_that_do_not_wait(tmp_path: Path) -> None:
    patch = make_patch((copies(tmp_path, "batch.to(device)"),), tmp_path, Path("train.py"))
    ((_, _, new),) = patch.files
    assert "DataLoader(data, 8, pin_memory=True)" in new
    assert "batch.to(device, non_blocking=True), labels.cuda(non_blocking=True)" in new


@pytest.mark.parametrize("texts", [(), ("batch.to(device)", "torch.long")])
def test_pinned_memory_is_not_written_without_its_copies(tmp_path: Path, texts: tuple[str, ...]) -> None:
    edit = copies(tmp_path, *texts)
    patch = make_patch((edit,), tmp_path, Path("train.py"))
    assert isinstance(edit, JointEdit if texts else Snippet)
    assert patch.files == ()
    assert "pin_memory=True), and batch.to(device, non_blocking=True)" in patch.snippets[0]


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda tensor: tensor.to("cpu"), False),
        (lambda tensor: tensor.to("cpu", torch.float64), False),
        (lambda tensor: tensor.to(torch.float64), False),
        (lambda tensor: tensor.to(torch.zeros(1)), False),
        (lambda tensor: tensor.to(device="cpu", dtype=torch.float64, copy=True), False),
        (lambda tensor: tensor.to("cpu", torch.float64, False), True),
        (lambda tensor: tensor.to("cpu", torch.float64, False, True), True),
        (lambda tensor: tensor.to("cpu", None, False), True),
        (lambda tensor: tensor.to(torch.float64, False), True),
        (lambda tensor: tensor.to(torch.float64, False, True), True),
        (lambda tensor: tensor.to(torch.zeros(1), False), True),
        (lambda tensor: tensor.to(torch.zeros(1), False, True), True),
        (lambda tensor: tensor.to("cpu", non_blocking=False), True),
        (lambda tensor: tensor.cuda(), False),
        (lambda tensor: tensor.cuda(0), False),
        (lambda tensor: tensor.cuda(None, False), True),
        (lambda tensor: tensor.cuda(0, non_blocking=False), True),
        (lambda tensor: torch.nn.Linear(1, 1).to("cpu"), True),
        (lambda tensor: torch.zeros(1).copy_(tensor, False), None),
    ],
)
def test_copies_that_say_whether_they_wait_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, copy: Callable[[Any], Any], waits: bool | None
) -> None:
    from steptime.probe.changes.loading import let_copies_go_on

    asked: list[bool | None] = []

    def spy(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def called(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append(not kwargs.get("non_blocking", False))
            return tensor if name == "cuda" else original(tensor, *args, **kwargs)

        return called

    for name in ("to", "cuda"):
        monkeypatch.setattr(torch.Tensor, name, spy(name))
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    let_copies_go_on()
    copy(torch.ones(1))
    assert set(asked) == (set() if waits is None else {waits})
