"""Sums that stay on the device: what is written prints what the job printed, and what may not is not written."""

from __future__ import annotations

import contextlib
import io
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY
from preloading import python

from steptime.advice.evidence import SiteUse
from steptime.advice.explain import find_fix
from steptime.advice.fix import DeferEdit, Proposal
from steptime.changes import VariantOptions
from steptime.launcher.outcome import ProbeOptions
from steptime.launcher.variant import VariantPlace, run_variant
from steptime.quantities import SourceLine
from steptime.trials.edits import apply_edit
from steptime.trials.execute import ScheduledRun, read_run
from steptime.trials.parity import equal_bits
from steptime.trials.plan import plan_variants, sources_of, writable
from steptime.trials.trial import Variant

pytest.importorskip("torch")

TRAINING = """\
import torch

def train(model, optimizer, batches):
    model.train()
    running = 0.0  # of the last steps
    correct = 0
    total: float = 0.0
    for step, (x, y) in enumerate(batches):
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * x.size(0)
        correct += (out.argmax(1)  ==  y).sum().item()
        total += loss.item()
        if step % 4 == 3:
            print(f"{step} {running / 4:.3f} {correct}")
            running = 0.0
    print(total / len(batches), "right: %d" % correct, running)
    return {"running": running, "correct": correct}

def test(batches):
    running = 0
    for x, y in batches:
        running += x.sum().item()
    return running

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
batches = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(10)]
print(train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches), test(batches))
"""


def at(source: str, text: str) -> DeferEdit:
    lines = source.split("\n")
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return DeferEdit(SourceLine("train.py", number, "train", lines[number - 1].strip()))


def printed(source: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, "train.py", "exec"), {})
    return out.getvalue()


def test_a_sum_stays_on_the_device_and_prints_what_it_printed() -> None:
    source = TRAINING
    for text in ("running += loss", "correct +=", "total +="):
        new = apply_edit(at(source, text), source)
        assert new is not None
        source = new
    assert "running += loss.detach().double() * x.size(0)\n" in source
    assert "correct += (out.argmax(1)  ==  y).sum().detach()\n" in source
    assert 'print(f"{step} {float(running) / 4:.3f} {int(correct)}")\n' in source
    assert 'print(float(total) / len(batches), "right: %d" % int(correct), float(running))\n' in source
    assert 'return {"running": float(running), "correct": int(correct)}' in source
    assert "running = 0.0  # of the last steps" in source
    assert source.count("\n") == TRAINING.count("\n")
    assert source.split("def test(")[1] == TRAINING.split("def test(")[1]
    assert printed(source) == printed(TRAINING)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        if step % 4 == 3:", "        print(total)\n        if step % 4 == 3:"),
        ("        if step % 4 == 3:", "        if total > 3:"),
        ("        if step % 4 == 3:", "        if step > 3:\n            print(total)\n        if step % 4 == 3:"),
        ("        if step % 4 == 3:", "        if step % 4 == 3 + total * 0:"),
        ("total: float = 0.0", "total = loss_so_far"),
        ("total += loss.item()", "total += round(loss.item(), 3)"),
        ("total += loss.item()", "total += loss.item() + x.sum().item()"),
        ("total += loss.item()", "total -= loss.item()"),
        ("    print(total / len", "    print(f'{total=}')\n    print(total / len"),
        ("    print(total / len", "    show = lambda: total\n    print(total / len"),
        ("    print(total / len", "    for total in (1, 2): pass\n    print(total / len"),
        ("    print(total / len", "    del total\n    print(1 / len"),
        ("    print(total / len", "    total /= 3\n    print(total / len"),
        ("def test(", "total = 3\ndef test("),
        ("total: float = 0.0", "total: float = 0.0\n    total = 0"),
    ],
)
def test_what_may_be_read_in_every_step_or_be_something_else_is_not_written(old: str, new: str) -> None:
    assert old in TRAINING
    source = TRAINING.replace(old, new)
    text = "total -=" if "total -=" in source else "total +="
    assert apply_edit(at(source, text), source) is None
    assert apply_edit(at(TRAINING, "total +="), TRAINING) is not None


