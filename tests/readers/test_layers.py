import json
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers.layers import read_layers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "signals" / "layers"
    found.mkdir(parents=True)
    return found


def lines(*rows: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


def test_readings_are_read_per_quantity_and_attempt(tmp_path: Path, folder: Path) -> None:
    (folder / "1.0.jsonl").write_text(
        lines(
            {"step": 10, "grad_norm": [1.0, 2.0], "attention_entropy": [3.0, 3.1]},
            {"step": 20, "grad_norm": [1.5, None]},
            {"step": 30, "grad_norm": ["Infinity", 2.5]},
        )
    )
    (folder / "1.1.jsonl").write_text(lines({"step": 25, "grad_norm": [4, 5]}))
    found, notes = read_layers(tmp_path)
    assert notes == ()
    assert [(r.attempt, r.name, r.step.tolist()) for r in found] == [
        ("1.0", "grad_norm", [10, 20, 30]),
        ("1.0", "attention_entropy", [10]),
        ("1.1", "grad_norm", [25]),
    ]
    expected = [[1.0, 2.0], [1.5, math.nan], [math.inf, 2.5]]
    np.testing.assert_array_equal(found[0].values, expected)


def test_what_cannot_be_read_is_left_out_and_told(tmp_path: Path, folder: Path) -> None:
    (folder / "1.0.jsonl").write_text(
        lines(
            {"step": 10, "grad_norm": [1.0, 2.0]},
            {"step": True, "grad_norm": [9.0]},
            {"grad_norm": [9.0]},
            {"step": 20, "grad_norm": [{"a": 1}]},
            [1, 2],
        )
        + '{"step": 30, "grad_norm": [1.0, 2'  # killed in mid-write
    )
    found, notes = read_layers(tmp_path)
    assert [r.step.tolist() for r in found] == [[10]]
    assert notes == ("layers/1.0.jsonl: 5 lines left out, not readable",)


def test_a_step_read_again_has_its_last_reading_and_ragged_rows_are_filled_with_nan(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "1.0.jsonl").write_text(
        lines(
            {"step": 20, "grad_norm": [1, 2, 3]},
            {"step": 10, "grad_norm": [7]},
            {"step": 20, "grad_norm": [4, 5, 6]},
        )
    )
    (reading,), _ = read_layers(tmp_path)
    np.testing.assert_array_equal(reading.values, [[7, math.nan, math.nan], [4, 5, 6]])


def test_links_odd_names_and_other_paths_are_not_followed(tmp_path: Path, folder: Path) -> None:
    elsewhere = tmp_path / "secret.jsonl"
    elsewhere.write_text(lines({"step": 1, "grad_norm": [1]}))
    (folder / "1.0.jsonl").symlink_to(elsewhere)
    (folder / "notes.jsonl").write_text(lines({"step": 1, "grad_norm": [1]}))
    assert read_layers(tmp_path) == ((), ())
    assert read_layers(elsewhere) == ((), ())
    assert read_layers(tmp_path / "nowhere") == ((), ())
