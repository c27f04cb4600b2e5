"""What had been learned before was not kept from learning by its labels or inputs."""

import numpy as np

import trimtab


def test_a_model_that_had_learned_and_gives_one_answer_then_was_not_guessing_from_the_start() -> (
    None
):
    n = np.arange(200)
    rng = np.random.default_rng(0)
    lost = n >= 90
    loss = np.where(lost, 1.38, 1.4 * np.exp(-n / 20) + 0.03) + 0.004 * rng.standard_normal(200)
    score = np.where(lost, 0.2667, np.minimum(0.98, 0.3 + n / 60))
    columns = {"epoch": n, "loss": loss, "val_acc": score}
    (run,) = trimtab.analyze(columns).runs
    alarms = [i for i in run.incidents if i.severity != "info"]
    assert alarms
    assert all(i.causes[0].cause != "chance-from-start" for i in alarms)


def test_a_loss_that_does_again_what_it_did_at_first_is_of_fresh_weights() -> None:
    n = np.arange(1600)
    rng = np.random.default_rng(3)
    since = np.where(n < 900, n, n - 900)
    loss = (2 + 8.6 * (1 + since / 12) ** -0.5) * (1 + 0.02 * rng.standard_normal(1600))
    columns = {"step": 10 * n, "loss": loss, "lr": np.full(1600, 3e-4)}
    (run,) = trimtab.analyze(columns).runs
    (alarm,) = [i for i in run.incidents if i.severity != "info"]
    assert alarm.causes[0].cause == "code-or-resume-change"
    # A spike of another course is none.
    spiked = np.where(n < 900, loss, 2.98) + 8 * np.exp(-np.maximum(n - 900, 0) / 300) * (n >= 900)
    (run,) = trimtab.analyze(columns | {"loss": spiked}).runs
    assert all(
        i.causes[0].cause != "code-or-resume-change" for i in run.incidents if i.severity != "info"
    )