def test_a_sum_is_of_the_kind_that_python_makes_it() -> None:
    """Whole numbers stay whole: they are printed without a point, and may be an index."""
    whole = TRAINING.replace("total: float = 0.0", "total = 0")
    source = apply_edit(at(whole, "total +="), whole)
    assert source is not None
    assert "float(total) / len" in source
    tokens = whole.replace("total += loss.item()", "total += (y > 0).sum().item()")
    assert apply_edit(at(tokens, "total +="), tokens) is None
    floating = tokens.replace("total = 0", "total = 0.0")
    assert printed(apply_edit(at(floating, "total +="), floating) or "") == printed(floating)
    anew = whole.replace("            running = 0.0", "            total = 0")
    assert apply_edit(at(anew, "total +="), anew) is None


def test_a_sum_on_the_top_of_a_script_that_functions_read_is_not_written() -> None:
    source = textwrap.dedent("""
        import torch
        total = 0.0
        def show():
            print(total)
        for step in range(3):
            total += torch.ones(()).sum().item()
        show()
    """)
    assert apply_edit(at(source, "total +="), source) is None
    alone = source.replace("    print(total)", "    print(1)").replace("\nshow()", "\nprint(total)")
    assert "print(float(total))" in (apply_edit(at(alone, "total +="), alone) or "")


def proposals(folder: Path, *texts: str) -> tuple[Proposal, ...]:
    """Of a job on a device that waits at these lines."""
    fix = find_fix("RM106")
    assert fix is not None
    places = [replace(at(TRAINING, each).site, file=str(folder / "train.py")) for each in texts]
    case = replace(HEALTHY, sites=tuple(SiteUse("item", "cuda", 1.0, each) for each in places))
    return tuple(Proposal(fix, option, "ST303") for option in fix(case))


def test_the_edit_itself_is_tried_where_it_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    command = ("python", "train.py")
    (proposal,) = writable(proposals(tmp_path, "running += loss", "total +="), tmp_path, command)
    assert not proposal.advice_only
    (variant,) = plan_variants((proposal,), 6, 1e6, tmp_path, command)
    assert (variant.name, variant.changes) == ("RM106", ())
    ((path, text),) = variant.sources
    assert path == "train.py"
    assert "total += loss.detach().double()" in text
    assert "running += loss.detach().double() * x.size(0)" in text
    assert printed(text) == printed(TRAINING)


def test_where_it_cannot_be_written_it_is_advice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAINING.replace("        if step % 4", "        print(total)\n        if step % 4")
    )
    (proposal,) = writable(proposals(tmp_path, "total +="), tmp_path, ("python", "train.py"))
    assert proposal.advice_only
    assert "total.item()" in getattr(proposal.option.edit, "text", "")
    assert sources_of(proposal, tmp_path, ()) == ()
    assert plan_variants((proposal,), 6, 1e6, tmp_path, ()) == ()


def test_the_training_of_the_edited_source_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    source = TRAINING
    for text in ("running += loss", "correct +=", "total +="):
        source = apply_edit(at(source, text), source) or ""
    losses, options = [], VariantOptions(1000, warm_up=0)
    for name, text in (("before", TRAINING), ("after", source)):
        (place := tmp_path / name).mkdir()
        (place / "train.py").write_text(text)
        asked = ProbeOptions(profile=False, variant=options)
        outcome = run_variant((python(), "train.py"), place / "recording", asked, VariantPlace(place))
        losses.append(read_run(ScheduledRun(Variant(name), 0, 0, 0, options, True), outcome, 1.0).losses)
    assert len(losses[0]) == 10
    assert equal_bits(*losses)
