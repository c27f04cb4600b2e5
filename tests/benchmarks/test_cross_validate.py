from pathlib import Path
from typing import Any

from benchmarks.cross_validate import SETTINGS, folds_of, leave_one_out
from benchmarks.scoring import score_run
from tests.benchmarks.labelled import claim, label, line, runs_of, said
from trimtab.detectors.judge import DETECTORS
from trimtab.detectors.sensitivity import Sensitivity


def test_runs_of_one_repository_or_with_the_same_data_share_a_fold(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path,
        line("a", "clean", repo="x"),
        line("b", "clean", repo="y"),
        line("c", "clean", repo="x"),
        line("d", "clean", repo="z", group="g"),
        line("e", "clean", repo="y", group="g"),
        line("f", "clean"),
    )
    a, b, c, d, e, f = folds_of(runs)
    assert a == c
    assert b == d == e
    assert len({a, b, f}) == 3


def test_the_setting_is_chosen_without_the_repository_that_it_is_scored_on(tmp_path: Path) -> None:
    """Loose meets the labels of y and z, strict that of x: x is scored under loose, and missed."""
    runs = runs_of(
        tmp_path,
        *(
            line(name, "incident", repo=name, incidents=[label("spike", 4000)])
            for name in ("x", "y", "z")
        ),
    )
    hit, miss = claim("spike", 4000), claim("spike", 9000)
    scores = {
        "strict": [
            score_run(r, said(r.id, c)) for r, c in zip(runs, (hit, miss, miss), strict=True)
        ],
        "loose": [score_run(r, said(r.id, c)) for r, c in zip(runs, (miss, hit, hit), strict=True)],
    }
    found = leave_one_out(scores, folds_of(runs))
    assert found.best == "loose"
    assert found.settings["loose"]["recall"] == 2 / 3
    # without y: strict 1 of 2, loose 1 of 2, so the first of equals; it misses y. The same for z.
    assert found.chosen == {"loose": 1, "strict": 2}
    assert found.left_out["recall"] == 0
    assert (found.left_out["runs"], found.num_folds) == (3, 3)


def test_a_factor_moves_the_thresholds_and_nothing_else() -> None:
    moved: dict[str, Any] = {
        d.name: d for d in Sensitivity(spike=2.0, lasting=0.5).judge().detectors
    }
    built: dict[str, Any] = {d.name: d for d in DETECTORS}
    assert moved["spike"].threshold_sigma == 2 * built["spike"].threshold_sigma
    assert moved["level"].thresholds == tuple(t / 2 for t in built["level"].thresholds)
    assert moved["non-finite"] is built["non-finite"]  # it has none
    assert Sensitivity().judge().detectors == DETECTORS
    assert next(iter(SETTINGS.values())) == Sensitivity()
