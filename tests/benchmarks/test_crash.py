"""The measure of the crash classifier, on samples written here."""

import json
from pathlib import Path

import pytest

from benchmarks.cli import main


def test_crash_counts_class_who_must_act_and_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "oom": ("oom_gpu", "config", "2", "[rank2]: RuntimeError: CUDA out of memory. Tried"),
        "tree": ("user_error", "config", None, "RuntimeError: Working tree is dirty, commit or stash"),
        "calm": ("healthy", None, None, "step 5 loss 2.0 lr 1e-3"),
    }  # fmt: skip
    rows = []
    for name, (wanted, act, rank, text) in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        rows.append(
            {
                "id": name,
                "class": wanted,
                "kind": act,
                "is_failure": wanted != "healthy",
                "first_error_rank": rank,
                "source": "elena-lyulina/Megatron-LM-Attention-Benchmark:x.log",
                "local_path": f"{name}.txt",
            }
        )
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["crash", "--errors", str(tmp_path), "--json"]) == 0
    whole, left_out = json.loads(capsys.readouterr().out)["results"]
    assert (whole["class_right"], whole["act_right"], whole["rank_right"]) == (3, 2, 1)
    assert left_out["class_right"] == 2, "the row that this repository alone suggested is off"
    assert [miss["id"] for miss in left_out["misses"]] == ["tree"]


def test_a_folder_without_manifest_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crash", "--errors", str(tmp_path)]) == 2
    assert "manifest.jsonl" in capsys.readouterr().err
