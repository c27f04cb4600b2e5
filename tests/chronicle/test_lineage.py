"""Attempts with parents, differences, kinds and outcomes; notes; bugs; what was lost and why."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.chronicle.journal import Event, Journal, read_journal
from trimtab.chronicle.lineage import Lineage, lineage_of, lineage_to_json, restart_words
from trimtab.chronicle.logbook import render_logbook
from trimtab.chronicle.numbering import next_number, number_key
from trimtab.cli import main
from trimtab.record import RecordBuilder, RunRecord


def event(name: str, step: int, attempt: str = "1.0", **data: Any) -> Event:
    return Event("2024-05-01T03:00:00.000+00:00", name, attempt, step, data)


def opened(number: str, parent: str | None, at: int | None, **settings: object) -> Event:
    return event(
        "attempt", at or 0, number, number=number, parent=parent, parent_step=at, settings=settings
    )


def alarm(attempt: str, onset: int, kind: str = "divergence", **data: Any) -> Event:
    told = {"kind": kind, "onset": onset, "severity": "critical", "headline": f"{kind} {onset}"}
    return event("incident", onset, attempt, **told, state="open", **data)


def record(*parts: tuple[str, str | None, int, int], seconds: float = 2.0) -> RunRecord:
    """Return rows of attempts: number, parent, first and last step."""
    build = RecordBuilder("run", "trimtab")
    for number, parent, first, last in parts:
        build.start_attempt(number=number, parent=parent, parent_step=first - 1 if parent else None)
        for step in range(first, last + 1):
            build.add(step, {"loss": 3.0 - step * 1e-3, "step_time_s": seconds})
    return build.build()


STORY = (
    opened("11.9", None, None, lr=3e-4, clip=2.5, layers=96),
    alarm("11.9", 450),
    opened("11.10", "11.9", 400, lr=3e-4, clip=2.5, layers=96),
    opened("12.0", None, None, lr=1.2e-4, clip=1.0, layers=64),
    opened("12.1", "12.0", 700, lr=1.2e-4, clip=0.3, layers=64),
)
ROWS = (
    ("11.9", None, 1, 500),
    ("11.10", "11.9", 401, 480),
    ("12.0", None, 1, 800),
    ("12.1", "12.0", 701, 1000),
)


@pytest.fixture
def lineage() -> Lineage:
    return lineage_of(STORY, record(*ROWS))


@pytest.mark.covers("S145")
def test_numbers_sort_as_people_count() -> None:
    known = ["12.0", "11.10", "11.9", "11.0", "12.16", "12.2", "12.41"]
    assert sorted(known, key=number_key) == [
        "11.0", "11.9", "11.10", "12.0", "12.2", "12.16", "12.41",
    ]  # fmt: skip


@pytest.mark.covers("S146")
def test_a_restart_raises_the_minor_number_and_a_new_family_the_major_one() -> None:
    assert next_number("11.9", {"11.9"}) == "11.10"
    assert next_number("11.10", {"11.10"}, new_family=True) == "12.0"
    assert next_number("1.0", {"1.0", "1.1", "2.0"}, new_family=True) == "3.0"


@pytest.mark.covers("S144")
def test_every_attempt_has_a_date_and_a_state() -> None:
    told = lineage_of((*STORY, event("end", 1000, "12.1", final_step=1000, reason="done")))
    for attempt in lineage_to_json(told)["attempts"]:  # type: ignore[attr-defined]
        assert datetime.fromisoformat(attempt["begun"]).date() == date(2024, 5, 1)
        assert attempt["state"] in {"open", "stopped", "on hold", "done"}


def test_kinds_and_differences(lineage: Lineage) -> None:
    kinds = {a.number: a.kind for a in lineage.attempts}
    assert kinds == {"11.9": "start", "11.10": "control", "12.0": "start", "12.1": "rollback"}
    clip = lineage.attempts[3].differs
    assert [(d.name, d.before, d.after) for d in clip] == [("clip", "1", "0.3")]
    assert lineage.main_line == ("12.0", "12.1")


def test_outcomes_follow_from_the_rows(lineage: Lineage) -> None:
    told = {a.number: (a.outcome, a.outcome_by) for a in lineage.attempts}
    assert told["11.9"] == ("did not", "rows")  # an alarm behind which nobody went on
    assert told["11.10"] == ("unclear", "rows")
    assert told["12.1"] == ("worked", "rows")


def test_a_trial_that_was_kept_is_on_the_main_line() -> None:
    trials = [
        event("attempt", 60, n, number=n, parent="1.0", parent_step=60, trial=True)
        for n in ("1.1", "1.2", "1.3")
    ]
    rows = record(("1.0", None, 1, 90), ("1.1", "1.0", 61, 80), ("1.2", "1.0", 61, 200),
                  ("1.3", "1.0", 61, 70))  # fmt: skip
    story = (opened("1.0", None, None), *trials)
    assert lineage_of(story, rows).main_line == ("1.0",)
    kept = event("decision", 80, "1.2", what="compare the trials", kept_attempt="1.2")
    found = lineage_of((*story, kept), rows)
    assert found.main_line == ("1.0", "1.2")
    assert [a.kept_until for a in found.attempts] == [60, None, 200, None]


def test_few_rows_are_unclear() -> None:
    short = lineage_of((opened("1.0", None, None, lr=1),), record(("1.0", None, 1, 10)))
    assert short.attempts[0].outcome == "unclear"


def test_what_was_lost_is_summed_by_cause(lineage: Lineage) -> None:
    lost = {cause: (count, steps, round(s or 0)) for cause, count, steps, s in lineage.lost}
    assert lost["divergence"] == (1, 500.0, 1000)
    assert lost["not stated"] == (2, 180.0, 360)  # 80 of 11.10, 100 of 12.0


@pytest.mark.covers("S154")
def test_restarts_and_days() -> None:
    parts = [opened("1.0", None, None)]
    parts += [opened(f"1.{i}", f"1.{i - 1}", 100 * i) for i in range(1, 54)]
    days = [
        Event(f"2021-11-05T00:00:{i:02d}+00:00", e.event, e.attempt, e.step, e.data)
        for i, e in enumerate(parts)
    ]
    end = Event("2021-12-31T00:00:00+00:00", "end", "1.53", 5400, {})
    assert restart_words(lineage_of([*days, end])).startswith("53 restarts in 56 days")


@pytest.mark.covers("S155")
def test_steps_that_are_not_logged_are_missing() -> None:
    build = RecordBuilder("run", "trimtab")
    for step in [*range(1, 101), *range(200, 300)]:
        build.add(step, {"loss": 2.0})
    rows = build.build()
    found = lineage_of((opened("1.0", None, None),), rows)
    assert found.attempts[0].missing == ((101.0, 199.0),)
    assert "Missing: steps 101-199" in render_logbook(
        (opened("1.0", None, None),), rows, lineage=found
    )


def write(run: Path, events: tuple[Event, ...] = STORY) -> Path:
    journal = Journal(run / "journal.jsonl")
    for e in events:
        journal.append(e.event, attempt=e.attempt, step=e.step, **e.data)
    journal.close()
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


def note(run: Path, text: str, *options: str) -> None:
    assert main(["note", str(run), text, *options]) == 0


def read(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["chronicle", str(run), *options]) == 0
    return capsys.readouterr().out


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.covers("S150")
def test_the_status_of_a_hypothesis_changes_and_its_history_stays(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "perhaps the data", "--hypothesis", "bad data", "--author", "A. Uthor")
    note(run, "a shuffle changed nothing", "--hypothesis", "bad data", "--status", "rejected")
    table = section(read(run, capsys), "Hypotheses")
    assert "| bad data | rejected |" in table
    assert "A. Uthor: perhaps the data" in table
    assert "a shuffle changed nothing" in table


@pytest.mark.covers("S161")
def test_a_bug_voids_what_was_concluded_from_its_attempts(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "clip helped", "--outcome", "worked", "--attempt", "12.1", "--author", "B")
    assert "clip 1 → 0.3 | 12.1" in section(read(run, capsys), "What worked")
    note(run, "decay was applied twice", "--bug", "wd", "--attempt", "11.10-12.1")
    told = json.loads(read(run, capsys, "--json"))["lineage"]
    assert told["bugs"][0]["affects"] == ["11.10", "12.0", "12.1"]
    text = read(run, capsys)
    worked = section(text, "What worked")
    assert "void: bug wd" in worked
    assert "clip helped" not in worked
    assert "nothing is concluded from this attempt" in text


@pytest.mark.covers("S81")
def test_a_bug_that_is_fixed_says_what_is_to_be_tested_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "clip helped", "--outcome", "worked", "--attempt", "12.1", "--author", "B")
    note(run, "decay was applied twice", "--bug", "wd", "--attempt", "11.10-12.1")
    note(run, "decay is applied once", "--bug", "wd", "--solution")
    text = read(run, capsys)
    assert "void: bug wd" in section(text, "What worked")
    (line,) = [x for x in section(text, "Bugs").splitlines() if x.startswith("| wd |")]
    assert "fixed 20" in line
    assert "test again: clip 1 → 0.3 (12.1)" in line


def test_an_outcome_of_a_person_stands_above_the_rows(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "it only delayed the spikes", "--outcome", "unclear", "--attempt", "12.1")
    attempts = json.loads(read(run, capsys, "--json"))["lineage"]["attempts"]
    assert attempts[3]["outcome"] == "unclear"
    assert attempts[3]["outcome_why"] == "it only delayed the spikes"
    assert attempts[3]["outcome_by"] not in ("rows", "guard")


@pytest.mark.covers("S153")
def test_failures_are_counted_by_class(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"lost_gpu": 2, "cuda_error": 6, "hang": 2, "nccl_error": 1}
    for name, count in told.items():
        for _ in range(count):
            note(run, "seen", "--crash", name)
    table = section(read(run, capsys), "Failures")
    for line in (
        "| CUDA error | 6 |",
        "| lost GPU | 2 |",
        "| job hanging | 2 |",
        "| NCCL error | 1 |",
    ):
        assert line in table
    assert json.loads(read(run, capsys, "--json"))["lineage"]["failures"] == told


@pytest.mark.covers("S148")
def test_a_picture_is_copied_and_linked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "glitch 1.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(40)))
    note(run, "the glitch", "--image", str(picture), "--attempt", "11.9")
    assert (run / "images" / "glitch-1.png").read_bytes() == picture.read_bytes()
    assert "![picture](images/glitch-1.png)" in read(run, capsys)
    assert "data:image/png;base64," in read(run, capsys, "--format", "html")


def test_a_file_that_is_no_picture_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "x.png"
    bad.write_text("<svg onload='alert(1)'/>")
    assert main(["note", str(run), "see", "--image", str(bad)]) == 2
    assert "no PNG, JPEG, GIF or WebP" in capsys.readouterr().err
    assert not (run / "images").exists()


@pytest.mark.covers("S163")
def test_results_over_time(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step, value in ((500, 0.61), (900, 0.68)):
        note(run, "eval", "--result", f"lambada={value}", "--step", str(step), "--attempt", "12.1")
    table = section(read(run, capsys), "Results")
    assert "| 500 | 12.1 | lambada | 0.61 |" in table
    assert "| 900 | 12.1 | lambada | 0.68 |" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attempt", "99.9"], "no attempt '99.9' in this journal"),
        (["--status", "open"], "add --hypothesis"),
        (["--result", "acc=high"], "expected NAME=NUMBER"),
    ],
)
def test_wrong_notes_are_refused(
    run: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "journal.jsonl").read_bytes()
    assert main(["note", str(run), "text", *options]) == 2
    assert said in capsys.readouterr().err
    assert (run / "journal.jsonl").read_bytes() == before


def test_notes_beside_a_guard_are_sealed(run: Path) -> None:
    guard = Journal(run / "journal.jsonl")
    guard.append("decision", attempt="12.1", step=900, what="x")
    note(run, "meanwhile")
    guard.append("decision", attempt="12.1", step=901, what="y")
    guard.close()
    events, torn = read_journal(run / "journal.jsonl")
    assert torn == 0
    assert guard.trouble == ""
    assert len({e.writer for e in events[-3:]}) == 2


@pytest.mark.covers("S159")
def test_every_attempt_has_a_hash_and_any_two_can_be_compared(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = json.loads(read(run, capsys, "--json"))["lineage"]["attempts"]
    assert len({a["config_hash"] for a in attempts}) == 3  # the control has its parent's
    told = read(run, capsys, "--diff", "11.9", "12.1")
    assert "clip" in told
    assert "2.5 → 0.3" in told
    assert "layers  96 → 64" in told


@pytest.mark.covers("S244", "S157")
def test_what_is_published_names_no_host_user_path_or_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    journal = Journal(run / "journal.jsonl")
    journal.append("start", attempt="1.0", step=0, environment={"hosts": "r7i3n2", "torch": "2.4"},
                   settings={"data": "/gpfsscratch/rech/abc/uvw12xy/corpus.bin", "lr": 1e-4})  # fmt: skip
    journal.append(
        "attempt", attempt="1.0", step=0, number="1.0", parent=None, why="on gpu-node017"
    )
    journal.append("rollback", attempt="1.0", step=0, to_step=0, by="Ada Private", why="asked")
    journal.close()
    note(run, "ssh uvw12xy@jean-zay.fr, see /home/uvw12xy/run.log; r7i3n2 lost a GPU; 10.1.2.3",
         "--author", "uvw12xy", "--attempt", "1.0")  # fmt: skip
    for form in ("md", "html", "json"):
        text = read(run, capsys, "--publish", "--format", form)
        for private in ("r7i3n2", "uvw12xy", "gpfsscratch", "/home/", "10.1.2.3", "node017",
                        "jean-zay", "Ada Private", str(tmp_path)):  # fmt: skip
            assert private not in text, form
        assert "person-" in text
        assert "host-" in text
        assert "lost a GPU" in text


def test_text_of_a_run_is_no_markup_on_the_page(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "<script>alert(1)</script> ![x](http://a.b/c) [l](javascript:alert(1)) | **b**",
         "--author", "<b>eve</b>")  # fmt: skip
    page = read(run, capsys, "--format", "html")
    assert "<script" not in page
    assert "<b>" not in page
    assert 'src="http' not in page
    assert 'href="javascript' not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_an_old_logbook_is_still_the_same() -> None:
    text = render_logbook(STORY, record(*ROWS))
    assert "## Attempts" not in text
    assert "Outcome" not in text


@pytest.mark.covers("S250")
def test_an_attempt_on_hold_and_taken_up_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(run, "put on hold, other approaches first", "--mark", "hold", "--attempt", "12.0")
    attempts = json.loads(read(run, capsys, "--json"))["lineage"]["attempts"]
    assert attempts[2]["state"] == "on hold"
    assert (attempts[3]["parent"], attempts[3]["parent_step"]) == ("12.0", 700)


def test_a_hostile_journal_does_not_break_the_lineage() -> None:
    odd = (
        event("attempt", 0, "1.0", number="1.0", parent="1.0", parent_step="x", settings=[1]),
        event("attempt", 0, "1.1", number="1.1", parent="9.9", parent_step=1e400, settings=None),
        event("note", 3, "1.1", text=None, affects="all", outcome=7, results=[1], image="../../x"),
        event("incident", 5, "1.1", kind=None, onset=float("nan")),
    )
    found = lineage_of(odd, record(("1.0", None, 1, 50), ("1.1", "1.0", 20, 60)))
    assert [a.number for a in found.attempts] == ["1.0", "1.1"]
    text = render_logbook(odd, None, lineage=found)
    assert "../../x" not in text
    assert np.isfinite(found.attempts[0].lost_steps)
