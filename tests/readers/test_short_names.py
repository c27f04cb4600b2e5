"""Short names of signals, which mean something where they stand alone beside a loss."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

DRAW = np.random.default_rng(0)
LOSS = [round(2.5 * float(np.exp(-i / 30)) + 0.5, 4) for i in range(60)]
NORM = [round(1 + 0.1 * float(x), 3) for x in DRAW.random(60)]
ROWS = list(enumerate(zip(LOSS, NORM, strict=True)))
FORMS = {
    "bars": "step {s} | loss {x} | lr 1e-3 | gn {g}\n",
    "equals": "step {s} loss={x} lr=1e-3 gn={g}\n",
    "tqdm": "\rEpoch 1:  {i}%|█   | {i}/60 [00:01<00:09, 20.5it/s, loss={x}, lr=1e-3, gn={g}]",
}


@pytest.mark.parametrize("form", FORMS)
def test_gn_beside_a_loss_is_the_gradient_norm(tmp_path: Path, form: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text("".join(FORMS[form].format(i=i, s=10 * i, x=x, g=g) for i, (x, g) in ROWS))
    assert read_run(path).columns["grad_norm"].logged().tolist() == NORM


def test_gn_as_a_column(tmp_path: Path) -> None:
    table, lines = tmp_path / "log.csv", tmp_path / "log.jsonl"
    table.write_text("step,loss,gn\n" + "".join(f"{i},{x},{g}\n" for i, (x, g) in ROWS))
    rows = [{"step": i, "loss": x, "gn": g, "block/gn": 0.5} for i, (x, g) in ROWS]
    lines.write_text("\n".join(map(json.dumps, rows)))
    for path in (table, lines):
        record = read_run(path)
        assert record.columns["grad_norm"].logged().tolist() == NORM
        assert record.keys["grad_norm"] == "gn"


def test_gn_of_a_layer_is_not_that_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("".join(f"step {i} loss={x} head gn={g}\n" for i, (x, g) in ROWS))
    assert "grad_norm" not in read_run(path).columns
