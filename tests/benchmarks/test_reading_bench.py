"""The bench of readers: what it measures, and what it says where the others are missing."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cli_read
from benchmarks.logs import reading_bench
from benchmarks.logs.reading_bench import Rival, big_run, run_reading_bench, write_jsonl
from trimtab.errors import MissingExtraError
from trimtab.readers import read_run


@pytest.mark.slow
def test_each_file_is_read_by_both_as_often_and_the_ratio_is_theirs_over_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: dict[str, list[Path]] = {}

    def rival(kind: str) -> Rival:
        return Rival(
            name="none", read=lambda path: read.setdefault(kind, []).append(path), target=3.0
        )

    kinds = ("TensorBoard events", "Megatron text", "JSON lines", "CSV")
    monkeypatch.setattr(reading_bench, "_rivals", lambda: {k: (rival(k),) for k in kinds})
    lines: list[str] = []
    figures = run_reading_bench(rounds=2, say=lines.append, whole_rows=200, share=0.01)
    assert [len(paths) for paths in read.values()] == [3, 3, 3, 3]
    for row in figures["readers"]:
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < 3.0
        assert row["size_bytes"] > 0
    assert sum("target 3: MISSED" in line for line in lines) == 4
    assert figures["whole"]["exit_code"] == 0
    assert figures["whole"]["rows"] == 200


def test_the_logs_hold_what_they_say(tmp_path: Path) -> None:
    columns = big_run(300, num_signals=30)
    assert len(columns) == 30
    record = read_run(write_jsonl(tmp_path / "log.jsonl", columns))
    np.testing.assert_allclose(record.columns["loss"].values, columns["loss"], atol=1e-7)
    assert record.num_rows == 300


def test_a_missing_reader_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    commands = argparse.ArgumentParser().add_subparsers()
    cli_read.add(commands)
    arguments = commands.choices["read"].parse_args(["--rounds", "1"])
    with pytest.raises(MissingExtraError, match=r"needs the 'bench' extra"):
        arguments.run(arguments)
