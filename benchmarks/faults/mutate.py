"""Damaged copies of real files, the same ones for the same number."""

from __future__ import annotations

import random
import re

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
VALUES = (
    b"0", b"-1", b"1e308", b"-1e309", b"NaN", b"Infinity", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"18446744073709551616", b"1" + b"0" * 400, b"4294967296", b"0.1", b"null", b"true", b'""',
    b'"\\ud800"', b"[]", b"{}", b"[[[[]]]]", b'"' + b"x" * 5000 + b'"', b"[" * 3000, b'{"a":' * 3000, b'"\xff\xfe"',
)  # fmt: skip
"""What JSON readers trip over: limits of integers, numbers that are none, other types, depth, no text."""
LARGEST = 1 << 22
"""Bytes of a damaged copy: the time goes into many inputs, not into large ones."""


def mutated(data: bytes, draw: random.Random) -> bytes:
    """One to four damages."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = draw.choice(DAMAGES)(data, draw) if data else draw.randbytes(8)
    return data[:LARGEST]


def _place(data: bytes, draw: random.Random) -> int:
    """Anywhere, but often at the ends, where headers and torn tails are."""
    near = min(len(data), 64)
    return draw.choice((draw.randrange(len(data)), draw.randrange(near), len(data) - 1 - draw.randrange(near)))


def flip(data: bytes, draw: random.Random) -> bytes:
    """Some bits."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 16))):
        changed[_place(data, draw)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, draw: random.Random) -> bytes:
    """Some bytes by zeros, ones or noise, as a torn page has them."""
    at, length = _place(data, draw), draw.choice((1, 4, 8, 24, 512))
    return data[:at] + draw.choice((bytes(length), b"\xff" * length, draw.randbytes(length))) + data[at + length :]


def cut(data: bytes, draw: random.Random) -> bytes:
    """The end is missing, as after a kill."""
    return data[: _place(data, draw)]


def remove(data: bytes, draw: random.Random) -> bytes:
    """A piece is missing."""
    at = _place(data, draw)
    return data[:at] + data[at + draw.choice((1, 2, 8, 24, 4096)) :]


def repeat(data: bytes, draw: random.Random) -> bytes:
    """A piece comes twice, or again somewhere else."""
    at, other, length = _place(data, draw), _place(data, draw), draw.choice((1, 8, 24, 200, 4096))
    return data[:other] + data[at : at + length] + data[other:]


def number(data: bytes, draw: random.Random) -> bytes:
    """A number, or whatever looks like one, becomes another value."""
    start = _place(data, draw)
    found = NUMBER.search(data, start) or NUMBER.search(data)
    return overwrite(data, draw) if found is None else data[: found.start()] + draw.choice(VALUES) + data[found.end() :]


def word(data: bytes, draw: random.Random) -> bytes:
    """A quoted string becomes another one of the same file, so that keys and names change their places."""
    strings = list(re.finditer(rb'"[^"\\]{1,80}"', data[:65536]))
    if len(strings) < 2:
        return flip(data, draw)
    here, there = draw.sample(strings, 2)
    return data[: here.start()] + there.group() + data[here.end() :]


DAMAGES = (flip, overwrite, cut, remove, repeat, number, number, word)
