"""The table of everyday faults: how each looks, its benign twin, its source, its right causes.

A fault is put on a healthy run by a function of that run. Its twin is the same run with something
benign that looks alike, or with nothing. `causes` are the first causes that count as right; where
a log cannot tell two apart, both stand there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.everyday.runs import Floats, MadeRun

__all__ = ["FAULTS", "FAULT_BY_ID", "EverydayFault"]

Plant = Callable[[MadeRun], int]
"""Changes a run in place and returns the row at which the fault begins."""


@dataclass(frozen=True, kw_only=True)
class EverydayFault:
    """One row of the table."""

    id: str
    title: str
    plant: Plant
    twin: Callable[[MadeRun], object]
    """Puts on what is benign and looks alike."""
    twin_title: str
    causes: tuple[str, ...]
    source: str
    exact: bool = False
    """It shows in a value that has no noise: a setting, a NaN, a zero."""
    signals: tuple[str, ...] = ("loss",)
    """Signals in which the reference test looks for it."""


def _nothing(run: MadeRun) -> None:
    """Leave the run as it is."""


def _relaxing(run: MadeRun, height: float, *, rise: int, rest: float, half: float) -> Floats:
    """Return a rise over some rows, then a return to a share of the height."""
    t = np.arange(run.num_rows, dtype=np.float64)
    down = rest + (1 - rest) * np.exp(-np.maximum(t - rise, 0) / half)
    return np.asarray(height * np.minimum((t + 1) / rise, 1.0) * down)


def _lift_norm(run: MadeRun, row: int, factor: float, rows: int) -> None:
    t = np.arange(run.num_rows - row)
    run.columns["grad_norm"][row:] *= 1 + (factor - 1) * np.exp(-t / max(rows, 1))


# ------------------------------------------------------------------ settings


def _rate_jump(factor: float, height: float) -> Plant:
    def plant(run: MadeRun) -> int:
        row = run.place()
        run.columns["lr"][row:] *= factor
        rise = 2 + run.num_rows // 200
        high = height * run.size()
        if height:
            run.add(_relaxing(run, high, rise=rise, rest=0.4, half=run.num_rows / 6), row)
            _lift_norm(run, row, 4 * run.size(), run.num_rows // 12)
        return row

    return plant


def _warm_restarts(run: MadeRun) -> None:
    """A schedule of three cosine cycles that come back to the peak, as SGDR plans them."""
    t = np.arange(run.num_rows)
    cycle = max(run.num_rows // 3, 8)
    u = (t % cycle) / cycle
    peak = float(run.columns["lr"].max())
    lr = peak * (0.05 + 0.475 * (1 + np.cos(np.pi * u)))
    run.columns["lr"] = lr * np.minimum(1.0, (t + 1) / run.warm_up_rows)


def _rewarmed(run: MadeRun) -> None:
    """A resume that warms the rate up again to where it was."""
    row = run.place()
    run.resume(row)
    ramp = np.minimum(1.0, (np.arange(run.num_rows - row) + 1) / max(5, run.num_rows // 20))
    run.columns["lr"][row:] *= ramp


def _resumed(run: MadeRun) -> int:
    row = run.place()
    run.resume(row)
    return row


def _resume_rate(run: MadeRun) -> int:
    row = _resumed(run)
    run.columns["lr"][row:] *= 12 * run.size()
    high = 0.5 * run.size()
    run.add(_relaxing(run, high, rise=3, rest=0.5, half=run.num_rows / 5), row)
    return row


def _with_setting(name: str, value: float) -> Callable[[MadeRun], None]:
    def put(run: MadeRun) -> None:
        run.columns[name] = np.full(run.num_rows, value)

    return put


def _resume_setting(name: str, before: float, after: float) -> Plant:
    def plant(run: MadeRun) -> int:
        _with_setting(name, before)(run)
        row = _resumed(run)
        run.columns[name][row:] = after
        return row

    return plant


def _resume_setting_twin(name: str, value: float) -> Callable[[MadeRun], None]:
    def twin(run: MadeRun) -> None:
        _with_setting(name, value)(run)
        _resumed(run)

    return twin


def _step_setting(name: str, before: float, after: float) -> Plant:
    def plant(run: MadeRun) -> int:
        _with_setting(name, before)(run)
        row = run.place()
        run.columns[name][row:] = after
        return row

    return plant


def _batch_ramp(run: MadeRun) -> None:
    """The batch grows by equal steps over the first tenth of the run."""
    t = np.arange(run.num_rows)
    rung = np.minimum(t // max(1, run.num_rows // 60), 6)
    run.columns["batch_size"] = 64.0 * (rung + 2)


def _decay_schedule(run: MadeRun) -> None:
    """The weight decay follows a smooth schedule up, as vision recipes do."""
    u = np.arange(run.num_rows) / run.num_rows
    run.columns["weight_decay"] = 0.04 + 0.36 * (1 - np.cos(np.pi * u)) / 2


# --------------------------------------------------------------------- start


def _too_high(run: MadeRun) -> int:
    """The loss falls, then climbs above where it began as the warm-up ends, and comes down late."""
    t = np.arange(run.num_rows, dtype=np.float64)
    w = run.warm_up_rows
    top = run.chance * (1.15 + 0.4 * run.size())
    hump = np.exp(-np.maximum(t - 2 * w, 0) / (run.num_rows / 8)) * np.minimum(t / (2 * w), 1.0)
    end = 0.62 * run.chance
    mean = end + (run.chance - end) * np.exp(-t / (run.num_rows / 4)) + (top - run.chance) * hump
    run.with_mean(mean)
    run.columns["val_loss"] = mean + 0.3 + 0.25 * run.noise
    run.columns["lr"] *= 60
    run.columns["grad_norm"] *= 12 * run.size()
    return 0


def _no_warm_up(run: MadeRun) -> int:
    t = np.arange(run.num_rows, dtype=np.float64)
    run.columns["lr"] = np.full(run.num_rows, float(run.columns["lr"].max())) * (
        1 - 0.9 * t / run.num_rows
    )
    high = run.chance * (0.35 + 0.3 * run.size())
    reach = max(4.0, run.num_rows / 25)
    run.add(high * (t / 2) * np.exp(1 - t / 2) * 0.5 + high * (t > 0) * np.exp(-t / reach), 0)
    _lift_norm(run, 0, 30 * run.size(), int(reach))
    return 0


def _flat_at(run: MadeRun, level: float, *, spread: float = 0.3) -> None:
    run.noise = run.noise * spread
    run.with_mean(np.full(run.num_rows, level))
    run.columns["val_loss"] = np.full(run.num_rows, level) + run.noise * 0.3


def _chance(run: MadeRun) -> int:
    _flat_at(run, run.chance)
    run.columns["grad_norm"] *= 0.02
    return 0


def _chance_of_two(run: MadeRun) -> int:
    _flat_at(run, math.log(2.0), spread=0.5)
    return 0


def _no_gradient(run: MadeRun) -> int:
    _flat_at(run, run.mean[min(run.num_rows - 1, run.num_rows // 10)], spread=1.0)
    run.columns["grad_norm"] = np.zeros(run.num_rows)
    return 0


def _rate_zero(run: MadeRun) -> int:
    _flat_at(run, run.mean[min(run.num_rows - 1, run.num_rows // 10)], spread=1.0)
    run.columns["lr"] = np.zeros(run.num_rows)
    return 0


def _frozen_loss(run: MadeRun) -> int:
    run.columns["loss"] = np.full(run.num_rows, 6.9078)
    return 0


def _slow_start(run: MadeRun) -> None:
    """The loss stays near chance through a long warm-up, then falls."""
    hold = max(4, run.num_rows // 25)
    mean = np.concatenate([np.full(hold, run.mean[0]), run.mean[:-hold]])
    run.columns["val_loss"] += mean - run.mean
    run.with_mean(mean)


def _fine_tune(run: MadeRun) -> None:
    """A trained model goes on: the loss starts low and falls little."""
    start = run.draw(1.2, 1.9)
    mean = start + 0.06 * (run.mean - run.mean[-1])
    run.columns["val_loss"] += mean - run.mean
    run.with_mean(mean)


def _dead_later(run: MadeRun) -> int:
    row = run.place()
    t = np.arange(run.num_rows - row)
    mean = run.mean.copy()
    mean[row:] = run.chance - (run.chance - mean[row:]) * np.exp(-(t + 1) / 2.0)
    run.noise = np.where(np.arange(run.num_rows) < row, run.noise, 0.2 * run.noise)
    run.with_mean(mean)
    run.columns["grad_norm"][row + 4 :] *= 0.01
    return row


# ---------------------------------------------------- validation, memory, data


def _overfit(run: MadeRun) -> int:
    row = run.place()
    t = np.maximum(np.arange(run.num_rows) - row, 0) / run.num_rows
    rise = 0.9 * run.size() * t
    run.columns["val_loss"] += rise
    run.columns["val_loss"][row:] -= run.mean[row:] - run.mean[row]
    run.with_mean(run.mean - 0.8 * rise)
    return row


def _val_saturates(run: MadeRun) -> None:
    """Validation stops falling while training goes on: a gap that widens, and no rise."""
    row = run.place()
    run.columns["val_loss"][row:] += run.mean[row] - run.mean[row:]
    run.with_mean(run.mean - 0.4 * np.maximum(np.arange(run.num_rows) - row, 0) / run.num_rows)


def _val_sets(run: MadeRun) -> None:
    run.present["val_loss/code"] = run.present["val_loss"]
    run.present["val_loss/web"] = run.present["val_loss"]
    val = run.columns.pop("val_loss")
    run.present.pop("val_loss")
    run.columns["val_loss/code"], run.columns["val_loss/web"] = val - 0.4, val + 0.1


def _overfit_set(run: MadeRun) -> int:
    _val_sets(run)
    row = run.place()
    t = np.maximum(np.arange(run.num_rows) - row, 0) / run.num_rows
    run.columns["val_loss/code"] += 1.2 * run.size() * t
    run.columns["val_loss/code"][row:] -= run.mean[row:] - run.mean[row]
    return row


def _memory_curve(run: MadeRun) -> int:
    """A small set learned by heart in some epochs: down to 0.001 nats, steps at the epochs."""
    start, end = run.draw(1.5, 2.6), run.draw(0.0006, 0.006)
    epochs = int(run.draw(6, 12))
    u = np.arange(run.num_rows) / run.num_rows
    stair = np.floor(u * epochs) / epochs
    fall = 0.5 * stair + 0.5 * u
    mean = start * (end / start) ** np.minimum(1.0, 1.5 * fall)
    own = 0.15 * mean * run.noise / max(run.sigma, 1e-9)
    run.noise = own
    run.with_mean(np.asarray(mean))
    run.columns["loss"] = np.maximum(run.columns["loss"], 0.3 * mean)
    return int(np.argmax(mean < 0.1 * start))


def _memorised(run: MadeRun) -> int:
    row = _memory_curve(run)
    u = np.arange(run.num_rows) / run.num_rows
    start = float(run.mean[0])
    bottom = 0.75 * start
    val = bottom + 0.25 * start * np.exp(-u * 12) + 0.5 * run.size() * np.maximum(u - 0.15, 0)
    run.columns["val_loss"] = val
    if not run.quiet:
        run.columns["val_loss"] += 0.01 * np.random.default_rng(run.num_rows).standard_normal(
            run.num_rows
        )
    return row


def _memorised_unchecked(run: MadeRun) -> int:
    row = _memory_curve(run)
    run.columns.pop("val_loss")
    run.columns["epoch"] = 8.0 * np.arange(run.num_rows) / run.num_rows
    return row


def _solved_in_one_pass(run: MadeRun) -> None:
    """The same loss of data of which nothing came twice."""
    _memory_curve(run)
    run.columns.pop("val_loss")
    run.columns["epoch"] = 0.9 * np.arange(run.num_rows) / run.num_rows


def _task_learned(run: MadeRun) -> None:
    """A task that can be solved: training and validation both come down to nearly nothing."""
    _memory_curve(run)
    run.columns["val_loss"] = run.mean * 1.3


def _stairs(run: MadeRun, drop: float) -> list[int]:
    epochs = int(run.draw(3, 6.99))
    edges = [run.num_rows * k // epochs for k in range(1, epochs)]
    mean = run.mean.copy()
    for edge in edges:
        mean[edge:] *= 1 - drop
    run.with_mean(mean)
    return edges


def _staircase(run: MadeRun) -> int:
    healthy = run.mean.copy()
    edges = _stairs(run, min(0.35, 0.16 * run.size()))
    rows = np.arange(run.num_rows)
    first = edges[0]
    val = run.columns["val_loss"]
    # From the second pass on it learns nothing new, and each pass makes it worse.
    val[first:] += healthy[first] - healthy[first:]
    for edge in edges:
        val += np.where(rows >= edge, 0.06 * run.size(), 0.0)
    return first


def _mild_stairs(run: MadeRun) -> None:
    """Epochs that show a little: one per cent at each boundary, and validation falls on."""
    _stairs(run, 0.01)


def _repeated(run: MadeRun) -> int:
    """From a row on the same few batches come over and over."""
    row = run.place()
    period = max(8, run.num_rows // 40)
    rows = np.arange(run.num_rows)
    tail = rows >= row
    strong = 3.0 * run.noise
    run.noise = np.where(tail, strong[row - period + (rows - row) % period], run.noise)
    t = np.maximum(rows - row, 0)
    fall = 1 - 0.75 * (1 - np.exp(-t / (0.15 * run.num_rows)))
    run.with_mean(np.asarray(run.mean * fall))
    val = run.columns["val_loss"]
    val += np.where(tail, 0.5 * run.size() * t / run.num_rows, 0.0)
    return row


def _too_low(rows_share: float) -> Plant:
    def plant(run: MadeRun) -> int:
        row = run.place()
        t = np.maximum(np.arange(run.num_rows) - row, 0)
        width = max(1.0, rows_share * run.num_rows)
        share = min(0.7, 0.3 * run.size())
        run.with_mean(np.asarray(run.mean * (1 - share * np.minimum(t / width, 1.0))))
        return row

    return plant


def _rate_cut(run: MadeRun) -> None:
    """The rate is cut to a tenth, and the loss comes down for it."""
    row = run.place()
    run.columns["lr"][row:] *= 0.1
    t = np.maximum(np.arange(run.num_rows) - row, 0)
    shape = -0.12 * (1 - np.exp(-t / (0.03 * run.num_rows)))
    run.add(shape[row:], row)
    run.columns["val_loss"] += shape


def _stall(share: float) -> Plant:
    def plant(run: MadeRun) -> int:
        row = int(run.num_rows * (1 - share))
        mean = run.mean.copy()
        # The run had been falling well: a curve that is flat anyway has nothing to stall.
        u = np.arange(run.num_rows) / run.num_rows
        mean += 0.8 * (1 - u)
        mean[row:] = mean[row]
        run.with_mean(mean)
        run.columns["lr"] = np.full(run.num_rows, float(run.columns["lr"].max()))
        run.columns["val_loss"] += mean - (run.columns["loss"] - run.noise)
        run.columns.pop("val_loss")
        return row

    return plant


def _steady_fall(run: MadeRun) -> None:
    """The same fall, which goes on to the end."""
    u = np.arange(run.num_rows) / run.num_rows
    run.with_mean(run.mean + 0.8 * (1 - u))
    run.columns["lr"] = np.full(run.num_rows, float(run.columns["lr"].max()))
    run.columns.pop("val_loss")


def _rate_ended(run: MadeRun) -> int:
    """The schedule was made for fewer steps: the rate is 0 for the rest."""
    row = run.place()
    t = np.arange(run.num_rows)
    peak = float(run.columns["lr"].max())
    run.columns["lr"] = (
        peak * np.maximum(0.0, 1 - t / row) * np.minimum(1.0, (t + 1) / run.warm_up_rows)
    )
    mean = run.mean.copy()
    mean[row:] = mean[row]
    run.with_mean(mean)
    run.columns["val_loss"][row:] += mean[row] - (run.columns["val_loss"][row:] - 0.05)
    return row


def _decays_to_zero(run: MadeRun) -> None:
    t = np.arange(run.num_rows)
    peak = float(run.columns["lr"].max())
    run.columns["lr"] = (
        peak * (1 - (t + 1) / run.num_rows) * np.minimum(1.0, (t + 1) / run.warm_up_rows)
    )


# ---------------------------------------------------------------- non-finite


def _masked_batches(run: MadeRun) -> int:
    row = run.place()
    rows = row + run.rng.choice(run.num_rows - row - 1, size=6, replace=False)
    rows[0] = row
    run.columns["loss"][rows] = math.nan
    return row


def _log_of_zero(run: MadeRun) -> int:
    row = run.place()
    run.columns["loss"][row] = math.inf
    run.columns["loss"][row + 1 :] = math.nan
    run.columns["grad_norm"][row:] = math.nan
    run.columns["val_loss"][row:] = math.nan
    return row


def _division(run: MadeRun) -> int:
    row = run.place()
    for name in ("loss", "grad_norm", "val_loss"):
        run.columns[name][row:] = math.nan
    return row


def _silent_nan(run: MadeRun) -> int:
    row = run.place()
    run.columns["loss"][row:] = 0.0
    run.columns["grad_norm"][row:] = math.nan
    run.columns["val_loss"][row:] = math.nan
    return row


# ------------------------------------------------- spikes, scaler, pace, sets


def _bad_window(run: MadeRun) -> int:
    row = run.place()
    rows = max(6, min(40, run.num_rows // 30))
    high = 0.6 * run.size()
    run.add(np.full(rows, high), row)
    run.columns["grad_norm"][row : row + rows] *= 1.5
    return row


def _organic_spike(run: MadeRun) -> int:
    row = run.place()
    high = 1.2 * run.size()
    length = 6 + run.num_rows // 60
    t = np.arange(8 * length, dtype=np.float64)
    rise = np.minimum((t + 1) / 5, 1.0) ** 2
    run.add(high * rise * np.exp(-np.maximum(t - 5, 0) / length), row)
    norm = run.columns["grad_norm"]
    norm[row - 2 : row + 4] *= np.array([4.0, 8.0, 15.0, 12.0, 8.0, 4.0])
    return row


def _scale_floor(floor: float) -> Plant:
    def plant(run: MadeRun) -> int:
        row = run.place()
        scale = np.full(run.num_rows, 65536.0)
        fall = 65536.0 * 0.5 ** (np.arange(run.num_rows - row) + 1)
        scale[row:] = np.maximum(fall, floor)
        run.columns["loss_scale"] = scale
        mean = run.mean.copy()
        mean[row:] = mean[row]
        run.with_mean(mean)
        return row

    return plant


def _scale_at_work(run: MadeRun) -> None:
    """A scaler at work: it doubles after many clean steps and halves once in a while."""
    level = np.full(run.num_rows, 16.0)
    every = max(8, run.num_rows // 9)
    for k, row in enumerate(range(every, run.num_rows, every)):
        level[row:] += 1 if k % 2 == 0 else -1
    run.columns["loss_scale"] = 2.0**level


def _half_speed(run: MadeRun) -> int:
    row = run.place()
    run.columns["throughput"][row:] *= 0.5
    return row


def _slow_steps(run: MadeRun) -> None:
    """A checkpoint now and then: single slow rows."""
    run.columns["throughput"][:: max(10, run.num_rows // 10)] *= 0.4


def _data_again(run: MadeRun) -> int:
    """A resume that feeds the data from the start of the run again."""
    row = _resumed(run)
    noise = 2.0 * run.noise
    rest = run.num_rows - row
    noise[row:] = np.resize(noise[:row], rest) * 0.9
    run.noise = noise
    run.with_mean(run.mean - np.where(np.arange(run.num_rows) >= row, 0.08, 0.0))
    run.columns["samples_seen"] = run.step * 64
    run.columns["samples_seen"][row:] = (run.step[row:] - run.step[row] + run.step[0]) * 64
    return row


def _data_went_on(run: MadeRun) -> None:
    run.noise = 2.0 * run.noise
    run.with_mean(run.mean)
    _resumed(run)
    run.columns["samples_seen"] = run.step * 64


def _sets(run: MadeRun) -> None:
    for name, above in (("web", 0.1), ("code", -0.6), ("books", 0.3)):
        own = np.random.default_rng([run.num_rows, len(name)]).standard_normal(run.num_rows)
        level = run.mean + above
        run.columns[f"loss/{name}"] = level + (0.0 if run.quiet else 1.0) * run.sigma * own


def _set_apart(run: MadeRun) -> int:
    _sets(run)
    row = run.place()
    t = np.maximum(np.arange(run.num_rows) - row, 0)
    rise = 0.35 * run.size() * (1 - np.exp(-t / (0.05 * run.num_rows)))
    run.columns["loss/code"] += rise
    return row


def _diverges(run: MadeRun) -> int:
    row = run.place()
    t = np.maximum(np.arange(run.num_rows) - row, 0) / run.num_rows
    run.with_mean(run.mean + 6 * run.size() * t**1.3)
    run.columns["val_loss"] += 6 * t**1.3
    _lift_norm(run, row, 6.0, run.num_rows)
    return row


_OWN = "first principles"
_MEGATRON = "tr8-104B and tr11 chronicles (BigScience)"
_OPT = "OPT-175B logbook"
_CHANCE = "Karpathy, A recipe for training neural networks"
_JUMPS = ("learning-rate-jump",)
_SETTING = ("setting-changed", "code-or-resume-change")
_UNDEFINED = ("undefined-loss", "masked-batch")

FAULTS: tuple[EverydayFault, ...] = (
    *(
        EverydayFault(
            id=f"rate-jump-{factor:g}",
            title=f"the logged rate jumps by x{factor:g}",
            plant=_rate_jump(factor, height),
            twin=_warm_restarts,
            twin_title="planned warm restarts",
            causes=_JUMPS,
            source=_OWN,
            exact=True,
        )
        for factor, height in ((3.0, 0.25), (10.0, 0.6), (30.0, 1.2))
    ),
    EverydayFault(
        id="rate-jump-calm",
        title="the logged rate jumps by x5, the loss is calm",
        plant=_rate_jump(5.0, 0.0),
        twin=_warm_restarts,
        twin_title="planned warm restarts",
        causes=_JUMPS,
        source=_OWN,
        exact=True,
    ),
    EverydayFault(
        id="resume-rate",
        title="a resume with a rate far too high",
        plant=_resume_rate,
        twin=_rewarmed,
        twin_title="a resume that warms up again",
        causes=(*_JUMPS, *_SETTING),
        source="DeepSpeed and Megatron issues on schedulers that are not restored",
        exact=True,
    ),
    EverydayFault(
        id="resume-weight-decay",
        title="a resume with ten times the weight decay",
        plant=_resume_setting("weight_decay", 0.01, 0.1),
        twin=_resume_setting_twin("weight_decay", 0.1),
        twin_title="a resume with the same",
        causes=_SETTING,
        source=_OPT,
        exact=True,
    ),
    EverydayFault(
        id="resume-batch",
        title="a resume with a quarter of the batch",
        plant=_resume_setting("batch_size", 512, 128),
        twin=_resume_setting_twin("batch_size", 512),
        twin_title="a resume with the same",
        causes=_SETTING,
        source=_OWN,
        exact=True,
    ),
    EverydayFault(
        id="resume-betas",
        title="a resume with beta2 .999 for .95",
        plant=_resume_setting("beta2", 0.95, 0.999),
        twin=_resume_setting_twin("beta2", 0.95),
        twin_title="a resume with the same",
        causes=_SETTING,
        source=_OPT,
        exact=True,
    ),
    EverydayFault(
        id="weight-decay-step",
        title="the weight decay steps up by x10",
        plant=_step_setting("weight_decay", 0.01, 0.1),
        twin=_decay_schedule,
        twin_title="a smooth schedule of the weight decay",
        causes=_SETTING,
        source=_OPT,
        exact=True,
    ),
    EverydayFault(
        id="batch-falls",
        title="the batch falls to an eighth",
        plant=_step_setting("batch_size", 1024, 128),
        twin=_batch_ramp,
        twin_title="a batch that is ramped up",
        causes=_SETTING,
        source=_OWN,
        exact=True,
    ),
    EverydayFault(
        id="rate-too-high",
        title="the rate is too high from the first step",
        plant=_too_high,
        twin=_nothing,
        twin_title="the same run at a sound rate",
        causes=("learning-rate-too-high",),
        source="Wortsman et al. 2023, Small-scale proxies for large-scale instabilities",
    ),
    EverydayFault(
        id="no-warm-up",
        title="no warm-up: the peak rate in the first row",
        plant=_no_warm_up,
        twin=_nothing,
        twin_title="the same run with a warm-up",
        causes=("no-warm-up",),
        source="Xiong et al. 2020, On layer normalization in the transformer architecture",
    ),
    EverydayFault(
        id="chance-level",
        title="the loss stays at ln V from the first row",
        plant=_chance,
        twin=_slow_start,
        twin_title="a slow start that learns",
        causes=("chance-from-start", "uniform-output"),
        source=_CHANCE,
        exact=True,
    ),
    EverydayFault(
        id="chance-of-two",
        title="the loss stays at ln 2",
        plant=_chance_of_two,
        twin=_fine_tune,
        twin_title="a fine-tune that starts low and falls little",
        causes=("chance-from-start", "uniform-output"),
        source=_CHANCE,
        exact=True,
    ),
    EverydayFault(
        id="dead-gradient",
        title="the gradient norm is 0.0 and nothing is learned",
        plant=_no_gradient,
        twin=_fine_tune,
        twin_title="a fine-tune that starts low and falls little",
        causes=("no-gradient",),
        source="PEFT and LoRA issues on frozen inputs with gradient checkpointing",
        exact=True,
    ),
    EverydayFault(
        id="rate-zero",
        title="the rate is 0 from the first row",
        plant=_rate_zero,
        twin=_fine_tune,
        twin_title="a fine-tune that starts low and falls little",
        causes=("rate-at-zero",),
        source=_OWN,
        exact=True,
    ),
    EverydayFault(
        id="frozen-loss",
        title="the loss repeats one value from the first row",
        plant=_frozen_loss,
        twin=_nothing,
        twin_title="the same run, alive",
        causes=("not-wired", "chance-from-start", "uniform-output"),
        source="MLPerf logs of third parties",
        exact=True,
    ),
    EverydayFault(
        id="dead-later",
        title="the model dies: the loss goes to ln V and stays",
        plant=_dead_later,
        twin=_nothing,
        twin_title="the same run, alive",
        causes=("uniform-output",),
        source=_MEGATRON,
    ),
    EverydayFault(
        id="overfitting",
        title="training falls, validation rises",
        plant=_overfit,
        twin=_val_saturates,
        twin_title="validation stands, the gap widens",
        causes=("overfitting",),
        source="Goodfellow et al. 2016, Deep learning, section 7.8",
        signals=("val_loss",),
    ),
    EverydayFault(
        id="overfitting-one-set",
        title="one validation set of two rises",
        plant=_overfit_set,
        twin=_val_sets,
        twin_title="both fall",
        causes=("overfitting",),
        source=_OWN,
        signals=("val_loss/code",),
    ),
    EverydayFault(
        id="memorised",
        title="a small set learned by heart, validation rises",
        plant=_memorised,
        twin=_task_learned,
        twin_title="a task solved: both come down",
        causes=("memorised-data", "overfitting"),
        source="fine-tuning logs of third parties",
    ),
    EverydayFault(
        id="memorised-unchecked",
        title="a small set learned by heart in some epochs, no validation",
        plant=_memorised_unchecked,
        twin=_solved_in_one_pass,
        twin_title="a task solved within the first pass",
        causes=("memorised-data",),
        source="fine-tuning logs of third parties",
    ),
    EverydayFault(
        id="epoch-staircase",
        title="steps down at epochs, validation rises",
        plant=_staircase,
        twin=_mild_stairs,
        twin_title="one per cent at epochs, validation falls",
        causes=("memorised-data", "overfitting"),
        source="Howard 2023, Can LLMs learn from a single example?",
    ),
    EverydayFault(
        id="repeated-batches",
        title="the same few batches over and over",
        plant=_repeated,
        twin=_nothing,
        twin_title="the same run on fresh data",
        causes=("repeated-data", "memorised-data", "overfitting"),
        source="Hernandez et al. 2022, Scaling laws from repeated data",
    ),
    EverydayFault(
        id="too-low-at-once",
        title="the loss is a third lower from one row to the next",
        plant=_too_low(0.0),
        twin=_rate_cut,
        twin_title="the rate cut to a tenth",
        causes=("repeated-data", "leaked-targets"),
        source=_OPT,
    ),
    EverydayFault(
        id="too-low-slowly",
        title="the loss falls by a third over a quarter of the run",
        plant=_too_low(0.25),
        twin=_rate_cut,
        twin_title="the rate cut to a tenth",
        causes=("repeated-data", "leaked-targets"),
        source=_OPT,
    ),
    *(
        EverydayFault(
            id=f"stall-{share:.0%}".rstrip("%"),
            title=f"the loss stands still over the last {share:.0%}",
            plant=_stall(share),
            twin=_steady_fall,
            twin_title="the same run goes on falling",
            causes=("updates-too-small", "learning-stalled"),
            source="IDEFICS-80B chronicles",
        )
        for share in (0.15, 0.3, 0.5)
    ),
    EverydayFault(
        id="rate-ended",
        title="the schedule ends early: the rate is 0 for the rest",
        plant=_rate_ended,
        twin=_decays_to_zero,
        twin_title="a decay to 0 at the last row",
        causes=("rate-at-zero",),
        source=_OWN,
        exact=True,
    ),
    EverydayFault(
        id="nan-masked-batches",
        title="NaN in single rows: batches without a label that counts",
        plant=_masked_batches,
        twin=_nothing,
        twin_title="the same run with labels",
        causes=_UNDEFINED,
        source="PyTorch: cross_entropy of only ignored targets is NaN",
        exact=True,
    ),
    EverydayFault(
        id="nan-log-of-zero",
        title="an infinite loss, then NaN to the end",
        plant=_log_of_zero,
        twin=_nothing,
        twin_title="the same run, finite",
        causes=_UNDEFINED,
        source="IEEE 754: log(0) is -Inf",
        exact=True,
    ),
    EverydayFault(
        id="nan-division",
        title="NaN out of a calm run, to the end",
        plant=_division,
        twin=_nothing,
        twin_title="the same run, finite",
        # A machine that corrupts one value leaves the same log.
        causes=(*_UNDEFINED, "hardware-fault"),
        source="IEEE 754: 0/0 is NaN",
        exact=True,
    ),
    EverydayFault(
        id="silent-nan",
        title="loss 0.0 and norm NaN to the end",
        plant=_silent_nan,
        twin=_nothing,
        twin_title="the same run, finite",
        causes=_UNDEFINED,
        source="Hugging Face Trainer: logging_nan_inf_filter",
        exact=True,
    ),
    EverydayFault(
        id="bad-window",
        title="a window of bad data: flat top, sharp edges",
        plant=_bad_window,
        twin=_nothing,
        twin_title="the same run on sound data",
        causes=("bad-data-window",),
        source="PaLM paper, section 5.1",
    ),
    EverydayFault(
        id="organic-spike",
        title="a spike that rises and decays, the norm first",
        plant=_organic_spike,
        twin=_nothing,
        twin_title="the same run without",
        causes=("learning-rate-too-high", "benign-noise", "warm-up-end"),
        source=_MEGATRON,
    ),
    *(
        EverydayFault(
            id=f"scale-floor-{name}",
            title=f"the loss scale falls to {name} and stays",
            plant=_scale_floor(floor),
            twin=_scale_at_work,
            twin_title="a scaler at work",
            causes=("fp16-range", "updates-too-small"),
            source=source,
            exact=True,
        )
        for name, floor, source in (
            ("2^-14", 2.0**-14, _OPT),
            ("1", 1.0, _MEGATRON),
            ("128", 128.0, "fairseq: --min-loss-scale"),
        )
    ),
    EverydayFault(
        id="half-speed",
        title="throughput is halved",
        plant=_half_speed,
        twin=_slow_steps,
        twin_title="single slow rows",
        causes=("input-or-network", "hardware-fault"),
        source=_OPT,
        signals=("throughput",),
    ),
    EverydayFault(
        id="data-order-restarted",
        title="a resume feeds the data from the start again",
        plant=_data_again,
        twin=_data_went_on,
        twin_title="a resume that goes on in the data",
        causes=("data-order-not-restored", "repeated-data"),
        source="Lightning and HF issues on samplers after a resume",
        exact=True,
    ),
    EverydayFault(
        id="one-set-apart",
        title="the loss of one data set leaves the others",
        plant=_set_apart,
        twin=_sets,
        twin_title="all sets fall together",
        causes=("one-data-set",),
        source=_OWN,
        signals=("loss/code",),
    ),
    EverydayFault(
        id="diverges",
        title="the loss climbs for good",
        plant=_diverges,
        twin=_nothing,
        twin_title="the same run at a sound rate",
        causes=("learning-rate-too-high",),
        source=_OPT,
    ),
)
"""All faults."""

FAULT_BY_ID = {f.id: f for f in FAULTS}
