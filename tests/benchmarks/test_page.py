import json
import shutil

import numpy as np
import pytest

from benchmarks.page import long_run, measure_page
from benchmarks.tables import page_text
from trimtab.cli import main
from trimtab.report.html import page_data


@pytest.mark.covers("S172")
def test_the_page_of_a_long_run_keeps_every_extreme_of_every_signal() -> None:
    account = long_run(200_000)
    for panel in page_data(account)["panels"]:
        if panel["name"] not in account.record.columns:
            continue
        column = account.record.columns[panel["name"]].logged()
        drawn = np.asarray([np.nan if v is None else v for s in panel["stretches"] for v in s["y"]])
        assert len(drawn) < 40_000
        for pick in (np.nanmax, np.nanmin):
            assert pick(drawn) == pytest.approx(pick(column[np.isfinite(column)]), rel=1e-8)
        assert np.isnan(drawn).sum() == (~np.isfinite(column)).sum()


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_is_opened_and_timed() -> None:
    figures = measure_page(num_rows=20_000, repeats=2)
    assert figures.rows == 20_000
    assert figures.incidents == 4
    assert len(figures.open_ms) == 2
    assert min(*figures.open_ms, figures.empty_ms) > 0
    assert figures.opening_ms < 2000
    assert "opens in" in page_text(figures)


def test_without_a_browser_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["bench", "page"]) == 0
    assert "no browser here" in capsys.readouterr().out
    assert main(["bench", "page", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] is None
    assert "chromium" in told["left_out"]


@pytest.mark.parametrize("option", [["--rows", "5"], ["--repeats", "0"]])
def test_sizes_that_make_no_sense_are_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "page", *option]) != 0
    assert option[0] in capsys.readouterr().err
