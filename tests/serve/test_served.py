"""`trimtab serve` in a real browser: list, run, incident, overlay, live; light, dark, phone, keys."""

import json
import shutil
import time
from pathlib import Path

import pytest

from benchmarks.browser import Browser
from tests.serve.conftest import HOSTILE, Served

pytestmark = [pytest.mark.browser, pytest.mark.slow]

READY = "document.documentElement.dataset.ready === 'yes'"
AXE = Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8")


def violations(browser: Browser) -> list[str]:
    browser.evaluate(AXE)
    found = browser.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
        " v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' +"
        " (n.any[0] ? n.any[0].message : '')).join(' | ')))"
    )
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def judged(served: Served) -> dict[str, str]:
    """Ids by title, once all runs are judged."""
    runs: list[dict[str, str]] = []
    for _ in range(600):
        runs = served.get("api/runs")["runs"]
        if len(runs) == 5 and all(r["state"] in ("ready", "error") for r in runs):
            return {r["title"]: r["id"] for r in runs}
        time.sleep(0.1)
    raise AssertionError(runs)


def shows(browser: Browser, served: Served, path: str, **how: int) -> None:
    browser.visit(served.address + path, **how)
    if "/incident/" not in path:
        browser.wait(READY)


def test_the_list_says_state_verdict_and_worst_incident_and_can_be_searched(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    shows(browser, served, "")
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5")
    rows = browser.evaluate("[...document.querySelectorAll('tr[data-run]')].map(r => r.innerText)")
    assert "diverges.jsonl" in rows[0]  # what asks for action stands first
    assert "incident" in rows[0]
    assert "loss is diverging" in rows[0]
    assert "unreadable" in rows[1]
    assert "binary data" in rows[1]  # and it hides no other
    assert "1 critical" in browser.evaluate("document.querySelector('h1').innerText")
    browser.evaluate("document.getElementById('find').focus()")
    for key in "diverg":
        browser.key(key)
    assert browser.evaluate("document.querySelectorAll('tr[data-run]').length") == 1
    browser.evaluate("document.querySelector('[data-kind=error]').click()")
    assert browser.evaluate("document.querySelectorAll('tr[data-run]').length") == 0
    # a hostile name is text
    assert browser.evaluate("document.title") == "runs · trimtab"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in judged
    assert browser.errors == []


def test_the_incident_of_the_list_opens_with_its_evidence_and_plan(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    shows(browser, served, "")
    browser.wait("document.querySelector('tr[data-run] .said a')")
    browser.evaluate("document.querySelector('tr[data-run] .said a').click()")
    browser.wait("document.querySelector('h1') && document.body.className === 'incident'")
    said = browser.evaluate("document.body.innerText")
    for part in ("Loss is diverging", "do", "because", "Evidence", "grad norm", "onset"):
        assert part.lower() in said.lower()
    browser.evaluate("[...document.querySelectorAll('.links a')][0].click()")
    browser.wait(READY)
    assert browser.evaluate("window.trimtab.state.selected") == "A"
    assert browser.errors == []


def inks(browser: Browser) -> list[int]:
    """Return how many pixels of the plot have the color of each of the two runs."""
    found = browser.evaluate(
        "(() => { const c = document.querySelector('.u-wrap canvas'), w = c.width, h = c.height;"
        " const p = new Uint32Array(c.getContext('2d').getImageData(0, 0, w, h).data.buffer);"
        " return ['--a0', '--a1'].map((n) => { const t = document.createElement('canvas');"
        " const x = t.getContext('2d');"
        " x.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(n);"
        " x.fillRect(0, 0, 1, 1);"
        " const ink = new Uint32Array(x.getImageData(0, 0, 1, 1).data.buffer)[0];"
        " return p.filter((v) => v === ink).length; }); })()"
    )
    assert isinstance(found, list)
    return found


def test_overlay_zoom_hover_smoothing_log_axis_and_hiding(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    ids = ",".join(judged[t] for t in ("base.jsonl", "diverges.jsonl"))
    shows(browser, served, f"overlay?runs={ids}")
    assert browser.evaluate("window.trimtab.state.plot.series.length") == 3
    assert browser.evaluate("window.trimtab.state.data.whole") is False
    first, second = inks(browser)
    assert first > 1000
    assert second > 500
    box = browser.evaluate(
        "(() => { const b = document.querySelector('.u-over').getBoundingClientRect();"
        " return [b.left, b.top, b.width, b.height]; })()"
    )
    left, top, width, height = box
    browser.hover((left + width * 0.5, top + height * 0.5))
    browser.wait("document.querySelector('.readout').innerText.includes('base.jsonl')")
    assert "step 3" in browser.evaluate("document.querySelector('.readout').innerText")
    browser.drag((left + width * 0.6, top + 40), (left + width * 0.8, top + 40))
    browser.wait("window.trimtab.state.data.range[0] > 1")
    assert browser.evaluate("window.trimtab.state.data.whole") is True
    low, high = browser.evaluate("window.trimtab.state.data.range")
    assert low == pytest.approx(1 + 0.6 * 6999, abs=30)
    assert high == pytest.approx(1 + 0.8 * 6999, abs=30)
    browser.key("0")
    browser.wait("window.trimtab.state.data.range[0] === 1")
    for control, value in (("smooth", "200"), ("by", "tokens"), ("signal", "grad_norm")):
        browser.evaluate(
            f"(() => {{ const s = document.getElementById('{control}'); s.value = '{value}';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        browser.wait(f"window.trimtab.state.{control} == '{value}'")
    browser.wait("window.trimtab.state.data.range[1] === 7000 * 2048")
    browser.evaluate("document.getElementById('log').click()")
    assert browser.evaluate("window.trimtab.state.plot.scales.y.distr") == 3
    browser.evaluate("document.querySelector('.runs-legend button').click()")
    assert browser.evaluate("window.trimtab.state.plot.series[1].show") is False
    assert inks(browser)[0] == 0 < inks(browser)[1]
    assert "log=1" in browser.evaluate("location.search")  # the address says what is seen
    assert browser.errors == []


def test_a_run_shows_one_attempt_and_zooms_by_keys(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    shows(browser, served, f"run/{judged['two-attempts']}")
    counts = []
    for value in ("1", "-1"):
        browser.evaluate(
            "(() => { const s = document.querySelector('.tools select[aria-label=attempt]');"
            f" s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()"
        )
        counts.append(
            browser.evaluate("document.querySelectorAll('[data-panel=loss] .curve').length")
        )
    assert counts[0] < counts[1]
    before = browser.evaluate("window.trimtab.state.range")
    browser.key("+")
    after = browser.evaluate("window.trimtab.state.range")
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 2)
    browser.key("0")
    assert browser.evaluate("window.trimtab.state.range") == before
    assert browser.errors == []


def test_a_row_is_seen_within_two_seconds_of_being_written(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    log = served.folder / "base.jsonl"
    run = judged["base.jsonl"]
    for page, seen in (
        (f"run/{run}", "window.trimtab.data.range[1] === {step}"),
        ("", "document.querySelector('tr[data-run=\"" + run + "\"]').innerText.includes('{text}')"),
    ):
        shows(browser, served, page)
        browser.wait("document.getElementById('live').textContent === 'live'")
        took = []
        for _ in range(3):
            step = json.loads(log.read_text().splitlines()[-1])["step"] + 1
            with log.open("a") as file:
                file.write(json.dumps({"step": step, "loss": 2.3, "grad_norm": 0.4}) + "\n")
            text = f"{step:,}".replace(",", "\u202f")
            took.append(browser.wait(seen.format(step=step, text=text)))
        assert min(took) < 2.0, took  # the others may have waited for a busy machine
    assert browser.errors == []


def test_a_run_that_appears_is_listed_and_one_that_breaks_loses_no_other(
    browser: Browser, served: Served, judged: dict[str, str]
) -> None:
    shows(browser, served, "")
    browser.wait("document.querySelectorAll('tr[data-run]').length === 5")
    shutil.copy(served.folder / "diverges.jsonl", served.folder / "late.jsonl")
    browser.wait("document.body.innerText.includes('late.jsonl')")
    (served.folder / "late.jsonl").write_bytes(b"\x00\xff" * 5000)
    browser.wait("document.querySelector('h1').innerText.includes('2 unreadable')", timeout_s=30)
    assert len(served.ids()) == 6
    (served.folder / "late.jsonl").unlink()
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 1280])
def test_no_page_breaks_a_rule_of_accessibility_or_sticks_out(
    browser: Browser, served: Served, judged: dict[str, str], width: int, dark: bool
) -> None:
    browser.color_scheme(dark=dark)
    run = judged["diverges.jsonl"]
    try:
        for path in ("", f"overlay?runs={run}", f"run/{run}", f"run/{run}/incident/A"):
            shows(browser, served, path, width=width, height=800)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, path
            assert violations(browser) == [], path
            assert browser.errors == [], path
    finally:
        browser.color_scheme(dark=False)
