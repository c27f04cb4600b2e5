"""Skipped steps under the names that loops give them: as a flag, a share or a running count."""

from pathlib import Path

import numpy as np
import pytest

import trimtab

_NAMES = ("skipped", "skipped_steps", "num_skipped", "skipped_iterations", "grad_overflow")


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("name", _NAMES)
def test_half_of_the_steps_skipped_is_an_alarm(tmp_path: Path, name: str, summed: bool) -> None:
    rng = np.random.default_rng(0)
    n = np.arange(400)
    loss = 2 + 4 * (1 + n / 20) ** -0.4 + 0.03 * rng.standard_normal(400)
    skipped = np.where(n >= 200, n % 2, 0)
    shown = np.cumsum(skipped) if summed else skipped
    rows = [f"{i},{x:.4f},{k}" for i, x, k in zip(n, loss, shown, strict=True)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([f"step,loss,{name}", *rows]) + "\n")
    (run,) = trimtab.analyze(path).runs
    assert [i.kind for i in run.incidents if i.severity != "info"] == ["skipped-steps"]
