import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.analysis.ordering import listed_order
from trimtab.analysis.resolution import resolved
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.terminal import render_terminal, terminal_text
from trimtab.text import number


def test_a_healthy_log_gets_a_few_lines_and_says_what_health_rests_on(healthy: RunAccount) -> None:
    lines = terminal_text(healthy, width=160).splitlines()
    assert len(lines) == 4
    assert "healthy   self-test " in lines[1]
    assert "blind to validation" in lines[1]


@pytest.fixture
def uncured(rescued: RunAccount) -> RunAccount:
    """The run without the journal of what was done."""
    return replace(rescued, events=())


def test_first_what_happened_then_what_to_do(uncured: RunAccount) -> None:
    lines = [line for line in terminal_text(uncured, width=140).splitlines() if line]
    first = lines[1]
    for part in (
        "CRITICAL",
        "loss is diverging",
        "since step 902",
        "first sign 884",
        "attempt 1.0",
        "sure (",
    ):
        assert part in first
    assert lines[2].split()[:4] == ["do", "1", "roll", "back"]
    labels = [line[2:12].strip() for line in lines[2:-2] if line[2:12].strip()]
    assert labels == [
        "do",
        "what",
        "first",
        "together",
        "because",
        "next test",
    ]


def test_causes_stand_with_confidence_and_evidence(uncured: RunAccount) -> None:
    text = terminal_text(uncured, width=140)
    assert (
        "1  learning rate too high for this width  very likely 0.71  the same steps at half the rate held"
        in text
    )
    assert "against: leaving it out did not help" in text
    assert "--override-opt_param-scheduler --lr 5.0e-4" in text
    assert (
        "worked for 104B exp 11, OPT-175B · did not help 104B attempt 2 (resumed at 6 210)" in text
    )


def test_info_incidents_take_one_line_and_notes_are_shown(
    rescued: RunAccount, excerpt: RunAccount
) -> None:
    assert "○ info    1 spike (step 412)" in terminal_text(rescued).splitlines()
    text = " ".join(terminal_text(excerpt, width=140).split())
    assert all(note in text for note in excerpt.notes)


def test_the_same_plan_is_told_once(excerpt: RunAccount) -> None:
    assert terminal_text(excerpt, width=140).count("--load CHECKPOINTS") == 1
    assert terminal_text(excerpt, width=140).count("as for A") == 2


@pytest.mark.parametrize("width", [40, 60, 80, 109, 110, 200])
def test_no_line_is_wider_than_the_terminal(
    rescued: RunAccount, excerpt: RunAccount, width: int
) -> None:
    for account in (rescued, excerpt):
        assert max(map(len, terminal_text(account, width=width).splitlines())) <= width


def hostile(
    make_record: Callable[..., RunRecord], make_incident: Callable[..., IncidentAccount]
) -> RunAccount:
    nasty = "\x1b[2J\x1b]0;owned\x07[red]bold[/red] \u202egnp\r\nsecond\x9b31m"
    told = make_incident(severity="critical", headline=nasty)
    causes = Diagnosis(
        causes=(Cause(cause="x", title=nasty, confidence=1.0, evidence=(nasty,)),), next_test=nasty
    )
    record = make_record({"loss": np.linspace(3, 2, 500)}, source=nasty, format=nasty)
    return RunAccount(record=record, incidents=(replace(told, diagnosis=causes),), notes=(nasty,))


def test_log_text_cannot_steer_the_terminal(
    make_record: Callable[..., RunRecord], make_incident: Callable[..., IncidentAccount]
) -> None:
    text = terminal_text(hostile(make_record, make_incident), width=140)
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in text)
    assert "\u202e" not in text
    assert "[red]bold[/red] gnp second" in text  # shown as it is, not obeyed
    assert "owned" not in text


def test_plain_where_nobody_looks_and_coloured_on_a_terminal(uncured: RunAccount) -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    Console(file=plain, width=100).print(render_terminal(uncured))
    Console(file=coloured, width=100, force_terminal=True, color_system="standard").print(
        render_terminal(uncured)
    )
    assert "\x1b" not in plain.getvalue()
    assert "\x1b[1;31m" in coloured.getvalue()


def test_an_ascii_terminal_gets_ascii(uncured: RunAccount) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=out, width=100).print(render_terminal(uncured))
    out.flush()
    assert b"* CRITICAL" in raw.getvalue()


