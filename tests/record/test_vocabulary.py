"""The vocabulary: every alias leads to one signal, whatever separates its words."""

import pytest

from trimtab.vocabulary import SIGNALS, canonical, normalise, unit_scale


def test_every_alias_belongs_to_one_signal() -> None:
    owners: dict[str, str] = {}
    for signal in SIGNALS:
        for alias in (signal.name, *signal.aliases):
            assert owners.setdefault(normalise(alias), signal.name) == signal.name, alias
            assert canonical(alias) == signal.name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("lm loss", "loss"),
        ("LM-Loss", "loss"),
        ("train/loss", "loss"),
        ("grad-norm", "grad_norm"),
        ("grad norm", "grad_norm"),
        (' "learning rate" ', "lr"),
        ("test_loss", "val_loss"),
        ("number of skipped iterations", "skipped"),
        ("elapsed time per iteration (ms)", "step_time_s"),
        ("iteration-time", "step_time_s"),
        ("lm loss PPL", "perplexity"),
        ("something else", None),
        ("loss scale factor", None),
    ],
)
def test_keys_of_the_frameworks(key: str, name: str | None) -> None:
    assert canonical(key) == name


@pytest.mark.parametrize(
    ("key", "factor"),
    [
        ("elapsed time per iteration (ms)", 1e-3),
        ("elapsed time per iteration (s)", 1.0),
        ("step_time_ms", 1e-3),
        ("step_time_s", 1.0),
        ("step_time", 1.0),
    ],
)
def test_time_keys_carry_their_unit(key: str, factor: float) -> None:
    assert unit_scale(key) == factor
