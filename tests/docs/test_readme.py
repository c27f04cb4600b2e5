"""What README and docs show is what the code does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md")


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_the_detector_of_the_readme_works(tmp_path: Path) -> None:
    (block,) = [b for b in python_blocks() if "WorseThanTwiceTheBest" in b]
    rows = [{"step": s, "loss": 2.0 if s != 40 else 5.0} for s in range(1, 60)]
    (tmp_path / "train.log").write_text("".join(json.dumps(r) + "\n" for r in rows))
    script = block + "\nprint([f.onset for f in findings if f.detector == 'twice-the-best'])\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[40.0]"


@pytest.mark.torch
def test_the_eight_lines_of_the_readme_run(tmp_path: Path) -> None:
    (block,) = [b for b in python_blocks() if "from trimtab import Guard" in b]
    lines = [
        line
        for line in block.splitlines()
        if line.strip() and not line.lstrip().startswith(("from", "import"))
    ]
    assert len(lines) <= 8
    setup = """
import torch, types
from torch.utils.data import DataLoader
class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = torch.nn.Linear(4, 4)
    def forward(self, x):
        return types.SimpleNamespace(loss=self.lm_head(x).square().mean())
torch.manual_seed(0)
model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0)
scaler = None
loader = DataLoader([{"x": torch.randn(4)} for _ in range(32)], batch_size=4)
"""
    script = setup + block.replace("steps=10_000", "steps=12")
    script += "\nassert guard.step_number == 12, guard.step_number\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/pythia-70m/journal.jsonl").exists()


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert "@@" not in page.read_text(), page.name
