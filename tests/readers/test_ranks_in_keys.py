"""Columns that name the rank they are of are laid beside the loss, and compared."""

from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze


@pytest.mark.parametrize("key", ["loss_rank{}", "rank_{}/loss"])
def test_a_rank_that_leaves_the_others_is_told_by_its_number(tmp_path: Path, key: str) -> None:
    rng = np.random.default_rng(3)
    n, num = 400, 5
    loss = 2 + 2 * np.exp(-np.arange(n) / 60)[:, None] + 0.05 * rng.normal(size=(n, num))
    path = tmp_path / "log.csv"

    def write() -> None:
        lines = [",".join(["step", *(key.format(k) for k in range(num))])]
        lines += [",".join([str(i), *(f"{v:.4f}" for v in row)]) for i, row in enumerate(loss)]
        path.write_text("\n".join(lines) + "\n")

    write()
    assert analyze(path).verdict != "incident"
    loss[250:, 3] += 0.4
    write()
    found = analyze(path)
    assert found.verdict == "incident"
    assert "rank 3" in " ".join(f.text for f in found.incidents[0].incident.findings)
