"""Make the pictures of the documentation from commands: nothing in docs/pictures is drawn by hand.

report.png, report-dark.png: the page of a guarded run; demo.png: the demo's page; both by a
headless Chromium from an existing demo, which is run where it is missing (minutes).
session.svg, session.txt: `trimtab inspect` on the published tr8-104B lines.

Exit status: 0; 1 where a picture could not be made, with the reason.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from trimtab.analysis.assemble import make_account
from trimtab.readers import read_run
from trimtab.report.terminal import render_terminal
from trimtab.testing.tr8_104b import print_log

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MAX_BYTES = 300_000
"""Of a PNG; a repository keeps every version of it."""
SESSION_COLUMNS = 118
SCENARIOS = ("lr-after-warmup", "bad-data-late")
"""Whose report is shown: the first that the demo has."""

PAPER = TerminalTheme(
    (251, 250, 248),
    (29, 33, 38),
    [
        (29, 33, 38),
        (179, 38, 30),
        (46, 110, 78),
        (154, 100, 0),
        (43, 93, 148),
        (122, 85, 163),
        (42, 133, 122),
        (92, 101, 112),
    ],
)
"""The colours of the page, light."""


class PictureError(Exception):
    """A picture could not be made; the message says why and what to do."""


def main() -> int:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--demo",
        type=Path,
        default=ROOT / "runs" / "demo",
        metavar="DIR",
        help="an existing demo; run where it is missing",
    )
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        made = [*write_session(arguments.out), *write_screenshots(arguments.demo, arguments.out)]
    except PictureError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path.stat().st_size / 1e3:7.0f} kB  {path}")
    return 0


def write_session(out: Path) -> tuple[Path, ...]:
    """Write the session on the public log as SVG and as text."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "tr8-104b.log"
        log.write_text(print_log(), encoding="utf-8")
        record = replace(read_run(log), source=log.name)  # no path of one machine in a picture
        account = make_account(record, read_s=0.01)
    console = Console(
        record=True,
        width=SESSION_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print("$ trimtab inspect tr8-104b.log", style="bold", markup=False)
    console.print(render_terminal(account))
    text = "\n".join(line.rstrip() for line in console.export_text(clear=False).splitlines()) + "\n"
    svg = console.export_svg(title="trimtab inspect tr8-104b.log", theme=PAPER, unique_id="session")
    paths = (out / "session.svg", out / "session.txt")
    paths[0].write_text(without_requests(svg), encoding="utf-8")
    paths[1].write_text(text, encoding="utf-8")
    return paths


def without_requests(svg: str) -> str:
    """Return rich's SVG without what would be fetched: web fonts, and the comment of its maker."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: ?(Fira Code|arial)[^;]*;", _local_font, svg)
    left = [u for u in re.findall(r"https?://[^\s\"')]+", svg) if u != "http://www.w3.org/2000/svg"]
    if left:
        raise PictureError(f"session.svg would ask the network for {', '.join(left)}")
    return svg


def _local_font(match: re.Match[str]) -> str:
    mono = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', monospace"
    return f"font-family: {mono if match[1] == 'Fira Code' else 'sans-serif'};"


def write_screenshots(demo: Path, out: Path) -> tuple[Path, ...]:
    """Photograph the report of a guarded run, light and dark, and the demo's page."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise PictureError(
            f"no browser for the screenshots: none of {', '.join(BROWSERS)} is on the PATH; on"
            " Debian: apt-get install chromium"
        )
    if not (demo / "report.html").is_file():
        print(f"docs: {demo} has no demo yet; running it", flush=True)
        subprocess.run(
            [sys.executable, "-m", "trimtab", "lab", "demo", "--out", str(demo)], check=True
        )
    report = next((p for s in SCENARIOS if (p := demo / s / "report.html").is_file()), None)
    if report is None:
        raise PictureError(
            f"{demo}: no report of {' or '.join(SCENARIOS)}; remove it and run `make demo`"
        )
    return (
        photograph(browser, report, out / "report.png", height=860),
        photograph(browser, report, out / "report-dark.png", height=860, dark=True),
        photograph(browser, demo / "report.html", out / "demo.png", height=1080),
    )


def photograph(
    browser: str, page: Path, picture: Path, *, height: int, dark: bool = False, width: int = 1400
) -> Path:
    """Write what a headless browser shows of a page.

    Raises:
        PictureError: The browser failed, or the picture is too big to be kept in a repository.
    """
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-dev-shm-usage",
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--window-size={width},{height}",
                "--virtual-time-budget=3000",
                f"--screenshot={picture}",
                page.resolve().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if not picture.is_file():
        raise PictureError(
            f"{browser} made no picture of {page} (exit {done.returncode}): {done.stderr[-400:]}"
        )
    if picture.stat().st_size > MAX_BYTES:
        raise PictureError(
            f"{picture}: {picture.stat().st_size / 1e3:.0f} kB, more than {MAX_BYTES / 1e3:.0f};"
            " make it lower"
        )
    return picture


if __name__ == "__main__":
    sys.exit(main())
