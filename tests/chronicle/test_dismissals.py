"""What a dismissal speaks of."""

from dataclasses import replace

from trimtab.chronicle.dismissals import Dismissal, dismissal_of
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
