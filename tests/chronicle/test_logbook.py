import re
from typing import Any

import pytest

from trimtab.chronicle.journal import EVENTS, Event
from trimtab.chronicle.logbook import render_logbook
from trimtab.record import RecordBuilder, RunRecord


def event(name: str, step: int, attempt: str = "1.0", **data: Any) -> Event:
    return Event("2024-05-01T03:00:00.000+00:00", name, attempt, step, data)


STORY = (
    event("start", 0, settings={"lr": 0.001}, environment={"torch": "2.4"}),
    event("attempt", 0, number="1.0", parent=None, parent_step=None, why="launched", trial=False),
    event("checkpoint", 840, path="a", grade="healthy", why="every 40 steps"),
    event("checkpoint", 880, path="b", grade="suspect", why="every 40 steps"),
    event(
        "incident",
        902,
        kind="divergence",
        headline="loss is diverging",
        severity="critical",
        onset=902,
        precursor=884,
        causes=[
            {
                "cause": "learning-rate-too-high",
                "confidence": 0.71,
                "evidence": ["clipped since 884"],
            }
        ],
        state="open",
    ),
    event(
        "decision",
        945,
        what="try two remedies from 880",
        why="the loss is not finite",
        evidence=["grad norm 20", "3 clips"],
    ),
    event(
        "attempt",
        880,
        "1.1",
        number="1.1",
        parent="1.0",
        parent_step=880,
        why="cheapest first",
        trial=True,
    ),
    event("action", 880, "1.1", remedy="skip-data", values={"first": 28288}, why="one window"),
    event(
        "outcome",
        920,
        "1.1",
        remedy="skip-data",
        verdict="did not",
        figures={"loss": 4.41},
        text="still rising",
    ),
    event(
        "attempt",
        880,
        "1.2",
        number="1.2",
        parent="1.0",
        parent_step=880,
        why="the halved rate held",
        trial=False,
    ),
    event("action", 880, "1.2", remedy="scale-lr", values={"factor": 0.5}, why=""),
    event(
        "outcome",
        1020,
        "1.2",
        remedy="scale-lr",
        verdict="worked",
        figures={},
        text="back on trend",
    ),
    event("fault", 1100, "1.2", error="disk full", where="snapshot"),
    event("end", 1200, "1.2", final_step=1200, reason="all steps done"),
)


def record() -> RunRecord:
    build = RecordBuilder("runs/demo", "trimtab run directory")
    build.start_attempt(number="1.0", settings={"lr": "0.001", "clip": "1.0"})
    for step in range(1, 946):
        build.add(step, {"loss": 3.0, "lr": 1e-3})
    build.start_attempt(
        number="1.2", parent="1.0", parent_step=880, settings={"lr": "0.001", "clip": "0.3"}
    )
    for step in range(881, 1201):
        build.add(step, {"loss": 2.5, "lr": 5e-4})
    return build.build()


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_one_section_per_attempt_with_its_story() -> None:
    told = sections(render_logbook(STORY, record()))
    assert list(told)[:3] == [
        "Attempt 1.0",
        "Trial 1.1 (parent 1.0 @ 880)",
        "Attempt 1.2 (parent 1.0 @ 880)",
    ]
    first = told["Attempt 1.0"]
    for text in (
        "Why: launched",
        "critical: loss is diverging",
        "first sign at 884",
        "perhaps learning rate too high (0.71) — clipped since 884",
        "decided: try two remedies from 880 — the loss is not finite",
        "evidence: grad norm 20",
        "2 checkpoints (1 healthy, 1 suspect), the last at 880",
    ):
        assert text in first
    assert "done: skip data first 28288 — one window" in told["Trial 1.1 (parent 1.0 @ 880)"]
    second = told["Attempt 1.2 (parent 1.0 @ 880)"]
    assert "Same but: clip 1.0 → 0.3" in second
    assert "fault of trimtab's own in snapshot: disk full" in second


def test_tables_of_what_worked_and_what_did_not() -> None:
    told = sections(render_logbook(STORY))
    assert "| scale lr | 1.2 @ 1020 | back on trend |" in told["What worked"]
    assert "| skip data | 1.1 @ 920 | still rising; loss 4.41 |" in told["What did not"]
    assert "Unclear" not in told


@pytest.mark.covers("S151", "S152")
def test_the_tables_hold_what_the_action_log_says_and_nothing_else() -> None:
    told = sections(render_logbook(STORY))
    for title, verdict in (("What worked", "worked"), ("What did not", "did not")):
        logged = {
            (str(e.data["remedy"]).replace("-", " "), f"{e.attempt} @ {e.step}")
            for e in STORY
            if e.event == "outcome" and e.data["verdict"] == verdict
        }
        rows = [
            line.strip("| ").split(" | ")
            for line in told[title].splitlines()
            if re.search(r"@ \d", line)
        ]
        assert {(row[0], row[1]) for row in rows} == logged  # the attempt is the id of its run
        assert len(rows) == len(logged) == 1


