"""The demo's page: its figures, what it marks and where.

And that nothing in it can act or be fetched.
"""

import base64
import hashlib
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from trimtab.analysis.account import RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.analysis.timeline import timeline_bars
from trimtab.chronicle.journal import Event
from trimtab.lab.demo_page import render_demo
from trimtab.lab.outcome import ScenarioOutcome
from trimtab.lab.run import LabResult
from trimtab.lab.scenarios import get_scenario
from trimtab.lab.text import Text
from trimtab.record import RecordBuilder, RunRecord
from trimtab.report.compare import Curve, render_comparison
from trimtab.signals.robust import running_median
from trimtab.testing.tr8_104b import as_record

pytestmark = pytest.mark.torch

STEPS, FAULT, NOTICED, BASE, HELD, CHECKED = 1200, 1100, 1108, 1080, 1128, 1192
HOSTILE = '</style><script>alert(1)</script>"onload="x'
PLOT_LEFT, PLOT_RIGHT = 64.0, 684.0


class Page(HTMLParser):
    """Tags, ids and attributes of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids[str(value)] += 1
            if name in ("href", "src"):
                self.links.append(str(value))


def losses(*, fault: bool) -> tuple[float, ...]:
    noise = np.random.default_rng(0).normal(0, 0.05, STEPS)
    level = 1.6 + 3.0 * np.exp(-np.arange(STEPS) / 60) + noise
    if fault:
        level[FAULT - 1 :] += 8.0 * np.exp(-np.arange(STEPS - FAULT + 1) / 20) + 0.05
    return tuple(level.tolist())


def guarded_record() -> RunRecord:
    good, bad = losses(fault=False), losses(fault=True)
    builder = RecordBuilder("runs/x", "trimtab")

    def steps(first: int, last: int, source: tuple[float, ...]) -> None:
        for s in range(first, last + 1):
            builder.add(s, {"loss": source[s - 1], "grad_norm": 1.0, "lr": 6e-3 * (1 - s / 1300)})

    builder.start_attempt(number="1.0", why="start")
    steps(1, NOTICED, bad)
    builder.start_attempt(number="1.1", parent="1.0", parent_step=BASE, trial=True, why="LR x 0.5")
    steps(BASE + 1, BASE + 30, bad)
    builder.start_attempt(number="1.2", parent="1.0", parent_step=BASE, trial=True, why=HOSTILE)
    steps(BASE + 1, STEPS, good)
    return builder.build()


def event(name: str, step: int, attempt: str = "1.0", **data: Any) -> Event:
    return Event("2024-05-01T03:00:12.000+00:00", name, attempt, step, data)


def guarded_events() -> tuple[Event, ...]:
    causes = [{"cause": "bad-data-window", "confidence": 0.97, "evidence": ["50 of 89 stand out"]}]
    found: dict[str, Any] = {
        "kind": "spike",
        "onset": float(FAULT),
        "precursor": None,
        "headline": "loss spike",
    }
    return (
        event("attempt", 0, number="1.0", why="start"),
        event("incident", NOTICED, state="open", **found, causes=[]),
        event("decision", NOTICED, what=f"go back to step {BASE}", why=HOSTILE),
        event("attempt", BASE, "1.1", number="1.1", parent="1.0", parent_step=BASE, trial=True),
        event("outcome", BASE + 30, "1.1", remedy="trial: LR x 0.5", verdict="did not", trial=True),
        event("attempt", BASE, "1.2", number="1.2", parent="1.0", parent_step=BASE, trial=True),
        event(
            "outcome",
            HELD,
            "1.2",
            remedy="trial: without samples 17584-18383",
            verdict="worked",
            trial=True,
        ),
        event(
            "action",
            HELD,
            "1.2",
            remedy="roll-back+skip-data",
            values={"to_step": BASE},
            kept_attempt="1.2",
        ),
        event("incident", HELD, "1.2", state="explained", **found, causes=causes),
        event("outcome", CHECKED, "1.2", remedy="roll-back+skip-data", verdict="worked"),
    )


@pytest.fixture(scope="module")
def account() -> RunAccount:
    return make_account(guarded_record(), events=guarded_events())


@pytest.fixture(scope="module")
def outcome(account: RunAccount) -> ScenarioOutcome:
    base = LabResult(
        scenario="bad-data-late",
        seed=7,
        guard="off",
        final_loss=1.68,
        reference_loss=1.6,
        wasted_steps=0.0,
        incidents=0,
        actions=(),
        wall_s=1.0,
        losses=losses(fault=True),
    )
    done = {
        "step": NOTICED,
        "remedy": "roll-back+skip-data",
        "why": HOSTILE,
        "values": {"to_step": BASE, "skip_samples": [17584, 18383], "lr_factor": 1.0},
    }
    return ScenarioOutcome(
        scenario=get_scenario("bad-data-late"),
        twin_losses=losses(fault=False),
        off=base,
        act=replace(
            base, guard="act", final_loss=1.604, wasted_steps=0.048, incidents=1, actions=(done,)
        ),
        account=account,
        run="bad-data-late",
    )


CORPUS = Text(
    source=HOSTILE,
    train=np.zeros(2_000_000, np.uint8),
    validation=np.zeros(70_000, np.uint8),
    train_sha256="ab" * 32,
    validation_sha256="cd" * 32,
)


@pytest.fixture(scope="module")
def page(outcome: ScenarioOutcome) -> str:
    second = replace(outcome, scenario=get_scenario("bad-data-shuffle"), run="bad-data-shuffle")
    return render_demo([outcome, second], make_account(as_record()), text=CORPUS, seed=7)


def x_of(step: float, low: float, high: float) -> float:
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (step - low) / (high - low)


def panel_of(svg: str, name: str) -> str:
    found = re.search(rf'<g data-panel="{name}">.*?(?=<g data-panel|</svg>)', svg, re.DOTALL)
    assert found is not None
    return found[0]


def test_nothing_in_the_page_can_act_or_be_fetched(page: str) -> None:
    seen = Page(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(seen.tags)
    assert not {a for a in seen.attributes if a.startswith("on") or a == "style"}
    assert set(seen.links) == {
        "#bad-data-late",
        "bad-data-late/report.html",
        "#bad-data-shuffle",
        "bad-data-shuffle/report.html",
    }
    assert [i for i, count in seen.ids.items() if count > 1] == []
    assert HOSTILE not in page
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page


def test_the_sentence_and_the_table_hold_the_figures(page: str) -> None:
    state = page.split("<h1")[1].split("</h1>")[0]
    assert "Two faults" in state
    assert "5.0% above and 5.0% above the healthy run" in state
    assert "0.25% above and 0.25% above" in state
    table = page.split('class="results"')[1].split("</table>")[0]
    for figure in ("1.6000", "1.6800", "× 1.0500", "1.6040", "× 1.0025", "95.0%", "4.8%"):
        assert figure in table
    assert "back to step 1080, without samples 17584 to 18383" in table
    assert "learning rate ×" not in table


def test_a_diverged_run_is_told_as_such(outcome: ScenarioOutcome) -> None:
    lost = replace(
        outcome.off, final_loss=math.nan, losses=(*losses(fault=True)[:1150], *[math.nan] * 50)
    )
    text = render_demo([replace(outcome, off=lost)], make_account(as_record()), text=CORPUS, seed=7)
    assert "ends in divergence, with it 0.25% above" in text
    assert '<span class="bad-end">diverged</span>' in text
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


def test_marks_stand_at_their_steps(account: RunAccount) -> None:
    others = [Curve(colour=2, x=np.arange(1.0, STEPS + 1), y=np.asarray(losses(fault=False)))]
    svg = render_comparison(account, others, limits=(1000.0, 1200.0), fault_step=FAULT)
    assert svg.count('class="fault"') == 4  # loss, deeds, gradient norm, learning rate
    loss, deeds = panel_of(svg, "loss"), panel_of(svg, "deeds")
    assert f'class="fault" x1="{x_of(FAULT, 1000, 1200):.1f}"' in loss
    assert f'class="kept" cx="{x_of(BASE, 1000, 1200):.1f}"' in loss
    arrow = f'class="arrow" d="M{x_of(NOTICED, 1000, 1200):.1f} '
    assert deeds.count('class="arrow"') == 1
    assert arrow in deeds
    assert f"L{x_of(BASE, 1000, 1200) + 2:.1f} " in deeds


def test_deeds_elsewhere_are_counted_not_squeezed_in(account: RunAccount) -> None:
    svg = render_comparison(account, [], limits=(1.0, 1090.0))
    deeds = panel_of(svg, "deeds")
    assert "2 more outside these steps" in deeds  # noticed and checked come later
    assert deeds.count('class="word"') == 3


def test_a_spike_of_one_step_survives_the_drawing(account: RunAccount) -> None:
    y = np.full(200_000, 1.6)
    y[123_456] = 15.0
    curve = Curve(colour=4, x=np.linspace(1, STEPS, len(y)), y=y)
    loss = panel_of(render_comparison(account, [curve]), "loss")
    path = re.search(r'class="curve a4" d="([^"]*)"', loss)
    assert path is not None
    points = [tuple(map(float, p)) for p in re.findall(r"[ML](\S+?) ([\d.]+)", path[1])]
    x, _ = min(points, key=lambda p: p[1])
    assert x == pytest.approx(x_of(curve.x[123_456], 1, STEPS), abs=0.2)
    assert len(points) < 4_000


def test_deeds_are_what_the_journal_says(account: RunAccount) -> None:
    told = [(d.kind, d.first, d.last) for d in timeline_bars(account.events)]
    assert told == [
        ("noticed", FAULT, NOTICED),
        ("back", NOTICED, BASE),
        ("failed", BASE, BASE + 30),
        ("kept", BASE, HELD),
        ("checked", HELD, CHECKED),
    ]


def test_the_card_tells_the_cause_that_the_trials_found_and_what_was_done(page: str) -> None:
    card = page.split('id="bad-data-late-incident-A"')[1].split("</article>")[0]
    assert "50 of 89 stand out" in card
    assert "0.97" in card
    assert card.index("<dt>done") < card.index("<dt>because")
    assert "<dt>plan" not in card  # it was dealt with: a plan by hand would contradict it


def test_what_happens_in_a_trial_that_was_not_kept_is_no_alarm(account: RunAccount) -> None:
    alarms = [ia.incident.attempt for ia in account.incidents if ia.incident.severity != "info"]
    assert alarms == ["1.0"]


def test_running_median_keeps_a_gap_a_gap() -> None:
    y = np.arange(9.0)
    y[4] = np.nan
    assert running_median(y, window=3).tolist()[:3] == [0.5, 1.0, 2.0]
    assert np.isnan(running_median(y, window=3)[3:6]).all()
