"""A scan that was stopped goes on and tells what an unbroken one tells."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.data_scan.data import CLEAN, tokens, write_jsonl, write_megatron
from trimtab.data_scan import ScanSettings, scan
from trimtab.data_scan.engine import Progress
from trimtab.data_scan.report import document, skip_list_of
from trimtab.errors import ConfigError, ReadError


class StopError(Exception):
    """Raised in the middle of a scan."""


def corpus(folder: Path) -> Path:
    texts = ["\\" * 9000 if i % 50 == 7 else t for i, t in enumerate(CLEAN * 2)]
    raw = write_jsonl(folder / "a.jsonl", texts).read_bytes()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(raw[: len(raw) // 2], 1))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(raw))
    (folder / "d.txt").write_text("\n".join(texts))
    docs = [tokens(n, seed=n) for n in range(3000, 9000, 371)]
    docs[7][100:900] = 3
    write_megatron(folder / "e", docs)
    np.save(folder / "f.npy", tokens(60_000, seed=9))
    return folder


def told(*arguments: Any, **more: Any) -> tuple[str, str]:
    result = scan(*arguments, **more)
    return json.dumps(document(result), sort_keys=True), repr(skip_list_of(result))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("read_text", "read_tokens", "read_tar"):
        monkeypatch.setattr(f"trimtab.data_scan.{module}.BLOCK_BYTES", 1 << 16)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(23, marks=pytest.mark.slow)]
)
def test_a_scan_stopped_again_and_again_tells_what_an_unbroken_one_tells(
    tmp_path: Path, stride: int
) -> None:
    folder = corpus(tmp_path)
    unbroken = told([str(folder)])
    state, stops = tmp_path.parent / f"{tmp_path.name}.npz", 0
    resumed = None
    while resumed is None:
        seen = 0

        def tell(_: Progress) -> None:
            nonlocal seen
            seen += 1
            if seen > stride:
                raise StopError

        try:
            resumed = told(
                [str(folder)],
                state_path=state,
                resume=True,
                save_every_s=0,
                tell=tell if stops < 12 else None,
            )
        except StopError:
            stops += 1
    assert stops >= 3
    assert resumed == unbroken
    assert not state.exists()


@pytest.mark.usefixtures("small_blocks")
def test_a_note_of_other_data_or_settings_is_refused(tmp_path: Path) -> None:
    folder, state = corpus(tmp_path), tmp_path.parent / f"{tmp_path.name}.npz"

    def stop(_: Progress) -> None:
        if state.exists():
            raise StopError

    with pytest.raises(StopError):
        scan([str(folder)], state_path=state, save_every_s=0, tell=stop)
    with pytest.raises(ReadError, match="other data or settings"):
        scan([str(folder)], ScanSettings(vocab=10), state_path=state, resume=True)
    os.utime(folder / "a.jsonl", (1, 1))
    with pytest.raises(ReadError, match="other data or settings"):
        scan([str(folder)], state_path=state, resume=True)
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ReadError, match="holds no state of a scan"):
        scan([str(folder)], state_path=state, resume=True)


def test_going_on_needs_a_place_and_begins_anew_where_nothing_is_noted(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "d.jsonl", CLEAN))
    with pytest.raises(ConfigError, match="no note to go on from"):
        scan([path], resume=True)
    assert told([path], state_path=tmp_path / "s.npz", resume=True) == told([path])


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for part in range(4):
        texts = [f"{part} {n} {t}" for n in range(6) for t in CLEAN]
        texts[100 + part] = "\\" * 9000
        write_jsonl(folder / f"{part}.jsonl", texts)
    skip = tmp_path / "skip.json"
    state = tmp_path / "skip.json.state.npz"
    hurried = (
        "import sys; from trimtab.data_scan import engine;"
        " engine.scan.__kwdefaults__['save_every_s'] = 0; from trimtab.cli import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    command = ["scan", str(folder), "--write-skip", str(skip), "--json"]
    started = subprocess.Popen([sys.executable, "-c", hurried, *command], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not state.exists() and time.monotonic() < deadline and started.poll() is None:
        time.sleep(0.005)
    started.send_signal(signal.SIGKILL)
    assert started.wait(timeout=60) == -signal.SIGKILL
    assert state.exists()
    assert not skip.exists()
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *command, "--resume"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unbroken = told([str(folder)])
    assert json.dumps(json.loads(done.stdout), sort_keys=True) == unbroken[0]
    assert len(json.loads(skip.read_text())["sources"]) == 4
    assert not state.exists()
