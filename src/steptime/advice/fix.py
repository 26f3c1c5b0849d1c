"""Fix: a change of a job, its promise about the numbers, and its expected gain. Its docstring is its page and must have
all sections."""

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
"""Sections of a fix's docstring, in order."""


class Promise(Enum):
    """What a fix promises about the numbers of the training."""

    SAME_BITS = "the same losses, bit for bit"
    SAME_CURVE = "a loss curve like that of another seed"
    NEW_TRAINING = "another training"
    """Different training, such as another batch size or accumulation. Never adopted on the user's behalf."""


class Goal(Enum):
    SPEED = "speed"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class CallEdit:
    """Edit that sets keywords in the call at `site` in the user's source or, without a site, in the only call of that
    name in the started script. callee: last name of the function ("DataLoader", "AdamW"). keywords: (name, expression
    as source)."""

    callee: str
    keywords: tuple[tuple[str, str], ...]
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ArgumentEdit:
    """Edit that wraps an argument of the call at `site` in an expression. callee: as in `CallEdit`. argument: its
    keyword, "" for the first argument. plain: the expression, with {value} for an argument that is a name; once: the
    expression for any other argument, which must be evaluated once. apart: attributes through which the file may read
    the original value; the edit is then skipped."""

    callee: str
    argument: str
    plain: str
    once: str
    site: SourceLine
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyEdit:
    """Edit that makes copies asynchronous: non_blocking=True for each `.to(…)` and `.cuda(…)` on the line at `site`."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class SwitchEdit:
    """Edit that turns off a switch which the script turns on by a call with a literal True. callee: last name of the
    function ("set_detect_anomaly"). example: text for the user if there is no such call. value: replacement for True; a
    value other than "False" replaces any literal, and only if there is a single call. assigned: attribute that also
    turns it on if set to True ("cudnn.deterministic"). others: last names of other calls that may turn it on; the edit
    is then skipped."""

    callee: str
    example: str
    value: str = "False"
    assigned: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AutocastEdit:
    """Edit that puts forward and loss inside `with torch.autocast(…)`: the statements from `forward` to the one before
    `backward`, which must be in one block. example: text for the user if they are not."""

    forward: SourceLine
    backward: SourceLine
    device: str
    dtype: str
    example: str


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """Edit that adds a statement about the model after its construction: before the optimizer of its parameters is
    made, or before the training loop. forward: line of the loop that calls it by its name; optimizer: line that makes
    the optimizer. statement: its source, with {model} and {torch} for their names. batch: source of a statement before
    the forward, with {batch} for the model's input ("" for none). prefixed: True if the statement adds a prefix to the
    parameters' names; if the file saves the model, `in_place` is written instead ("": nothing). example: text for the
    user if the edit is not certain. module: module that the statement needs besides torch, imported if necessary."""

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
    """Edit that adds statements before the loop that trains the model. forward: a line in the loop. module: module that
    the statements need, imported if necessary. example: text for the user if the loop is not found."""

    statements: tuple[str, ...]
    module: str
    forward: SourceLine
    example: str


@dataclass(frozen=True, slots=True)
class StatementEdit:
    """Edit that adds a statement after the last import at the top of the started script. module: module that the
    statement needs, imported there ("torch")."""

    statement: str
    module: str


@dataclass(frozen=True, slots=True)
class DeferEdit:
    """Edit that keeps the sum at `site` (`total += loss.item()`) on the device and reads it where its value is used."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class ActivationEdit:
    """Edit that replaces the formula at `site` by the torch function that computes the same (`activations`)."""

    site: SourceLine


@dataclass(frozen=True, slots=True)
class DecoratorEdit:
    """Edit that adds `@torch.compile` to the function around the line at `site`. function: its name."""

    site: SourceLine
    function: str


@dataclass(frozen=True, slots=True)
class EnvironmentEdit:
    """Edit of the job's environment variables, (name, value); no source is edited."""

    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Example for the user to paste where no edit is safe. site: the line that it is about."""

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
    """Edits that work only together: all of them are written, or none. example: text for the user if they are not."""

    parts: tuple[SingleEdit, ...]
    example: Snippet


Edit = SingleEdit | JointEdit
"""Edit of the user's source that is equivalent to the whole change. Only the user can apply a `Snippet`."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to apply a fix to a case. label: the change as the user would write it. changes: the instrumented
    changes, empty if only the user can apply the fix (`advice`). saving: predicted ns per step, never more than a
    perfect fix could save; None without a model. streams: text on random numbers that are drawn in another order;
    other_data: True if these also select the batches (augmentation, shuffling). advice: one or two sentences if
    steptime cannot apply it. reach: ns per step of everything that it affects, 0 if unknown; its finding may be about
    less. as_written: True if the edit itself is tried, for lack of an instrumented change; an edit that cannot be
    written becomes advice."""

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
    """A fix in the catalogue. evidence: fields of a case that its function takes. addresses: codes of the rules whose
    findings it answers. promise: what it promises about the training's numbers. risk: from 1 (very low) to 5.
    low_precision: True if gradients are rounded to a low-precision dtype. frees: fraction of the training's memory that
    it may free (0: none), used only to order trials for memory. phases: phases that it affects, empty for all; it
    answers no finding about a line of other phases."""

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
        """Ways to apply it to this case; () if it does not fit the settings in force, or lacks evidence."""
        missing = self.evidence.missing_in(case)
        return () if missing else as_tuple(self.function(**self.evidence.of(case)), Option)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Fix that fits a case. finding: code of the finding that it answers ("" if it is worth a try without one).
    upper_bound: ns per step that a perfect fix could save, None if unknown."""

    fix: Fix
    option: Option
    finding: str
    upper_bound: float | None = None

    @property
    def advice_only(self) -> bool:
        """True if only the user can apply the proposal."""
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
    """Decorator that makes a fix of a function, whose parameters are fields of a case and whose results are options.
    Raises ValueError for a code that is not RMnnn, a name that is not in kebab case, a risk outside of 1 to 5, a
    parameter that no case has, or a docstring that lacks one of the four sections."""
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
    """(first line that calls a model, only line that calls backward), in one function. (None, None) if lines were not
    timed or are ambiguous: several backwards, or the forward in another function."""
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
    """Edit that inserts `statement` (such as a call of torch.compile) for the model, if the line that calls the model
    is known and only one model has parameters; else `example` as a snippet to paste. in_place: as in `ModelEdit`, None
    if `statement` keeps the names of the parameters; not used for classes of torch itself (Sequential)."""
    forward, _ = training_lines(case.lines)
    if forward is None or sum(model.parameters > 0 for model in case.top_modules) > 1:  # the change acts on all of them
        return Snippet(example)
    site = case.optimizers[0].site if case.optimizers else None
    usable = in_place if in_place and not any(model.own for model in case.top_modules) else ""
    return ModelEdit(statement, forward, site, example, batch, in_place is not None, usable)
