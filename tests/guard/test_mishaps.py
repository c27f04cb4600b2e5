"""What happens to a run from outside, or in its midst, leaves it whole and says what it did."""

import contextlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab
from tests.guard.tiny import events_of, guard_of, make, rows_of, train_guarded
from trimtab.checkpoints.manifest import list_checkpoints
from trimtab.chronicle.journal import Journal
from trimtab.errors import ActError, ChronicleError, ConfigError
from trimtab.guard.loop.exit_status import read_verdict
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def test_a_step_that_fails_under_a_cut_leaves_the_rate_as_it_was(tmp_path: Path) -> None:
    class FailsTwice(torch.optim.SGD):
        left = 2

        def step(self, closure: Any = None) -> Any:
            if self.left:
                self.left -= 1
                raise RuntimeError("out of memory")
            return super().step(closure)

    s = make(schedule="none")
    s.optimizer = FailsTwice(s.model.parameters(), lr=0.1)
    guard = guard_of(s, tmp_path / "run", steps=4)
    guard.scale_lr(0.5, why="a test")
    for batch in guard:
        guard.backward(s.loss(batch))
        with contextlib.suppress(RuntimeError):
            guard.step()
        assert s.optimizer.param_groups[0]["lr"] == 0.1
    assert [row["lr"] for row in rows_of(tmp_path / "run")] == [0.05] * 4


def test_parameters_that_are_added_later_are_clipped_too(tmp_path: Path) -> None:
    s = make(schedule="none", dropout=0.0)
    late = torch.nn.Linear(1, 1, bias=False)
    s.optimizer = torch.optim.SGD(s.model.parameters(), lr=1.0)
    guard = guard_of(s, tmp_path / "run", steps=4, clip=0.01)
    for batch in guard:
        if guard.step_number == 2:
            s.optimizer.add_param_group({"params": list(late.parameters())})
        before = late.weight.detach().clone()
        guard.backward(s.loss(batch) + 1000 * late(torch.ones(1)).sum())
        guard.step()
        moved = float((late.weight.detach() - before).norm())
        assert moved == (0 if guard.step_number < 3 else pytest.approx(0.01, rel=1e-3))
    assert [row["grad_norm"] > 999 for row in rows_of(tmp_path / "run")] == [
        False,
        False,
        True,
        True,
    ]


def grades_of(run: Path) -> dict[int, str]:
    return {c.step: c.grade for c in list_checkpoints(run / "checkpoints")}


@pytest.mark.parametrize("what", ["weight", "moment"])
def test_a_state_that_is_not_finite_is_never_saved_as_healthy(tmp_path: Path, what: str) -> None:
    run, said = tmp_path / "run", list[str]()
    s = make()
    policy = Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
    guard = guard_of(s, run, steps=15, policy=policy, say=said.append)
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number == 14:  # seen by no loss and no gradient before the save
            broken = s.model.output.weight
            with torch.no_grad():
                (broken if what == "weight" else s.optimizer.state[broken]["exp_avg"])[0, 0] = (
                    math.nan
                )
        guard.step()
    assert any("ends in a state that is not finite: output.weight" in line for line in said)
    assert read_verdict(run)["verdict"] == trimtab.analyze(run).verdict == "ended-badly"
    assert grades_of(run) == {5: "healthy", 10: "healthy", 15: "suspect"}
    again = make()
    resumed = guard_of(again, run, steps=15)
    assert resumed.step_number == 10
    resumed.close()


def test_asked_for_while_an_alarm_is_open_a_checkpoint_is_suspect(tmp_path: Path) -> None:
    run, s = tmp_path / "run", make()
    guard = guard_of(s, run, steps=60)
    train_guarded(s, guard, until=40)
    guard.checkpoint()
    for batch in guard:
        guard.backward(s.loss(batch) * math.nan)
        s.optimizer.zero_grad()  # the weights stay as they are
        guard.step()
        if guard.step_number == 43:
            guard.checkpoint()
            break
    guard.close()
    assert grades_of(run) == {40: "healthy", 43: "suspect"}


