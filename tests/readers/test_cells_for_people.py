"""Cells of tables as people write them: percent signs, thousands, marks of Markdown, spreads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord

LOSS = [round(2.5 * float(np.exp(-i / 9)) + 0.4, 3) for i in range(24)]


def csv_of(path: Path, header: str, rows: Sequence[str]) -> RunRecord:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return read_run(path)


def markdown_of(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> RunRecord:
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)
    path.write_text(text + "\n", encoding="utf-8")
    return read_run(path)


def logged(record: RunRecord, signal: str) -> list[float]:
    return [float(v) for v in record.columns[signal].logged()]


def test_a_percent_sign_leaves_the_number_as_written(tmp_path: Path) -> None:
    rows = [f"{i},{x},{50 + i}.5%,{x + 0.1:.3f},{48 + i} %" for i, x in enumerate(LOSS)]
    record = csv_of(tmp_path / "log.csv", "epoch,train_loss,train_acc,val_loss,val_acc", rows)
    assert logged(record, "accuracy") == [50.5 + i for i in range(24)]
    assert logged(record, "eval_score") == [48.0 + i for i in range(24)]


def test_a_percent_sign_in_markdown(tmp_path: Path) -> None:
    rows = [(f"{i}/24", x, f"{48 + i}.1%") for i, x in enumerate(LOSS, 1)]
    record = markdown_of(tmp_path / "log.md", ["Epoch", "Train Loss", "Val Acc"], rows)
    assert logged(record, "eval_score") == pytest.approx([48.1 + i for i in range(1, 25)])


@pytest.mark.parametrize("mark", ["**{}**", "*{}*", "_{}_", "__{}__", "`{}`", "**`{}`**", "{}*"])
def test_marks_of_markdown_around_one_cell(tmp_path: Path, mark: str) -> None:
    best = 17
    rows = [(mark.format(i), mark.format(x)) if i == best else (i, x) for i, x in enumerate(LOSS)]
    record = markdown_of(tmp_path / "log.md", ["Epoch", "Loss"], rows)
    assert logged(record, "loss") == LOSS
    assert record.step[best] == best


def test_marks_around_the_names(tmp_path: Path) -> None:
    record = markdown_of(tmp_path / "log.md", ["**Step**", "`val_loss`", "_step_"], [
        (i * 10, f"**{x}**", i) for i, x in enumerate(LOSS)
    ])  # fmt: skip
    assert logged(record, "val_loss") == LOSS
    assert record.keys["val_loss"] == "val_loss"
    assert record.step[-1] == 230


@pytest.mark.parametrize("spread", [" ± 0.02", "±0.02", " +/- 0.02", "+/-2e-2"])
def test_a_number_with_its_spread_is_the_number(tmp_path: Path, spread: str) -> None:
    rows = [(i, f"`1e-{3 + i // 10}`", f"{x}{spread}") for i, x in enumerate(LOSS)]
    record = markdown_of(tmp_path / "log.md", ["Epoch", "LR", "Loss"], rows)
    assert logged(record, "loss") == LOSS
    assert logged(record, "lr")[0] == 1e-3


def test_steps_in_thousands(tmp_path: Path) -> None:
    steps = [float(500 * i) for i in range(1, 25)]
    quoted = [f'"{s:,.0f}",{x}' for s, x in zip(steps, LOSS, strict=True)]
    assert csv_of(tmp_path / "log.csv", "step,loss", quoted).step.tolist() == steps
    rows = [(f"{s:,.0f}", x) for s, x in zip(steps, LOSS, strict=True)]
    record = markdown_of(tmp_path / "log.md", ["Step", "Training Loss"], rows)
    assert record.step.tolist() == steps
    million = [f"{1000 * s:,.0f}\t{x}" for s, x in zip(steps, LOSS, strict=True)]
    assert csv_of(tmp_path / "log.tsv", "step\tloss", million).step[-1] == 12e6


def test_tokens_in_thousands(tmp_path: Path) -> None:
    rows = [(i, x, f"{i * 250_000:,}") for i, x in enumerate(LOSS)]
    record = markdown_of(tmp_path / "log.md", ["Step", "Loss", "Tokens"], rows)
    assert logged(record, "tokens_seen")[-1] == 23 * 250_000


def test_a_decimal_comma_is_not_taken_for_thousands(tmp_path: Path) -> None:
    rows = [f"{i}\t{str(x).replace('.', ',')}" for i, x in enumerate([2.345, *LOSS])]
    with pytest.raises(ReadError, match="expected a number"):
        csv_of(tmp_path / "log.tsv", "step\tloss", rows)


def test_a_bold_number_with_its_spread_is_a_number(tmp_path: Path) -> None:
    rows = [f"| {k} | **{5 - k / 20:.3f}** ± 0.02 |" for k in range(60)]
    path = tmp_path / "table.md"
    path.write_text("| step | loss |\n|---|---|\n" + "\n".join(rows) + "\n")
    assert read_run(path).columns["loss"].values[1] == 4.95
