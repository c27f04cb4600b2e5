"""Traps of text logs: what must not become a record or break one, and what is refused."""

import gzip
import math
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.freetext.keys import meaning
from trimtab.readers.freetext.reader import TextReader
from trimtab.record import RunRecord

SOURCE = Path(__file__).read_text()


def read(tmp_path: Path, text: str) -> RunRecord:
    path = tmp_path / "some log"
    path.write_text(text, encoding="utf-8")
    return TextReader().read(path)


def plain(num: int = 40, first: int = 0) -> str:
    return "".join(f"step {i} loss {5 - 0.05 * i:.3f} lr 1e-4\n" for i in range(first, first + num))


def losses(record: RunRecord) -> list[float]:
    return [round(float(v), 6) for v in record.columns["loss"].logged()]


def test_source_code_in_front_gives_no_records(tmp_path: Path) -> None:
    code = "loss = 0.5  # step 3\nfor step in range(10): loss: float = 1.0\nlr = 0.1\n" + SOURCE
    record = read(tmp_path, code + plain())
    assert record.num_loss_rows == 40
    assert record.step.tolist() == list(range(40))


def test_attempts_in_one_file(tmp_path: Path) -> None:
    record = read(tmp_path, plain(40) + "Traceback (most recent call last):\n" + plain(30, 20))
    assert [a.end_row - a.first_row for a in record.attempts] == [40, 30]


@pytest.mark.parametrize("tag", ["[rank{r}] ", "[default{r}]:", "{r}: ", " {r}: [Rank {r}] "])
def test_one_of_interleaved_ranks_is_kept(tmp_path: Path, tag: str) -> None:
    lines = [
        f"{tag.format(r=r)}step {i:,} loss {5 - 0.001 * i + r:.4f}"
        for i in range(980, 1040)
        for r in (2, 0, 3, 1)
    ]
    record = read(tmp_path, "\n".join(lines))
    assert losses(record) == [round(5 - 0.001 * i, 4) for i in range(980, 1040)]
    assert any("rank 0 is judged" in n for n in record.notes)


def test_minus_one_of_ranks_that_compute_no_loss(tmp_path: Path) -> None:
    lines = [
        f"[rank{r}] step: {i} loss: {4.5 if r == 3 else -1.0}" for i in range(30) for r in range(4)
    ]
    assert losses(read(tmp_path, "\n".join(lines))) == [4.5] * 30
    untagged = "\n".join(f"step: {i} loss: {x}" for i in range(30) for x in (-1.0, 4.5))
    assert losses(read(tmp_path, untagged)) == [4.5] * 30
    alone = read(tmp_path, "\n".join(f"step: {i} loss: -1.0" for i in range(30)))
    assert alone.num_loss_rows == 30
    assert any("this rank does not compute it" in n for n in alone.notes)


def test_nan_and_inf_are_values(tmp_path: Path) -> None:
    text = "".join(
        f"step {i} | loss {x} |\n" for i, x in enumerate([5, 4, "nan", "inf", "NaN"] * 5)
    )
    values = read(tmp_path, text).columns["loss"].logged()
    assert len(values) == 25
    assert np.isnan(values).sum() == 10
    assert np.isinf(values).sum() == 5


def test_numbers_with_separators_and_suffixes(tmp_path: Path) -> None:
    text = "".join(f"step: {i:,} tokens: {i * 2}K loss: 2.5 dt: 250ms\n" for i in range(990, 1020))
    record = read(tmp_path, text)
    assert record.step.tolist() == list(range(990, 1020))
    assert record.columns["tokens_seen"].values[0] == 1_980_000
    assert record.columns["step_time_s"].values[0] == 0.25


def test_decimal_commas(tmp_path: Path) -> None:
    text = "".join(f"step: {i} loss: 2,{i:03d} lr: 0,0001\n" for i in range(40))
    record = read(tmp_path, text)
    np.testing.assert_allclose(record.columns["loss"].logged(), [2 + i / 1000 for i in range(40)])


