"""What a dismissal speaks of."""

from dataclasses import replace

from trimtab.chronicle.dismissals import Dismissal, dismissal_of
from trimtab.detectors.contract import Finding
from trimtab.incidents import Incident

WARNED = Incident(
    kind="spike",
    attempt="1.0",
    severity="warning",
    onset_row=100,
    onset=1000.0,
    peak_row=101,
    peak=1010.0,
    signals=("loss",),
    headline="",
)
CALLED_FINE = Dismissal(
    attempt="1.0", kind="spike", severity="warning", onset=1000.0, onset_row=100, why="known"
)


def test_it_holds_where_the_onset_moved_a_little_or_the_kind_changed() -> None:
    assert CALLED_FINE.fits(WARNED)
    assert CALLED_FINE.fits(replace(WARNED, onset_row=107, kind="shift"))
    assert not CALLED_FINE.fits(replace(WARNED, onset_row=120))
    assert not CALLED_FINE.fits(replace(WARNED, attempt="1.1"))


def test_what_became_worse_is_an_alarm_again() -> None:
    assert not CALLED_FINE.fits(replace(WARNED, severity="critical"))
    later = replace(CALLED_FINE, severity="critical", why="still fine")
    found = dismissal_of(replace(WARNED, severity="critical"), [CALLED_FINE, later])
    assert found is later


def _finding(kind: str, signal: str) -> Finding:
    return Finding(
        detector="x", kind=kind, signal=signal, severity="warning", row=100, step=1000.0,
        onset_row=100, onset=1000.0, peak_row=100, peak=1000.0, value=2.0, expected=1.0, score=9.0,
        text="",
    )  # fmt: skip


def test_what_a_raised_rate_explains_is_its_own_rise_alone() -> None:
    rate, spike = _finding("setting-jump", "lr"), _finding("spike", "loss")
    of_rate = replace(CALLED_FINE, kind="setting-jump", signal="lr")
    assert of_rate.fits(replace(WARNED, kind="setting-jump", findings=(rate,)))
    assert not of_rate.fits(replace(WARNED, findings=(rate, spike)))
    assert CALLED_FINE.fits(replace(WARNED, findings=(rate, spike)))
