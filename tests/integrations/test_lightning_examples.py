"""The examples for Lightning and Fabric run as they are.

And the fault they plant is recovered from.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.guard.tiny import events_of

pytestmark = [pytest.mark.torch]

ROOT = Path(__file__).resolve().parents[2]
REMEDIES = {
    "lightning_gpt.py": "roll-back+skip-data",
    "fabric_gpt.py": "roll-back+lower-lr",
}


def run(name: str, *options: str, folder: Path) -> tuple[str, float]:
    """Run an example; return what it printed, and its validation loss."""
    paths = os.pathsep.join(str(p) for p in (ROOT / "src", os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=500,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"validation loss (\S+) after 240 steps", done.stdout)
    assert found is not None, done.stdout
    return done.stdout + done.stderr, float(found[1])


@pytest.mark.parametrize("name", sorted(REMEDIES))
def test_the_guard_costs_at_most_five_lines(name: str) -> None:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    marked = [line for line in text.splitlines() if line.endswith("# trimtab")]
    assert 2 <= len(marked) <= 5
    assert f"end in `# trimtab`: {len(marked)} of them" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REMEDIES))
def test_an_example_recovers_from_its_fault(name: str, tmp_path: Path) -> None:
    text, guarded = run(name, "--run", "here", folder=tmp_path)
    assert [e.data["remedy"] for e in events_of(tmp_path / "here", "action")] == [REMEDIES[name]]
    assert "worked" in text
    if name == "fabric_gpt.py":  # what a window of bad data costs is mostly made up for by the end
        _, without = run(name, "--off", folder=tmp_path)
        assert guarded < without / 2
