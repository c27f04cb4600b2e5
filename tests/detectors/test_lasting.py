"""What moves at once and for good beside a calm loss is told; what learning does is not."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.lasting import lasting_findings
from trimtab.detectors.offline import all_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 400
AT = 230
T = np.arange(float(N))


def _noise(seed: int, sigma: float, rho: float = 0.3, num: int = N) -> Floats:
    rng, out = np.random.default_rng(seed), np.zeros(num)
    white = rng.normal(size=num)
    for t in range(num):
        out[t] = (rho * out[t - 1] if t else 0.0) + white[t] * np.sqrt(1 - rho**2)
    return sigma * out


def _loss(seed: int) -> Floats:
    return np.asarray(2 + 2 * np.exp(-T / 80) + 0.03 * _noise(seed, 1.0))


def _norm(seed: int) -> Floats:
    return np.asarray(0.8 * np.exp(-T / 300) * np.exp(_noise(seed, 0.25)))


def _told(**columns: Floats) -> list[tuple[str, int]]:
    named = {k.replace("__", "/"): v for k, v in columns.items()}
    num = len(next(iter(named.values())))
    record = record_of(np.arange(float(num)), named)
    return [(f.signal, f.onset_row) for f in lasting_findings(record) if f.severity == "warning"]


@pytest.mark.parametrize("factor", [1 / 8, 4.0, 6.0, 30.0])
def test_a_norm_that_is_many_times_as_large_for_good_is_told_where_the_loss_is_calm(
    factor: float,
) -> None:
    for seed in range(5):
        norm = _norm(seed)
        norm[AT:] *= factor
        told = _told(loss=_loss(seed + 50), grad_norm=norm)
        assert [s for s, _ in told] == ["grad_norm"]
        assert abs(told[0][1] - AT) <= 3


def test_it_is_a_warning_though_the_loss_falls_on() -> None:
    norm = _norm(1)
    norm[150:] *= 6
    found = all_findings(record_of(T, {"loss": _loss(2), "grad_norm": norm}))
    assert any(f.detector == "lasting" and f.severity == "warning" for f in found)


@pytest.mark.parametrize(
    ("signal", "factor"),
    [
        ("router_entropy", 0.7),
        ("expert_load_max", 2.0),
        ("policy_kl", 5.0),
        ("policy_entropy", 0.5),
        ("loss/depth", 1.6),
        ("grad_norm/fc1", 5.0),
        ("step_time_s", 1.15),
    ],
)
def test_any_signal_of_the_table_is_told_by_its_name(signal: str, factor: float) -> None:
    y = np.exp(_noise(3, 0.03 if abs(np.log(factor)) < 0.5 else 0.15))
    y[AT:] *= factor
    told = _told(loss=_loss(4), **{signal: y})
    assert [s for s, _ in told] == [signal]


def test_sound_noise_is_silent() -> None:
    told = [
        (seed, rho)
        for seed in range(60)
        for rho in (0.0, 0.5, 0.9)
        if _told(loss=_loss(seed), grad_norm=np.exp(_noise(seed, 0.3, rho) - T / N))
    ]
    assert len(told) <= 2


def test_what_grows_or_comes_back_is_none() -> None:
    grows = _norm(7) * np.exp(2.5 * T / N)
    back = _norm(8)
    back[150:220] *= 6
    rounds = _norm(9) * np.where((T // 50) % 2 == 0, 1.0, 3.0)
    for norm in (grows, back, rounds):
        assert not _told(loss=_loss(10), grad_norm=norm)


@pytest.mark.parametrize("name", ["lr", "batch_size", "stated_setting", "clip_limit"])
def test_what_the_log_states_is_no_surprise(name: str) -> None:
    norm = _norm(11)
    norm[AT:] *= 3
    assert _told(loss=_loss(12), grad_norm=norm)
    assert not _told(loss=_loss(12), grad_norm=norm, **{name: np.where(T < AT, 4.0, 8.0)})


def test_a_gradient_that_shrinks_with_its_loss_is_learning() -> None:
    norm, loss = _norm(13), _loss(14)
    norm[AT:] /= 8
    assert _told(loss=loss, grad_norm=norm)
    loss[AT:] -= 1.0
    assert not _told(loss=loss, grad_norm=norm)


def test_a_policy_whose_reward_gains_may_change_at_once() -> None:
    entropy = 1.2 * np.exp(_noise(15, 0.05))
    entropy[AT:] *= 0.4
    reward = 0.5 + _noise(16, 0.05)
    assert _told(reward=reward, policy_entropy=entropy)
    reward[AT:] += 0.3
    assert not _told(reward=reward, policy_entropy=entropy)


def test_what_is_held_is_no_measurement() -> None:
    scale = np.where(T < AT, 8192.0, 32768.0)
    assert not _told(**{"loss": _loss(17), "loss/scaler": scale})


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_unit_does_not_matter(scale: float) -> None:
    norm = _norm(18)
    norm[AT:] *= 5
    assert _told(loss=_loss(19), grad_norm=norm) == _told(loss=_loss(19), grad_norm=scale * norm)


def test_long_logs_and_values_that_are_no_number_are_judged_too() -> None:
    num = 12_000
    norm = np.exp(_noise(20, 0.3, num=num))
    norm[7000:] *= 3
    norm[50:60] = np.nan
    told = _told(loss=1 + _noise(21, 0.02, num=num), grad_norm=norm)
    assert [s for s, _ in told] == ["grad_norm"]
    assert abs(told[0][1] - 7000) <= 12
    norm[40] = 0.0
    assert len(_told(loss=1 + _noise(21, 0.02, num=num), grad_norm=norm)) == 1
    norm[::5] = 0.0
    assert not _told(grad_norm=norm)


def test_what_moves_as_a_score_nobody_knows_gains_has_been_learned() -> None:
    entropy = 1.2 * np.exp(_noise(22, 0.05))
    entropy[AT:] *= 0.4
    score = 10 * np.exp(_noise(23, 0.05))
    assert _told(loss=_loss(24), policy_entropy=entropy, other__episode_score=score)
    score[AT:] *= 4
    assert not _told(loss=_loss(24), policy_entropy=entropy, other__episode_score=score)


def test_a_run_that_finds_its_way_may_move() -> None:
    norm = np.exp(_noise(25, 0.2))
    norm[:30] *= 8
    assert not _told(loss=_loss(26), grad_norm=norm)
