"""A self-test that is quick: for tests in which a run is judged and its self-test is not at issue."""

from dataclasses import replace

from trimtab.analysis.injected_faults import INJECTED_FAULTS

__all__ = ["FEW_FAULTS"]

FEW_FAULTS = tuple(replace(f, num_large=3, num_graded=0) for f in INJECTED_FAULTS if f.required)
"""What the verdict of a run rests on; the rest is most of the time of judging a short run, and is
tested where the self-test is."""
