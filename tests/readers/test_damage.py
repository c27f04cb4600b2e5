"""NULs that a power cut leaves, NaN in numbers that nobody judges, words that nobody knows."""

import json
import random
from pathlib import Path

import pytest

from trimtab.errors import ReadError
from trimtab.readers import find_reader, read_run
from trimtab.readers.given_columns import columns_given

_NUM = 400


def _rows(form: str) -> list[bytes]:
    noise = random.Random(form)
    values = [(i, 2.0 + noise.random(), 3e-4) for i in range(1, _NUM + 1)]
    if form == "jsonl":
        return [
            json.dumps(dict(zip(("step", "loss", "lr"), v, strict=True))).encode() for v in values
        ]
    if form == "csv":
        return [b"step,loss,lr", *(f"{s},{x:.4f},{lr}".encode() for s, x, lr in values)]
    word = "iteration {:8d}/ 400 | lm loss: {:.6E} | learning rate: {:.3E} |"
    text = word if form == "megatron" else "step {} loss {:.4f} lr {}"
    return [text.format(*v).encode() for v in values]


@pytest.mark.parametrize("form", ["jsonl", "csv", "text", "megatron"])
@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize("overwrites", [False, True])
def test_read_run_takes_the_lines_around_nuls(
    tmp_path: Path, form: str, size: int, *, overwrites: bool
) -> None:
    path = tmp_path / "run.log"
    data = b"\n".join(_rows(form)) + b"\n"
    path.write_bytes(data)
    whole = read_run(path)
    known = dict(zip(whole.step.tolist(), whole.columns["loss"].values.tolist(), strict=True))
    for seed in range(3):
        at = random.Random(seed).randrange(len(data) // 4, len(data) // 2)
        path.write_bytes(data[:at] + b"\0" * size + data[at + size * overwrites :])
        found = read_run(path)
        # none of the rest of a row that was cut is taken for a value
        for step, loss in zip(
            found.step.tolist(), found.columns["loss"].values.tolist(), strict=True
        ):
            assert known[step] == loss
        lost = 2 + size // 10 * overwrites
        assert whole.num_rows - lost <= found.num_rows < whole.num_rows
        assert any("NUL bytes in 1 line" in note for note in found.notes)


def test_find_reader_takes_no_binary_file_for_damaged_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    noise = random.Random(0)
    for start in (b"\x80\x02}q\0", b"\x88\x01\0\0\0\0\0\0" + b'{"loss": {"dtype": "F32"}}'):
        path.write_bytes(start + noise.randbytes(9000) + b"loss 2.5\0\n" * 9)
        with pytest.raises(ReadError):
            find_reader(path)


_DETECTOR = (
    "iter {i}/99  box {box}  cls 0.{i:02d}  obj 1.0{i}  {name} {whole}  lr 2e-4  mAP50 0.02\n"
)


def test_text_reader_takes_a_total_beside_its_parts_as_the_loss(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [
        _DETECTOR.format(i=i, box=f"1.{i}", whole=f"4.{i}", name="total") for i in range(10, 90)
    ]
    path.write_text("".join(lines))
    assert read_run(path).keys["loss"] == "total"
    with columns_given({"loss": "box"}):
        assert read_run(path).columns["loss"].values[0] == 1.1
    path.write_text("".join(lines).replace("box", "n_a").replace("cls", "n_b"))
    assert "loss" not in read_run(path).keys  # nothing says that it sums parts of a loss


def test_text_reader_tells_nan_in_a_number_that_nobody_judges(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    rows = [(i, "nan" if i > 60 else f"1.{i}") for i in range(1, 400)]
    path.write_text(
        "".join(_DETECTOR.format(i=i, box=b, whole=f"4.{i}", name="loss") for i, b in rows)
    )
    notes = read_run(path).notes
    assert any("'box' is NaN or Inf on 339 lines, the first is line 61" in note for note in notes)


@pytest.mark.parametrize("key", ["trn_mae", "bce", "train_mse", "ce", "elbo"])
def test_read_run_takes_common_names_of_losses(tmp_path: Path, key: str) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "".join(f"[ep {i:04d}] {key}=0.{i} | val_{key}=0.9{i}\n" for i in range(10, 60))
    )
    record = read_run(path)
    assert (record.keys["loss"], record.axis) == (key.replace("_", " "), "epoch")
    assert record.columns["val_loss"].values[0] == 0.91


def test_a_text_of_unknown_words_names_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"[{i}] Verlust {2 + i % 3:.4f} Takt {i}\n" for i in range(1, 60)))
    with pytest.raises(ReadError, match="--columns loss=KEY,step=KEY"):
        read_run(path)
    with columns_given({"loss": "Verlust", "step": "Takt"}):
        record = read_run(path)
    assert (record.num_loss_rows, record.step[-1]) == (59, 59)