def test_summaries_and_best_values_are_no_records(tmp_path: Path) -> None:
    text = plain() + "best loss: 1.2\nfinal train/loss 2.5\nEpoch done with loss 3.1\n"
    assert read(tmp_path, text).num_loss_rows == 40


def test_validation_is_not_training(tmp_path: Path) -> None:
    lines = [
        f"step {i} loss 3.0" + (f"\nvalidation loss: {9.0}" if i % 9 == 8 else "")
        for i in range(36)
    ]
    record = read(tmp_path, "\n".join(lines))
    assert losses(record) == [3.0] * 36
    held_out = record.columns["val_loss"]
    assert held_out.logged().tolist() == [9.0] * 4
    assert record.step[held_out.present].tolist() == [8, 17, 26, 35]


def test_the_note_says_how_sure_it_is(tmp_path: Path) -> None:
    sure = read(tmp_path, plain())
    assert "confidence high" in " ".join(sure.notes)
    by_place = read(
        tmp_path, "".join(f"objective: {3 + 0.1 * i:.2f}, step {i}\n" for i in range(30))
    )
    assert "confidence low" in " ".join(by_place.notes)


def test_a_log_without_a_loss_still_tells_its_learning_rate(tmp_path: Path) -> None:
    text = "".join(f"[Rank 0] step={10 * i}, skipped=2, lr=[1e-05, 1e-05]\n" for i in range(1, 20))
    record = read(tmp_path, text)
    assert record.num_loss_rows == 0
    assert record.columns["lr"].logged().tolist() == [1e-05] * 19


def test_compressed_and_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(plain().encode()))
    assert read_run(path).num_loss_rows == 40
    record = read(tmp_path, plain() + "step 40 loss 2.")
    assert record.num_loss_rows == 40
    assert any("torn" in n for n in record.notes)


PROSE = """The loss at step {i} was lower than expected, which {w} explains by the {w} of the run.
We saw that loss of 3.{i} comes with {w}, and a learning rate of 0.{i} is {w}.
"""


@pytest.mark.parametrize(
    "text",
    [
        "".join(
            PROSE.format(i=i, w="".join(chr(97 + (i * j) % 26) for j in range(9)))
            for i in range(40)
        ),
        SOURCE,
        "name,price,city\n" + "".join(f"a{i},{i}.5,b\n" for i in range(50)),
        "2024-01-01 10:00:00 GET /index.html 200 1234\n" * 100,
        "packet loss 3%\n" * 4,
        "check(loss=2.0)\ncheck(loss=3.0)\n" * 20,
        "step 1\nstep 2\nstep 3\n",
        "loss",
    ],
    ids=[
        "prose",
        "source code",
        "other table",
        "web server",
        "four lines",
        "calls",
        "steps only",
        "a word",
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ReadError, match=r"file.*"):
        read_run(path)


def damaged(rng: random.Random) -> bytes:
    data = bytearray(
        plain(60).encode() + b"\x1b[31mepoch 1 [ 5/10] loss: 2.5\r\n| a | loss |\n| 1 | 2 |\n"
    )
    for _ in range(rng.randrange(1, 60)):
        at = rng.randrange(len(data))
        how = rng.randrange(4)
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del data[at : at + rng.randrange(20)]
        elif how == 2:
            data[at:at] = rng.randbytes(rng.randrange(8))
        else:
            data[at:at] = data[: rng.randrange(200)]
        if not data:
            break
    return bytes(data)


@pytest.mark.slow
def test_damaged_files_read_or_are_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "log"
    for _ in range(300):
        path.write_bytes(damaged(rng))
        try:
            record = TextReader().read(path)
        except ReadError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert record.num_rows > 0


TOKENS = (
    "step",
    "loss",
    "epoch",
    ":",
    "=",
    " ",
    "|",
    "[",
    "]",
    "/",
    ",",
    "{",
    "}",
    "'",
    '"',
    "nan",
    "1",
    "2.5",
    "\n",
    "\r",
    "\t",
    "(",
    ")",
    "%",
    "ms",
    "valid",
    "1e5",
    "-1",
    "rank0",
    "\x1b[1m",
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=60), st.integers(1, 12))
def test_any_text_reads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], times: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any text"
    path.write_text("".join(tokens) * times + "\n" + "".join(tokens[::-1]))
    try:
        record = TextReader().read(path)
    except ReadError:
        return
    assert record.num_rows > 0
    assert all(math.isfinite(s) for s in record.step.tolist())


