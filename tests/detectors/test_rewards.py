"""The reward of an agent: what falls for good is told, what wanders, dips or learns late is not."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.detectors.reward_flat import gained
from trimtab.detectors.reward_sinks import with_reward_sinks
from trimtab.incidents import Incident
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
Columns = dict[str, Floats]
Make = Callable[[int], Columns]


def log(path: Path, columns: Mapping[str, Floats]) -> Path:
    """Write columns as CSV; what is NaN stays empty."""
    lines = [",".join(columns)]
    rows = zip(*columns.values(), strict=True)
    lines += [",".join("" if np.isnan(v) else f"{v:.6g}" for v in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def alarms(path: Path) -> list[Incident]:
    """Return the alarms of a log."""
    return [i.incident for i in trimtab.analyze(path).incidents if i.severity != "info"]


def wander(rng: np.random.Generator, n: int, sd: float, rows: float) -> Floats:
    """Return noise that keeps its sign for some `rows`."""
    keep, out = np.exp(-1 / rows), np.zeros(n)
    for k in range(1, n):
        out[k] = keep * out[k - 1] + rng.normal(0, sd * np.sqrt(1 - keep * keep))
    return out


def episodes(reward: Floats) -> Columns:
    """Return a log of nothing but the reward of each episode."""
    return {"episode": np.arange(1.0, len(reward) + 1), "reward": reward}


def learns(seed: int, n: int = 600, noise: float = 0.3, slow: float = 0.06) -> Columns:
    """It learns, and the reward wanders about what it has reached."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    level = 1 / (1 + np.exp(-25 * (f - rng.uniform(0.1, 0.4))))
    level = level * (1 + wander(rng, n, slow, n / 20))
    return episodes(20 + 180 * level + 180 * noise * (0.1 + level) * rng.normal(size=n))


def learns_noisily(seed: int) -> Columns:
    """Episodes differ by half of what was learned."""
    return learns(seed, 900, 0.5, 0.1)


def learns_in_few_rows(seed: int) -> Columns:
    """A mean of many episodes in each of few rows."""
    return learns(seed, 48, 0.06, 0.05)


def learns_late(seed: int, n: int = 800) -> Columns:
    """Nothing but zeros and the odd hit until the last fifth."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    chance = 0.01 + 0.9 / (1 + np.exp(-40 * (f - 0.85)))
    return episodes((rng.random(n) < chance).astype(np.float64))


def falls_and_learns_again(seed: int, n: int = 600) -> Columns:
    """It forgets for a tenth of the run, three times, and comes back each time."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    level = 1 - np.exp(-12 * f)
    for begin in (0.35, 0.6, 0.85):
        level[(f > begin) & (f < begin + 0.1)] *= 0.4
    return episodes(200 * level + 30 * rng.normal(size=n))


def another_task(seed: int, n: int = 500) -> Columns:
    """A harder task at three fifths, on which it learns anew."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    level = np.where(f < 0.6, 1 - np.exp(-10 * f), 0.2 + 0.7 * (1 - np.exp(-9 * (f - 0.6))))
    return episodes(100 * level + 10 * rng.normal(size=n))


def dips_first(seed: int, n: int = 300) -> Columns:
    """Worse than chance before it gets better."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    return episodes(
        -50 - 200 * np.exp(-(((f - 0.2) / 0.1) ** 2)) + 250 * f + 30 * rng.normal(size=n)
    )


