"""Pictures of the effective curve: what changed stands at the same pixel in every panel."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from trimtab.chronicle.adopt import adopt, write_run
from trimtab.cli import main

DROP, RESTART = 300, 400


def write_log(path: Path, first: int, last: int, *, shift: float = 0.0) -> None:
    """Steps with a rate and an activation norm that both fall at step 300, and Adam's moments."""
    rng = np.random.default_rng(first)
    lines = ["step,loss,grad_norm,activation_norm,loss_scale,lr,adam_v_l1,adam_v_max,tokens_seen"]
    for step in range(first, last + 1):
        low = step >= DROP
        loss = 2 + 6 * np.exp(-step / 150) + shift + 0.01 * rng.standard_normal()
        lr, act = (1e-4, 60.0) if low else (3e-4, 100.0)
        v_l1, v_max = 5 + 3 * (step == 250), 0.2 + 0.5 * (step == 260)
        norm = 0.3 if first == RESTART else 0.9
        lines.append(f"{step},{loss:.5f},{norm},{act},65536,{lr},{v_l1},{v_max},{step * 512}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve")
    write_log(folder / "try-1.csv", 1, 450)
    write_log(folder / "try-2.csv", RESTART, 800, shift=-0.05)
    write_run(adopt([folder / "try-1.csv", folder / "try-2.csv"]), (), folder / "run")
    return folder / "run"


def draw(
    run: Path, capsys: pytest.CaptureFixture[str], *options: str, name: str = "c.svg"
) -> tuple[str, str]:
    out = run.parent / name
    assert main(["chronicle", str(run), "--curve", str(out), *options]) == 0
    return out.read_text(encoding="utf-8"), capsys.readouterr().out


def steepest(svg: str, panel: str) -> float:
    """Return the pixel column at which the curves of a panel fall most."""
    body = svg.split(f'data-panel="{panel}"')[1].split("</g>")[0]
    best, at = 0.0, 0.0
    for path in re.findall(r'class="curve[^"]*" d="([^"]*)"', body):
        points = [tuple(map(float, p.split())) for p in re.split(r"[ML]", path) if p]
        for (_, y0), (x1, y1) in pairwise(points):
            if y1 - y0 > best:
                best, at = y1 - y0, x1
    return at


@pytest.mark.covers("S168")
def test_a_fall_of_the_rate_stands_above_that_of_the_activation_norm(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, _ = draw(run, capsys, "--dead")
    panels = re.findall(r'data-panel="(\w+)" data-x0="([\d.]+)" data-x1="([\d.]+)"', svg)
    assert {"loss", "activation_norm", "lr"} <= {name for name, _, _ in panels}
    assert len({(x0, x1) for _, x0, x1 in panels}) == 1
    assert steepest(svg, "lr") == steepest(svg, "activation_norm") > 0


@pytest.mark.covers("S170")
def test_adams_moments_stand_under_the_rate_with_their_peaks(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, said = draw(run, capsys)
    order = re.findall(r'data-panel="(\w+)"', svg)
    at = order.index("lr")
    assert order[at : at + 3] == ["lr", "adam_v_l1", "adam_v_max"]
    assert "largest 8 at step 250" in svg
    assert "largest 0.7 at step 260" in svg
    assert svg.count('class="mark"') == 3
    assert "largest 8 at step 250" in said


@pytest.mark.covers("S167")
def test_two_attempts_are_laid_upon_each_other_at_the_change(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, said = draw(run, capsys, "--change", "1.1", "--window", "40", name="change.html")
    grad = svg.split('data-panel="grad_norm"')[1].split("</g>")[0]
    assert 'data-x0="-40" data-x1="40"' in svg
    assert len(re.findall(r'class="curve a[01]"', grad)) == 2
    assert "grad norm, mean: 0.9 before, 0.3 after" in said
    assert "grad norm, mean: 0.9 before, 0.3 after" in svg  # under the panels, too
    assert "<script" not in svg


@pytest.mark.covers("S171")
@pytest.mark.parametrize(("by", "at"), [("step", 300.0), ("tokens", 300.0 * 512)])
def test_the_gap_to_another_run_is_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str, at: float
) -> None:
    small = tmp_path / "small.csv"
    write_log(small, 1, 500, shift=0.513)
    svg, said = draw(run, capsys, "--beside", str(small), "--by", by, "--at", str(at))
    assert len(re.findall(r'class="curve a[01]"', svg)) == 2
    gap = float(re.search(r"gap ([+-]\d+\.\d+)", said)[1])  # type: ignore[index]
    assert gap == pytest.approx(-0.513, abs=0.05)
    assert f"At {by} " in said


@pytest.mark.slow
def test_png_has_all_panels_and_bad_wishes_are_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = run.parent / "c.png"
    assert main(["chronicle", str(run), "--curve", str(out), "--from", "100", "--to", "300"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    for options, said in (
        (["--change", "9.9"], "no attempt '9.9'"),
        (["--change", "1.0"], "goes on from none"),
        (["--beside", str(run), "--at", "1e9"], "has no loss there"),
    ):
        assert main(["chronicle", str(run), "--curve", str(run.parent / "x.svg"), *options]) == 2
        assert said in capsys.readouterr().err
    assert main(["chronicle", str(run), "--change", "1.1"]) == 2
    assert "--curve" in capsys.readouterr().err
