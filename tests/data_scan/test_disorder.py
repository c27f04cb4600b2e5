# ruff: noqa: RUF001 (letters of other scripts are what is tested)
"""Noise that compresses: random characters, base64, shuffled characters and words."""

import base64
import json
import random
import string
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from trimtab.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stat().st_size > 4000][:12]
RANDOM = random.Random(100)


def text_of(page: Path) -> str:
    return page.read_text("utf-8")[:3000]


NOISE: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "random ASCII": (
        "random-characters",
        lambda text: "".join(RANDOM.choices(string.printable[:95], k=len(text))),
    ),
    "base64": (
        "random-characters",
        lambda text: base64.b64encode(RANDOM.randbytes(len(text))).decode(),
    ),
    "characters": ("shuffled-text", lambda text: "".join(RANDOM.sample(text, len(text)))),
    "words": (
        "shuffled-text",
        lambda text: " ".join(RANDOM.sample(text.split(), len(text.split()))),
    ),
}
PROSE = (
    "The committee met on the first day of the month, and the chair asked for a report on the state"
    " of the roads. A member of the board said that the bridge over the river was in need of repair"
    " before the winter. The clerk read the letter from the county, and a copy of it was put in the"
    " file. After the vote the members went to see the site, where an engineer showed them the"
    " cracks in the wall. She told the group that the cost of the work would depend on the depth of"
    " the footing. In the end the board agreed to ask for bids from the three firms on the list. "
)


def scan(folder: Path, documents: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    file = folder / "data.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in documents))
    main(["scan", "--json", str(file)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {
        f["rule"]: f["count"] for f in found if f["rule"] in ("random-characters", "shuffled-text")
    }


@pytest.mark.parametrize("name", NOISE)
def test_noise_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule, spoil = NOISE[name]
    documents = [spoil(PROSE * 4) for _ in range(5)]
    assert scan(tmp_path, documents, capsys) == {rule: 5}


def test_text_code_tables_and_other_scripts_are_no_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = [
        path.read_text("utf-8")[:4000]
        for path in sorted((ROOT / "src/trimtab").glob("*/*.py"))[::6]
        if path.stat().st_size > 3000
    ]
    table = "\n".join(f"{i},{RANDOM.random():.6f},{RANDOM.randint(1, 9999)},ok" for i in range(200))
    russian = (
        "Комитет собрался в первый день месяца, и председатель попросил доложить о дорогах. " * 3
    )
    greek = (
        "Η επιτροπή συνεδρίασε την πρώτη μέρα του μήνα και ζήτησε αναφορά για τους δρόμους. " * 3
    )
    chinese = "委员会在本月的第一天开会，主席要求报告道路的情况。一名委员说河上的桥需要修理。" * 20
    protein = "".join(RANDOM.choices("ACDEFGHIKLMNPQRSTVWY", k=3000))
    log = "\n".join(
        f"step {i} loss {3 - i / 900:.4f} lr 3e-4 tokens {i * 4096}" for i in range(120)
    )
    documents = [*map(text_of, PAGES), *code, table, chinese, protein, log, PROSE * 4]
    documents += [russian + "Мост нуждался в ремонте до зимы. " * 4, greek + "Η γέφυρα. " * 30]
    assert len(documents) > 30
    assert scan(tmp_path, documents, capsys) == {}