def test_begun_from_weights_that_are_not_finite_it_says_so_and_changes_nothing(
    tmp_path: Path,
) -> None:
    run, s, said = tmp_path / "run", make(), list[str]()
    with torch.no_grad():
        s.model.output.weight[0, 0] = math.nan
    guard = guard_of(s, run, steps=40, mode="act", say=said.append)
    with pytest.raises(SystemExit) as stopped:  # no update can make it finite
        train_guarded(s, guard)
    assert stopped.value.code == 3
    assert any("training begins from a state that is not finite (output.weight)" in x for x in said)
    assert guard.lr_factor == 1.0
    assert [a["remedy"] for a in guard.actions if a["remedy"] != "skip-update"] == []


def test_what_no_longer_fits_is_not_gone_back_to(tmp_path: Path) -> None:
    s, late = make(schedule="none"), torch.nn.Linear(1, 1)
    guard = guard_of(s, tmp_path / "run", steps=30, mode="act")
    train_guarded(s, guard, until=25)
    s.optimizer.add_param_group({"params": list(late.parameters())})
    before = s.model.output.weight.detach().clone()
    with pytest.raises(ActError, match=r"parameters by group then .* nothing was changed"):
        guard.roll_back(10, why="a test", confirm=True)
    assert torch.equal(s.model.output.weight, before)
    assert guard.step_number == 25
    guard.close()


def test_a_load_that_fails_half_way_says_what_is_of_which_step(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
            raise RuntimeError("not now")

    s = make()
    guard = guard_of(s, tmp_path / "run", steps=30, mode="act", extra={"odd": Odd()})
    train_guarded(s, guard, until=25)
    with pytest.raises(
        ActError, match="model, optimizer, scheduler put back, the rest is of step 25"
    ):
        guard.roll_back(10, why="a test", confirm=True)
    guard.close()


def test_checkpoints_whose_journal_is_gone_are_gone_on_from(tmp_path: Path) -> None:
    run, s, said = tmp_path / "run", make(), list[str]()
    train_guarded(s, guard_of(s, run, steps=10))
    (run / "journal.jsonl").unlink()
    with pytest.raises(ConfigError, match="holds a run already"):
        guard_of(make(), run, steps=20, resume=False)
    with pytest.raises(ChronicleError, match="journal check"):  # its head names decisions
        guard_of(make(), run, steps=20)
    (run / "journal.jsonl").unlink()
    (run / "journal.head").unlink()
    resumed = guard_of(make(), run, steps=20, say=said.append)
    assert resumed.step_number == 10
    assert any("journal is gone" in line for line in said)
    resumed.close()


def test_rolled_back_by_hand_a_finished_run_keeps_what_is_trained_then(tmp_path: Path) -> None:
    run, s = tmp_path / "run", make()
    policy = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)
    train_guarded(s, guard_of(s, run, steps=20, policy=policy))
    again = make()
    guard = guard_of(again, run, steps=20, policy=Policy(checkpoint_every_steps=1000))
    guard.roll_back(10, why="a test", lr_factor=0.5, confirm=True)
    train_guarded(again, guard)
    assert grades_of(run) == {10: "healthy", 20: "healthy"}
    assert events_of(run, "end")[-1].step == 20
    last = make()
    resumed = guard_of(last, run, steps=20)
    assert (resumed.step_number, resumed.lr_factor) == (20, 0.5)
    assert torch.equal(last.model.output.weight, again.model.output.weight)
    resumed.close()


@pytest.mark.parametrize(("first", "last"), [(math.nan, 5), (0, 5.5), (1.0, 2), ("0", "5")])
def test_samples_are_skipped_by_whole_numbers_only(tmp_path: Path, first: Any, last: Any) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=5)
    with pytest.raises(ConfigError, match="whole number"):
        guard.skip_samples(first, last, why="a test")
    assert guard.skipped_samples == ()
    guard.close()


