"""Pictures of the docs, light and dark: the first screen of a page, and of the live page of a job that it starts.

python .ci/picture.py PAGE FOLDER COMMAND…   # the job, such as: .demo/bin/python examples/slow_input.py --epochs 40
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, LIVE_HEIGHT = 1100, 590, 860
LONGEST = 600.0
"""Seconds until the first diagnosis of the live job: a busy machine takes its time."""
RECORDING = Path("runs/live")


@contextmanager
def live(command: list[str]) -> Iterator[str]:
    """Address of the live page of a job, which ends with the block."""
    steptime = str(Path(command[0]).with_name("steptime"))
    shutil.rmtree(RECORDING, ignore_errors=True)
    started = [subprocess.Popen([steptime, "run", "-q", "--no-peaks", "--recording", str(RECORDING), "--", *command],
                                stdout=subprocess.DEVNULL)]  # fmt: skip
    try:
        until = time.monotonic() + LONGEST
        while not (RECORDING / "manifest.json").exists() and time.monotonic() < until:
            time.sleep(0.2)
        watching = subprocess.Popen([steptime, "watch", "--serve", str(RECORDING)], stdout=subprocess.PIPE, text=True)
        started.append(watching)
        assert watching.stdout is not None
        yield watching.stdout.readline().strip()
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


page, folder, job = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
with sync_playwright() as playwright, live(job) as address:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    for name, url, height in (("page", page.as_uri(), HEIGHT), ("live", address, LIVE_HEIGHT)):
        for scheme in ("light", "dark"):
            sheet = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
            sheet.goto(url)
            sheet.locator(".finding").first.wait_for(timeout=LONGEST * 1000)
            sheet.wait_for_timeout(500)
            sheet.screenshot(path=folder / f"{name}-{scheme}.png")
            sheet.close()
    browser.close()
