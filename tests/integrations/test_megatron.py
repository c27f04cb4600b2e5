"""The guard over megatron-core's real model, DDP, optimizer, scheduler and rerun machinery, on the
CPU."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.megatron_lab import (  # noqa: E402
    BAD_SAMPLES,
    BATCH,
    Parts,
    guarded,
    megatron,
    plain,
)
from trimtab.errors import ConfigError  # noqa: E402
from trimtab.integrations.megatron.adapter import CoreScheduler, MegatronGuard  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    with megatron():
        yield


def logged(run: Path, name: str) -> list[float]:
    lines = (run / "signals" / "1.0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)[name] for line in lines]


def test_observe_is_bitwise_megatrons_own_step(tmp_path: Path) -> None:
    parts, losses, given = plain(steps=30)
    found, seen, _ = guarded(tmp_path, "observe", steps=30)
    assert list(seen.values()) == losses
    assert differences(found.weights(), parts.weights()) == []
    assert events_of(tmp_path, "fault") == []
    # what its step() returns, (done, norm, zeros), is what the guard measured
    assert all((done, zeros) == (True, None) for done, _, zeros in given)
    assert logged(tmp_path, "grad_norm") == [norm for _, norm, _ in given]


def test_three_faults_are_recovered_from(tmp_path: Path) -> None:
    twin = plain()[0].validation()
    bad_rate = plain("lr")[0].validation()
    assert math.isnan(plain("nan", steps=110)[0].validation())
    found, _, guard = guarded(tmp_path / "data", fault="data")
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    assert guard.skipped_samples == ((BAD_SAMPLES[0], BAD_SAMPLES[-1]),)
    assert found.validation() / twin < 1.01
    found, _, guard = guarded(tmp_path / "nan", fault="nan")
    assert [a["remedy"] for a in guard.actions] == ["skip-update"]
    assert found.validation() / twin < 1.01
    found, _, guard = guarded(tmp_path / "lr", fault="lr")
    assert [a["remedy"] for a in guard.actions] == ["roll-back+lower-lr"]
    assert (bad_rate - found.validation()) / (bad_rate - twin) >= 0.9
    assert found.validation() / twin <= 1.03
    for fault in ("data", "nan", "lr"):
        assert events_of(tmp_path / fault, "fault") == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.integrations import megatron_lab as lab
own = lab.spoil
def spoil(parts, step, fault):
    if step == 17:
        os.kill(os.getpid(), signal.SIGKILL)
lab.spoil = spoil
with lab.megatron():
    lab.guarded(Path(sys.argv[1]), steps=30, checkpoint_every_steps=10)
"""


def test_a_killed_run_resumes_bit_equal(tmp_path: Path) -> None:
    parts, losses, _ = plain(steps=30)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    code = subprocess.run(
        [sys.executable, "-c", _KILLED, tmp_path / "run"], env=env, timeout=900, check=False
    ).returncode
    assert code == -9
    found, seen, _ = guarded(tmp_path / "run", steps=30)
    assert seen == dict(zip(range(11, 31), losses[10:], strict=True))
    assert differences(found.weights(), parts.weights()) == []


def test_a_cut_rate_survives_its_scheduler_and_its_loading(tmp_path: Path) -> None:
    parts = Parts()
    guard = MegatronGuard(
        parts.model,
        parts.optimizer,
        parts.scheduler,
        data=parts.data,
        increment=BATCH,
        steps=6,
        run=tmp_path,
        mode="observe",
        say=lambda _: None,
    )
    planned = []
    for batch in guard:
        if guard.step_number == 2:
            guard.scale_lr(0.5, why="a test")
            parts.optimizer.load_state_dict(parts.optimizer.state_dict())
        planned.append(parts.optimizer.param_groups[0]["lr"])
        guard.backward(parts.loss(batch))
        guard.step()
    rates = logged(tmp_path, "lr")
    assert rates == [lr * (1.0 if i < 2 else 0.5) for i, lr in enumerate(planned)]
    assert planned == sorted(planned)  # its own schedule went on, unaware


def test_its_scheduler_is_put_back_and_not_added_to() -> None:
    parts = Parts()
    scheduler = CoreScheduler(parts.scheduler, BATCH)
    scheduler.step()
    kept, rate = scheduler.state_dict(), parts.optimizer.param_groups[0]["lr"]
    for _ in range(3):
        scheduler.step()
    scheduler.load_state_dict(kept)
    assert parts.scheduler.num_steps == kept["num_steps"]
    assert parts.optimizer.param_groups[0]["lr"] == rate
    parts.scheduler.load_state_dict(kept)  # the fact that this rests on
    assert parts.scheduler.num_steps == 2 * int(str(kept["num_steps"]))


def test_the_rerun_machine_runs_within_a_guarded_step(tmp_path: Path) -> None:
    from megatron.core.rerun_state_machine import (
        RerunMode,
        destroy_rerun_state_machine,
        get_rerun_state_machine,
        initialize_rerun_state_machine,
    )

    _, losses, _ = plain(steps=6)
    initialize_rerun_state_machine(mode=RerunMode.DISABLED)
    machine, parts, seen, loss = get_rerun_state_machine(), Parts(), [], torch.zeros(())
    guard = MegatronGuard(
        parts.model,
        parts.optimizer,
        parts.scheduler,
        data=parts.data,
        increment=BATCH,
        steps=6,
        run=tmp_path,
        mode="act",
        say=lambda _: None,
    )
    try:
        for batch in guard:
            while machine.should_run_forward_backward(None):
                loss = parts.loss(batch)
                machine.validate_result(loss, rejection_func=torch.isnan, message="NaN loss")
                guard.backward(loss)
            assert machine.should_checkpoint_and_exit() == (False, False, 0)
            guard.step()
            seen.append(float(loss).hex())
        machine.should_run_forward_backward(None)
        with pytest.raises(RuntimeError, match="NaN loss"):
            machine.validate_result(loss * math.nan, rejection_func=torch.isnan, message="NaN loss")
    finally:
        destroy_rerun_state_machine()
    assert seen == losses


def test_what_it_was_not_tried_with_is_refused(tmp_path: Path) -> None:
    parts = Parts()
    parts.optimizer.chained_optimizers *= 2
    with pytest.raises(ConfigError, match="one FP32Optimizer only"):
        MegatronGuard(parts.model, parts.optimizer, data=parts.data, run=tmp_path)
