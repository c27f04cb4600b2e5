"""The story of tr8-104B, re-enacted: four tries, three rollbacks, a new seed, another beta2.

Facts and figures are re-typed from BigScience's "tr8-104B Chronicles"
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr8-104B-wide/chronicles.md);
everything between them is made up.
"""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks.browser import Browser
from tests.serve.test_served import violations
from tests.surgery.cluster import steps_of
from trimtab.cli import main

pytest.importorskip("tensorboard")

LINE = (
    " iteration {step:8d}/  159576 | consumed samples: {samples:12d} | elapsed time per iteration"
    " (ms): {ms:.1f} | learning rate: 6.000E-05 | global batch size:    96 | lm loss: {loss:.6E}"
    " | loss scale: {scale:.1f} | grad norm: {norm:.3f} | num zeros: 0.0 | number of skipped"
    " iterations:   0 | number of nan iterations:   0 |"
)
QUOTED = {
    1: {
        7000: (6.444662, 98258.265, 18706.1),
        7010: (11.42026, 219645.978, 19904.0),
        7220: (7.155109, 16921.991, 18333.4),
    },
    2: {
        6900: (6.365808, 95313.572, 18495.6),
        6910: (6.598378, 84678.880, 18802.1),
        6920: (7.314456, 122716.232, 18641.0),
        6930: (9.121927, 283384.130, 18564.1),
        6940: (10.23865, 42359.376, 18549.7),
    },
}
"""Try -> iteration -> loss, grad norm times loss scale, milliseconds; as the source quotes them."""
TRIES = {
    # first iteration, last one, iteration of the glitch, loss scale, seed, options
    1: (0, 7420, 7005, 2048.0, 42, "--adam-beta2 0.999 --save-interval 1500"),
    2: (6210, 7120, 6915, 4096.0, 43, "--adam-beta2 0.999 --save-interval 1500"),
    3: (6210, 7060, 6900, 4096.0, 43, "--adam-beta2 0.999 --save-interval 300"),
    4: (3000, 5200, None, 4096.0, 43, "--adam-beta2 0.95 --save-interval 300"),
}
BEGUN = datetime(2021, 9, 20, 8, 0, tzinfo=UTC).timestamp()

Rows = list[tuple[int, float, float, float, float]]


def rows_of(number: int) -> Rows:
    """Return iteration, loss, grad norm as printed, seconds of an iteration, wall time."""
    first, last, glitch, scale, _, _ = TRIES[number]
    rng = np.random.default_rng(number)
    wall = BEGUN + (number - 1) * 2.2 * 86_400
    found: Rows = []
    for step in range(first + 10, last + 1, 10):
        loss = 6.4 + 4.0 * math.exp(-step / 900) + 0.02 * rng.standard_normal()
        norm, ms = 48.0 * scale * math.exp(0.1 * rng.standard_normal()), 18_500 + 90 * rng.random()
        if glitch is not None and step > glitch:
            away = (step - glitch) / 200
            loss += 5.0 * math.exp(-3 * away) + 0.75
            norm *= 2.3 if away < 0.2 else 0.4
            if step > last - 60:
                loss = math.nan
        loss, norm, ms = QUOTED.get(number, {}).get(step, (loss, norm, ms))
        wall += ms / 1000 * 10 / 60  # one in sixty of the true time: the story fits in ten days
        found.append((step, loss, norm, ms / 1000, wall))
    return found


