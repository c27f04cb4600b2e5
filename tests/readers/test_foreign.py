"""Trainers that no reader was written for: their lines, printed by our own code, come back."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.readers.foreign import RECORDS, Foreign
from tests.readers.foreign_files import FILES
from tests.readers.foreign_fresh import FRESH
from tests.readers.foreign_language import LANGUAGE
from tests.readers.foreign_more import MORE
from tests.readers.foreign_vision import OTHERS
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord

NAMELESS = {"seq2seq tutorial"}
"""Nothing on their lines says loss; they are refused."""
FORMATS = {**LANGUAGE, **OTHERS, **FILES, **FRESH, **MORE}


def check(record: RunRecord, foreign: Foreign) -> None:
    """Fail where a record is not what was printed."""
    loss = record.columns["loss"]
    np.testing.assert_allclose(loss.logged(), [r.loss for r in RECORDS], rtol=2e-4)
    assert record.axis == foreign.axis
    assert len(record.attempts) == 1
    places = record.step[loss.present]
    if foreign.axis == "step":
        assert places.tolist() == [foreign.first + foreign.gap * r.i for r in RECORDS]
    elif foreign.axis == "epoch":
        assert np.all(np.diff(places) > 0)
    for name, wanted in (("grad_norm", foreign.norm), ("lr", foreign.lr)):
        if wanted:
            expected = [getattr(r, "norm" if name == "grad_norm" else name) for r in RECORDS]
            np.testing.assert_allclose(record.columns[name].logged(), expected, rtol=2e-2)
    val = record.columns.get("val_loss")
    if foreign.num_val is not None:
        got = np.zeros(0) if val is None else val.logged()
        assert len(got) == foreign.num_val
        assert all(min(abs(v - r.val) for r in RECORDS) < 2e-3 for v in got.tolist())


@pytest.mark.parametrize("name", sorted(NAMELESS))
def test_numbers_without_a_name_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out.log"
    path.write_text(FORMATS[name].text())
    with pytest.raises(ReadError):
        read_run(path)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in NAMELESS])
def test_what_was_printed_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / FORMATS[name].file
    path.write_text(FORMATS[name].text(), encoding="utf-8", newline="")
    check(read_run(path), FORMATS[name])


NOISE = (
    (
        "/usr/lib/python3/torch/optim/lr_scheduler.py:143: UserWarning: call `optimizer.step()`"
        " first\n"
    ),
    "  warnings.warn(\n",
    "[W501 10:00:00.123 Utils.hpp:106] Warning: NCCL_ASYNC is deprecated (function operator())\n",
    "Saving model checkpoint to out/checkpoint-500\n",
    "INFO: GPU 0 memory 10.2 GB used 80%\n",
)
LAUNCH = (
    "Namespace(lr=0.001, loss='ce', epochs=10, batch_size=32, log_every=10)\nlearning_rate: 0.001\n"
    "warmup_steps: 100\nmax_steps: 1000\nepochs: 4\nseed = 42\nNumber of parameters: 124,475,904\n"
)


def in_front(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


def with_noise(text: str) -> str:
    lines = text.splitlines(keepends=True)
    noise = {i: NOISE[i // 7 % len(NOISE)] for i in range(0, len(lines), 7)}
    return "".join(
        line + (noise[i] if i in noise and line.endswith("\n") else "")
        for i, line in enumerate(lines)
    )


DIRT: dict[str, Callable[[str], str]] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "rank": in_front("[rank0]: "),
    "time": in_front("2024-05-01 10:00:00 "),
    "task": in_front("0: "),
    "warnings": with_noise,
    "settings": lambda text: LAUNCH + text,
}
OWN_PREFIX = {"mpirun", "wenet", "torch7 logger", "phase on a line"}
"""Here a prefix makes another format: a second rank, a table of numbers without a step."""
LINES = [name for name, f in FORMATS.items() if f.whole is None and name not in NAMELESS]


@pytest.mark.parametrize("name", LINES)
def test_dirt_around_the_lines_changes_nothing(tmp_path: Path, name: str) -> None:
    foreign, at = FORMATS[name], LINES.index(name)
    is_bar = foreign.end != "\n" or name in OWN_PREFIX
    kinds = [k for k in DIRT if not (is_bar and k in ("rank", "time", "task"))]
    for kind in (kinds[at % len(kinds)], kinds[(at + 1) % len(kinds)]):
        path = tmp_path / kind
        path.write_text(DIRT[kind](foreign.text()), encoding="utf-8", newline="")
        check(read_run(path), foreign)


@pytest.mark.parametrize("name", LINES)
def test_a_short_log_is_read_too(tmp_path: Path, name: str) -> None:
    foreign = FORMATS[name]
    path = tmp_path / "out.log"
    short = foreign.head + "".join(foreign.line(r) + foreign.end for r in RECORDS[:12])
    path.write_text(short, encoding="utf-8", newline="")
    loss = read_run(path).columns["loss"].logged()
    np.testing.assert_allclose(loss, [r.loss for r in RECORDS[:12]], rtol=2e-4)


def test_names_of_boosted_trees_and_of_deeplearning4j_are_read(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    line = "[{k}]\ttraining's l2: {a:.5f}\tvalid_1's l2: {b:.5f}\n"
    path.write_text("".join(line.format(k=10 * k, a=9 / k, b=10 / k) for k in range(1, 31)))
    record = read_run(path)
    assert record.columns["loss"].values[2] == 3.0
    assert record.columns["val_loss"].values[1] == 5.0
    line = "06:38 [main] INFO o.d.ScoreIterationListener - Score at iteration {k} is {a:.6f}\n"
    path.write_text("".join(line.format(k=100 * k, a=3 / (1 + k)) for k in range(30)))
    record = read_run(path)
    assert record.columns["loss"].values[2] == 1.0
    assert record.step[2] == 200


def test_the_loss_of_spacy_is_that_of_its_task(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    head = "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE\n---  ------  ------------  --------  ------  ------\n"
    rows = "".join(
        f"{k // 5:3d}  {200 * k:6d}  {9 * k:12.2f}  {2000 / k if k else 44:8.2f}  {80 + k / 9:6.2f}    0.90\n"
        for k in range(20)
    )
    path.write_text(head + rows)
    record = read_run(path)
    assert record.keys["loss"] == "loss ner"
    assert record.step[:2].tolist() == [200, 400]
    assert record.columns["loss"].values[0] == 2000
