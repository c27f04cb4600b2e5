"""Skips for what a machine lacks (torch, a GPU, a browser), the two hypothesis profiles, and steps
whose length does not depend on what else the machine does."""

import gc
import sys
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.browser import NAMES, find_chromium
from tests.few_faults import FEW_FAULTS

HAS_TORCH = find_spec("torch") is not None

# `make test` gives the same answer every time; `make fuzz` looks for new ones.
# `make fuzz` draws 2,000 each
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("fuzz", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("repeatable")


@cache
def has_gpu() -> bool:
    """Tell whether torch sees a CUDA device; asked only when a test needs one."""
    if not HAS_TORCH:
        return False
    import torch

    return bool(torch.cuda.is_available())


@cache
def has_browser() -> bool:
    """Tell whether a headless Chromium is on the path."""
    return find_chromium() is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and so count, the tests that this machine cannot run."""
    for item in items:
        if item.get_closest_marker("torch") and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="needs the torch extra"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("browser") and not has_browser():
            item.add_marker(pytest.mark.skip(reason=f"needs one of {', '.join(NAMES)}"))


@pytest.fixture(autouse=True)
def even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give guarded runs of this process steps of one length, whatever else the machine does."""
    if "trimtab.guard.loop.assembly" in sys.modules:
        from tests.guard.even_steps import EvenClock

        monkeypatch.setattr("trimtab.guard.loop.assembly.StepClock", EvenClock)


@pytest.fixture(autouse=True)
def few_faults(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have guarded runs end with a self-test of only what their verdict rests on."""
    if request.path.parent.name in ("guard", "integrations"):
        monkeypatch.setattr("trimtab.analysis.self_test.INJECTED_FAULTS", FEW_FAULTS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it from what was collected ever after."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a whole file that is marked `torch` and imports it at the top, where torch is absent.

    A file without the marker still fails: base tests may not reach torch by accident.
    """
    report = yield
    if (
        not HAS_TORCH
        and report.failed
        and isinstance(collector, pytest.Module)
        and "No module named 'torch'" in str(report.longrepr)
        and "pytest.mark.torch" in Path(collector.path).read_text(encoding="utf-8")
    ):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, "Skipped: needs the torch extra")
    return report
