"""What a line of a training loop does, told by its text: so that a finding can say more than "slow line".

One law: a line has one kind, the first that fits, in the order of LineKind; the text only names what the clock has
found.
"""

from __future__ import annotations

import re
from enum import Enum


class LineKind(Enum):
    """Kinds of lines, the most certain first."""

    CHECKPOINT = re.compile(r"torch\.save\(|save_pretrained\(|save_checkpoint\(|\bpickle\.dump\(|\.save_state\(")
    LOGGING = re.compile(
        r"\bprint\(|\blogg?(?:er|ing)?\.\w+\(|\bwandb\.|\bmlflow\.|\.add_(?:scalar|histogram|image|figure|text)s?\("
        r"|tqdm\.write\(|\bset_(?:postfix|description)\w*\(|\bjson\.dumps?\(|\.write(?:lines|row|rows)?\(|\.flush\(|\bplt\."
    )
    COLLECT = re.compile(r"\bgc\.collect\(")
    ARRAYS = re.compile(r"\btorch\.(?:as_)?tensor\(|\btorch\.(?:Float|Double|Half|Long|Int|Byte|Bool)?Tensor\(")
    METRICS = re.compile(
        r"\.item\(|\.tolist\(|\.numpy\(|\.cpu\(|metric|accuracy|sklearn|roc_auc|\bauc\b|f1_score|confusion|precision_|recall_"
        r"|bleu|rouge|\.topk\(|\.argmax\("
    )
    OTHER = re.compile(r"")


def line_kind(text: str) -> LineKind:
    """The kind of a line. A comment is no part of it."""
    code = text.split("  #", 1)[0]
    return next(kind for kind in LineKind if kind.value.search(code))


_ARRAY_ARGUMENT = re.compile(r"ensor\(\s*(?:np|numpy)\.(?:array|asarray|stack|concatenate|zeros|ones|random)\b")


def converts_lists(text: str) -> bool:
    """Whether a line makes a tensor of something that is, by its text, not one numpy array already."""
    return line_kind(text) is LineKind.ARRAYS and not _ARRAY_ARGUMENT.search(text)
