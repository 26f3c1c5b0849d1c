"""Loops of generated jobs: how the training is written, and where in it a fault can stand.

A loop is a file of `templates/`: what it needs, then its modules. `@place` is where a fault or its twin goes, with the
indentation of its line; capitals in angle brackets are filled in, those of `shared/` here and the others by `compose`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
NAMES = (
    "plain", "trainer class", "accumulation", "closure", "own generator", "IterableDataset", "batch sampler",
    "two models", "two ranks", "Accelerate", "Lightning", "HF Trainer", "rollouts",
)  # fmt: skip
"""In the order in which seeds draw them: a new one is the last."""
SECTION = re.compile(r"^==> (\S+) <==$", re.MULTILINE)


@dataclass(frozen=True)
class Loop:
    """One way to write a training. sections: (file name, text). places: of faults. needs: modules beyond torch. ranks:
    under torchrun."""

    name: str
    sections: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ranks: int = 1


def shared(name: str) -> str:
    """Text that several loops have, with an empty line before it."""
    return "\n" + (TEMPLATES / "shared" / f"{name}.txt").read_text("utf-8")


BY_SAMPLE, BY_BATCH = shared("samples-by-item"), shared("samples-by-batch")
SHARED = {"<HOOK>": shared("hook"), "<COMPUTE_LOSS>": shared("loss")}


def read(name: str) -> Loop:
    """The loop of a name."""
    head, *parts = SECTION.split((TEMPLATES / f"{name.replace(' ', '-')}.txt").read_text("utf-8"))
    facts = {key: value.split(", ") for key, value in (line.split(": ") for line in head.strip().splitlines())}
    sections = []
    for file, text in zip(parts[::2], parts[1::2], strict=True):
        for tag, common in SHARED.items():
            text = text.replace(f"\n{tag}\n", common)
        sections.append((file, "\n" + text.strip("\n") + "\n"))
    needs, ranks = tuple(facts.get("needs", ())), int(facts.get("ranks", "1")[0])
    return Loop(name, tuple(sections), tuple(facts["places"]), needs, ranks)


LOOPS = tuple(read(name) for name in NAMES)
BY_NAME = {loop.name: loop for loop in LOOPS}
RANKS, HF_TRAINER, ROLLOUTS = BY_NAME["two ranks"], BY_NAME["HF Trainer"], BY_NAME["rollouts"]
