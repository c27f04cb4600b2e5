"""What had been learned before was not kept from learning by its labels or inputs."""

import numpy as np

import trimtab


def test_a_model_that_had_learned_and_gives_one_answer_then_was_not_guessing_from_the_start() -> None:
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
