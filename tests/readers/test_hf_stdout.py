"""Printed dicts without a step take that of the progress bar before each."""

from pathlib import Path

from trimtab.readers import read_run
from trimtab.record import RunRecord

LOSS = [round(3 - 0.2 * i, 2) for i in range(12)]


def bar(at: int, total: int, name: str = "") -> str:
    return f"{name}{100 * at // total:3d}%|{'█' * 2}  | {at}/{total} [00:{at % 60:02d}<10:06, 4.59s/it]"


def line(i: int, epoch: float = 0.1) -> str:
    return f"{{'loss': {LOSS[i]}, 'learning_rate': 1e-05, 'epoch': {epoch}}}"


def read(tmp_path: Path, text: str) -> RunRecord:
    path = tmp_path / "nohup.out"
    path.write_text(text, encoding="utf-8")
    return read_run(path)


def test_the_bar_before_a_dict_is_its_step(tmp_path: Path) -> None:
    text = bar(0, 3, "Loading shards: ") + "\r" + bar(3, 3, "Loading shards: ") + "\n"
    for i in range(12):
        text += "".join(bar(10 * i + k, 4854) + "\r" for k in range(1, 11))
        text += f"\n{' ' * 20}\n{line(i)}\n\r{bar(10 * i + 10, 4854)}\n"
    record = read(tmp_path, text)
    assert (record.axis, record.step.tolist()) == ("step", [10.0 * i for i in range(1, 13)])
    assert record.columns["loss"].logged().tolist() == LOSS
    assert any("progress bar" in note for note in record.notes)


def test_bars_and_dicts_in_one_line(tmp_path: Path) -> None:
    text = "\r".join(f"{bar(5 * i + 5, 60)}{line(i)}" for i in range(12))
    assert read(tmp_path, text).step.tolist() == [5.0 * i for i in range(1, 13)]


def test_an_excerpt_that_begins_with_a_dict(tmp_path: Path) -> None:
    # An issue of LLaVA has such an excerpt; the bar is drawn again behind each dict.
    text = "".join(
        f"{line(i, 0.24)}\n\n{bar(2564 + i, 10485)}\n{bar(2565 + i, 10485)}\n   \n"
        for i in range(12)
    )
    assert read(tmp_path, text).step.tolist() == list(range(2564, 2576))


def test_evaluations_keep_their_training_row_and_their_bar_counts_nothing(tmp_path: Path) -> None:
    text = ""
    for i in range(12):
        text += f"{bar(10 * i + 10, 120)}\n{line(i)}\n"
        if i % 4 == 3:
            text += "".join(bar(k, 500) + "\r" for k in (250, 500))
            text += f"\n{{'eval_loss': {LOSS[i] + 1}, 'eval_runtime': 3.0, 'epoch': 0.1}}\n"
    record = read(tmp_path, text)
    assert record.step.tolist() == [10.0 * i for i in range(1, 13)]
    assert record.step[record.columns["val_loss"].present].tolist() == [40, 80, 120]


def test_a_bar_that_stands_still_counts_nothing(tmp_path: Path) -> None:
    text = bar(3, 3) + "\n" + "".join(f"{line(i, round(0.1 * i, 1))}\n" for i in range(12))
    assert read(tmp_path, text).axis == "epoch"


def test_a_step_of_the_dicts_goes_before_the_bar(tmp_path: Path) -> None:
    text = "".join(
        f"{bar(i + 1, 12)}\n{{'loss': {x}, 'step': {7 * i}}}\n" for i, x in enumerate(LOSS)
    )
    assert read(tmp_path, text).step.tolist() == [7 * i for i in range(12)]


def test_a_bar_that_lags_gives_each_row_a_step_of_its_own(tmp_path: Path) -> None:
    drawn = [801, 801, 803, 804, 804, 804, 807, 808, 809, 810, 811, 812]
    drawn += range(813, 833)
    text = "".join(
        f"{bar(at, 1500)}\n{{'loss': {9 - i / 99:.4f}, 'epoch': 0.18}}\n"
        for i, at in enumerate(drawn)
    )
    record = read(tmp_path, text)
    assert len(record.attempts) == 1
    assert record.step.tolist() == list(range(801, 833))
