"""The page in a real browser: it draws, zooms, stays offline and makes no error."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import Browser
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.record import RunRecord
from trimtab.report.html import render_html

pytestmark = pytest.mark.browser

PANELS = """[...document.querySelectorAll('#panels svg')].map(s => ({
  name: s.dataset.panel, x0: +s.dataset.x0, x1: +s.dataset.x1,
  left: s.querySelector('.plot').getBoundingClientRect().left, right: s.querySelector('.plot').getBoundingClientRect().right,
  text: s.textContent, curves: s.querySelectorAll('.curve').length, signs: s.querySelectorAll('.sign').length}))"""
MAIN = {"loss", "grad_norm", "activation_norm", "loss_scale"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Browser() as found:
        yield found


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def open_page(account: RunAccount, **how: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(render_html(account, title="demo"), encoding="utf-8")
        browser.open(path, **how)
        assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
        return browser

    yield open_page
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.dataset.errors") == ""
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert (
        len([url for url in browser.requests if url.startswith("file:")]) == 1
    )  # the page itself, nothing more


@pytest.mark.slow
@pytest.mark.covers("S5")
def test_four_main_panels_stand_aligned_on_one_axis(
    show: Callable[..., Any], rescued: RunAccount, excerpt: RunAccount, healthy: RunAccount
) -> None:
    for account in (rescued, excerpt, healthy):
        panels = show(account).evaluate(PANELS)
        assert {p["name"] for p in panels} >= MAIN
        assert len({(p["x0"], p["x1"], p["left"], p["right"]) for p in panels}) == 1
    browser = show(excerpt)
    assert "not recorded" in next(
        p["text"] for p in browser.evaluate(PANELS) if p["name"] == "activation_norm"
    )


def test_a_click_on_a_card_zooms_all_panels_to_the_first_sign(
    show: Callable[..., Any], rescued: RunAccount
) -> None:
    browser = show(rescued)
    browser.evaluate("document.querySelector('#incident-A h3').click()")
    panels = browser.evaluate(PANELS)
    assert len({(p["x0"], p["x1"]) for p in panels}) == 1
    assert 800 < panels[0]["x0"] < 884
    assert 945 < panels[0]["x1"] < 1100
    assert all(p["signs"] == 2 for p in panels)
    assert "first sign 884" in panels[0]["text"]
    assert "onset 902" in panels[0]["text"]
    assert browser.evaluate("document.querySelector('.card.selected').dataset.letter") == "A"


def test_a_link_to_an_incident_opens_there(show: Callable[..., Any], rescued: RunAccount) -> None:
    browser = show(rescued, fragment="#incident=A")
    assert browser.evaluate("document.documentElement.dataset.selected") == "A"
    assert browser.evaluate("window.trimtab.state.range[0]") > 800


def test_keys_go_through_the_incidents_and_back_out(
    show: Callable[..., Any], rescued: RunAccount
) -> None:
    browser = show(rescued)
    seen = []
    for key in ("n", "n", "p", "Escape", "p", "0"):
        browser.key(key)
        seen.append(
            (
                browser.evaluate("window.trimtab.state.selected"),
                browser.evaluate("window.trimtab.state.range[1]") == 1200,
            )
        )
    assert [letter for letter, _ in seen] == ["B", "A", "B", None, "A", None]  # along the axis
    assert seen[3] == (None, True)
    assert seen[5] == (None, True)


def test_a_drag_zooms_to_what_was_marked(show: Callable[..., Any], rescued: RunAccount) -> None:
    browser = show(rescued)
    plot = browser.evaluate(PANELS)[0]
    y = browser.evaluate("document.querySelector('#panels .plot').getBoundingClientRect().top + 40")
    inset = 6  # the first and the last step stand clear of the frame
    width = plot["right"] - plot["left"] - 2 * inset
    at = [plot["left"] + inset + share * width for share in (0.25, 0.5)]
    browser.drag((at[0], y), (at[1], y))
    low, high = browser.evaluate("window.trimtab.state.range")
    assert low == pytest.approx(1 + 0.25 * 1199, abs=3)
    assert high == pytest.approx(1 + 0.5 * 1199, abs=3)
    browser.evaluate("document.getElementById('reset').click()")
    assert browser.evaluate("window.trimtab.state.range") == [1, 1200]


def test_a_single_spike_in_150_000_rows_is_drawn_and_redrawing_is_quick(
    show: Callable[..., Any], healthy: RunAccount, make_record: Callable[..., RunRecord]
) -> None:
    columns = {name: column.values.copy() for name, column in healthy.record.columns.items()}
    columns["loss"][70_123] = 9.5
    browser = show(RunAccount(record=make_record(columns), incidents=()))
    spike = browser.evaluate("""(() => {
      const d = document.querySelector('svg[data-panel=loss] .curve').getAttribute('d');
      const points = d.split(/[ML]/).slice(1).map(p => p.split(' ').map(Number));
      const top = points.reduce((a, b) => b[1] < a[1] ? b : a), plot = document.querySelector('svg[data-panel=loss] .plot');
      return {x: (top[0] - plot.getAttribute('x')) / plot.getAttribute('width'), points: points.length};
    })()""")
    assert spike["x"] == pytest.approx(70_123 / 149_999, abs=0.002)
    assert spike["points"] < 5_000
    elapsed_ms = browser.evaluate("""(() => {
      return Math.min(...[0, 1, 2, 3, 4].map((i) => {
        const t = performance.now();
        window.trimtab.zoom([1 + i, 150000 - i]);
        document.body.getBoundingClientRect();
        return performance.now() - t;
      }));
    })()""")
    assert elapsed_ms < 250  # measured 20 to 40 on two cores; slow machines get room


@pytest.mark.covers("S3")
def test_perplexity_is_exp_of_loss_in_every_record_and_does_not_overflow(
    show: Callable[..., Any], make_record: Callable[..., RunRecord]
) -> None:
    loss = np.concatenate(
        [np.random.default_rng(0).uniform(0.01, 12, 500), [81.0, 300.0, 709.0, 800.0, 1e6]]
    )
    account = RunAccount(record=make_record({"loss": loss}), incidents=())
    read = show(account).evaluate(
        f"""[...Array({len(loss)}).keys()].map(i => window.trimtab.readout(i + 1))
      .map(r => [r.step, r.loss, Number.isFinite(r.perplexity) ? r.perplexity : String(r.perplexity)])"""
    )
    for (step, shown, perplexity), value in zip(read, loss.tolist(), strict=True):
        assert shown == pytest.approx(value, rel=1e-8), step
        expected = math.exp(value) if value < 709.7 else "Infinity"
        assert perplexity == (pytest.approx(expected, rel=1e-5) if value < 709.7 else expected)


def test_hostile_log_text_runs_nothing(
    show: Callable[..., Any],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
) -> None:
    nasty = (
        "</script><script>document.title='owned'</script><svg onload=\"document.title='owned'\">"
    )
    told = make_incident(severity="critical", headline=nasty, attempt=nasty)
    account = RunAccount(
        record=make_record({"loss": np.linspace(3, 2, 500)}, source=nasty),
        incidents=(told,),
        notes=(nasty,),
    )
    browser = show(account, fragment="#incident=A")
    assert browser.evaluate("document.title") == "demo"
    assert browser.evaluate("document.querySelectorAll('script').length") == 2


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_sticks_out_sideways(
    show: Callable[..., Any], rescued: RunAccount, excerpt: RunAccount, width: int
) -> None:
    for account in (rescued, excerpt):
        browser = show(account, width=width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_the_policy_lets_no_request_out(browser: Any, rescued: RunAccount, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(
        render_html(rescued, title="demo").replace(
            "<footer>", '<img src="http://127.0.0.1:9/x.png"><footer>'
        ),
        encoding="utf-8",
    )
    browser.open(path)
    assert any("Content Security Policy" in error for error in browser.errors)
