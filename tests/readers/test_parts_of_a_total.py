"""Parts of a loss beside their total: by their names, or since the total is made of them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from benchmarks.logs.event_logs import write_event_file
from trimtab.readers import read_run
from trimtab.readers.summands import summands

Floats = NDArray[np.float64]
N = 400
STEP = np.arange(N)


def falling(seed: int, start: float = 1.0, end: float = 0.3, tau: float = 60.0) -> Floats:
    noise = np.random.default_rng(seed).normal(0, 0.02 * start, N)
    return np.asarray(end + (start - end) * np.exp(-STEP / tau) + noise)


def as_json(folder: Path, columns: Mapping[str, Floats]) -> Path:
    path = folder / "log.jsonl"
    rows = ({"step": i} | {k: round(float(v[i]), 5) for k, v in columns.items()} for i in range(N))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_csv(folder: Path, columns: Mapping[str, Floats]) -> Path:
    path = folder / "log.csv"
    lines = [",".join(["step", *columns])]
    lines += [",".join([str(i), *(f"{v[i]:.5f}" for v in columns.values())]) for i in range(N)]
    path.write_text("\n".join(lines) + "\n")
    return path


def as_text(folder: Path, columns: Mapping[str, Floats]) -> Path:
    path = folder / "train.log"
    path.write_text(
        "".join(
            f"step: {i}  " + "  ".join(f"{k}: {v[i]:.5f}" for k, v in columns.items()) + "\n"
            for i in range(N)
        )
    )
    return path


def as_events(folder: Path, columns: Mapping[str, Floats]) -> Path:
    path = folder / "events.out.tfevents.1.host"
    return write_event_file(path, columns, STEP)


FORMS: Mapping[str, Callable[[Path, Mapping[str, Floats]], Path]] = {
    "jsonl": as_json,
    "csv": as_csv,
    "text": as_text,
    "events": as_events,
}


def with_total(parts: Mapping[str, Floats], total: str = "loss") -> dict[str, Floats]:
    return {total: np.sum([*parts.values()], axis=0), **parts}


def parts_read(path: Path) -> dict[str, str]:
    record = read_run(path)
    return {n: k for n, k in record.keys.items() if n.startswith("loss/")}


@pytest.mark.parametrize("form", FORMS)
def test_terms_of_a_detector_beside_their_total(tmp_path: Path, form: str) -> None:
    keys = ("loss_cls", "loss_bbox", "loss_mask")
    columns = with_total({k: falling(i) for i, k in enumerate(keys)})
    found = parts_read(FORMS[form](tmp_path, columns))
    assert sorted(found) == ["loss/bbox", "loss/cls", "loss/mask"]


@pytest.mark.parametrize(
    ("keys", "read"),
    [
        (("mlm_loss", "nsp_loss"), ["loss/mlm", "loss/nsp"]),
        (("seg_loss", "depth_loss"), ["loss/depth", "loss/seg"]),
        (("dice_loss", "ce_loss"), ["loss/ce", "loss/dice"]),
        (
            ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"),
            ["loss/classifier", "loss/objectness", "loss/rpn_box_reg"],
        ),
        (("loss_cls", "loss_kl"), []),
        (("cls_loss", "reg_loss"), []),
        (("cls_loss", "seg_loss", "loss_D"), []),
        (("policy_loss", "mask_loss", "seg_loss"), []),
        (("mse_loss", "mae_loss"), []),
        (("loss_avg", "loss_raw"), []),
    ],
)
def test_parts_by_their_names(tmp_path: Path, keys: tuple[str, ...], read: list[str]) -> None:
    # A total that follows from none of them: what it is made of is not to be seen.
    columns = {"loss": falling(9)} | {k: falling(i) for i, k in enumerate(keys)}
    assert sorted(parts_read(as_json(tmp_path, columns))) == read


@pytest.mark.parametrize("form", FORMS)
def test_one_part_by_arithmetic(tmp_path: Path, form: str) -> None:
    ce, kl = falling(1), falling(2, 2.0, 0.5, 20.0)
    columns = {"loss": ce + 0.5 * kl, "ce_loss": ce, "kl_loss": kl}
    assert parts_read(FORMS[form](tmp_path, columns)) != {}
    found = read_run(FORMS[form](tmp_path, columns))
    assert [n for n in found.columns if n.startswith("loss/")] == ["loss/ce"]


@pytest.mark.parametrize(
    "columns",
    [
        {"loss": falling(1), "ce_loss": falling(1), "kl_loss": falling(2)},
        {"loss": falling(1), "ce_loss": falling(3), "kl_loss": falling(2)},
        {"loss": falling(1) - falling(2), "ce_loss": falling(1), "kl_loss": falling(2)},
        {"loss": falling(1), "mse_loss": falling(1) ** 2, "mae_loss": np.sqrt(falling(1))},
    ],
    ids=["the same", "another", "a difference", "metrics"],
)
def test_what_the_total_is_not_made_of(tmp_path: Path, columns: Mapping[str, Floats]) -> None:
    assert parts_read(as_json(tmp_path, columns)) == {}


def test_weights_are_found_and_metrics_are_none() -> None:
    a, b, c = falling(1), falling(2, 3.0, 1.0), falling(3)
    others = {"a": a, "b": b, "metric": c, "short": a[:50]}
    assert summands(a + 0.1 * b, others) == {"a", "b"}
    assert summands(a - 0.1 * b, others) == frozenset()
    assert summands(a, others) == frozenset()
    assert summands(np.full(N, np.nan), others) == frozenset()


def test_a_part_that_gets_worse_is_told(tmp_path: Path) -> None:
    bbox = 0.5 + 0.4 * (1 - np.exp(-STEP / 150)) + np.random.default_rng(3).normal(0, 0.01, N)
    parts = {"loss_cls": falling(1, 3.0), "loss_bbox": bbox, "loss_mask": falling(2)}
    report = trimtab.analyze(as_json(tmp_path, with_total(parts)))
    told = [i.incident.findings[0].signal for i in report.incidents if i.severity != "info"]
    assert told == ["loss/bbox"]


@pytest.mark.parametrize("seed", range(4))
def test_sound_detectors_are_quiet(tmp_path: Path, seed: int) -> None:
    # The boxes of the second stage are counted over ever more proposals at first.
    rise = 0.05 + 0.3 * (1 - np.exp(-STEP / 80)) + 0.01 * np.random.default_rng(seed).normal(size=N)
    parts = {
        "loss_cls": falling(10 + seed, 1.2),
        "loss_bbox": rise,
        "loss_rpn_cls": falling(20 + seed, 0.6, 0.1),
        "loss_rpn_bbox": falling(30 + seed, 0.1, 0.05),
    }
    report = trimtab.analyze(as_json(tmp_path, with_total(parts)))
    assert [i.kind for i in report.incidents if i.severity != "info"] == []


def test_the_code_of_an_autoencoder_may_come_apart(tmp_path: Path) -> None:
    kl = 0.2 + 2.0 * (1 - np.exp(-STEP / 60)) + np.random.default_rng(1).normal(0, 0.02, N)
    parts = {"recon_loss": falling(1, 9.0, 3.0), "kl_loss": kl}
    path = as_json(tmp_path, with_total(parts))
    assert parts_read(path) == {}
    assert [i.kind for i in trimtab.analyze(path).incidents if i.severity != "info"] == []
