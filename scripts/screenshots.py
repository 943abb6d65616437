"""Take the manual's screenshots from a finished demo: the chat page and the report, in light and in dark.

python scripts/screenshots.py outputs/demo            write docs/images/{chat,report}-{light,dark}.png

The chat page is served by `convrec serve` on a free port, which ends with this script. A Chromium must be installed.
"""

import argparse
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MESSAGE = "I loved Alien and The Thing. I want to watch something scary tonight."
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
VIEWPORTS = {"chat": (1100, 760), "report": (1100, 900)}  # CSS pixels
PIXELS_PER_CSS_PIXEL = 1.5
COLOURS = 128
MOST_BYTES = 200_000  # of an image
START_SECONDS = 300.0
ANSWER_SECONDS = 120.0
POLL_SECONDS = 1.0
END_SECONDS = 60.0


def take_screenshots(demo: Path, images: Path) -> list[Path]:
    """Write the images and return their paths.

    Args:
        demo: folder of a finished demo.
        images: folder for the images.

    Raises:
        SystemExit: the demo is not finished, no browser is installed, or an image is too large.
    """
    report = demo / "report.html"
    if not report.exists():
        raise SystemExit(f"{report}: no such file; run `convrec demo` first")
    images.mkdir(parents=True, exist_ok=True)
    written = []
    with open_browser() as browser, serve(demo) as address:
        for scheme in SCHEMES:
            with open_page(browser, "report", scheme) as page:
                page.goto(report.resolve().as_uri())
                written.append(save(page, images / f"report-{scheme}.png"))
            with open_page(browser, "chat", scheme) as page:
                page.goto(address)
                hold_conversation(page)
                written.append(save(page, images / f"chat-{scheme}.png"))
    return written


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield the Chromium that is installed."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, kind: str, scheme: Scheme) -> Iterator[Page]:
    """Yield an empty page of the size and the colour scheme."""
    width, height = VIEWPORTS[kind]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=PIXELS_PER_CSS_PIXEL,
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(1000 * ANSWER_SECONDS)
    yield context.new_page()
    context.close()


@contextmanager
def serve(demo: Path) -> Iterator[str]:
    """Serve the demo's model and yield the address of the chat page."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "recipes", "serve", "--model", f"demo={demo / 'rank_grpo'}"]
        command += ["--catalog", str(demo / "data" / "catalog.parquet"), "--port", str(port), "--state", state]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, cwd=state)
        try:
            address = f"http://127.0.0.1:{port}/"
            wait_for_service(process, address)
            yield address
        finally:
            process.terminate()
            process.wait(END_SECONDS)


def wait_for_service(process: "subprocess.Popen[Any]", address: str) -> None:
    """Return when the service is healthy. SystemExit where it ends, or is not healthy within START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"convrec serve ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{address}health", timeout=POLL_SECONDS):
                return
        except OSError:  # not listening yet, or 503 while the model starts
            time.sleep(POLL_SECONDS)
    raise SystemExit(f"{address}: not healthy after {START_SECONDS:.0f} s")


def hold_conversation(page: Page) -> None:
    """Ask for a list, wait for its end, and mark an item as seen and one as liked."""
    page.evaluate("() => ready")
    page.locator("#k").select_option("5")
    page.locator("#text").fill(MESSAGE)
    page.keyboard.press("Enter")
    page.locator(".answer li").nth(4).wait_for()
    page.get_by_role("button", name="Send").wait_for()
    page.locator("[data-kind=seen]").nth(0).click()
    page.locator("[data-kind=liked]").nth(1).click()
    page.mouse.move(0, 0)


def save(page: Page, path: Path) -> Path:
    """Write what the page shows with few colours. SystemExit for an image of more than MOST_BYTES."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path}: {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("demo", type=Path, help="folder of a finished demo")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the images")
    options = parser.parse_args()
    for path in take_screenshots(options.demo.resolve(), options.images):
        print(f"{path} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
