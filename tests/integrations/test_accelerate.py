"""The guard in a loop with Accelerate's real objects.

One call after `prepare`, the loop unchanged.
"""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402
from torch.utils.data import IterableDataset  # noqa: E402

from tests.guard.tiny import differences, events_of, rows_of  # noqa: E402
from tests.integrations.hf_lab import (  # noqa: E402
    BAD_SAMPLES,
    BATCH,
    PEAK_LR,
    STEPS,
    Windows,
    gpt2,
    quiet,
    schedule,
    text,
    validation,
)
from trimtab.errors import ConfigError  # noqa: E402
from trimtab.integrations.accelerate import guard_loop  # noqa: E402
from trimtab.plan.policy import Mode, Policy  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


class Loop:
    """A loop as Accelerate's guide writes it; with or without the one call that guards it."""

    def __init__(
        self,
        run: Path | None,
        *,
        mode: Mode = "observe",
        fault: str = "",
        accumulate: int = 1,
        num_samples: int = 84,
        shuffle: bool = True,
        epochs: int = 2,
        break_at: int = 0,
    ) -> None:
        set_seed(3)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        self.model: Any = gpt2()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=PEAK_LR)
        bad = BAD_SAMPLES if fault == "data" else range(0)
        loader = torch.utils.data.DataLoader(
            Windows(text().train, num_samples, bad), batch_size=BATCH // accumulate, shuffle=shuffle
        )
        with quiet():
            self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
                self.model, optimizer, loader, schedule(optimizer, fault)
            )
        self.guard: Any = None
        if run is not None:
            policy = Policy(
                snapshot_every_steps=10,
                checkpoint_every_steps=5 if break_at else 60,
                checkpoint_in_background=False,
            )
            self.optimizer, self.loader, self.scheduler = guard_loop(
                self.accelerator,
                self.model,
                self.optimizer,
                self.loader,
                self.scheduler,
                run=run,
                epochs=epochs,
                mode=mode,
                policy=policy,
                say=lambda _line: None,
            )
            self.guard = self.loader.guard
        self.epochs, self.fault, self.break_at = epochs, fault, break_at
        self.seen: list[tuple[Any, ...]] = []

    def train(self) -> "Loop":
        steps = 0
        for _ in range(self.epochs):
            for batch in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = self.model(**batch).loss
                    if self.fault == "nan" and steps == 100:
                        loss = loss * math.nan
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                        self.seen.append(("norm", float(norm), self.scheduler.get_last_lr()))
                        steps += 1
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                self.seen.append(("loss", float(loss.detach())))
                if self.break_at and steps == self.break_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        return self


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 4])
def test_observe_is_bitwise_the_loop_without_it(tmp_path: Path, accumulate: int) -> None:
    plain = Loop(None, accumulate=accumulate).train()
    guarded = Loop(tmp_path, accumulate=accumulate).train()
    assert guarded.seen == plain.seen
    assert differences(dict(plain.model.state_dict()), dict(guarded.model.state_dict())) == []
    rows = rows_of(tmp_path)
    assert [r["step"] for r in rows] == list(range(1, 23))  # an epoch's last step is a shorter one
    assert [r["grad_norm"] for r in rows] == [s[1] for s in plain.seen if s[0] == "norm"]
    assert events_of(tmp_path, "end")[0].data["reason"] == "all steps done"


@pytest.fixture(scope="module")
def sound() -> float:
    return validation(Loop(None, num_samples=STEPS * BATCH, shuffle=False, epochs=1).train().model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "remedy"),
    [("data", "roll-back+skip-data"), ("lr", "roll-back+lower-lr"), ("nan", "skip-update")],
)
def test_faults_are_recovered_from(tmp_path: Path, sound: float, fault: str, remedy: str) -> None:
    shape: dict[str, Any] = {"num_samples": STEPS * BATCH, "shuffle": False, "epochs": 1}
    guarded = Loop(tmp_path, mode="act", fault=fault, **shape).train()
    assert [a["remedy"] for a in guarded.guard.actions] == [remedy]
    assert guarded.guard.step_number == STEPS
    found = validation(guarded.model)
    if fault == "lr":
        alone = validation(Loop(None, fault=fault, **shape).train().model)
        assert (alone - found) / (alone - sound) >= 0.9
    else:
        assert found / sound < 1.02
    assert events_of(tmp_path, "fault") == []


@pytest.mark.slow
def test_a_loop_that_is_killed_goes_on_bit_equal(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    straight = Loop(tmp_path / "straight").train()
    job = (
        "from tests.integrations.test_accelerate import *;"
        f" Loop(Path({str(tmp_path / 'broken')!r}), break_at=14).train()"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", job], env=env, timeout=900, check=False, capture_output=True
    )
    assert killed.returncode == -9
    resumed = Loop(tmp_path / "broken").train()  # its first epoch is over: that pass is empty
    assert resumed.seen == straight.seen[20:]
    assert differences(dict(straight.model.state_dict()), dict(resumed.model.state_dict())) == []


def test_epochs_or_steps_must_be_said(tmp_path: Path) -> None:
    loop = Loop(None)
    with pytest.raises(ConfigError, match="give one of the two"):
        guard_loop(loop.accelerator, loop.model, loop.optimizer, loop.loader, run=tmp_path)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def test_objects_that_are_not_prepared_or_guarded_already_are_refused(tmp_path: Path) -> None:
    loop = Loop(None)
    optimizer = torch.optim.AdamW(loop.model.parameters())
    plain = torch.utils.data.DataLoader(Windows(text().train, 8))
    stream = loop.accelerator.prepare(torch.utils.data.DataLoader(Stream(), batch_size=2))
    for refused, given in (
        (r"an optimizer that Accelerate has not prepared \(AdamW\)", (optimizer, loop.loader)),
        (r"a loader that Accelerate has not prepared \(DataLoader\)", (loop.optimizer, plain)),
        ("Stream, which has no length", (loop.optimizer, stream)),
    ):
        with pytest.raises(ConfigError, match=refused):
            guard_loop(loop.accelerator, loop.model, *given, run=tmp_path, epochs=1)
    assert list(tmp_path.iterdir()) == []
    once = guard_loop(
        loop.accelerator, loop.model, loop.optimizer, loop.loader, run=tmp_path, epochs=1
    )
    for twice in ((once.optimizer, loop.loader), (loop.optimizer, once.loader)):
        with pytest.raises(ConfigError, match="call it once"):
            guard_loop(loop.accelerator, loop.model, *twice, run=tmp_path, epochs=1)
    once.loader.guard.close()