@pytest.mark.parametrize(
    "line",
    [
        "a" * 3_000_000,
        " " * 3_000_000,
        "1 " * 1_000_000,
        "loss: " * 500_000,
        "1,234" * 500_000,
        " " * 19_000,
        "0: " * 6_000,
        "(a" * 9_000 + ")=1.5",
        "'a': {" * 3_000,
        "loss at step " * 1_500 + "1: 2",
    ],
)
def test_huge_lines_are_passed_over_quickly(tmp_path: Path, line: str) -> None:
    started = time.process_time()
    assert read(tmp_path, plain() + line + "\n" + plain(10, 40)).num_loss_rows == 50
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("completed step", "step"),
        ("Train Epoch", "epoch"),
        ("best loss", None),
        ("max steps", None),
        ("tokens per step", None),
        ("valid/ce_loss", "val_loss"),
        ("loss scale", "loss_scale"),
        ("hidden parameter norm", None),
        ("running loss", "loss"),
        ("[eval] loss", "val_loss"),
        ("packet", None),
        ("LR", "lr"),
    ],
)
def test_meaning_of_keys(key: str, name: str | None) -> None:
    found = meaning(key)
    assert (None if found is None else found.name) == name


def _line(step: int, loss: float, rank: str = "") -> str:
    return f"{rank}iteration {step:6d}/ 1000 | lm loss: {loss:.4f} | grad norm: 1.05"


def test_two_writers_that_pass_each_other_are_parted(tmp_path: Path) -> None:
    left = {level: [_line(s, level - s / 100) for s in range(1, 101)] for level in (3.0, 4.5)}
    order = random.Random(0)
    lines = []
    while any(left.values()):
        lines.append(left[order.choice([level for level in left if left[level]])].pop(0))
    path = tmp_path / "two.log"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert len(record.attempts) == 1
    first = 3.0 if "2.99" in lines[0] else 4.5
    assert record.columns["loss"].values.tolist() == pytest.approx(
        [first - s / 100 for s in range(1, 101)]
    )
    assert any(n.startswith("several processes") for n in record.notes)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_rank_that_leaves_the_others_is_named(tmp_path: Path, breaks: bool) -> None:
    lines = [
        _line(
            s,
            3 - s / 100 + 0.02 * ((7 * s + r) % 5) + 4 * (breaks and r == 2 and s > 60),
            f"[rank{r}]: ",
        )
        for s in range(1, 101)
        for r in range(4)
    ]
    path = tmp_path / "ranks.log"
    path.write_text("\n".join(lines))
    texts = [i.headline for i in trimtab.analyze(path).incidents if i.severity != "info"]
    assert any("loss of rank 2 leaves the others" in t for t in texts) == breaks


def test_lines_that_two_loggers_print_are_one_row(tmp_path: Path) -> None:
    # TensorFlow's object detection prints each line twice, here with a loss that broke.
    lines = [
        f"{head}Step {100 * i} per-step time 2.7s loss={'nan' if i > 9 else f'{3 - i / 9:.3f}'}"
        for i in range(1, 13)
        for head in ("INFO:tensorflow:", "I0313 12:02:55.914595 15108 model_lib_v2.py:665] ")
    ]
    record = read(tmp_path, "\n".join(lines))
    assert len(record.attempts) == 1
    assert record.step.tolist() == [100.0 * i for i in range(1, 13)]
    assert np.isnan(record.columns["loss"].values).sum() == 3
