"""A learning-rate finder in front of a training, and spaCy's first row."""

from pathlib import Path

import numpy as np

from trimtab.readers import read_run


def test_the_training_is_read_and_not_the_range_test_before_it(tmp_path: Path) -> None:
    """As a script prints that uses fastai's finder and then its table."""
    rates = 1e-6 * 1.23 ** np.arange(80)
    lines = ["lr_find:", *(f"  lr={r:.2e} loss={2.5 + 0.7 * r:.4f}" for r in rates)]
    lines += ["suggested lr: 3.2e-02", "epoch     train_loss  valid_loss  accuracy  time"]
    lines += [
        f"{k}         {1 / (k + 1):.6f}  {1.1 / (k + 1):.6f}  0.8{k}  00:04" for k in range(10, 40)
    ]
    path = tmp_path / "learn.txt"
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert record.keys["loss"] == "train loss"
    assert len(record.step) == 30


def test_the_first_row_of_spacy_is_of_no_steps_though_its_layer_has_a_loss(tmp_path: Path) -> None:
    rows = [
        (0, 0, 0.08, 41.32),
        *((k // 3, 20 * k, 1.8 + k / 9, 741 - 30 * k) for k in range(1, 20)),
    ]
    head = "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE \n---  ------  ------------  --------  ------  ------\n"
    text = head + "".join(
        f"{e:3}  {s:6}  {a:12.2f}  {b:8.2f}  {0.5:6.2f}  {0.5:6.2f}\n" for e, s, a, b in rows
    )
    path = tmp_path / "ner.txt"
    path.write_text(text)
    record = read_run(path)
    assert record.columns["loss"].values[0] == 711
    assert any("sums since the row before" in note for note in record.notes)