def write_events(folder: Path, rows: Rows) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    writer = EventFileWriter(str(folder))
    for step, loss, norm, seconds, wall in rows:
        for tag, value in (("lm-loss-training/lm loss", loss), ("grad-norm/grad-norm", norm)):
            told = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=wall, step=step, summary=told))
        told = Summary(
            value=[Summary.Value(tag="iteration-time/iteration-time", simple_value=seconds)]
        )
        writer.add_event(Event(wall_time=wall, step=step, summary=told))
    writer.close()
    (made,) = set(folder.iterdir()) - before
    made.rename(folder / f"events.out.tfevents.{int(rows[0][4])}.node.0")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the source describes it after the third rollback: logs, events, checkpoints."""
    root = tmp_path_factory.mktemp("cluster") / "tr8-104B"
    board = root / "tr8-104B-logs" / "tensorboard"
    logs = root / "logs"
    logs.mkdir(parents=True)
    for number, (_, _, _, scale, seed, options) in TRIES.items():
        rows = rows_of(number)
        write_events(board, rows)
        text = [
            LINE.format(step=s, samples=s * 96, ms=1000 * t, loss=loss, scale=scale, norm=norm)
            for s, loss, norm, t, _ in rows
        ]
        (logs / f"try-{number}.out").write_text("\n".join(text) + "\n")
        (logs / f"try-{number}.slurm").write_text(
            "#!/bin/bash\n#SBATCH --nodes=64\n#SBATCH --gres=gpu:4\n"
            "python pretrain_gpt.py --num-layers 32 --hidden-size 16384 --lr 6e-5 --fp16"
            f" --seed {seed} {options}\n"
        )
        for step in {1: (3000, 6210, 7110), 2: (6210, 6900), 3: (6300, 6900), 4: (3300,)}[number]:
            save(root, step)
        if number < 4:
            back, name = TRIES[number + 1][0], "tb-7k-glitch" if number == 1 else f"tb-try-{number}"
            asked = ["--to", str(back), "--archive", name, "--why", f"try {number} diverged"]
            assert main(["rollback", str(root), *asked, "--apply"]) == 0
    return root


def save(root: Path, step: int) -> None:
    """Save a checkpoint as Megatron-DeepSpeed does: shards, then the pointers."""
    folder = root / "checkpoints" / f"global_step{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"weights")
    (root / "checkpoints" / "latest").write_text(f"global_step{step}")
    (root / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.fixture(scope="module")
def adopted(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("adopted") / "run"
    before = {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in cluster.rglob("*")}
    assert main(["adopt", str(cluster), "--out", str(run), "--json"]) == 0
    after = {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in cluster.rglob("*")}
    assert after == before
    tell_the_story(run)
    return run


def tell_the_story(run: Path) -> None:
    def note(text: str, *options: str) -> None:
        assert main(["note", str(run), text, *options]) == 0

    note("Having a new seed re-randomizes the order of the data", "--why", "--attempt", "1.1",
         "--author", "S. Bekman")  # fmt: skip
    note("the glitch happened very closely to the end of the LR warmup", "--hypothesis",
         "warm-up end", "--author", "Conglong Li", "--attempt", "1.1")  # fmt: skip
    note("shuffling did not change much", "--hypothesis", "bad data", "--status", "rejected",
         "--author", "Iz Beltagy", "--attempt", "1.2")  # fmt: skip
    note("run everything on fp32 to test it", "--hypothesis", "fp16", "--status", "open",
         "--author", "Iz Beltagy", "--attempt", "1.2")  # fmt: skip
    note("a more numerically stable self-attention: norm_factor moved inward", "--why",
         "--attempt", "1.2", "--author", "Corby Rosset")  # fmt: skip
    note("the number of nodes and the data stay; codecarbon is off, as it misses measurements",
         "--attempt", "1.2", "--author", "S. Bekman")  # fmt: skip
    note("the ratio of width to depth: 6.3 after 6K steps, where 13B had 4.5", "--hypothesis",
         "model design", "--author", "Iz Beltagy", "--attempt", "1.2")  # fmt: skip
    note("6K, 4K and 3K are good candidates, in increasing order of preference",
         "--author", "Samyam Rajbhandari", "--attempt", "1.2")  # fmt: skip
    note("NLAYERS=64 NHIDDEN=11600, a ratio of 180; stopped on 2021-09-30", "--attempt", "1.3",
         "--author", "S. Bekman")  # fmt: skip
    note("the gradients are the largest at the end of the LR ramp-up; the variance norm and maximum"
         " reach their top near the peak of the LR", "--hypothesis", "warm-up end",
         "--author", "Conglong Li", "--attempt", "1.1")  # fmt: skip
    note("earlier than 6210, as that might be too close to the blow up; beta2 0.95 as seconded by"
         " Samyam Rajbhandari", "--why", "--attempt", "1.3", "--author", "Iz Beltagy")  # fmt: skip


Chronicle = Callable[..., str]


@pytest.fixture
def chronicle(adopted: Path, capsys: pytest.CaptureFixture[str]) -> Chronicle:
    def read(*options: str) -> str:
        capsys.readouterr()
        assert main(["chronicle", str(adopted), *options]) == 0
        return capsys.readouterr().out

    return read


@pytest.mark.covers("S142", "S143", "S149")
def test_the_logbook_carries_every_fact_of_the_source(chronicle: Chronicle) -> None:
    text = chronicle()
    tries = {n: text.split(f"## Attempt {n}")[1].split("\n## ")[0] for n in
             ("1.0", "1.1", "1.2", "1.3")}  # fmt: skip
    for told in tries.values():
        assert "Nodes: 64" in told
    assert "Started from scratch" in tries["1.0"]
    assert "Seed: 42" in tries["1.0"]
    assert "rolled back from 7110 to 6210" in tries["1.0"]
    assert "try 1 diverged" in tries["1.0"]
    assert "moved aside: checkpoints/global\\_step7110" in tries["1.0"]
    assert "checkpoints/latest: global\\_step7110 becomes global\\_step6210" in tries["1.0"]
    assert "checkpointed\\_iteration.txt: 7110 becomes 6210" in tries["1.0"]
    assert "tb-7k-glitch" in tries["1.0"]
    assert "rolled back from 6900 to 6210" in tries["1.1"]
    assert "rolled back from 6900 to 3000" in tries["1.2"]
    assert "did not" in tries["1.0"]
    assert "(parent 1.0 @ 6210)" in tries["1.1"]
    assert "Same as 1.0, but: seed 42 → 43" in tries["1.1"]
    assert "(parent 1.0 @ 6210)" in tries["1.2"]
    assert "As 1.1, but: save steps 1500 → 300" in tries["1.2"]
    assert "norm\\_factor moved inward (Corby Rosset)" in tries["1.2"]
    assert "(parent 1.0 @ 3000)" in tries["1.3"]
    assert "As 1.2, but: beta2 0.999 → 0.95" in tries["1.3"]
    assert "Seed: 43" in tries["1.3"]
    assert "(Iz Beltagy)" in tries["1.3"]
    # what the source tells of the losses, of the rows that it quotes
    assert "at most 11.42 at 7010, " in tries["1.0"]
    assert "at most 10.24 at 6940, " in tries["1.1"]
    for name, nan_from in (("1.0", 7370), ("1.1", 7070), ("1.2", 7010)):
        assert "before it, at most " in tries[name]
        assert f"NaN from {nan_from}" in tries[name]
    assert "trouble began at 7010" in tries["1.0"]
    assert "trouble began at 6910" in tries["1.1"]
    for fact in ("codecarbon is off", "6K, 4K and 3K", "Samyam Rajbhandari"):
        assert fact in tries["1.2"]
    for fact in ("NLAYERS=64 NHIDDEN=11600", "2021-09-30"):
        assert fact in tries["1.3"]
    failed = text.split("## What did not")[1].split("\n## ")[0]
    assert "seed 42 → 43" in failed
    known = text.split("## Hypotheses")[1].split("\n## ")[0]
    assert "| bad data | rejected |" in known
    assert "| fp16 | open |" in known
    assert "| model design | open |" in known
    assert "Conglong Li: the gradients are the largest at the end of the LR ramp-up" in known
    assert "3 restarts in " in text


@pytest.mark.covers("S109")
def test_the_folder_ends_as_the_source_says(cluster: Path) -> None:
    saved = cluster / "checkpoints"
    assert (saved / "latest").read_text() == "global_step3300"
    assert (saved / "latest_checkpointed_iteration.txt").read_text() == "3300"
    aside = {p.name for p in (cluster / "aside").glob("global_step*")}  # moved, and never deleted
    assert {"global_step6210", "global_step6900", "global_step7110"} <= aside
    assert sorted(p.name for p in saved.glob("global_step*")) == [
        "global_step3000",
        "global_step3300",
    ]
    board = cluster / "tr8-104B-logs" / "tensorboard"
    assert {p.name for p in board.iterdir() if p.is_dir()} == {
        "tb-7k-glitch",
        "tb-try-2",
        "tb-try-3",
    }
    kept = {p.name for p in board.glob("events*")}
    assert len(kept) == 2  # of tries 1 and 4; those of 2 and 3 are in the archives
    assert steps_of(board) == list(range(10, 5201, 10))
    assert steps_of(board / "tb-7k-glitch") == list(range(10, 7421, 10))


def test_copies_in_the_archives_are_counted_once(chronicle: Chronicle, adopted: Path) -> None:
    lineage = json.loads(chronicle("--json"))["lineage"]
    attempts = lineage["attempts"]
    assert [a["number"] for a in attempts] == ["1.0", "1.1", "1.2", "1.3"]
    assert lineage["main_line"] == ["1.0", "1.3"]
    assert [a["kind"] for a in attempts] == ["start", "rollback", "rollback", "rollback"]
    assert [a["last_step"] for a in attempts] == [7420, 7120, 7060, 5200]
    assert attempts[0]["kept_until"] == 3000
    assert all(a["begun"].startswith("2021-09-2") for a in attempts)
    # the text log and the event files of a try are one attempt
    assert any("try-1.out" in s for s in attempts[0]["sources"])
    assert any("tensorboard" in s for s in attempts[0]["sources"])


def test_quoted_figures_come_through(adopted: Path) -> None:
    text = (adopted / "signals" / "1.0.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    quoted = {r["step"]: r["loss"] for r in rows}
    assert quoted[7010] == pytest.approx(11.42026, rel=1e-6)
    assert quoted[7220] == pytest.approx(7.155109, rel=1e-6)


def test_the_page_and_its_picture(chronicle: Chronicle) -> None:
    page = chronicle("--format", "html")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 5  # one of all, one of each try
    assert "norm_factor moved inward" in page
    assert "<script" not in page


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_opens_without_an_error_in_light_dark_and_on_a_phone(
    chronicle: Chronicle, tmp_path: Path
) -> None:
    path = tmp_path / "logbook.html"
    path.write_text(chronicle("--format", "html"), encoding="utf-8")
    with Browser() as browser:
        for dark in (False, True):
            browser.color_scheme(dark=dark)
            for width in (375, 1280):
                browser.open(path, width=width)
                assert browser.evaluate("document.querySelectorAll('svg').length") == 5
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                assert browser.errors == []
                assert violations(browser) == []


def test_the_effective_curve_has_no_overlap(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curve.csv"
    assert main(["chronicle", str(adopted), "--curve", str(out)]) == 0
    lines = [line.split(",") for line in out.read_text().splitlines()[1:]]
    steps = [float(line[1]) for line in lines]
    assert steps == sorted(set(steps))
    assert [line[0] for line in lines if line[1] in ("3000", "3010")] == ["1.0", "1.3"]
