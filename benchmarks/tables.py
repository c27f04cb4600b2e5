"""Prints the figures as text: one line per system, with the columns of the documentation."""

from collections.abc import Sequence
from typing import Any

from benchmarks.cross_validate import CrossValidation
from benchmarks.detect import Detection
from benchmarks.noise import EVENTS, NoiseResult
from benchmarks.page import PageFigures
from benchmarks.peers.table import UNFED
from benchmarks.reliability import Bin, calibration_error

__all__ = ["cross_validation_text", "detection_text", "noise_text", "page_text"]

_COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("recall", "recall", 2),
    ("family", "recall_same_family", 2),
    ("onset", "recall_at_onset", 2),
    ("prec.", "precision", 2),
    ("F1", "f1", 2),
    ("F1 fam.", "f1_same_family", 2),
    ("false/10k", "false_per_10k", 2),
    ("silent", "silent_negatives", 2),
    ("onset err", "onset_error", 1),
)
"""Heading, figure, decimals."""


def detection_text(found: Detection) -> str:
    """Return the table of systems, then trimtab's figures in full and its reliability."""
    own = found.own.figures
    lines = [
        (
            f"{own['runs']} labelled runs, {own['labels']} labels of core families with high"
            f" confidence; negatives read: {own['negatives_read']} runs, {own['negative_records']}"
            " records"
        ),
        "",
        _row("", [*(heading for heading, _, _ in _COLUMNS), "fed", "F1 fed"]),
    ]
    ranked = sorted(found.systems[1:], key=lambda s: -(s.figures["f1"] or 0.0))
    for system in (found.own, *ranked):
        fed = system.figures_fed
        cells = [*_cells(system.figures), str(fed["runs"]), _cell(fed["f1"], 2)]
        lines.append(_row(system.name, cells))
    lines += [
        "",
        (
            "recall: labels met by any alarm; family: by one of the right family; onset: named, and"
            " begun at the"
        ),
        (
            "label; F1 fam.: with the recall of the family; false/10k and silent: on runs without"
            " an incident;"
        ),
        (
            "onset err: median, in records; fed: runs that log what the rule needs, and F1 on these"
            " alone."
        ),
        "not run:",
        *(f"  {u.name}: {u.why}" for u in UNFED),
        "",
        *_in_full(own),
        "",
        *_reliability_lines(found.reliability),
    ]
    return "\n".join(lines)


def cross_validation_text(found: CrossValidation) -> str:
    """Return the figures per setting, and those left out."""
    lines = [
        "",
        (
            "Thresholds moved by a factor; trimtab ships those as built, which come from simulated"
            " noise"
        ),
        _row("", [heading for heading, _, _ in _COLUMNS]),
    ]
    lines += [_row(name, _cells(figures)) for name, figures in found.settings.items()]
    times = ", ".join(f"{name}: {n}" for name, n in found.chosen.items())
    return "\n".join(
        [
            *lines,
            _row(f"fitted ({found.best})", _cells(found.settings[found.best])),
            _row("left out", _cells(found.left_out)),
            (
                f"left out: each of {found.num_folds} repositories under the setting chosen on the"
                f" others ({times})"
            ),
        ]
    )


def noise_text(results: Sequence[NoiseResult]) -> str:
    """Return one table per law of noise."""
    lines: list[str] = []
    for noise in dict.fromkeys(r.noise for r in results):
        rows = [r for r in results if r.noise == noise]
        lines += [
            (
                f"noise: {noise}; cell: runs caught of"
                f" {next(iter(rows[0].events.values())).num_runs}, median delay in rows"
            ),
            _row("", [*EVENTS, "false/20k"], width=17),
        ]
        for r in rows:
            cells = [
                f"{c.num_caught}" + ("" if c.delay_rows is None else f" d{c.delay_rows:.0f}")
                for c in r.events.values()
            ]
            lines.append(_row(r.system, [*cells, f"{r.false_per_20k:.2f}"], width=17))
        lines.append("")
    lines.append(
        "caught: an alarm in the 1000 rows from the onset that the healthy twin does not raise; the"
        " delay runs to\nthe row at which it was said; false/20k: alarms per 20,000 healthy rows. A"
        " note (info) is no alarm."
    )
    return "\n".join(lines)


def _in_full(f: dict[str, Any]) -> list[str]:
    low_high = "-".join(_cell(q, 3) for q in f["f1_90"] or ())
    return [
        f"trimtab: read rate {_cell(f['read_rate'], 3)}"
        + (f" (not: {', '.join(f['not_read'])})" if f["not_read"] else ""),
        (
            f"recall {_cell(f['recall'], 3)}, with notes {_cell(f['recall_with_notes'], 3)}, runs"
            f" with a hit {_cell(f['recall_of_runs'], 3)}; kinds right where met"
            f" {_cell(f['kind_accuracy'], 3)}"
        ),
        f"by family: {_families(f['by_family'])}",
        f"less sure labels: {_families(f['by_family_less_sure'])}",
        f"not core: {_families(f['by_family_not_core'])}",
        (
            f"precision {_cell(f['precision'], 3)} ({f['true_alarms']} true, {f['false_alarms']}"
            f" false); F1 {_cell(f['f1'], 3)}, 90 % interval over runs {low_high}"
        ),
        "false per 10k: "
        + ", ".join(f"{k} {_cell(v, 2)}" for k, v in f["false_per_10k_by_verdict"].items())
        + f"; by family {f['false_by_family'] or 'none'}",
        (
            f"onset error: median {_cell(f['onset_error'], 1)}, 90th percentile"
            f" {_cell(f['onset_error_p90'], 1)}, signed {_cell(f['onset_error_signed'], 1)}"
            f" records; share of records inside an alarm {_cell(f['alarmed_share'], 3)}; alarms"
            f" where there is no loss {f['alarms_without_a_loss']}"
        ),
    ]


def _reliability_lines(bins: Sequence[Bin]) -> list[str]:
    lines = ["confidence    alarms   stated   came true"]
    for b in bins:
        span = f"{b.low:.1f} to {b.high:.1f}"
        lines.append(
            f"{span:<12}{b.num_alarms:>8}{_cell(b.confidence, 2):>9}{_cell(b.share_true, 2):>12}"
        )
    lines.append(f"mean distance {_cell(calibration_error(bins), 3)}")
    return lines


def _families(table: dict[str, Any]) -> str:
    cells = (f"{k} {v['met']}/{v['labels']} (named {v['named']})" for k, v in table.items())
    return "  ".join(cells) or "none"


def _cells(figures: Any) -> list[str]:
    return [_cell(figures[key], digits) for _, key, digits in _COLUMNS]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(name: str, cells: Sequence[str], *, width: int = 10) -> str:
    return f"{name:<32}" + "".join(f"{c:>{width}}" for c in cells)


def page_text(figures: PageFigures) -> str:
    """Return what it takes to open the report of a long run."""
    each = ", ".join(f"{ms:.0f}" for ms in figures.open_ms)
    return "\n".join(
        (
            (
                f"report of {figures.rows} rows, {figures.incidents} incidents:"
                f" {figures.size_bytes / 1e6:.1f} MB, {figures.drawn} points of the loss in it"
            ),
            f"  written in {figures.render_s:.1f} s",
            (
                f"  opens in {figures.opening_ms:.0f} ms: median of {each}, less"
                f" {figures.empty_ms:.0f} for an empty page"
            ),
            f"  zoom {figures.zoom_ms:.0f} ms; load average before {figures.load_before:.1f}",
        )
    )
