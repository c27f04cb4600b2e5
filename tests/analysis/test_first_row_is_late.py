"""Logs whose first row is broken already: what may be to blame, and what there is to go back to."""

from pathlib import Path

import numpy as np

import trimtab


def _causes(tmp_path: Path, steps: list[int]) -> tuple[list[str], list[str]]:
    path = tmp_path / "log.csv"
    rows = [f"{s},nan,20" for s in steps]
    path.write_text("\n".join(["step,loss,lr", *rows]) + "\n")
    account = trimtab.analyze(path).runs[0]
    incident = account.incidents[0]
    causes = [c.cause for c in incident.diagnosis.causes]
    return causes, [r.remedy for r in incident.plan.remedies]


def test_hundreds_of_unseen_updates_leave_the_rate_to_blame(tmp_path: Path) -> None:
    causes, remedies = _causes(tmp_path, [200 * k for k in range(1, 13)])
    assert causes[0] == "learning-rate-too-high"
    assert not any(r.startswith("roll-back") for r in remedies)
    assert "lower-lr" in remedies


def test_a_first_step_that_is_broken_clears_the_rate(tmp_path: Path) -> None:
    causes, remedies = _causes(tmp_path, list(range(1, 13)))
    assert "learning-rate-too-high" not in causes[:2]
    assert not any(r.startswith("roll-back") for r in remedies)


def test_a_part_of_the_loss_that_breaks_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["step,loss_box,loss_cls"]
    for k in range(200):
        box = 2 - 0.005 * k + 0.02 * rng.normal()
        lines.append(f"{k},{box:.4f},{'nan' if k >= 120 else f'{1 - 0.002 * k:.4f}'}")
    path = tmp_path / "parts.csv"
    path.write_text("\n".join(lines) + "\n")
    found = trimtab.analyze(path)
    assert found.verdict == "incident"
    text = " ".join(str(found).split())
    assert "non-finite values · since step 120 · 'loss_cls' is not finite" in text


def test_a_reward_that_falls_to_a_third_at_once_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reward = np.where(np.arange(71) < 46, 122.0, 17.0) * (1 + 0.15 * rng.normal(size=71))
    path = tmp_path / "rl.csv"
    rows = [f"{k + 300},{r:.1f}" for k, r in enumerate(reward)]
    path.write_text("\n".join(["step,reward", *rows]) + "\n")
    incident = next(i for i in trimtab.analyze(path).runs[0].incidents if i.severity != "info")
    assert incident.kind == "policy-collapse"
    assert abs(incident.onset - 346) <= 4
