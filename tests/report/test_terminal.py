import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.record import RunRecord
from trimtab.report.account import IncidentAccount, RunAccount
from trimtab.report.terminal import render_terminal, terminal_text


def test_a_healthy_log_gets_three_lines(healthy: RunAccount) -> None:
    lines = terminal_text(healthy).splitlines()
    assert len(lines) == 3
    assert "healthy" in lines[1]


def test_first_what_happened_then_what_to_do(rescued: RunAccount) -> None:
    lines = [line for line in terminal_text(rescued, width=140).splitlines() if line]
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
        "done",
    ]


def test_causes_stand_with_confidence_and_evidence(rescued: RunAccount) -> None:
    text = terminal_text(rescued, width=140)
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
    assert terminal_text(excerpt, width=140).count("as for B") == 2


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


def test_plain_where_nobody_looks_and_coloured_on_a_terminal(rescued: RunAccount) -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    Console(file=plain, width=100).print(render_terminal(rescued))
    Console(file=coloured, width=100, force_terminal=True, color_system="standard").print(
        render_terminal(rescued)
    )
    assert "\x1b" not in plain.getvalue()
    assert "\x1b[1;31m" in coloured.getvalue()


def test_an_ascii_terminal_gets_ascii(rescued: RunAccount) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=out, width=100).print(render_terminal(rescued))
    out.flush()
    assert b"* CRITICAL" in raw.getvalue()


def test_an_empty_log_is_said_to_be_empty(make_record: Callable[..., RunRecord]) -> None:
    account = RunAccount(record=make_record({"loss": np.zeros(0)}), incidents=())
    assert "nothing to judge" in terminal_text(account)