def test_learning_rate_follows_the_final_lineage() -> None:
    rows = sections(render_logbook(STORY, record()))["Learning rate as it was"]
    assert "| 1 | 1.0 | 0.001 |" in rows
    assert "| 880 |" not in rows  # a steady rate is told once
    assert "| 881 | 1.2 | 5e-4 |" in rows or "| 881 | 1.2 | 0.0005 |" in rows
    assert "| 945 |" not in rows  # given up


def test_a_run_that_did_not_end_says_so() -> None:
    assert "no end is recorded; last event at step 945" in render_logbook(STORY[:6])
    assert "holds no events" in render_logbook(())


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_may_lack_every_field(name: str) -> None:
    assert render_logbook((event(name, 1),)).startswith("# Logbook")
    assert render_logbook(
        (
            event(
                name,
                1,
                causes=None,
                evidence=None,
                values=None,
                figures=None,
                parent_step=None,
                why=None,
            ),
        )
    )


def test_text_of_the_run_is_no_markup() -> None:
    nasty = "| # *bold* [x](http://y) <script>alert(1)</script> `code` \x1b[31m\n## Attempt 9.9"
    story = (
        event("attempt", 0, number=nasty, why=nasty),
        event("incident", 1, nasty, headline=nasty),
        event("outcome", 2, nasty, remedy=nasty, verdict="worked", text=nasty),
    )
    text = render_logbook(story)
    assert "\x1b" not in text
    assert "\n## Attempt 9.9" not in text
    assert not re.search(r"(?<!\\)<script", text)
    assert not re.search(r"(?<!\\)\[x", text)
    row = next(line for line in text.splitlines() if line.startswith("| ") and "9.9" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 4


def test_a_resumed_and_cured_run_reads_well() -> None:
    told = {"kind": "spike", "onset": 501.0, "headline": "loss spike"}
    settings = {"clip": 1.0, "torch": "2.4", "policy": {"patience_steps": 8, "trial_steps": 48}}
    story = (
        event("start", 0, settings=settings, environment={"torch": "2.4", "host": "n1"}),
        event("attempt", 0, number="1.0"),
        event("resume", 400, "", checkpoint="step-400"),
        event("attempt", 400, "1.1", number="1.1", parent="1.0", parent_step=400),
        event("incident", 509, "1.1", **told, state="open", causes=[{"cause": "early-guess"}]),
        event("attempt", 480, "1.2", number="1.2", parent="1.1", parent_step=480, trial=True),
        event(
            "outcome",
            490,
            "1.2",
            remedy="trial: without samples 8000-8639",
            verdict="did not",
            text="trial failed",
        ),
        event(
            "action",
            528,
            "1.2",
            remedy="roll-back",
            kept_attempt="1.2",
            values={"skip_samples": [8000, 8639], "num_samples": 0, "lr_factor": 1.0},
        ),
        event("incident", 528, "1.2", **told, state="explained", causes=[{"cause": "bad-data"}]),
    )
    text = render_logbook(story)
    parts = sections(text)
    assert list(parts)[:3] == [
        "Attempt 1.0",
        "Attempt 1.1 (parent 1.0 @ 400)",
        "Trial 1.2, kept (parent 1.1 @ 480)",
    ]
    assert "**400** resumed" in parts["Attempt 1.1 (parent 1.0 @ 400)"]
    assert "bad data" in parts["Attempt 1.1 (parent 1.0 @ 400)"]
    assert text.count("loss spike") == 1
    assert "early guess" not in text
    assert "trial: without samples 8000-8639: **failed**" in text
    assert "skip samples 8000-8639" in text
    for gone in ("num samples", "lr factor", "trial failed"):
        assert gone not in text
    assert text.count("2.4") == 1
    assert "Environment: host n1" in text
    assert "\n- policy: patience steps 8, trial steps 48" in text


def test_a_resume_that_nothing_follows_stands_under_start() -> None:
    assert "## Start\n\n- **400** resumed" in render_logbook((event("resume", 400, ""),))


def test_settings_are_words_and_a_steady_rate_is_told_once() -> None:
    builder = RecordBuilder("x", "trimtab")
    builder.start_attempt(number="1.0", settings={"world_size": "2"})
    for i in range(1, 101):
        builder.add(i, {"loss": 2.0, "lr": 1e-3})
    start = event(
        "start", 0, settings={"policy": {"probes_off": [], "past_runs": [], "mode": "act"}}
    )
    text = render_logbook([start, event("attempt", 0, number="1.0")], builder.build())
    assert "world size 2" in text
    assert "policy: mode act" in text
    assert "probes off" not in text
    assert text.count("| 0.001 |") == 2