def test_an_empty_log_is_said_to_be_empty(make_record: Callable[..., RunRecord]) -> None:
    account = RunAccount(record=make_record({"loss": np.zeros(0)}), incidents=())
    assert "nothing to judge" in terminal_text(account)


def test_a_cured_incident_is_told_as_dealt_with(rescued: RunAccount) -> None:
    lines = [line for line in terminal_text(rescued, width=180).splitlines() if line]
    assert lines[1].startswith("○ dealt with:  A  loss is diverging")
    assert lines[2].split()[0] == "done"
    text = "\n".join(lines)
    assert "roll back: worked" in text
    assert "--lr 5.0e-4" not in text
    assert "CRITICAL" not in text
    told = run_to_json(rescued, path="x")["incidents"][0]
    assert (told["severity"], told["severity_then"], told["resolved"]) == ("info", "critical", True)


def test_without_a_verified_cure_nothing_is_called_dealt_with(rescued: RunAccount) -> None:
    unproven = tuple(
        replace(e, data={**e.data, "verdict": "did not"}) if e.event == "outcome" else e
        for e in rescued.events
    )
    for events in ((), unproven, tuple(e for e in rescued.events if e.event != "action")):
        account = replace(rescued, events=events)
        assert resolved(account) == frozenset()
        assert "CRITICAL" in terminal_text(account)
        told = run_to_json(account, path="x")["incidents"][0]
        assert (told["severity"], told["resolved"]) == ("critical", False)


def test_an_alarm_whose_steps_were_given_up_with_a_cured_one_asks_for_nothing(
    rescued: RunAccount,
) -> None:
    (cured,) = (ia for ia in rescued.incidents if ia.incident.severity != "info")
    onset = cured.incident.onset
    beside = replace(cured, incident=replace(cured.incident, kind="spike", onset=onset + 30))
    for to_step, num_resolved in ((int(onset) - 40, 2), (int(onset) + 60, 1)):
        events = tuple(
            (
                replace(e, data={**e.data, "values": {"to_step": to_step}})
                if e.event == "action"
                else e
            )
            for e in rescued.events
        )
        account = replace(rescued, events=events, incidents=(*rescued.incidents, beside))
        assert len(resolved(account)) == num_resolved
    # judged as a whole, the attempt failed elsewhere than the guard saw it, by another kind
    far = replace(cured, incident=replace(cured.incident, kind="spike"))
    events = tuple(
        replace(e, data={**e.data, "values": {"to_step": int(onset) - 40}})
        if e.event == "action"
        else e
        for e in rescued.events
        if e.event != "incident"
    )
    assert resolved(replace(rescued, events=events, incidents=(far,))) == {0}


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_padded_or_cut(excerpt: RunAccount, uncured: RunAccount, width: int) -> None:
    for account in (excerpt, uncured):
        out = io.StringIO()
        Console(file=out, width=width).print(render_terminal(account), end="")
        lines = out.getvalue().splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
        assert "…" not in out.getvalue()
        first = next(i for i, line in enumerate(lines) if line.startswith("●"))
        assert lines[first + 1].startswith("  ")  # the headline hangs


def test_the_header_names_the_file(make_record: Callable[..., RunRecord]) -> None:
    record = make_record({"loss": np.linspace(3, 2, 50)}, source="/far/" * 40 + "\x1b[31mrun.log")
    first = terminal_text(RunAccount(record=record, incidents=()), width=80).splitlines()[0]
    assert first.startswith("…")
    assert first.split(" · ")[0].endswith("/far/run.log")


def test_a_short_log_is_not_called_healthy(make_record: Callable[..., RunRecord]) -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 2000)
    for count, verdict in ((7, "too short to judge"), (2000, "healthy")):
        fall = np.exp(-np.arange(count) / 400)
        account = make_account(make_record({"loss": 3 + fall + noise[:count]}))
        assert f"○ {verdict}" in terminal_text(account)


def many_spikes(make_record: Callable[..., RunRecord], at: Sequence[int]) -> RunRecord:
    """A falling loss with spikes of 60 rows, each as high as it is late."""
    t = np.arange(12_000)
    loss = 2.5 + 1.5 * np.exp(-t / 4000) + 0.01 * np.random.default_rng(0).standard_normal(len(t))
    for n, row in enumerate(at):
        loss[row : row + 60] += 1 + n
    return make_record({"loss": loss})


