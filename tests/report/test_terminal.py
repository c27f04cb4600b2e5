import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.record import RunRecord
from trimtab.report.account import IncidentAccount, RunAccount
from trimtab.report.cures import resolved
from trimtab.report.json_form import run_to_json
from trimtab.report.terminal import render_terminal, terminal_text


def test_a_healthy_log_gets_three_lines(healthy: RunAccount) -> None:
    lines = terminal_text(healthy).splitlines()
    assert len(lines) == 3
    assert "healthy" in lines[1]


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
        "very sure",
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
        "1  learning rate too high for this width  0.71  the same steps at half the rate held"
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
    for count, verdict in ((9, "too short to judge"), (10, "healthy")):
        record = make_record({"loss": np.linspace(3, 2, count)})
        assert f"○ {verdict}" in terminal_text(RunAccount(record=record, incidents=()))
