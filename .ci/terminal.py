"""The moving picture of a terminal in the README: runs a command in a terminal and writes what it shows, as an SVG.

python .ci/terminal.py docs/terminal.svg -- steptime run -- python examples/slow_input.py
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMNS, MARGIN, LINE, CHARACTER = 116, 14, 17.0, 7.83
"""Columns of the terminal; pixels of its margin, of a line and of a character of 13 px."""
LONGEST_PAUSE = 1.2
"""Seconds: a pause of the command is cut to it, so that nobody waits for a job."""
REST = 12.0
"""Seconds for which the last picture stays, before it starts again."""
STYLE = re.compile(r"\x1b\[([0-9;]*)m")
OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


@dataclass
class Displayed:
    """A line of the screen with styles, from and until (seconds; None: to the end)."""

    row: int
    text: str
    start: float
    end: float | None = None


def recorded(command: list[str]) -> list[tuple[float, str]]:
    """What the command writes to a terminal, with the seconds since its start."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    job = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    start, chunks = time.monotonic(), []
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        chunks.append((time.monotonic() - start, data.decode("utf-8", "replace")))
    job.wait()
    return chunks


def lines_of(command: str, chunks: list[tuple[float, str]]) -> tuple[list[Displayed], float]:
    """Lines in the order of their start, and the whole time. A line that is written again ends there."""
    displayed, row, now, before = [Displayed(0, f"$ {command}", 0.0)], 1, 1.0, 0.0
    current, buffer = None, ""
    for seconds, text in chunks:
        now += min(seconds - before, LONGEST_PAUSE)
        before = seconds
        for part in re.split(r"(\r?\n|\r)", OTHER.sub("", text)):
            if part in ("\n", "\r\n"):
                while (
                    current is not None
                    and len(STYLE.sub("", current.text)) > COLUMNS
                    and not STYLE.search(current.text)
                ):
                    rest, row = current.text[COLUMNS:], row + 1  # as a terminal wraps
                    current = Displayed(row, rest, now)
                    displayed.append(current)
                row, current, buffer = row + 1, None, ""
            elif part == "\r":
                buffer = ""
            elif part:
                again, buffer = not buffer, buffer + part
                if current is not None and again:
                    current.end = now
                if current is None or again:
                    current = Displayed(row, "", now)
                    displayed.append(current)
                current.text = buffer
    return [each for each in displayed if each.end is None or each.end > each.start], now


def spans(text: str) -> str:
    """Styled text as tspans, cut at the terminal's width."""
    found, bold, dim, room = "", False, False, COLUMNS
    for place, part in enumerate(STYLE.split(text)):
        if place % 2:
            for code in part.split(";"):
                bold = code == "1" or (bold and code not in ("", "0", "22"))
                dim = code == "2" or (dim and code not in ("", "0", "22"))
            continue
        kept, room = part[:room], room - len(part[:room])
        if kept:
            name = " class='b'" if bold else " class='d'" if dim else ""
            found += f"<tspan{name}>{escape(kept)}</tspan>"
    return found


def picture(displayed: list[Displayed], whole: float) -> str:
    """The SVG. Without animation, as in print, all lines that stay are there."""
    rows, total = max(each.row for each in displayed) + 1, whole + REST
    width, height = 2 * MARGIN + COLUMNS * CHARACTER, 2 * MARGIN + rows * LINE
    texts, rules = [], []
    for number, each in enumerate(displayed):
        start = 100 * each.start / total
        end = 100 * (each.end if each.end is not None else total) / total
        until = f"{end:.2f}%,100%{{opacity:0}}" if each.end is not None else "100%{opacity:1}"
        rules.append(f"@keyframes k{number}{{0%,{start:.2f}%{{opacity:0}}{start + 0.01:.2f}%{{opacity:1}}{until}}}")
        style = f"animation:k{number} {total:.1f}s step-end infinite" if each.start else ""
        texts.append(
            f"<text x='{MARGIN}' y='{MARGIN + (each.row + 0.8) * LINE:.1f}' style='{style}'"
            f"{' opacity=' + repr('0') if each.end is not None else ''}>{spans(each.text)}</text>"
        )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' role='img'>"
        "<title>steptime run in a terminal</title><style>"
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6dae0;white-space:pre}"
        f".b{{font-weight:700;fill:#fff}}.d{{fill:#8b949e}}{''.join(rules)}"
        "@media (prefers-reduced-motion: reduce){text{animation:none !important}}</style>"
        f"<rect width='100%' height='100%' rx='8' fill='#161b22'/>{''.join(texts)}</svg>\n"
    )


if __name__ == "__main__":
    target, command = Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]
    reported = " ".join(Path(word).name if "/bin/" in word else word for word in command)
    target.write_text(picture(*lines_of(reported, recorded(command))), encoding="utf-8")
