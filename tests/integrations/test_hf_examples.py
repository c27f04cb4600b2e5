"""The examples for Hugging Face as a user runs them: a fault planted, the recovery shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    ("hf_trainer_gpt2.py", "--out", "roll-back+skip-data: worked", 2.60),
    ("accelerate_gpt2.py", "--run", "roll-back+lower-lr: worked", 2.60),
]


@pytest.mark.parametrize(("name", "option", "told", "most"), EXAMPLES)
def test_an_example_recovers(
    tmp_path: Path, name: str, option: str, told: str, most: float
) -> None:
    script = ROOT / "examples" / name
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, option, tmp_path / "out"],
        cwd=tmp_path,
        env=env,
        timeout=1500,
        check=True,
        capture_output=True,
        text=True,
    )
    assert told in done.stderr
    found = re.search(r"validation loss ([\d.]+) after 240 steps", done.stdout)
    assert found is not None
    assert float(found[1]) < most


@pytest.mark.parametrize("name", [e[0] for e in EXAMPLES])
def test_an_example_says_how_many_lines_the_guard_needs(name: str) -> None:
    source = (ROOT / "examples" / name).read_text(encoding="utf-8")
    marked = sum(line.endswith("# trimtab") for line in source.splitlines())
    said = re.search(r"`# trimtab`: (\d) of them", source)
    assert said is not None
    assert int(said[1]) == marked <= 5
