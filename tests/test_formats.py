"""Numbers in sentences."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from steptime.quantities import SourceLine, format_bytes, format_duration, format_share, format_source


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (999.7, "1.00 µs"),
        (12_345, "12.3 µs"),
        (1_234_567, "1.23 ms"),
        (999_900, "1.00 ms"),
        (45e6, "45 ms"),
        (1.5e9, "1.50 s"),
        (59.96e9, "1 min 00 s"),
        (125e9, "2 min 05 s"),
        (7199e9, "119 min 59 s"),
        (69_314e9, "19 h 15 min"),
        (4e15, "1,111 h 06 min"),
        (-2e6, "−2 ms"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_fits(nanoseconds: float, text: str) -> None:
    assert format_duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0 %"), (0.0004, "< 0.1 %"), (0.045, "4.5 %"), (0.0996, "10 %"), (0.45, "45 %"), (1.0, "100 %")],
)
def test_a_share_is_in_percent(fraction: float, text: str) -> None:
    assert format_share(fraction) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (3 * 2**40, "3 TiB"), (2**30, "1 GiB")]
)
def test_bytes_are_in_binary_units(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_a_source_line_is_short() -> None:
    assert format_source(SourceLine("/a/b/train.py", 12)) == "train.py:12"
    assert format_source(SourceLine("C:\\a\\train.py", 12)) == "train.py:12"


@given(st.floats(min_value=0, max_value=1e18))
def test_durations_and_bytes_never_carry_an_exponent(value: float) -> None:
    assert "e" not in format_duration(value)
    assert len(format_duration(value)) < 20
    assert "e" not in format_bytes(value)
