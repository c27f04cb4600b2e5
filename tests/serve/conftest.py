"""A folder of runs, served by a process of its own, as a user starts it."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import Browser
from trimtab.chronicle.adopt import adopt, write_run

HOSTILE = "<img src=x onerror=\"document.title='owned'\">.jsonl"


@dataclass
class Served:
    """A server and its folder."""

    address: str
    folder: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=20) as answer:
            return json.load(answer)

    def ids(self) -> dict[str, str]:
        return {run["title"]: run["id"] for run in self.get("api/runs")["runs"]}


def write_log(path: Path, num_rows: int, *, seed: int, trouble: bool = False) -> None:
    rng = np.random.default_rng(seed)
    step = np.arange(1, num_rows + 1)
    loss = 2 + 8 * (step + 50.0) ** -0.4 + rng.normal(0, 0.02, num_rows)
    norm = np.exp(rng.normal(-1, 0.2, num_rows))
    if trouble:
        at = int(0.7 * num_rows)
        loss[at:] += np.linspace(0, 5, num_rows - at)
        norm[at - 20 :] *= 8
    with path.open("w", encoding="utf-8") as file:
        for s, y, g in zip(step.tolist(), loss.tolist(), norm.tolist(), strict=True):
            row = {"step": s, "loss": y, "grad_norm": g, "tokens_seen": s * 2048.0}
            file.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("runs")
    write_log(folder / "base.jsonl", 7000, seed=0)
    write_log(folder / "diverges.jsonl", 2000, seed=1, trouble=True)
    write_log(folder / HOSTILE, 300, seed=2)
    (folder / "broken.jsonl").write_bytes(b"\x00\x01\x02" * 1000)
    logs = [folder.parent / f"try-{k}.jsonl" for k in range(2)]
    for k, log in enumerate(logs):
        write_log(log, 200 + 60 * k, seed=3 + k)
    rows = logs[1].read_text().splitlines()
    logs[1].write_text("\n".join(rows[120:]) + "\n")  # goes on from step 120
    write_run(adopt(logs), (), folder / "two-attempts")
    command = [sys.executable, "-m", "trimtab", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]
            yield Served(address, folder)
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


__all__ = ["HOSTILE", "Served", "browser", "served", "write_log"]
