"""The picture in the README, the first screen of a page, light and dark: `python .ci/picture.py PAGE FOLDER`."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1100, 590

page, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    for scheme in ("light", "dark"):
        sheet = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
        sheet.goto(page.as_uri())
        sheet.wait_for_timeout(500)
        sheet.screenshot(path=folder / f"page-{scheme}.png")
    browser.close()
