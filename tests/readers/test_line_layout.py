"""Lines read by their layout: to the last bit what reading them one by one gives."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.logs.fuzzing import mutated
from trimtab.errors import ReadError
from trimtab.readers.line_layout import LineLayout
from trimtab.readers.megatron import MegatronReader
from trimtab.record import RunRecord
from trimtab.testing.curves import Fault, simulate_run
from trimtab.testing.megatron_logs import MegatronStyle, print_log

RUN = simulate_run(
    num_steps=400, faults=[Fault(kind="nan", step=200), Fault(kind="scale-collapse", step=300)]
)
STYLES = {
    "plain": MegatronStyle(),
    "newer": MegatronStyle(layout="megatron-lm", norm_times_loss_scale=False),
    "ranks": MegatronStyle(rank_prefixes=("[default0]:", "[default7]:"), rank_lag_rows=3),
    "bars": MegatronStyle(progress_bars=True, count_skips=False),
    "elided": MegatronStyle(elide_after=frozenset({100.0, 101.0, 250.0})),
}


def said(record: RunRecord) -> tuple[object, ...]:
    cells = {n: (c.values.tobytes(), c.present.tobytes()) for n, c in record.columns.items()}
    places = record.step.tobytes(), record.attempt.tobytes(), repr(record.attempts)
    return cells, places, record.notes, dict(record.facts), dict(record.keys)


def read_both(path: Path, text: str) -> tuple[object, object]:
    """Return what is read in blocks of lines, and line by line; None for a refusal."""
    path.write_text(text)
    whole = text.split("\n")
    lines = whole if whole[-1] else whole[:-1]
    both: list[object] = []
    for at_once in (True, False):
        try:
            reader = MegatronReader()
            both.append(said(reader.read(path) if at_once else reader.read_lines(lines, str(path))))
        except ReadError:
            both.append(None)
    return both[0], both[1]


@pytest.mark.parametrize("style", STYLES)
def test_a_log_is_the_same_in_blocks_and_line_by_line(style: str, tmp_path: Path) -> None:
    twice = print_log(RUN, STYLES[style])
    text = twice + print_log(simulate_run(num_steps=90, first_step=350, seed=1), STYLES[style])
    at_once, one_by_one = read_both(tmp_path / "log", text)
    assert at_once == one_by_one
    assert at_once is not None


@pytest.mark.slow
def test_damaged_logs_are_the_same_in_blocks_and_line_by_line(tmp_path: Path) -> None:
    texts = [
        print_log(simulate_run(num_steps=60, seed=i), s) for i, s in enumerate(STYLES.values())
    ]
    for number in range(250):
        rng = random.Random(number)
        data = mutated(rng.choice(texts).encode(), rng, (texts[0].encode(),))
        text = data.decode("ascii", errors="ignore").replace("\r", "").replace("\0", "")
        at_once, one_by_one = read_both(tmp_path / "log", text)
        assert at_once == one_by_one, number


plain_numbers = st.from_regex(r"\A[-+]?[0-9]{1,9}(\.[0-9]{0,6})?([eE][-+][0-9]{1,2})?\Z")


@given(plain_numbers, st.integers(0, 2**32))
def test_a_number_is_what_float_gives(model: str, seed: int) -> None:
    rng = random.Random(seed)
    others = [
        "".join(str(rng.randrange(10)) if c.isdigit() else c for c in model) for _ in range(9)
    ]
    layout = LineLayout(f"x: {model} |".encode(), {"x": (2, 4 + len(model))})
    rows = np.array([list(f"x: {text} |".encode()) for text in (model, *others)], np.uint8)
    values, fits = layout.read(rows)
    exact = [float(text) for text in (model, *others)]
    assert [v for v, ok in zip(values[:, 0].tolist(), fits, strict=True) if ok] == [
        v for v, ok in zip(exact, fits, strict=True) if ok
    ]
    assert fits.all() or "e" in model.lower()  # beyond 10^22 it leaves a number to float


def test_a_line_with_another_word_does_not_fit() -> None:
    layout = LineLayout(b"step 10 loss 2.50", {"step": (4, 8), "loss": (12, 17)})
    lines = [b"step 11 loss 2.25", b"step 11 less 2.25", b"step 1x loss 2.25", b"step 11 loss 2,25"]
    values, fits = layout.read(np.array([list(line) for line in lines], np.uint8))
    assert fits.tolist() == [True, False, False, False]
    assert values[0].tolist() == [11.0, 2.25]


@pytest.mark.parametrize(
    "between",
    [
        "# Try 3",
        "- Restarted from `global_step40`",
        " [...]",
        "  lr ........ 1e-4",
        "plain words",
        "  successfully loaded checkpoint from x at iteration 20",
        " validation loss at iteration 30 | lm loss value: 2.0E+00 | lm loss PPL: 7.4E+00 |",
    ],
)
def test_what_stands_between_records_is_seen(between: str, tmp_path: Path) -> None:
    lines = print_log(simulate_run(num_steps=120), STYLES["plain"]).splitlines()
    text = "\n".join([*lines[:60], between, *lines[60:]])
    at_once, one_by_one = read_both(tmp_path / "log", text)
    assert at_once == one_by_one
