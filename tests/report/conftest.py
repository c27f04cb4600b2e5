"""Accounts to render: a run that was rescued, an excerpt of two attempts, a long healthy run."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.report.excerpt import make_excerpt
from tests.report.parts import incident, plain_record, told
from tests.report.rescued import make_rescued
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.record import RunRecord


@pytest.fixture(scope="session")
def rescued() -> RunAccount:
    """1 200 steps, a divergence, two trials, a rollback, a benign spike."""
    return make_rescued()


@pytest.fixture(scope="session")
def excerpt() -> RunAccount:
    """Eight rows of two attempts, each with a spike that did not recover."""
    return make_excerpt()


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    """One attempt with the columns given, every row present."""
    return plain_record


@pytest.fixture(scope="session")
def make_incident() -> Callable[..., IncidentAccount]:
    """One incident with changes to a benign spike at step 412."""
    return lambda **changes: told(incident(**changes))


@pytest.fixture(scope="session")
def healthy() -> RunAccount:
    """150 000 quiet steps of five signals."""
    rng = np.random.default_rng(1)
    n = 150_000
    step = np.arange(1, n + 1)
    columns = {
        "loss": 2.05 + 8.0 * (step + 200.0) ** -0.32 + rng.normal(0, 0.02, n),
        "grad_norm": np.exp(rng.normal(-1.2, 0.2, n)),
        "activation_norm": 11 + np.log(step) + rng.normal(0, 0.2, n),
        "loss_scale": np.full(n, 65536.0),
        "lr": 3e-4 * np.minimum(step / 2000, 1) * (0.1 + 0.45 * (1 + np.cos(np.pi * step / n))),
    }
    short = make_account(plain_record({k: v[:3000] for k, v in columns.items()}))
    return RunAccount(
        record=plain_record(columns),
        incidents=(),
        read_s=1.2,
        tested=short.tested,
        judged_signals=short.judged_signals,
    )
