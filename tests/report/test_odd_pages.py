"""The page opens, without an error and without a request, whatever the log held."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import Browser
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.detectors.contract import Finding
from trimtab.readers.layers import LayerReadings
from trimtab.record import Attempt, RecordBuilder, RunRecord
from trimtab.report.html import render_html

pytestmark = pytest.mark.browser

NASTY = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
)
NAMES = {
    "markup": NASTY,
    "right to left": "\u202egpj.exe\u202c שלום 训练 \U0001f600 e\u0301\u0000",
    "10 000 characters": "k" * 10_000,
    "template": "${policy} $data {{x}} `${y}`",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Callable[[RunAccount], Browser]:
    def open_page(account: RunAccount, title: str = "odd") -> Browser:
        path = tmp_path / "report.html"
        path.write_text(render_html(account, title=title), encoding="utf-8")
        browser.open(path, width=1366, height=768)
        assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
        for key in ("n", "n", "p", "0"):
            browser.key(key)
        browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        browser.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert browser.errors == []
        assert browser.evaluate("document.documentElement.dataset.errors") == ""
        assert [u for u in browser.requests if not u.startswith(("file:", "data:"))] == []
        wide = (
            "[...document.querySelectorAll('body *')].filter((n) => n.getBoundingClientRect().right"
            " > 1366 && !n.closest('svg')).map((n) => n.tagName + '.' + n.className + ': ' +"
            " n.textContent.slice(0, 40))"
        )
        assert browser.evaluate(wide) == []
        assert not browser.evaluate(
            "[...document.querySelectorAll('#panels svg *')].some((n) => [...n.attributes].some((a)"
            " => a.name !== 'href' && /NaN|Infinity|undefined/.test(a.value)))"
        )
        return browser

    return open_page


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_names_from_a_log_are_only_ever_text(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
    name: str,
) -> None:
    loss = np.linspace(3, 2, 500)
    record = make_record(
        {"loss": loss, name: loss},
        source=name,
        format=name,
        attempts=(Attempt(number=name, first_row=0, end_row=500, settings={name: name}, why=name),),
    )
    told = make_incident(
        severity="critical",
        attempt=name,
        headline=name,
        signals=("loss", name),
        precursor=300.0,
        precursor_row=299,
        precursor_signal=name,
    )
    readings = LayerReadings(
        name=name, attempt=name, step=np.arange(1.0, 6.0), values=np.ones((5, 3))
    )
    account = RunAccount(record=record, incidents=(told,), notes=(name,), layers=(readings,))
    browser = opened(account, title=name)
    assert browser.evaluate("document.title") != "owned"
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert "\u202e" not in browser.evaluate("document.body.textContent")


def test_no_incident(opened: Callable[..., Browser], make_record: Callable[..., RunRecord]) -> None:
    browser = opened(RunAccount(record=make_record({"loss": np.linspace(3, 2, 80)}), incidents=()))
    assert browser.evaluate("document.querySelectorAll('.card, .pin').length") == 0
    assert browser.evaluate("document.querySelector('main').className") == "solo"


@pytest.mark.slow
def test_five_hundred_incidents_open_quickly_and_stay_legible(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
) -> None:
    record = make_record({"loss": np.random.default_rng(0).normal(2, 0.1, 20_000)})
    told = tuple(
        make_incident(
            severity=("critical", "warning", "info")[k % 3],
            onset_row=30 * k,
            onset=30.0 * k + 1,
            peak_row=30 * k + 1,
            peak=30.0 * k + 2,
            end_row=None if k % 5 == 0 else 30 * k + 20,
            end=None if k % 5 == 0 else 30.0 * k + 21,
        )
        for k in range(500)
    )
    browser = opened(RunAccount(record=record, incidents=told))
    assert browser.evaluate("document.querySelectorAll('.card').length") == 500
    pins = browser.evaluate(
        "[...document.querySelectorAll('.pin rect')].map((r) => +r.getAttribute('x'))"
    )
    assert 10 < len(pins) < 100
    assert (np.diff(sorted(pins)) >= 10).all()  # none over another
    overlap = browser.evaluate("""(() => {
      const bands = [...document.querySelectorAll('svg[data-panel=loss] .band')].map((r) => [+r.getAttribute('x'), +r.getAttribute('x') + +r.getAttribute('width')]);
      bands.sort((a, b) => a[0] - b[0]);
      return bands.slice(1).some((b, i) => b[0] < bands[i][1] - 0.01);
    })()""")
    assert not overlap


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_but_non_finite_values(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
    bad: float,
) -> None:
    values = np.full(300, bad)
    names = ("loss", "val_loss", "grad_norm", "lr", "activation_norm", "loss_scale", "step_time_s")
    told = make_incident(severity="critical", kind="non-finite", onset=1.0, onset_row=0)
    readings = LayerReadings(
        name="grad_norm", attempt="1.0", step=np.arange(1.0, 9.0), values=np.full((8, 4), bad)
    )
    browser = opened(
        RunAccount(
            record=make_record(dict.fromkeys(names, values)), incidents=(told,), layers=(readings,)
        )
    )
    said = browser.evaluate("document.getElementById('panels').textContent")
    assert said.count("NaN or Inf throughout") == 6
    assert said.startswith("LossNaN or Inf throughout")  # told first, not among what is missing
    assert "Gradient norm per blockno finite value" in said  # no block of solid red
    assert browser.evaluate("document.querySelectorAll('.heat').length") == 0


def test_one_row_and_no_row(
    opened: Callable[..., Browser], make_record: Callable[..., RunRecord]
) -> None:
    for n in (0, 1):
        columns = {name: np.full(n, 2.5) for name in ("loss", "grad_norm", "lr")}
        browser = opened(RunAccount(record=make_record(columns), incidents=()))
        said = browser.evaluate("document.body.textContent")
        assert ("Too short to judge" if n else "the log holds no rows") in said


@pytest.mark.slow
def test_hundreds_of_attempts(opened: Callable[..., Browser]) -> None:
    build = RecordBuilder("many.log", "text")
    for k in range(300):
        build.start_attempt(number=f"{k + 1}.0", parent=f"{k}.0" if k else None)
        for step in range(k, k + 5):
            build.add(step, {"loss": 3.0 - k / 300, "loss_scale": 1024.0})
    browser = opened(RunAccount(record=build.build(), incidents=()))
    assert browser.evaluate("document.querySelectorAll('canvas, svg').length") > 0
    assert "300 attempts" in browser.evaluate("document.body.textContent")


def test_a_slow_step_is_shaded_on_the_step_time_and_only_faintly_on_the_loss(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
) -> None:
    rng = np.random.default_rng(0)
    record = make_record(
        {n: rng.normal(2, 0.1, 900) for n in ("loss", "step_time_s", "throughput")}
    )
    slow = make_incident(
        kind="slowdown",
        severity="warning",
        signals=("step_time_s", "throughput"),
        precursor=400.0,
        precursor_row=399,
        precursor_signal="throughput",
    )
    browser = opened(RunAccount(record=record, incidents=(slow,)))
    shade = browser.evaluate(
        """Object.fromEntries([...document.querySelectorAll('#panels svg')].map((s) =>
      [s.dataset.panel, Math.max(0, ...[...s.querySelectorAll('.band')].map((b) => +b.getAttribute('fill-opacity')))]))"""
    )
    assert shade["step_time_s"] == shade["throughput"] == 1
    assert 0 < shade["loss"] < 0.5
    browser.key("n")
    flags = browser.evaluate(
        """Object.fromEntries([...document.querySelectorAll('#panels svg')].map((s) =>
      [s.dataset.panel, [...s.querySelectorAll('.flag')].map((f) => f.textContent).join(' ')]))"""
    )
    assert flags["throughput"] == "first sign 400"
    assert flags["step_time_s"] == ""
    assert "onset 412" in flags["loss"]


def test_an_alarm_on_a_signal_without_a_panel_of_its_own_gets_one(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
) -> None:
    record = make_record({n: np.linspace(3, 2, 500) for n in ("loss", "loss/books", "param_norm")})
    alarm = make_incident(severity="warning", signals=("loss/books",))
    note = make_incident(severity="info", signals=("param_norm",))
    browser = opened(RunAccount(record=record, incidents=(alarm, note)))
    panels = browser.evaluate(
        "[...document.querySelectorAll('#panels svg')].map((s) => s.dataset.panel)"
    )
    assert "loss/books" in panels
    assert "param_norm" not in panels


def test_a_selected_card_comes_into_view(
    opened: Callable[..., Browser],
    make_record: Callable[..., RunRecord],
    make_incident: Callable[..., IncidentAccount],
) -> None:
    base = make_incident(severity="critical")
    finding = Finding(
        detector="spike",
        kind="spike",
        signal="loss",
        severity="critical",
        row=411,
        step=412.0,
        onset_row=411,
        onset=412.0,
        peak_row=411,
        peak=412.0,
        value=4.0,
        expected=3.0,
        score=9.0,
        text="a long account of what was seen " * 30,
    )
    told = tuple(
        replace(base, incident=replace(base.incident, onset=float(k * 50), findings=(finding,)))
        for k in range(1, 9)
    )
    record = make_record({"loss": np.linspace(3, 2, 500)})
    browser = opened(RunAccount(record=record, incidents=told))
    browser.evaluate("trimtab.select('F')")
    place = browser.evaluate("""(() => {
      const list = document.getElementById('cards').getBoundingClientRect(), card = document.querySelector('.card.selected').getBoundingClientRect();
      return card.top - list.top;
    })()""")
    assert place == pytest.approx(0, abs=2)


def heat_account(make_record: Callable[..., RunRecord], values: Any) -> RunAccount:
    n = len(values)
    readings = LayerReadings(
        name="grad_norm", attempt="1.0", step=np.arange(1.0, n + 1), values=np.asarray(values)
    )
    record = make_record({"loss": np.linspace(3, 2, n)})
    return RunAccount(record=record, incidents=(), layers=(readings,))


PIXELS = """(async () => {
  const image = new Image();
  image.src = document.querySelector('.heat').getAttribute('href');
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = image.width; canvas.height = image.height;
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const d = context.getImageData(0, 0, image.width, image.height).data, out = [];
  for (let r = 0; r < image.height; r++) {
    let darkest = 999, at = -1, red = -1;
    for (let c = 0; c < image.width; c++) {
      const k = 4 * (r * image.width + c), sum = d[k] + d[k + 1] + d[k + 2];
      if (d[k + 3] && sum < darkest) { darkest = sum; at = c / image.width; }
      if (d[k + 3] && d[k] > 150 && d[k + 1] < 80) red = c / image.width;
    }
    out.push({ darkest, at, red });
  }
  return out;
})()"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1366, 420])  # with more and with fewer pixels than columns
def test_the_heat_map_shows_one_bad_reading_of_one_block_among_thousands(
    opened: Callable[..., Browser], make_record: Callable[..., RunRecord], width: int
) -> None:
    values = np.exp(np.random.default_rng(0).normal(0, 0.05, (6000, 12)))
    values[4321, 9] = 50.0
    values[1500, 2] = np.nan
    browser = opened(heat_account(make_record, values))
    browser.resize(width, 768)
    browser.evaluate("window.dispatchEvent(new Event('resize'))")
    rows = browser.evaluate(PIXELS)[::-1]  # the first block is at the foot
    assert len(rows) == 12
    assert min(range(12), key=lambda r: rows[r]["darkest"]) == 9
    assert rows[9]["at"] == pytest.approx(4321 / 6000, abs=0.02)
    assert rows[2]["red"] == pytest.approx(1500 / 6000, abs=0.02)
    assert [r for r in range(12) if rows[r]["red"] >= 0] == [2]
    assert "block 10" in browser.evaluate("trimtabHeat.readout(trimtab.data.heats[0], 4322).text")
    note = browser.evaluate(
        "[...document.querySelectorAll('.panel')].find((p) =>"
        " p.querySelector('.heat')).querySelector('.note').textContent"
    )
    assert re.match(r"dark: up to 50× above", note)
