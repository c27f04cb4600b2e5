"""The figures of the everyday benchmark as text, Markdown or JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.everyday.faults import FAULT_BY_ID, FAULTS
from benchmarks.everyday.measure import EARLY_SHARE, EverydayOutcome
from benchmarks.everyday.reference import MIN_POWER
from benchmarks.live_replay import wilson_low

__all__ = ["everyday_text", "totals"]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def totals(outcomes: Sequence[EverydayOutcome]) -> dict[str, float]:
    """Return the shares over all cases that the reference test can tell; twins over all cases."""
    told = [o for o in outcomes if o.power >= MIN_POWER]
    early = [o for o in told if o.early_power >= MIN_POWER]
    return {
        "cases": len(outcomes),
        "tellable": len(told),
        "alarmed": sum(o.alarmed for o in told) / max(len(told), 1),
        "live": sum(o.live for o in told) / max(len(told), 1),
        "tellable_early": len(early),
        "live_of_early": sum(o.live for o in early) / max(len(early), 1),
        "right_cause": sum(o.right_cause for o in told) / max(len(told), 1),
        "twins_silent": sum(o.twin_silent for o in outcomes) / max(len(outcomes), 1),
        "twins_silent_live": sum(not o.twin_live for o in outcomes) / max(len(outcomes), 1),
        "critical": sum(o.critical + o.critical_false for o in outcomes),
        "critical_right": sum(o.critical for o in outcomes),
    }


def everyday_text(outcomes: Sequence[EverydayOutcome], *, missed: bool = False) -> str:
    """Return one line a fault, the share left out by length, and the totals."""
    lengths = sorted({int(o.key.split("/")[1]) for o in outcomes})
    head = f"{'fault':24} {'alarmed':>8} {'live':>6} {'cause':>6} {'twin':>6}  left out at "
    lines = [head + " ".join(f"{n:>6}" for n in lengths)]
    for fault in FAULTS:
        mine = [o for o in outcomes if o.key.split("/")[0] == fault.id]
        if not mine:
            continue
        told = [o for o in mine if o.power >= MIN_POWER]
        cells = [
            _share(sum(o.alarmed for o in told), len(told)).rjust(8),
            _share(sum(o.live for o in told), len(told)).rjust(6),
            _share(sum(o.right_cause for o in told), len(told)).rjust(6),
            _share(sum(o.twin_silent for o in mine), len(mine)).rjust(6),
        ]
        out = [_left_out(mine, n).rjust(6) for n in lengths]
        lines.append(f"{fault.id:24} {' '.join(cells)} {'':12} {' '.join(out)}")
        if missed:
            lines += _missed(told, mine)
    t = totals(outcomes)
    low = wilson_low(int(t["critical_right"]), int(t["critical"]))
    lines.append(
        f"{len(FAULTS)} faults, {t['cases']} cases and as many twins; the reference test tells"
        f" {t['tellable']} with power {MIN_POWER:g}: alarmed {t['alarmed']:.3f}, before the log"
        f" stood still {t['live']:.3f} (of the {t['tellable_early']} that it tells from"
        f" {EARLY_SHARE:.0%} of the rows {t['live_of_early']:.3f}), right first cause"
        f" {t['right_cause']:.3f}; twins silent {t['twins_silent']:.3f}, live"
        f" {t['twins_silent_live']:.3f}; critical alarms right live: {t['critical_right']} of"
        f" {t['critical']}, at least {low:.3f} (90 % interval)"
    )
    return "\n".join(lines)


def _left_out(outcomes: Iterable[EverydayOutcome], num_rows: int) -> str:
    here = [o for o in outcomes if int(o.key.split("/")[1]) == num_rows]
    return _share(sum(o.power < MIN_POWER for o in here), len(here))


def _missed(told: Sequence[EverydayOutcome], mine: Sequence[EverydayOutcome]) -> list[str]:
    """Return what went wrong, most frequent first."""
    wrong: Counter[str] = Counter()
    for o in told:
        rows = o.key.split("/")[1]
        if not o.alarmed:
            wrong[f"missed at {rows}"] += 1
        elif not o.live and o.early_power >= MIN_POWER:
            wrong[f"only at the end at {rows} ({o.kinds})"] += 1
        if o.alarmed and not o.right_cause:
            wrong[f"said {o.cause} ({o.kinds}) at {rows}"] += 1
    for o in mine:
        if not o.twin_silent:
            wrong[f"twin: {o.twin_kinds} at {o.key.split('/')[1]}"] += 1
        elif o.twin_live:
            wrong[f"twin while it grew: {o.twin_live} at {o.key.split('/')[1]}"] += 1
    return [f"    {n:3} x {what}" for what, n in wrong.most_common(12)]


def fault_titles() -> str:
    """Return the table of faults, Markdown."""
    lines = ["| fault | twin | right first causes | source |", "| --- | --- | --- | --- |"]
    for f in FAULT_BY_ID.values():
        causes = ", ".join(f"`{c}`" for c in f.causes)
        lines.append(f"| {f.title} | {f.twin_title} | {causes} | {f.source} |")
    return "\n".join(lines)
