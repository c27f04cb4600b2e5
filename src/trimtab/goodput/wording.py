"""The account in words: what was effective, what most was lost to, then the table."""

from trimtab.goodput.account import CAUSES, GoodputAccount
from trimtab.text import number

__all__ = ["duration_text", "goodput_text"]

_LOST_TO = {
    "init": "the first start",
    "data": "waiting for data",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "recomputed": "steps trained a second time",
    "restart": "failures and restarts",
    "hang": "hangs",
    "slow": "slow steps",
    "numeric": "numeric recovery",
    "untold": "time that nothing explains",
}
_DO = {
    "init": "make the start shorter: cache what is compiled, load the checkpoint in parallel",
    "data": "more data workers, or prefetch: the accelerators wait for batches",
    "checkpoint": "save asynchronously, or less often: sqrt(2 x save time x time between failures)",
    "evaluation": "evaluate on fewer batches, or on devices of their own",
    "recomputed": "save more often: each failure throws away the steps since the last checkpoint",
    "restart": "run it under trimtab supervise; what a start costs comes back with each failure",
    "hang": "run it under trimtab supervise: a hang is found after 3 usual steps + 8 s",
    "slow": "look for one slow rank or node: trimtab doctor --nodes",
    "numeric": "trimtab inspect says which incident, and what would avoid the next one",
    "untold": "log with times, and lines when saving and evaluation begin and end",
}


def duration_text(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> duration_text(50521.0), duration_text(75.2), duration_text(3.21)
        ('14 h 02 m', '1 m 15 s', '3.21 s')
    """
    if seconds < 60:
        return f"{number(seconds, digits=3)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} m"


def goodput_text(found: GoodputAccount) -> str:
    """Return the account: first line the share, second what to do, then the causes."""
    if found.effective is None:
        return "\n".join(("effective training time cannot be told", *found.untold))
    largest = found.largest_loss
    lost = f"; most was lost to {_LOST_TO[largest]}" if largest else "; nothing was lost"
    whole = "of" if found.timed else "of the logged time of the steps,"
    lines = [f"effective {100 * found.effective:.1f} % {whole} {duration_text(found.wall_s)}{lost}"]
    if largest:
        lines.append(f"  do: {_DO[largest]}")
    if (evaluated := found.costly_evaluation) is not None:
        lines += [
            f"  warning: evaluation takes {100 * evaluated:.1f} % of the time, above 2 %",
            f"  do: evaluate half as often: that saves {50 * evaluated:.1f} % of the time",
        ]
    lines.append("")
    for name, what in CAUSES.items():
        seconds = found.seconds[name]
        if seconds > 0 or name == "training":
            share = f"{100 * seconds / found.wall_s:6.2f} %"
            lines.append(f"  {name:<11}{share}  {duration_text(seconds):>10}  {what}")
    usual = found.usual_step_s
    step = "" if usual is None else f" · usual step {number(usual, digits=3)} s"
    lines.append(f"  {found.num_steps} rows · {found.num_starts} starts{step}")
    lines += [f"  not told: {text}" for text in found.untold]
    return "\n".join(lines)
