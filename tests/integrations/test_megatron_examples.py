"""The examples for torchtitan and Megatron as a user runs them; what is not here is stood in for.

torchtitan's runs in its real Trainer, on the CPU (see `titan_lab`). Megatron-LM's trainer is not on
PyPI and asks for CUDA: the hook file runs against a `megatron.training` of the same names and
signature.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

_ON_CPU = """
import runpy, sys
from tests.integrations import titan_lab
sys.argv = sys.argv[1:]
with titan_lab.process_group():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_torchtitans_example_recovers(tmp_path: Path) -> None:
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    pytest.importorskip("triton", reason="torchtitan 0.3 imports triton on any machine")
    script = ROOT / "examples" / "torchtitan_llama.py"
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", _ON_CPU, script, tmp_path / "out"],
        cwd=tmp_path,
        timeout=1500,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "roll-back+lower-lr: worked" in done.stderr
    files = (tmp_path / "out" / "trimtab" / "signals").glob("*.jsonl")
    rows = [json.loads(line) for f in files for line in f.read_text("utf-8").splitlines()]
    assert min(row["loss"] for row in rows if row["step"] == 200) < 3.0
    source = script.read_text(encoding="utf-8")
    assert sum(line.endswith("# trimtab") for line in source.splitlines()) == 2
    assert "`# trimtab`: 2 of them" in source


def test_megatrons_hook_file_ends_a_run_from_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def training_log(
        loss_dict: Any,
        total_loss_dict: Any,
        learning_rate: Any,
        iteration: int,
        loss_scale: Any,
        report_memory_flag: Any,
        skipped_iter: int,
        grad_norm: Any,
        params_norm: Any,
        num_zeros_in_grad: Any,
    ) -> bool:
        seen.append(iteration)
        return False

    package = ModuleType("megatron.training")
    package.get_args = lambda: SimpleNamespace(save=str(tmp_path))  # type: ignore[attr-defined]
    package.training = own = SimpleNamespace(training_log=training_log)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.training", package)
    runpy.run_path(str(ROOT / "examples" / "megatron_hooks.py"))

    def train() -> None:
        for i in range(1, 400):
            loss = 3.0 + 1e-3 * (i % 7) + (2.0 if i > 300 else 0.0)
            assert not own.training_log(
                {"lm loss": torch.tensor(loss)}, {}, 3e-4, i, 1.0, False, 0, 0.5, None, None
            )

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == 3
    assert seen == list(range(1, seen[-1] + 1))
    assert 300 < seen[-1] < 360
