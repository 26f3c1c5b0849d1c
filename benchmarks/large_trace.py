"""Makes a large trace out of a real one: its events again and again, later each time, with jitter.

    python -m benchmarks.large_trace TRACE TARGET --megabytes 1000

Every repetition is an interval of time of its own: starts are moved behind the one before, starts and durations get up
to 2 % of a duration of jitter, correlation, external and flow ids are new, and steps are numbered on. The layout of the
file, the names and the digits of times stay as they are in the original.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path

import numpy as np

FIELD = re.compile(
    r'("ts":|"dur":|"correlation":|"External id":|"external id":|"id":|ProfilerStep#)(\s*)(\d+(?:\.\d+)?)'
)
"""What differs from one repetition to the next."""
JITTER = 0.02


def repeat(source: Path, target: Path, size: int, seed: int = 1) -> None:
    """Writes a trace of at least `size` bytes, less than one repetition more."""
    head, events, tail = parts(source)
    fixed, kinds, numbers, digits = fields(events)
    is_time, is_duration = kinds == '"ts":', kinds == '"dur":'
    is_decimal = is_time | is_duration
    scale = 10 ** int(digits[is_decimal].max(initial=0))
    times = scaled(numbers, np.where(is_decimal, scale // 10**digits, 1))
    span = int(np.ptp(times[is_time]) * 1.01)
    steps = int((kinds == "ProfilerStep#").sum())
    largest = int(times[~is_decimal].max(initial=0)) + 1
    # Flow ids are correlation ids and external ids of their own; all of them move alike.
    stride = np.where(is_time, span, np.where(is_duration, 0, np.where(kinds == "ProfilerStep#", steps, largest)))
    jitter = np.random.default_rng(seed)
    long = np.median(times[is_duration]) if is_duration.any() else 0
    with target.open("w") as file:
        file.write(head)
        repetition = 0
        while True:
            moved = times + repetition * stride
            noise = jitter.uniform(-JITTER, JITTER, len(times))
            moved[is_duration] += (times[is_duration] * noise[is_duration]).astype(np.int64)
            moved[is_time] += (long * np.abs(noise[is_time])).astype(np.int64)
            fixed[1::2] = written(moved, digits, scale, is_decimal)
            file.write("".join(fixed))
            repetition += 1
            if file.tell() + len(tail) >= size:
                break
            file.write(",\n  ")
        file.write(tail)


def parts(source: Path) -> tuple[str, str, str]:
    """The text before, of, and behind the list of events."""
    raw = source.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    start = text.index("[", text.index('"traceEvents"')) + 1
    _, end = json.JSONDecoder().raw_decode(text, start - 1)
    events = text[start : end - 1]
    body = events.strip()
    return text[:start] + events[: events.index(body)], body, events[events.index(body) + len(body) :] + text[end - 1 :]


def fields(events: str) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """The text around numbers that change (every second entry is theirs), their kinds, texts and digits after the
    point."""
    fixed, kinds, numbers, last = [], [], [], 0
    for found in FIELD.finditer(events):
        fixed += [events[last : found.start(3)], ""]
        kinds.append(found[1])
        numbers.append(found[3])
        last = found.end(3)
    fixed.append(events[last:])
    digits = np.array([len(number.partition(".")[2]) for number in numbers])
    return fixed, np.array(kinds), numbers, digits


def scaled(numbers: list[str], factors: np.ndarray) -> np.ndarray:
    """As integers: times in the smallest unit that any of them has."""
    whole: np.ndarray = np.array([int(number.replace(".", "")) for number in numbers]) * factors
    return whole


def written(values: np.ndarray, digits: np.ndarray, scale: int, is_decimal: np.ndarray) -> list[str]:
    """The values as text, times with all digits behind the point where the original has some."""
    places = len(str(scale)) - 1
    texts = []
    for value, count, decimal in zip(values.tolist(), digits.tolist(), is_decimal.tolist(), strict=True):
        if not decimal:
            texts.append(str(value))
        elif count:
            texts.append(f"{value // scale}.{value % scale:0{places}d}")
        else:
            texts.append(str(value // scale))
    return texts


def main() -> None:
    """Writes one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    repeat(options.trace, options.target, options.megabytes * 10**6)


if __name__ == "__main__":
    main()
