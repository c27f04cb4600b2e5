"""Put what `trimtab bench` prints into docs/figures/detection.md.

`python -m tools.detection_page --corpus DIR`.

Without --corpus only the table of made-up runs is made anew: the labelled logs are not part of the
project.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "detection.md"
NOISE = "trimtab bench noise"
DETECT = "trimtab bench detect --corpus DIR --cross-validate"
LIVE = "trimtab bench detect --corpus DIR --live"


def replace_block(page: str, command: str, output: str) -> str:
    """Return the page with the fenced block below the comment that names the command replaced.

    Raises:
        ValueError: The page has no such block.
    """
    block = re.compile(rf"(<!-- {re.escape(command)} -->\n```\n).*?(^```$)", re.S | re.M)
    text = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    made, count = block.subn(lambda m: f"{m[1]}{text}\n{m[2]}", page)
    if count != 1:
        raise ValueError(f"{PAGE.name}: {count} blocks of `{command}`, expected one")
    return made


def _output_of(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Run the commands and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--corpus", metavar="DIR", help="folder of labelled logs")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    page = replace_block(page, NOISE, _output_of("bench", "noise"))
    if arguments.corpus:
        found = _output_of("bench", "detect", "--corpus", arguments.corpus, "--cross-validate")
        page = replace_block(page, DETECT, found)
        live = _output_of("bench", "detect", "--corpus", arguments.corpus, "--live")
        page = replace_block(page, LIVE, live)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
