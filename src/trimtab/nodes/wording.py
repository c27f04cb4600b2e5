"""The pool in words: which hosts to leave out, then a line for each host."""

from collections.abc import Sequence

from trimtab.nodes.judge import HostReport

__all__ = ["pool_text"]

_MOST_OK = 8


def pool_text(reports: Sequence[HostReport]) -> str:
    """Return the report: first line how many hosts to leave out, second which; then the table."""
    by_state = {state: [r for r in reports if r.state == state] for state in _STATES}
    bad, odd, blank = by_state["fail"], by_state["warn"], by_state["unknown"]
    counts = f"{len(bad)} to leave out, {len(odd)} to look at, {len(by_state['ok'])} fine"
    counts += f", {len(blank)} unknown" if blank else ""
    lines = [f"{len(reports)} host{'s' * (len(reports) != 1)}: {counts}"]
    if bad:
        lines.append(
            f"  do: leave out {','.join(r.host for r in bad)} (srun --exclude, or a spare)"
        )
    elif odd:
        lines.append(f"  do: look at {','.join(r.host for r in odd[:_MOST_OK])} before a long run")
    if blank:
        names = ",".join(r.host for r in blank[:_MOST_OK])
        lines.append(f"  do: run trimtab doctor --collect on {names}")
    lines.append("")
    width = max(len(r.host) for r in reports)
    for report in (*bad, *odd, *blank):
        lines.append(
            f"{report.host:<{width}}  {report.state:<7}  {report.num_checked} facts checked"
        )
        for f in report.findings:
            lines.append(f"{'':<{width}}  {f.level}: {f.check}: {f.says}")
            lines.append(f"{'':<{width}}    do: {f.do}")
    fine = by_state["ok"]
    lines += [f"{r.host:<{width}}  ok       {r.num_checked} facts checked" for r in fine[:_MOST_OK]]
    if len(fine) > _MOST_OK:
        lines.append(f"{'':<{width}}  ok       and {len(fine) - _MOST_OK} more")
    return "\n".join(lines)


_STATES = ("fail", "warn", "ok", "unknown")
