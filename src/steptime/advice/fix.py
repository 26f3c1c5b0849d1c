"""A fix: what to change about a job, what that promises about its numbers, what it should gain. Its docstring is its
page and must have all sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from steptime.advice.evidence import Case, Evidence, LineUse, evidence_of
from steptime.advice.rule import KEBAB_CASE, Page, as_tuple, read_page
from steptime.changes import Change
from steptime.quantities import Estimate, SourceLine

SECTIONS = ("What it changes", "What it promises", "What it should gain", "When to leave it")
"""The sections of a fix's docstring, in order."""


class Promise(Enum):
    """Promise of a fix about the numbers of the training."""

    SAME_BITS = "the same losses, bit by bit"
    SAME_CURVE = "a loss curve as another seed would give"
    NEW_TRAINING = "another training"
    """Never adopted for the user: batch size, accumulation."""


class Goal(Enum):
    """Goal of a change."""

    SPEED = "speed"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class CallEdit:
    """Keywords of a call in the user's source, set where the call is at `site`; without one, at the only call of
    that name in the script that was started. callee: the last name of what is called ("DataLoader", "AdamW").
    keywords: (name, expression as source)."""

    callee: str
    keywords: tuple[tuple[str, str], ...]
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ArgumentEdit:
    """An argument of the call at `site` put into an expression. callee: as of `CallEdit`. argument: its name, by which
    it is given where it is not the first. plain: the expression, with {value} for an argument that is a name; once: for
    any other, which is to be made once. apart: attributes by which the file may ask for the value as it was, where
    nothing is written."""

    callee: str
    argument: str
    plain: str
    once: str
    site: SourceLine
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyEdit:
    """Copies to a device that do not wait for their end: each `.to(…)` and `.cuda(…)` on the line at `site`."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class SwitchEdit:
    """A switch that the script turns on by a call with a literal True, turned off. callee: last name of what is called
    ("set_detect_anomaly"). example: what to write where no such call is found. value: what is written instead, which
    takes the place of any first argument where it is no "False", if there is one such call. assigned: an attribute that
    switches it on as well, where it is set to True ("cudnn.deterministic"). others: last names of what else may switch
    it on, where nothing is written."""

    callee: str
    example: str
    value: str = "False"
    assigned: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AutocastEdit:
    """Forward and loss inside of `with torch.autocast(…)`: the statements from the one at `forward` to the one before
    `backward`, which are in one block. example: what to write where they do not."""

    forward: SourceLine
    backward: SourceLine
    device: str
    dtype: str
    example: str


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """A statement about the model, behind its construction: before the optimizer is made of its parameters, or before
    the training loop. forward: where the loop calls it, which has its name; optimizer: where that is made.

    statement: with {model} for the name, and {torch} for that of torch. batch: a statement before the forward, with
    {batch} for what the model is called on ("" for none). prefixed: the statement puts a prefix before the names of the
    parameters; where the file saves the model, `in_place` is written instead ("": nothing is). example: what to write
    where that is not certain. module: that the statement needs besides torch, which is imported where it is not yet.
    """

    statement: str
    forward: SourceLine
    optimizer: SourceLine | None
    example: str
    batch: str = ""
    prefixed: bool = False
    in_place: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class LoopEdit:
    """Statements before the loop in which the model is trained. forward: a line in it. module: that they need, which
    is imported where it is not yet. example: what to write where the loop is not found."""

    statements: tuple[str, ...]
    module: str
    forward: SourceLine
    example: str


@dataclass(frozen=True, slots=True)
class StatementEdit:
    """A statement put behind the last import at the top of the script that was started. module: what it needs to be
    imported ("torch")."""

    statement: str
    module: str


@dataclass(frozen=True, slots=True)
class DeferEdit:
    """The sum at `site` (`total += loss.item()`) is taken on the device, and read where its value is used."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class ActivationEdit:
    """The formula at `site` becomes the function of torch's that computes the same (`activations`)."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class DecoratorEdit:
    """`@torch.compile` before the function that the line at `site` lies in. function: its name."""

    site: SourceLine
    function: str


@dataclass(frozen=True, slots=True)
class EnvironmentEdit:
    """Variables for the job's environment: no source is edited."""

    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code to paste, which steptime does not dare to write: an example, and the line that it is about."""

    text: str
    site: SourceLine | None = None


SingleEdit = (
    CallEdit
    | CopyEdit
    | StatementEdit
    | EnvironmentEdit
    | Snippet
    | SwitchEdit
    | AutocastEdit
    | ModelEdit
    | LoopEdit
    | DeferEdit
    | DecoratorEdit
    | ArgumentEdit
    | ActivationEdit
)


@dataclass(frozen=True, slots=True)
class JointEdit:
    """Edits that do what a change does only together: all of them are written, or none. example: what to write where
    they are not."""

    parts: tuple[SingleEdit, ...]
    example: Snippet


Edit = SingleEdit | JointEdit
"""Change that is written into the user's source: all that the change has put in force, or nothing. A `Snippet` is
written by the user alone."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to apply a fix to a case. label: what is changed, as the user would write it. changes: none where only
    the user can do it (advice). saving: predicted ns per step, never more than a perfect fix could save; None where
    there is no model. streams: random numbers that are drawn in another order, in words; other_data: the batches are
    among what they decide (augmentation, shuffling). advice: for what cannot be applied, one or two sentences. reach:
    ns per step of all that it acts on, where that is known; a finding that it answers may be about less. as_written: no
    change of ours does it, so that the edit itself is tried; where it cannot be written, it is advice."""

    label: str
    changes: tuple[Change, ...] = ()
    saving: Estimate | None = None
    edit: Edit | None = None
    streams: str = ""
    other_data: bool = False
    advice: str = ""
    reach: float = 0.0
    as_written: bool = False


Outcome = Iterable[Option] | Option | None
Function = Callable[..., Outcome]


@dataclass(frozen=True, slots=True)
class Fix:
    """evidence: what its function looks at, and what it is not asked without. addresses: codes of the rules whose
    findings it is an answer to. promise: about the numbers. risk: from 1 (cannot hurt) to 5. low_precision: gradients
    are rounded to a low format. frees: the share of a training's memory that it may free (0: none), by which what is
    tried for memory is ordered; it is not printed. phases: those that it acts on, where these are not all: it answers
    no finding about a line of others."""

    code: str
    name: str
    evidence: Evidence
    addresses: frozenset[str]
    promise: Promise
    risk: int
    function: Function
    page: Page
    low_precision: bool = False
    frees: float = 0.0
    phases: frozenset[str] = frozenset()

    def __call__(self, case: Case) -> tuple[Option, ...]:
        """The ways to apply it to this case; none where it does not fit what is in force, or lacks evidence."""
        missing = self.evidence.missing_in(case)
        return () if missing else as_tuple(self.function(**self.evidence.of(case)), Option)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A fix as it fits a case. finding: code of the finding that it answers ("" where it is worth a try without
    one). upper bound: ns per step that a perfect fix could save, None where nothing is known to be saved."""

    fix: Fix
    option: Option
    finding: str
    upper_bound: float | None = None

    @property
    def advice_only(self) -> bool:
        """True if only the user can apply it."""
        return not (self.option.changes or self.option.as_written)


