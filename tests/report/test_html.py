import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.chronicle.journal import Event
from trimtab.record import RecordBuilder, RunRecord
from trimtab.report.html import page_data, render_html
from trimtab.report.saved import saved_sentence


def embedded(page: str) -> Any:
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert raw is not None
    assert not set("<>&") & set(raw[1])
    return json.loads(raw[1])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    return parser.found


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&lt; \x1b[31m\u2028]]>"


def test_log_text_cannot_break_out_of_the_page(
    make_record: Callable[..., RunRecord], make_incident: Callable[..., IncidentAccount]
) -> None:
    record = make_record({"loss": np.linspace(3, 2, 500)}, source=NASTY, format=NASTY)
    events = (
        Event(
            "2024-05-01T00:00:00",
            "action",
            NASTY,
            3,
            {"remedy": NASTY, "values": {NASTY: NASTY}, "why": NASTY},
        ),
        Event(NASTY, "note", "1.0", 3, {"text": NASTY}),
    )
    told = make_incident(severity="critical", headline=NASTY, attempt=NASTY)
    page = render_html(
        RunAccount(record=record, incidents=(told,), notes=(NASTY,), events=events), title=NASTY
    )
    found = tags(page)
    assert [t for t, _ in found].count("script") == 2  # data and program
    assert not any(t == "img" or any(name.startswith("on") for name in attrs) for t, attrs in found)
    assert embedded(page)["bands"][0]["headline"].startswith("</script>")
    assert "\x1b" not in page