def settles_lower(seed: int, n: int = 1000) -> Columns:
    """A third is lost for the last quarter, and the spread of the episodes with it."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    level = np.clip(8 * (f - 0.15), 0, 1) - 0.32 * np.clip((f - 0.7) / 0.08, 0, 1)
    return episodes(20 + 180 * level + np.where(f < 0.75, 40 * level, 8) * rng.normal(size=n))


def falls_for_good(seed: int, n: int = 33) -> Columns:
    """In one row of few all is lost, and it stays so."""
    rng = np.random.default_rng(seed)
    k = np.arange(n)
    level = np.where(k < 12, -140 + 660 * np.clip(k / 6, 0, 1), -200)
    return episodes(level + np.where(k < 12, 35, 25) * rng.normal(size=n))


def falls_slowly(seed: int, n: int = 600) -> Columns:
    """All that was learned is lost again, over a tenth of the run."""
    rng = np.random.default_rng(seed)
    f = np.arange(n) / n
    level = np.clip(6 * f, 0, 1) - 0.9 * np.clip((f - 0.6) / 0.1, 0, 1)
    return episodes(-500 + 700 * level + 120 * rng.normal(size=n))


SOUND = (
    learns,
    learns_noisily,
    learns_in_few_rows,
    learns_late,
    falls_and_learns_again,
    another_task,
    dips_first,
)
FALLS: dict[Make, tuple[int, int]] = {
    settles_lower: (650, 850),
    falls_for_good: (10, 14),
    falls_slowly: (330, 440),
}


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", SOUND, ids=lambda f: f.__name__)
def test_a_reward_that_has_not_fallen_for_good_is_no_alarm(
    make: Make, seed: int, tmp_path: Path
) -> None:
    assert not alarms(log(tmp_path / "rewards.csv", make(seed)))


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", FALLS, ids=lambda f: f.__name__)
def test_a_reward_that_falls_for_good_is_told_where_it_fell(
    make: Make, seed: int, tmp_path: Path
) -> None:
    (found,) = alarms(log(tmp_path / "rewards.csv", make(seed)))
    first, last = FALLS[make]
    assert (found.kind, found.signals) == ("policy-collapse", ("reward",))
    assert first <= found.onset_row <= last


@pytest.mark.parametrize("seed", range(100, 104))
def test_the_fall_of_the_reward_is_the_first_sign_of_a_loss_that_rises_later(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    columns = falls_for_good(seed, 120) | {
        "loss": np.where(np.arange(120) < 40, 1.5, 7.0) * np.exp(0.15 * rng.normal(size=120))
    }
    of_loss = [i for i in alarms(log(tmp_path / "agent.csv", columns)) if "loss" in i.signals]
    assert of_loss
    assert {(i.precursor_signal, i.precursor_row in range(10, 15)) for i in of_loss} == {
        ("reward", True)
    }


def updates(seed: int, n: int = 30) -> Columns:
    """A sound run of PPO, a row an update, whose entropy falls as it learns."""
    rng = np.random.default_rng(seed)
    k = np.arange(n)
    reward = -20 + 9 * (1 - np.exp(-k / (n / 4))) + rng.normal(0, 0.25, n)
    explained = np.clip(1 - np.exp(-k / 3), 0, 0.999) - 0.02 * rng.random(n)
    return {
        "time/total_timesteps": 2048.0 * (k + 1),
        "rollout/ep_rew_mean": reward,
        "train/approx_kl": np.clip(0.03 * np.exp(-k / n) * rng.lognormal(0, 0.6, n), 0, None),
        "train/entropy_loss": -1.0 * np.exp(-k / (n / 3)) - 0.4,
        "train/explained_variance": explained,
        "train/policy_gradient_loss": rng.normal(-0.01, 0.004, n),
        "train/value_loss": 20 * np.exp(-k / 3) * rng.lognormal(0, 0.2, n) + 0.01,
        "train/loss": 5 * np.exp(-k / 3) * rng.lognormal(0, 0.3, n),
    }


def large_divergence_without_harm(seed: int) -> Columns:
    """One update moves the policy far, and the reward rises on."""
    columns = updates(seed)
    columns["train/approx_kl"][20] = 0.4
    return columns


def odd_reward_without_divergence(seed: int) -> Columns:
    """One rollout goes badly, after an update like all others."""
    columns = updates(seed)
    columns["rollout/ep_rew_mean"][20] -= 4
    return columns


def noisy_updates(seed: int, n: int = 200) -> Columns:
    """The reward of a row is that of few episodes, and divergences have a long tail."""
    rng = np.random.default_rng(seed)
    columns = updates(seed, n)
    columns["rollout/ep_rew_mean"] += rng.normal(0, 2.5, n)
    columns["train/approx_kl"] = 0.02 * rng.lognormal(0, 1.0, n)
    return columns


def breaks_in_one_update(seed: int) -> Columns:
    """An update moves the policy far; what was gained is half lost, and partly won back."""
    columns = updates(seed, 25)
    columns["train/approx_kl"][20] = 0.43
    columns["train/policy_gradient_loss"][20] = 0.37
    columns["rollout/ep_rew_mean"][20:] -= np.array([4.8, 3.9, 2.5, 1.4, 0.9])
    return columns


def breaks_at_the_end(seed: int) -> Columns:
    """The same, in a log that ends there."""
    return {name: values[:21] for name, values in breaks_in_one_update(seed).items()}


def spent_at_once(seed: int, n: int = 30) -> Columns:
    """Rewards that wander, until the entropy is gone in one row and the reward with it."""
    rng = np.random.default_rng(seed)
    reward = 40 + 50 * np.sin(np.pi * np.arange(n) / n) + rng.normal(0, 15, n)
    entropy = 0.45 * rng.lognormal(0, 0.12, n)
    reward[-1], entropy[-1] = min(9.6, reward.min() - 5), 0.1
    return {
        "step": np.arange(1.0, n + 1),
        "reward": reward,
        "entropy": entropy,
        "value loss": rng.lognormal(0, 0.3, n),
    }


def entropy_spent_on_the_best(seed: int) -> Columns:
    """The same of a policy that settles on what it does well."""
    columns = spent_at_once(seed)
    columns["reward"][-1] = columns["reward"].max()
    return columns


def explains_nothing(seed: int, n: int = 33) -> Columns:
    """A reward that stays about where it began, and a critic that explains nothing."""
    rng = np.random.default_rng(seed)
    columns = updates(seed, n)
    columns["rollout/ep_rew_mean"] = -1200 + wander(rng, n, 40, 4)
    early = np.exp(-np.arange(n) / 3)
    columns["train/explained_variance"] = rng.normal(0, 1, n) * (0.2 * early + 1e-4)
    return columns


def believes_itself(seed: int, n: int = 70) -> Columns:
    """The total falls far below zero with what the critic believes; the reward does not move."""
    rng = np.random.default_rng(seed)
    total = 6 - 245 * (1 - np.exp(-np.arange(n) / 30)) + rng.normal(0, 1, n)
    return {"Total_Loss": total, "Batch_Reward_Mean": -0.174 + 0.009 * rng.normal(size=n)}


def total_falls_as_it_learns(seed: int, n: int = 70) -> Columns:
    """The same, of an agent that learns."""
    columns = believes_itself(seed, n)
    columns["Batch_Reward_Mean"] += 0.3 * np.arange(n) / n
    return columns


def first_success_is_late(seed: int, n: int = 80) -> Columns:
    """Sparse rewards: the critic explains nothing of zeros and a few hits."""
    rng = np.random.default_rng(seed)
    columns = updates(seed, n)
    columns["rollout/ep_rew_mean"] = np.where(rng.random(n) < 0.2, 0.01, 0.0)
    columns["train/explained_variance"] = rng.normal(0, 0.003, n)
    return columns


def learns_behind_its_critic(seed: int, n: int = 60) -> Columns:
    """Nothing for two thirds, then it learns."""
    columns = explains_nothing(seed, n)
    rise = np.clip(np.arange(n) - 2 * n // 3, 0, None)
    columns["rollout/ep_rew_mean"] += 60.0 * rise
    columns["train/explained_variance"] += 0.8 * (rise > 0)
    return columns


SOUND_UPDATES = (
    updates,
    large_divergence_without_harm,
    odd_reward_without_divergence,
    noisy_updates,
    entropy_spent_on_the_best,
    total_falls_as_it_learns,
    first_success_is_late,
    learns_behind_its_critic,
)


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", SOUND_UPDATES, ids=lambda f: f.__name__)
def test_a_sound_agent_is_no_alarm(make: Make, seed: int, tmp_path: Path) -> None:
    assert not alarms(log(tmp_path / "progress.csv", make(seed)))


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", [breaks_in_one_update, breaks_at_the_end])
def test_an_update_that_breaks_the_policy_is_told_in_its_row(
    make: Make, seed: int, tmp_path: Path
) -> None:
    (found,) = alarms(log(tmp_path / "progress.csv", make(seed)))
    assert (found.kind, found.severity, found.onset_row) == ("policy-collapse", "warning", 20)


@pytest.mark.parametrize("seed", range(100, 104))
def test_entropy_that_is_spent_at_the_lowest_reward_is_told(seed: int, tmp_path: Path) -> None:
    (found,) = alarms(log(tmp_path / "progress.csv", spent_at_once(seed)))
    assert (found.kind, found.signals, found.onset_row) == ("policy-collapse", ("reward",), 29)


def explores_in_vain(seed: int) -> Columns:
    """Each action is drawn at random less and less often, and the reward is what it was."""
    rng = np.random.default_rng(seed)
    n = 200
    columns = episodes(-620 + 130 * rng.normal(size=n))
    return columns | {"epsilon": np.exp(-0.005 * np.arange(float(n))) * 0.4}


def still_explores(seed: int) -> Columns:
    """Most actions are random yet, so that nothing can be learned of the policy."""
    columns = explores_in_vain(seed)
    return columns | {"epsilon": 1.0 - 0.002 * np.arange(200.0)}


def gains_a_little(seed: int) -> Columns:
    """The reward gains as much as rows differ while exploration is given up."""
    columns = explores_in_vain(seed)
    return columns | {"reward": columns["reward"] + np.linspace(0, 130, 200)}


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", [still_explores, gains_a_little])
def test_a_flat_reward_alone_is_no_alarm(make: Make, seed: int, tmp_path: Path) -> None:
    assert not alarms(log(tmp_path / "progress.csv", make(seed)))


@pytest.mark.parametrize("make", [still_explores, gains_a_little])
def test_a_reward_without_a_loss_is_said_to_have_risen_or_not(make: Make, tmp_path: Path) -> None:
    (run,) = trimtab.analyze(log(tmp_path / "progress.csv", make(100))).runs
    assert run.judgement.verdict == "not-judged"
    assert ("it has not risen" in run.judgement.why) == (make is still_explores)


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("make", [explains_nothing, believes_itself, explores_in_vain])
def test_a_reward_that_never_leaves_its_level_is_told_beside_what_shows_it(
    make: Make, seed: int, tmp_path: Path
) -> None:
    (found,) = alarms(log(tmp_path / "progress.csv", make(seed)))
    assert (found.kind, found.severity, found.signals[0]) == ("never-learns", "warning", "reward")


def test_an_agent_whose_reward_has_not_risen_is_not_called_healthy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    loss = 0.5 + np.exp(-np.arange(200.0) / 40) + 0.02 * rng.normal(size=200)
    flat = episodes(-0.014 + 0.002 * rng.normal(size=200)) | {"loss": loss}
    (run,) = trimtab.analyze(log(tmp_path / "flat.csv", flat)).runs
    assert run.judgement.verdict == "not-judged"
    assert "the reward stands where it began" in run.judgement.why
    risen = flat | {"reward": flat["reward"] + np.linspace(0, 0.004, 200)}
    (run,) = trimtab.analyze(log(tmp_path / "risen.csv", risen)).runs
    assert run.judgement.verdict == "healthy"


def test_gains_of_huge_rewards_do_not_overflow() -> None:
    huge = 1e308 * np.sin(np.arange(64.0))
    assert not gained(huge)
    assert gained(1e308 * np.linspace(0, 1, 64))
    assert not gained(np.zeros(64))


def learns_values(seed: int) -> Columns:
    """The loss of a net of values begins at next to nothing, and grows with what it earns."""
    rng = np.random.default_rng(seed)
    columns = learns(seed, 300)
    gain = (columns["reward"] - columns["reward"].min()) / np.ptp(columns["reward"])
    td = (0.004 + 0.4 * np.maximum.accumulate(gain)) * np.exp(0.3 * rng.normal(size=300))
    return columns | {"epsilon": np.maximum(0.975 ** np.arange(300), 0.03), "td_loss": td}


def rises_and_loses_all(seed: int) -> Columns:
    """A hump: what was gained within a few updates is lost within as many."""
    rng = np.random.default_rng(seed)
    rows = np.arange(240.0)
    reward = 0.7 + 100 * np.exp(-(((rows - 125) / 12) ** 2)) + 0.2 * rng.normal(size=240)
    return episodes(reward) | {"epsilon": np.maximum(1 - rows / 170, 0.0)}


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_loss_of_values_that_grows_with_the_reward_is_sound(seed: int, tmp_path: Path) -> None:
    assert not alarms(log(tmp_path / "progress.csv", learns_values(seed)))
    text = learns_values(seed) | {"train/loss": learns_values(seed)["td_loss"]}
    del text["td_loss"]
    assert not alarms(log(tmp_path / "named.csv", text))


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_hump_of_the_reward_that_is_lost_again_is_told(seed: int, tmp_path: Path) -> None:
    (found,) = alarms(log(tmp_path / "progress.csv", rises_and_loses_all(seed)))
    assert (found.kind, found.severity) == ("policy-collapse", "warning")
    assert 125 <= found.onset_row <= 165


def test_an_agent_that_learns_within_its_first_rows_has_left_its_level(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reward = 20 + 160 * (1 - np.exp(-np.arange(400) / 3)) + 12 * rng.normal(size=400)
    columns = episodes(reward) | {"epsilon": np.exp(-0.01 * np.arange(400.0))}
    assert not alarms(log(tmp_path / "progress.csv", columns))
    assert gained(reward)
    clip: Columns = episodes(20 + 3 * rng.normal(size=400))
    clip["epsilon"] = np.linspace(0.2, 0.0, 400)
    assert not alarms(log(tmp_path / "clip.csv", clip))


def test_a_reward_that_rose_and_sinks_is_not_said_to_stand() -> None:
    t = np.arange(300)
    rng = np.random.default_rng(0)
    reward = -3 - 6 * np.exp(-t / 60) - np.where(t > 260, (t - 260) * 0.4, 0.0)
    columns = {
        "loss": rng.normal(0, 1, len(t)),
        "reward": reward + rng.normal(0, 0.3, len(t)),
    }
    (run,) = trimtab.analyze({"step": t, **columns}).runs
    told = [i.headline for i in run.incidents if i.severity != "info"]
    assert any("sinks" in text for text in (*told, run.judgement.why))


def rises_and_sinks(seed: int, end: float, since: float, noise: float = 0.7) -> Columns:
    """It learns up to 10, and loses it again, evenly, to the end."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(110, 900))
    f = np.arange(n) / n
    level = np.where(
        f < since,
        10 * np.minimum(f / min(since, 0.5), 1),
        10 - (10 - end) * (f - since) / (1 - since),
    )
    return episodes(level + noise * rng.normal(size=n))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("end", "since"), [(2.0, 0.5), (4.0, 0.5), (2.0, 0.3), (2.0, 0.75)])
def test_a_reward_that_still_sinks_at_the_end_is_told_from_its_best_on(
    seed: int, end: float, since: float, tmp_path: Path
) -> None:
    columns = rises_and_sinks(seed, end, since)
    (found,) = alarms(log(tmp_path / "progress.csv", columns))
    assert found.kind == "policy-collapse"
    assert abs(found.onset_row / len(columns["reward"]) - since) <= 0.12


@pytest.mark.parametrize("phi", [0.8, 0.95, 0.98])
def test_rewards_that_wander_about_what_was_learned_hardly_ever_sink(phi: float) -> None:
    told = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=700)
        for i in range(1, 700):
            noise[i] += phi * noise[i - 1]
        n = int(rng.integers(100, 700))
        wandering = noise[-n:] / noise.std()
        y = 5 * (1 - np.exp(-np.arange(n) / (n / 6))) + wandering
        record = record_of(np.arange(float(n)), {"reward": y})
        told += len(with_reward_sinks(record, ()))
    assert told <= 1