def fix(
    code: str,
    name: str,
    *,
    addresses: Iterable[str],
    promise: Promise,
    risk: int,
    low_precision: bool = False,
    frees: float = 0.0,
    phases: Iterable[str] = (),
) -> Callable[[Function], Fix]:
    """Makes a fix of a function from parts of a case, named by its parameters, to the ways to apply it.

    Raises ValueError for a code that is not RMnnn, a name that is not in kebab case, a risk outside of 1 to 5, a
    parameter that no case has, or a docstring that lacks one of the four sections.
    """
    if not re.fullmatch(r"RM[1-9]\d\d", code) or not KEBAB_CASE.fullmatch(name):
        raise ValueError(f"a fix needs a code like RM101 and a name like more-workers, not {code!r} and {name!r}")
    if not 1 <= risk <= 5:
        raise ValueError(f"the risk of fix {name} must be 1 to 5, not {risk}")

    def make(function: Function) -> Fix:
        page, evidence = read_page(function, f"fix {name}", SECTIONS), evidence_of(function, f"fix {name}")
        answered, acts_on = frozenset(addresses), frozenset(phases)
        return Fix(code, name, evidence, answered, promise, risk, function, page, low_precision, frees, acts_on)

    return make


def training_lines(lines: tuple[LineUse, ...]) -> tuple[SourceLine | None, SourceLine | None]:
    """(the first line that calls a model, the only line that calls backward), in one function. None, both, where lines
    were not timed or are not certain: with several backwards, or the forward in another function."""
    backwards = [use.source for use in lines if use.role == "backward"]
    forwards = [use.source for use in lines if use.role == "forward"]
    if len(backwards) != 1:
        return None, None
    backward, place = backwards[0], (backwards[0].file, backwards[0].function)
    forwards = [each for each in forwards if (each.file, each.function) == place and each.line <= backward.line]
    return (min(forwards, key=lambda each: each.line), backward) if forwards else (None, None)


def model_edit(
    case: Case, statement: str, example: str, batch: str = "", in_place: str | None = None
) -> ModelEdit | Snippet:
    """A statement about the model where the loop that calls it is known; else its example. in_place: see `ModelEdit`;
    None where the statement keeps the parameters' names. A module of torch's own is not compiled in place."""
    forward, _ = training_lines(case.lines)
    if forward is None or sum(model.parameters > 0 for model in case.top_modules) > 1:  # the change acts on all of them
        return Snippet(example)
    site = case.optimizers[0].site if case.optimizers else None
    usable = in_place if in_place and not any(model.own for model in case.top_modules) else ""
    return ModelEdit(statement, forward, site, example, batch, in_place is not None, usable)