def test_the_page_asks_for_nothing_from_outside(rescued: RunAccount) -> None:
    page = render_html(rescued, title="demo")
    found = tags(page)
    assert not any({"src", "href", "style"} & set(attrs) for _, attrs in found)
    assert not any(t in ("link", "iframe", "object", "base", "form") for t, _ in found)
    policy = next(
        a["content"]
        for t, a in found
        if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "@import" not in page
    assert "url(http" not in page


def test_the_same_account_gives_the_same_bytes(rescued: RunAccount) -> None:
    assert render_html(rescued, title="demo") == render_html(rescued, title="demo")


def test_cards_stand_in_letter_order_in_the_words_of_the_terminal(rescued: RunAccount) -> None:
    page = render_html(rescued, title="demo")
    assert page.index('id="incident-A"') < page.index('id="incident-B"')
    assert page.index("Loss is diverging") < page.index('id="incident-B"')
    assert "learning rate too high for this width" in page
    assert "Loss is diverging · since step 902 (first sign 884, grad norm)" in page
    assert "--override-opt_param-scheduler --lr 5.0e-4" not in page  # dealt with, in another way
    uncured = render_html(replace(rescued, events=()), title="demo")
    assert "--override-opt_param-scheduler --lr 5.0e-4" in uncured


def test_lineage_decisions_chronicle_and_notes_stand_below(rescued: RunAccount) -> None:
    page = render_html(rescued, title="demo")
    lineage = re.search(r'<table id="lineage">.*?</table>', page, re.DOTALL)
    assert lineage is not None
    assert "kept to 880, then given up" in lineage[0]
    assert "lr factor 0.5" in lineage[0]
    assert '<b class="did-not">did not help</b>' in page
    assert "the loss is not finite; grad norm x 40 since 884" in page
    assert "clip 1.0 is as set in run.toml" in page


def top(account: RunAccount) -> tuple[str, str]:
    """The state, and what stands under it."""
    page = render_html(account, title="t")
    match = re.search(r"<h1 class=\"(.*?)</h1>(.*?)</header>", page, re.DOTALL)
    assert match is not None
    return match[1], re.sub(r"<[^>]*>", " ", match[2]).strip()


def test_the_top_says_what_since_when_how_sure_and_what_to_do(
    rescued: RunAccount, excerpt: RunAccount, healthy: RunAccount
) -> None:
    state, under = top(excerpt)
    assert (
        state
        == 'critical">Loss spike that did not recover · since step 6920 · attempt 1.1 · sure (97%)'
    )
    assert under.startswith("Do")
    assert "--load CHECKPOINTS --load-iteration 3000" in under
    assert "Most likely cause: learning rate or initialisation too high for this width (0.71)." in (
        under
    )
    assert under.endswith("Loss 10.24 at step 6940, attempt 1.1.")
    state, under = top(rescued)
    assert state.startswith('good">Loss 1.9')
    assert state.endswith("No incident that needs action on the final lineage.")
    # what a guard saved and what it cost stands on the first screen
    assert under.startswith(
        "Guard  Loss is diverging at step 902, and the loss was not finite. Rolled back to step 880"
        " and multiplied the learning rate by 0.5; since then"
    )
    assert "Cost  145 steps given up, 10.8% of the 1345 that were run, 80 of them" in under
    assert (
        "1 critical incident on branches that were given up, the worst at 902. Most likely cause:"
    ) in under
    state, under = top(healthy)
    assert state.endswith("No incident that needs action.")
    assert under.startswith("Healthy: self-test ")
    assert under.endswith("blind to validation (not logged).")


def test_other_alarms_are_counted_and_what_a_person_dismissed_is_not(
    healthy: RunAccount, make_incident: Callable[..., IncidentAccount]
) -> None:
    record = healthy.record
    alarms = [make_incident(severity=s) for s in ("critical", "warning", "warning")]
    _, under = top(RunAccount(record=record, incidents=(*alarms,)))
    assert "Beside it 2 warnings." in under
    fine = tuple(replace(a, dismissed="known, harmless") for a in alarms)
    state, under = top(replace(healthy, incidents=fine))
    assert state == 'good">Loss 2.248 at step 150000. No incident that needs action.'
    assert "warning" not in under


def adam_run(lr_peak: int, l1_peak: int, max_peak: int) -> RunAccount:
    step = np.arange(1, 1001)
    build = RecordBuilder("run.jsonl", "JSONL")
    for s in step.tolist():
        build.add(
            s,
            {
                "loss": 3.0,
                "lr": 1e-3 * min(s / lr_peak, lr_peak / s),
                "adam_v_l1": 1.0 / (1 + abs(s - l1_peak)),
                "adam_v_max": 1.0 / (1 + abs(s - max_peak)),
            },
        )
    return RunAccount(record=build.build(), incidents=())


@pytest.mark.covers("S16")
@pytest.mark.parametrize(("l1", "largest"), [(140, 100), (60, 612)])
def test_variance_peaks_are_stated_with_their_distance_to_the_lr_peak(
    l1: int, largest: int
) -> None:
    account = adam_run(100, l1, largest)
    notes = {p["name"]: p["note"] for p in page_data(account)["panels"]}
    page = render_html(account, title="t")

    def distance(peak: int) -> str:
        if peak == 100:
            return "at the LR peak"
        return f"{abs(peak - 100)} steps {'after' if peak > 100 else 'before'} the LR peak (100)"

    for name, peak in (("adam_v_l1", l1), ("adam_v_max", largest)):
        assert notes[name] == f"largest 1 at step {peak}, {distance(peak)}"
        assert notes[name] in page


@pytest.mark.covers("S5")
def test_the_four_main_panels_are_always_there_on_one_axis(
    rescued: RunAccount, excerpt: RunAccount, healthy: RunAccount
) -> None:
    for account in (rescued, excerpt, healthy):
        page = render_html(account, title="t")
        groups = [a for t, a in tags(page) if t == "g" and "data-panel" in a]
        assert {"loss", "grad_norm", "activation_norm", "loss_scale"} <= {
            str(a["data-panel"]) for a in groups
        }
        assert len({(a["data-x0"], a["data-x1"]) for a in groups}) == 1
    assert (
        next(p["note"] for p in page_data(excerpt)["panels"] if p["name"] == "activation_norm")
        == "not recorded"
    )


def test_a_long_run_stays_small_and_keeps_its_spike(healthy: RunAccount) -> None:
    column = healthy.record.columns["loss"]
    data = page_data(healthy)
    loss = next(p for p in data["panels"] if p["name"] == "loss")
    drawn = loss["stretches"][0]["y"]
    assert max(drawn) == pytest.approx(column.values.max(), rel=1e-8)
    assert len(drawn) < 21_000
    assert len(render_html(healthy, title="t")) < 5_000_000


def test_around_an_alarm_every_row_is_there(
    healthy: RunAccount, make_incident: Callable[..., IncidentAccount]
) -> None:
    told = make_incident(
        severity="critical",
        onset_row=90_000,
        onset=90_001.0,
        peak_row=90_050,
        peak=90_051.0,
        end_row=None,
        end=None,
    )
    account = RunAccount(record=healthy.record, incidents=(told,))
    data = page_data(account)
    steps = set(data["xs"][data["panels"][0]["stretches"][0]["x"]])
    assert set(range(89_001, 91_001)) <= steps


def test_a_record_without_rows_or_loss_still_gives_a_page(
    make_record: Callable[..., RunRecord],
) -> None:
    for columns in ({"loss": np.zeros(0)}, {"grad_norm": np.ones(3)}):
        assert "</html>" in render_html(
            RunAccount(record=make_record(columns), incidents=()), title="t"
        )


def test_what_a_guard_did_is_told_in_english(rescued: RunAccount) -> None:
    def deed(**values: object) -> str:
        data = {"remedy": "roll-back+lower-lr", "values": {"to_step": 280, **values}}
        opened = {"state": "open", "headline": "a setting jumped \u00b7 since step 289"}
        events = (
            Event("t", "incident", "1.0", 289, opened),
            Event("t", "action", "1.3", 328, data),
            Event("t", "outcome", "1.3", 392, {"verdict": "worked", "text": "loss 2.1"}),
        )
        return saved_sentence(replace(rescued, incidents=(), events=events))

    assert deed(lr_limit=0.0014, lr_factor=1, lr_from_step=None, skip_samples=None) == (
        "A setting jumped at step 289. Rolled back to step 280 and held the learning rate at"
        " 0.0014; since then loss 2.1. The loss is 1.922 at step 1200."
    )
    assert "280, left out samples 3 to 9 and multiplied the learning rate by 0.1" in deed(
        lr_factor=0.1, factor=0.1, skip_samples=[3, 9], num_samples=7
    )
    assert "step 280, with weight decay back to 0.01;" in deed(put_back="weight_decay back to 0.01")
