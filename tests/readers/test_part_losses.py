"""Of a row with several losses and no whole, a NaN in any is told, in every form of the row."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import trimtab
from benchmarks.logs.event_logs import write_event_file
from trimtab.readers import read_run
from trimtab.record import RunRecord

# Detectors of the YOLO family, a CycleGAN, a GAN with one letter each.
KEYS = {
    "yolo": ("train/box_loss", "train/cls_loss", "train/dfl_loss"),
    "cyclegan": ("G_A", "D_A", "Cyc_A"),
    "letters": ("G", "D"),
}
N = 40
NETS = ("generator_loss", "discriminator_loss", "policy_loss", "value_loss")


def rows_of(keys: Sequence[str], broken: range = range(0)) -> list[dict[str, float]]:
    return [
        {
            "step": i,
            **{
                key: math.nan if j == 1 and i in broken else round(3 / (1 + 0.05 * i) + j, 4)
                for j, key in enumerate(keys)
            },
        }
        for i in range(N)
    ]


def as_csv(path: Path, rows: list[dict[str, float]]) -> None:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def as_json(path: Path, rows: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_text(path: Path, rows: list[dict[str, float]]) -> None:
    path.write_text("".join(" | ".join(f"{k}: {v}" for k, v in r.items()) + "\n" for r in rows))


FORMS: dict[str, Callable[[Path, list[dict[str, float]]], None]] = {
    "csv": as_csv,
    "jsonl": as_json,
    "text": as_text,
}


def read(tmp_path: Path, form: str, rows: list[dict[str, float]]) -> RunRecord:
    path = tmp_path / f"run.{form}"
    FORMS[form](path, rows)
    return read_run(path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KEYS)
def test_a_nan_in_a_part_is_counted(tmp_path: Path, name: str, form: str) -> None:
    keys = KEYS[name]
    record = read(tmp_path, form, rows_of(keys, range(20, 30)))
    assert record.keys["loss"].replace(" ", "_").lower() == keys[0].replace(" ", "_").lower()
    count = record.columns["nonfinite"]
    assert count.logged().tolist() == [float(20 <= i < 30) for i in range(N)]
    assert record.keys["nonfinite"].replace(" ", "_").lower() == keys[1].lower()
    assert not record.unread
    # Without a NaN there is nothing to count, and the other losses are said to be looked at.
    sound = read(tmp_path, form, rows_of(keys))
    assert "nonfinite" not in sound.columns
    judged = {key for n, key in sound.keys.items() if n in NETS or n.startswith("loss/")}
    others = {key.lower() for key in keys[1:]} - {k.replace(" ", "_").lower() for k in judged}
    assert any("only NaN and Inf are told" in note for note in sound.notes) == bool(others)


def test_a_nan_in_a_part_is_an_incident(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    as_csv(path, rows_of(KEYS["yolo"], range(20, N)))
    (incident,) = [i for i in trimtab.analyze(path).incidents if i.kind == "non-finite"]
    assert incident.onset == 20


@pytest.mark.parametrize("form", FORMS)
def test_beside_a_finite_whole_a_part_is_only_noted(tmp_path: Path, form: str) -> None:
    rows = [
        {"step": r["step"], "loss": 5.0 / (1 + r["step"]), **r}
        for r in rows_of(KEYS["yolo"], range(20, 30))
    ]
    record = read(tmp_path, form, rows)
    assert record.keys["loss"] == "loss"
    assert "nonfinite" not in record.columns
    assert any("NaN or Inf in 10 rows" in note for note in record.notes)


def test_what_was_never_a_number_or_comes_regularly_is_not_counted(tmp_path: Path) -> None:
    rows = rows_of(KEYS["yolo"])
    for i, row in enumerate(rows):
        row["train/cls_loss"] = math.nan
        row["train/dfl_loss"] = row["train/dfl_loss"] if i % 5 == 0 else math.nan
    assert "nonfinite" not in read(tmp_path, "csv", rows).columns


def test_one_letter_alone_is_no_loss(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 3 - i / 99, "G": 9.81} for i in range(N)]
    record = read(tmp_path, "csv", rows)
    assert (record.keys["loss"], dict(record.unread)) == ("loss", {"G": N})


def test_event_files_too(tmp_path: Path) -> None:
    steps = np.arange(N, dtype=np.int64)
    columns = {
        key: np.array([row[key] for row in rows_of(KEYS["yolo"], range(20, 30))])
        for key in KEYS["yolo"]
    }
    write_event_file(tmp_path / "events.out.tfevents.1700000000.host.1.0", columns, steps)
    record = read_run(tmp_path)
    assert record.columns["nonfinite"].logged().sum() == 10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("generator", "discriminator"),
    [
        ("g_loss", "d_loss"),
        ("Loss_G", "Loss_D"),
        ("G", "D"),
        ("errG", "errD"),
        ("G_GAN", "D_A"),
        ("generator_loss", "critic_loss"),
    ],
)
def test_both_nets_are_judged(
    tmp_path: Path, generator: str, discriminator: str, form: str
) -> None:
    rows = [
        {"step": i, discriminator: round(0.7 + 0.01 * (i % 5), 3), generator: 1.0 + 0.02 * i}
        for i in range(N)
    ]
    record = read(tmp_path, form, rows)
    named = {n: key.replace(" ", "_").lower() for n, key in record.keys.items()}
    assert named["loss"] == named["generator_loss"] == generator.lower()
    assert named["discriminator_loss"] == discriminator.lower()
    assert "value_loss" not in named
    # A NaN of the net that is not read as the loss is told as it is where it is a mere part.
    rows = [{**row, discriminator: math.nan} if i > 20 else row for i, row in enumerate(rows)]
    broken = read(tmp_path, form, rows)
    assert broken.columns["nonfinite"].logged().tolist() == [float(i > 20) for i in range(N)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (("loss/entropy", "loss/objective", "loss/critic"), "loss/objective"),
        (("entropy_loss", "objective_loss", "critic_loss"), "objective_loss"),
        (("LossEntropy", "LossPi"), "LossPi"),
        (("entropy_loss", "value_loss"), "value_loss"),
        (("loss_entropy", "loss_value"), "loss_value"),
        (("ent_loss", "q_loss"), "q_loss"),
    ],
)
def test_an_entropy_is_not_read_as_the_loss(
    tmp_path: Path, keys: tuple[str, ...], chosen: str, form: str
) -> None:
    rows = [
        {"step": i, **{k: round(3 / (1 + 0.05 * i) + j, 4) for j, k in enumerate(keys)}}
        for i in range(N)
    ]
    read_as = read(tmp_path, form, rows).keys["loss"]
    assert read_as.replace(" ", "_").lower() == chosen.lower()


def test_a_critic_of_text_is_judged_as_that_of_a_table(tmp_path: Path) -> None:
    rows = [
        {"step": i, "actor_loss": -0.01 * i, "critic_loss": 5.0 / (1 + i), "entropy_loss": 1.4}
        for i in range(N)
    ]
    for form in FORMS:
        record = read(tmp_path, form, rows)
        named = {n: key.replace(" ", "_") for n, key in record.keys.items()}
        assert named["loss"] == named["policy_loss"] == "actor_loss"
        assert named["value_loss"] == "critic_loss"


def test_the_losses_of_two_nets_are_known_in_one_word(tmp_path: Path) -> None:
    lines = [f"[{k:3d}/200]: dloss: {0.3 / (k + 1):.4f}, gloss: {3.2 - k / 40}" for k in range(60)]
    path = tmp_path / "train.out"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert record.keys["discriminator_loss"] == "dloss"
    assert record.columns["generator_loss"].logged().tolist() == [3.2 - k / 40 for k in range(60)]
