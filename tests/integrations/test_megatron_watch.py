"""Megatron's own trainer watched.

Stopped with a verdict, and started again with arguments that fit it.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trimtab.errors import ReadError  # noqa: E402
from trimtab.integrations.megatron.watch import (  # noqa: E402
    MegatronWatch,
    main,
    restart_arguments,
)

pytestmark = pytest.mark.torch

STEPS = 600


def train(root: Path, fault: str = "", mode: str = "act") -> tuple[int, MegatronWatch]:
    """Feed what a run would have logged.

    Return the iteration it was ended at, 0 where it was not.
    """
    rng = np.random.default_rng(0)
    saves = root / "ckpts"
    said: list[str] = []
    watch = MegatronWatch(root / "run", checkpoints=saves, mode=mode, steps=STEPS, say=said.append)  # type: ignore[arg-type]
    for i in range(1, STEPS + 1):
        loss = 3.0 + 4.0 * math.exp(-i / 80) + rng.normal(0, 0.02)
        norm, lr = 0.5 + rng.normal(0, 0.02), 3e-4
        if fault and i >= 450:
            loss, norm = loss + min((i - 449) * 0.15, 4.0), 20.0
        if fault == "lr" and i >= 445:
            lr = 3e-3
        if i % 100 == 0:
            folder = saves / f"iter_{i:07d}" / "mp_rank_00"
            folder.mkdir(parents=True)
            (folder / "model_optim_rng.pt").write_bytes(b"x")
            (saves / "latest_checkpointed_iteration.txt").write_text(str(i), encoding="utf-8")
        if watch.step(i, loss=loss, grad_norm=norm, lr=lr):
            watch.close()
            return i, watch
    watch.close()
    return 0, watch


def verdict(root: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "run" / "verdict.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("fault", ["lr", "data"])
def test_a_run_that_does_not_come_back_is_ended_with_arguments_to_go_on(
    tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, watch = train(tmp_path, fault)
    assert 450 < ended < 510
    assert watch.exit_code == 3
    told = verdict(tmp_path)
    assert (told["state"], told["restart"]) == ("given-up", False)
    assert told["resume_step"] == 400
    arguments = restart_arguments(tmp_path / "run", tmp_path / "ckpts")
    assert arguments[:4] == ["--load", str(tmp_path / "ckpts"), "--ckpt-step", "400"]
    assert "$" not in "".join(arguments)
    if fault == "lr":
        assert "--lr" in arguments
        assert float(arguments[arguments.index("--lr") + 1]) <= 3e-4
    assert main([str(tmp_path / "run"), str(tmp_path / "ckpts")]) == 0
    assert capsys.readouterr().out.split() == arguments


def test_a_sound_run_is_never_ended_and_needs_no_arguments(tmp_path: Path) -> None:
    assert train(tmp_path)[0] == 0
    assert verdict(tmp_path)["state"] == "done"
    assert restart_arguments(tmp_path / "run", tmp_path / "ckpts") == []


def test_observe_never_ends_a_run(tmp_path: Path) -> None:
    assert train(tmp_path, "lr", mode="observe")[0] == 0


def test_a_killed_run_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "ckpts" / "iter_0000100" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "ckpts" / "latest_checkpointed_iteration.txt").write_text("100", encoding="utf-8")
    watch = MegatronWatch(tmp_path / "run", checkpoints=tmp_path / "ckpts", mode="act")
    assert not watch.step(1, loss=7.0, grad_norm=None, skipped=True)
    assert verdict(tmp_path)["state"] == "running"
    assert restart_arguments(tmp_path / "run", tmp_path / "ckpts") == [
        "--load",
        str(tmp_path / "ckpts"),
    ]
    watch.close()


def test_without_a_run_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReadError, match=r"verdict\.json"):
        restart_arguments(tmp_path, tmp_path)
    assert main([str(tmp_path), str(tmp_path)]) == 1
    assert "is it a run directory?" in capsys.readouterr().err
