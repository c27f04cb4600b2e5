"""Progress bars whose every state was kept as a line: drawn several times at each count."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

EPOCHS, BATCHES, DRAWN = 12, 4, 5
NOISE = np.random.default_rng(0).normal(0, 0.05, EPOCHS * BATCHES * DRAWN)
LOSS = [round(3 / (1 + 0.02 * i) + 0.5 + float(NOISE[i]), 4) for i in range(len(NOISE))]


def bars(prefix: str, shift: float = 0.0) -> list[str]:
    """As tqdm draws them where the postfix is set for each part of a batch."""
    lines = []
    for i, loss in enumerate(LOSS):
        epoch, rest = divmod(i, BATCHES * DRAWN)
        batch, part = divmod(rest, DRAWN)
        head = prefix.format(e=epoch + 1)
        fill = ("█" * 5 * batch).ljust(20)
        if rest == 0:
            lines += ["", f"{head}   0%|{fill}| 0/4 [00:00<?, ?it/s]"]
        bar = f"{head} {25 * batch:3d}%|{fill}| {batch}/4 [00:{part + 10}<00:42, 14.14s/it"
        lines.append(f"{bar}, loss={loss + shift:.4f}]")
    return lines


@pytest.mark.parametrize(
    "prefix", ["[fold_0] {e:03d}/200:", "{e}/200:", "[{e:02d}/50]", "train {e}/9:"]
)
def test_every_state_is_a_row_inside_its_epoch(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "train_log.txt"
    path.write_text("\n".join(bars(prefix)) + "\n", encoding="utf-8")
    record = read_run(path)
    assert record.columns["loss"].logged().tolist() == LOSS
    assert (record.axis, int(record.step[0]), int(record.step[-1])) == ("epoch", 1, EPOCHS)
    assert np.all(np.diff(record.step) > 0)


def test_folds_are_runs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "train_log.txt"
    lines = bars("[fold_0] {e:03d}/012:") + bars("[fold_1] {e:03d}/012:", 0.01)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = read_run(path)
    assert (record.num_loss_rows, len(record.attempts)) == (2 * len(LOSS), 2)
    assert any("2 runs in this file" in note for note in record.notes)
