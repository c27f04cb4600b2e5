import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from trimtab.analysis.account import RunAccount
from trimtab.record import RunRecord
from trimtab.report.picture import render_picture

SVG = "{http://www.w3.org/2000/svg}"
GRID = ("grad_norm", "activation_norm", "loss_scale")


def panels(svg: str) -> dict[str, ElementTree.Element]:
    return {
        g.attrib["data-panel"]: g
        for g in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if "data-panel" in g.attrib
    }


def highest_x(panel: ElementTree.Element) -> float:
    path = next(p for p in panel.iter(f"{SVG}path"))
    points = re.findall(r"[ML](\S+) ([\d.-]+)", path.attrib["d"])
    return float(min(points, key=lambda p: float(p[1]))[0])


@pytest.mark.covers("S166")
def test_grid_of_three_shares_limits_and_shows_the_spike_at_the_same_x(
    make_record: Callable[..., RunRecord],
) -> None:
    rng = np.random.default_rng(0)
    columns = {name: np.exp(rng.normal(0, 0.05, 20_000)) for name in GRID}
    for values in columns.values():
        values[13_000] = 40.0
    svg = render_picture(RunAccount(record=make_record(columns), incidents=()), signals=GRID)
    found = panels(svg)
    assert tuple(found) == GRID
    assert len({(p.attrib["data-x0"], p.attrib["data-x1"]) for p in found.values()}) == 1
    plots = [
        next(r for r in p.iter(f"{SVG}rect") if r.attrib["class"] == "plot") for p in found.values()
    ]
    assert len({(r.attrib["x"], r.attrib["width"]) for r in plots}) == 1
    left, width = float(plots[0].attrib["x"]), float(plots[0].attrib["width"])
    expected = left + width * 13_000 / 19_999
    assert [highest_x(p) for p in found.values()] == pytest.approx([expected] * 3, abs=0.1)


def test_all_main_panels_are_there_and_say_where_nothing_was_recorded(excerpt: RunAccount) -> None:
    found = panels(render_picture(excerpt))
    assert {"loss", "grad_norm", "activation_norm", "loss_scale"} <= set(found)
    assert "not recorded" in "".join(found["activation_norm"].itertext())
    assert "not recorded" not in "".join(found["grad_norm"].itertext())


def test_dead_branches_are_faint_and_trials_dashed(rescued: RunAccount) -> None:
    svg = render_picture(rescued)
    assert 'class="curve a0"' in svg
    assert 'class="curve a0 dead"' in svg
    assert 'class="curve a1 dead trial"' in svg
    assert 'class="bad"' in svg  # the NaN at step 945


def test_it_is_well_formed_with_hostile_names_and_gives_the_same_bytes_twice(
    make_record: Callable[..., RunRecord],
) -> None:
    record = make_record({"loss": np.linspace(3, 2, 50)}, source='"><script>alert(1)</script>\x00')
    account = RunAccount(record=record, incidents=())
    svg = render_picture(account)
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert svg == render_picture(account)


@pytest.mark.parametrize(
    "values", [[], [2.0], [np.nan, np.nan], [0.0, 0.0, 0.0], [-1.0, 5.0], [1e300, 1e-300]]
)
def test_odd_columns_still_draw(make_record: Callable[..., RunRecord], values: list[float]) -> None:
    columns = {name: np.asarray(values) for name in ("loss", "grad_norm", "lr")}
    svg = render_picture(RunAccount(record=make_record(columns), incidents=()))
    ElementTree.fromstring(svg)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', svg)
