"""What a record keeps beside its signals: the end of a text log, and keys that nobody took."""

import gzip
from pathlib import Path

import pytest

from trimtab.readers import read_run

_CRASH = ["Traceback (most recent call last):", "RuntimeError: CUDA out of memory"]
_TEXT = "".join(f"step {i} loss {3 - i * 0.01:.3f} colour={i * 0.2:.3f}\n" for i in range(1, 101))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_tail_is_the_end_of_a_text_log(tmp_path: Path) -> None:
    record = read_run(_written(tmp_path / "train.log", _TEXT + "\n".join(_CRASH)))
    assert list(record.tail[-2:]) == _CRASH
    assert len(record.tail) == 102


def test_tail_is_bounded_by_lines_and_bytes(tmp_path: Path) -> None:
    many = read_run(_written(tmp_path / "many.log", _TEXT * 50))
    assert len(many.tail) == 400
    wide = read_run(_written(tmp_path / "wide.log", _TEXT + ("x" * 1000 + "\n") * 300))
    assert sum(map(len, wide.tail)) <= 1 << 16


def test_tail_of_a_compressed_log_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress((_TEXT + "\n".join(_CRASH)).encode()))
    assert list(read_run(path).tail[-2:]) == _CRASH


def test_tail_of_a_table_is_empty(tmp_path: Path) -> None:
    table = "step,loss\n" + "".join(f"{i},{3 - i * 0.01}\n" for i in range(50))
    assert read_run(_written(tmp_path / "run.csv", table)).tail == ()


_ROWS = range(1, 101)
_MEGATRON = " iteration {i}/ 1000 | lm loss: {a:.4E} | colour of it: {b:.4E} |\n"


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("kv.log", _TEXT, "colour"),
        ("megatron.log", "".join(_MEGATRON.format(i=i, a=3, b=i) for i in _ROWS),
         "colour of it"),
        ("hf.log", "".join(f"{{'loss': {3 - i / 100}, 'epoch': {i / 100}, 'colour/x': {i}.0}}\n"
                           for i in _ROWS), "colour/x"),
        ("run.csv", "step,loss,colour_x\n" + "".join(f"{i},{3 - i / 100},{i}\n" for i in _ROWS),
         "colour_x"),
        ("run.jsonl", "".join(f'{{"step": {i}, "loss": {3 - i / 100}, "colour": {{"x": {i}}}}}\n'
                              for i in _ROWS), "colour/x"),
    ],
)  # fmt: skip
def test_keys_that_no_signal_took_are_counted(
    tmp_path: Path, name: str, text: str, key: str
) -> None:
    assert read_run(_written(tmp_path / name, text)).unread == {key: 100}


def test_a_second_key_of_a_signal_is_counted_too(tmp_path: Path) -> None:
    text = "step,train_loss,loss\n" + "".join(f"{i},3.0,{3 - i / 100}\n" for i in _ROWS)
    assert list(read_run(_written(tmp_path / "run.csv", text)).unread.values()) == [100]


def test_unread_keys_are_bounded(tmp_path: Path) -> None:
    names = ",".join(f"layer{j}_x" for j in range(300))
    text = f"step,loss,{names}\n" + "".join(
        f"{i},{3 - i / 100},{','.join(['1.5'] * 300)}\n" for i in _ROWS
    )
    assert len(read_run(_written(tmp_path / "run.csv", text)).unread) == 200


def test_a_bar_gives_no_key_a_value_and_no_key_keeps_half_a_bracket(tmp_path: Path) -> None:
    # What Ultralytics' trainer prints between its epochs.
    bar = "  Class  Images  Box(P      R   mAP50  mAP50-95): 100%|██| {i}/4 [00:01<00:00, 2.5it/s]"
    lines = [
        f"step {i} loss {3 - i / 99:.4f} (shown 0.5) best mAP50): {i}.5\n" + bar.format(i=i % 4)
        for i in range(40)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    unread = read_run(path).unread
    assert "best map50" in unread
    assert not any("map50 95" in key or key.endswith(")") for key in unread)
