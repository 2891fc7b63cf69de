"""Draw docs/report.png, the picture in the README: the top of the report of `make demo`.

make demo && .venv/bin/python docs/picture.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

with sync_playwright() as play:
    browser = play.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox"]
    )
    page = browser.new_page(viewport={"width": 1100, "height": 1000})
    page.goto(Path("runs/digits-demo/report.html").resolve().as_uri())
    # As far as the first two curves.
    end = page.locator(".pair figure").first.bounding_box()
    page.set_viewport_size({"width": 1100, "height": round(end["y"] + end["height"])})
    page.screenshot(path="docs/report.png")
    browser.close()
