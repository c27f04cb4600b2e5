"""Snapshots that a device must wait for keep to their share of the time."""

from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.state.snapshot_pace import SnapshotPace
from trimtab.plan.policy import Policy


def run(*, copying_s: float, step_s: float, steps: int = 4_000) -> tuple[SnapshotPace, list[str]]:
    now, told = 0.0, []
    pace = SnapshotPace(Policy(), Ranks(), clock=lambda: now)
    for step in range(1, steps + 1):
        now += step_s
        if pace.is_due(step):
            now += copying_s
            told.append(pace.note_taken(step, copying_s))
    return pace, [text for text in told if text]


def test_a_cheap_copy_changes_nothing() -> None:
    pace, told = run(copying_s=0.019, step_s=0.001)
    assert pace.every_steps == 20
    assert told == []


def test_a_dear_one_is_made_less_often_and_that_is_said_once() -> None:
    pace, told = run(copying_s=0.29, step_s=0.141)
    assert pace.every_steps == 160  # 0.29 s in 160 steps is 1.3 %
    assert told == [
        "snapshots: every 160 steps from here on, not 20: copying one from the device takes 0.29 s,"
        " a step 0.14 s, and snapshot_time_share is 0.02"
    ]


def test_it_is_never_wider_than_64_times_the_distance_of_the_policy() -> None:
    pace, _ = run(copying_s=100.0, step_s=0.01)
    assert pace.every_steps == 1_280


def test_a_run_that_went_back_says_nothing_of_the_time_of_a_step() -> None:
    now = 0.0
    pace = SnapshotPace(Policy(), Ranks(), clock=lambda: now)
    assert pace.note_taken(100, 9.0) == ""
    now = 5.0
    assert pace.note_taken(60, 9.0) == ""
    assert pace.every_steps == 20