@pytest.mark.slow
def test_many_alarms_are_weighed_and_told_in_few_lines(
    make_record: Callable[..., RunRecord],
) -> None:
    # at distances that are not one: every N rows would be the order of the data
    places = (1000, 1700, 3100, 3900, 5500, 6100, 7400, 8300, 9600, 10900)
    account = make_account(many_spikes(make_record, places))
    assert sum(ia.incident.severity != "info" for ia in account.incidents) >= 9
    short, whole = terminal_text(account), terminal_text(account, whole=True)
    assert len(short.splitlines()) <= 70 < len(whole.splitlines())
    assert "--all prints each in full" in short
    assert "--all" not in whole
    assert re.search("as for [A-Z]", whole)
    assert whole.count("because") > whole.count("a window of bad data ")  # each cause argued once
    onsets = [account.incidents[i].incident.onset for i in listed_order(account)]
    assert onsets != sorted(onsets, reverse=True)  # by weight, not by time


def test_what_the_training_left_behind_asks_for_no_roll_back(
    make_record: Callable[..., RunRecord],
) -> None:
    (old,) = (
        ia
        for ia in make_account(many_spikes(make_record, [3000])).incidents
        if ia.incident.severity != "info"
    )
    first = old.plan.remedies[0]
    assert first.remedy == "patience"
    assert "it is over; 8" in first.why
    assert not old.resolved
    assert ", over · " in old.headline
    assert "recovered" not in old.headline
    assert "steps since then without trouble" in first.why
    assert all(r.remedy != "roll-back" for r in old.plan.remedies if r.when == "mid-run")
    young = make_account(many_spikes(make_record, [11800])).incidents[0]
    assert "since then" not in young.plan.remedies[0].why


def test_a_loss_that_stays_up_still_asks_for_a_roll_back(
    make_record: Callable[..., RunRecord],
) -> None:
    record = many_spikes(make_record, [])
    loss = record.columns["loss"].values.copy()
    loss[6000:] += 3
    account = make_account(make_record({"loss": loss}))
    assert "roll-back" in {r.remedy for r in account.incidents[0].plan.remedies}


def test_a_log_without_a_loss_says_so(make_record: Callable[..., RunRecord]) -> None:
    record = make_record({"grad_norm": np.linspace(1, 0.5, 400)})
    text = terminal_text(RunAccount(record=record, incidents=()))
    assert "no loss is logged" in text
    assert "too short" not in text
    assert "400 rows" in text


def test_digits_of_steps_stand_in_no_groups() -> None:
    assert (number(11447), number(1_000_000.0)) == ("11447", "1000000")


def three_in_one(num: int) -> str:
    """A CSV that so many trainings wrote into, one after the other, each with a spike at 500."""
    rng = np.random.default_rng(0)
    lines = ["step,loss,lr"]
    for _ in range(num):
        for s in range(1, 801):
            loss = 2 + 6 * np.exp(-s / 150) + rng.normal(0, 0.03) + 3 * (500 <= s < 540)
            lines.append(f"{s},{loss:.4f},{3e-4 * min(1, s / 100):.3e}")
    return "\n".join(lines) + "\n"


def test_runs_in_one_file_are_judged_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(three_in_one(3))
    account = make_account(read_run(path))
    text = terminal_text(account, width=160, whole=True)
    assert "3 runs in this file" in text.splitlines()[0] + text.splitlines()[1]
    for wrong in ("again after", "given up", "failed again", "resume jump", "further back"):
        assert wrong not in text, wrong
    alarms = [ia.incident for ia in account.incidents if ia.incident.severity != "info"]
    assert sorted((i.attempt, i.onset) for i in alarms) == [
        ("1.0", 500),
        ("1.1", 500),
        ("1.2", 500),
    ]


def test_one_restart_is_no_second_run(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(three_in_one(2))
    assert "runs in this file" not in terminal_text(make_account(read_run(path)))


@pytest.mark.parametrize("width", range(60, 110, 3))
def test_the_time_of_reading_is_not_broken(
    width: int, make_record: Callable[..., RunRecord]
) -> None:
    record = make_record({"loss": np.linspace(3, 2, 50)}, source="run-of-a-certain-length.log")
    text = terminal_text(RunAccount(record=record, incidents=(), read_s=0.12), width=width)
    assert "read in 0.1 s" in text
    assert max(map(len, text.splitlines())) <= width


def test_positions_on_the_epoch_axis_are_epochs(make_record: Callable[..., RunRecord]) -> None:
    record = replace(many_spikes(make_record, [11_800]), axis="epoch")
    text = " ".join(terminal_text(make_account(record), whole=True).split())
    assert "before epoch" in text
    assert "before step" not in text