def test_going_back_says_that_a_rate_lowered_in_the_loop_rises_again(tmp_path: Path) -> None:
    s, said = make(schedule="none"), list[str]()
    guard = guard_of(s, tmp_path / "run", steps=30, mode="act", say=said.append)
    train_guarded(s, guard, until=22)
    for group in s.optimizer.param_groups:
        group["lr"] = 1e-4
    guard.roll_back(20, why="a test", confirm=True)
    train_guarded(s, guard, until=23)
    guard.close()
    assert any("lowered to 0.0001 goes back to 0.003 of step 20" in line for line in said)


@pytest.mark.parametrize(
    "standing",
    [
        {"lr_cuts": "abc"},
        {"lr_cuts": [[0, 5.0]]},
        {"lr_cuts": [[0, math.nan]]},
        {"major": "x"},
        {"skips": [["a", 1]]},
        {"skips": 5},
        {"skips": [[5, 1]]},
        {"clip_factor": 3.0},
        {"optimizer_settings": {"beta2": "x"}},
        {"optimizer_settings": {"beta2": 2.0}},
        {"optimizer_settings": {"unknown": 0.5}},
        {"rewarm": [1, 0]},
    ],
)
def test_decisions_that_no_guard_writes_are_one_clear_error(
    tmp_path: Path, standing: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    train_guarded(s := make(), guard_of(s, run, steps=4))
    journal = Journal(run / "journal.jsonl")
    journal.append("action", attempt="1.0", step=4, remedy="x", values={}, standing=standing)
    journal.close()
    with pytest.raises(ActError, match=r"journal\.jsonl: what stood at the last action"):
        guard_of(make(), run, steps=8)


def test_decisions_of_another_version_are_named_and_left_out(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()
    train_guarded(s := make(), guard_of(s, run, steps=4))
    journal = Journal(run / "journal.jsonl")
    standing = {"new": 1, "lr_cuts": [[0, 0.5]]}
    journal.append("action", attempt="1.0", step=4, remedy="x", values={}, standing=standing)
    journal.append("action", attempt="1.0", step=4, remedy="undo lower-lr", values={"id": "x"})
    journal.close()
    guard = guard_of(make(), run, steps=8, say=said.append)
    assert guard.lr_factor == 0.5
    assert any("another version of trimtab are not in force: new" in line for line in said)
    with pytest.raises(ConfigError, match="no such change stands"):
        guard.undo("lower-clip", why="a test")
    guard.close()


def test_a_disk_that_is_full_at_the_start_is_an_error_with_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = Path.open

    def full(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == "run.toml.partial":
            raise OSError(28, "No space left on device")
        return open_(path, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ChronicleError, match=r"run\.toml: cannot be .*written \(No space left"):
        guard_of(make(), tmp_path / "run", steps=4)


CUT_OFF = """
import time, pathlib, sys
from trimtab.guard.state.async_save import Pending
def write():
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).touch()
Pending(write, "step-1", 1, "", 0).start()
raise RuntimeError("the script's own")
"""


@pytest.mark.slow
def test_a_checkpoint_under_way_is_finished_where_an_exception_ends_the_process(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(tmp_path / "written")], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert (tmp_path / "written").exists()


LEFT_LYING = """
import sys
import torch
from tests.guard.tiny import guard_of, make
s = make()
guard = guard_of(s, sys.argv[1], steps=20, say=print)
torch.held = batches = iter(guard)  # let go of after the modules that write
for _ in range(7):
    guard.backward(s.loss(next(batches)))
    guard.step()
"""


@pytest.mark.slow
def test_a_loop_that_lives_to_the_end_of_the_process_is_left_as_by_a_break(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_LYING, str(tmp_path / "run")],
        capture_output=True, check=True, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert "fault of its own" not in done.stdout + done.stderr
    assert read_verdict(tmp_path / "run")["reason"] == "its loop was left after step 7"
