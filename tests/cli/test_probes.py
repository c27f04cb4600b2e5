"""`trimtab audit` and `trimtab parity` as commands; `smoke` has its tests beside the probe."""

import json
from pathlib import Path

import pytest

from trimtab.cli import main

pytestmark = pytest.mark.torch

CODE = """
import torch
from torch import nn
from trimtab.preflight.probes.twin import TwinModel, make_optimizer
from trimtab.preflight.shrink import Twin

def sound():
    torch.manual_seed(0)
    model = TwinModel(Twin())
    return model, make_optimizer(model)

def faulty():
    model = nn.Embedding(100, 16)
    return {"model": model, "dtype": "fp16"}

def by_width(width):
    model = TwinModel(Twin(hidden=width, layers=1, mup=True))
    return model, make_optimizer(model)

number = 3
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(CODE)
    return str(tmp_path / "own.py")


def test_the_users_own_model(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--python", f"{code}:sound", "--all"]) == 0
    told = capsys.readouterr().out
    assert "blocks.0.ffn.down.weight" in told
    assert "states exp_avg fp32" in told
    assert main(["audit", "--python", f"{code}:faulty", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert {f["rule"] for f in document["audit"]["findings"]} >= {"L03", "L25"}


def test_modules_ranked(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--python", f"{code}:sound", "--rank-modules", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["modules"]
    assert rows[0]["error"] >= rows[-1]["error"] > 0


def test_the_backend_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--backend", "cpu"]) == 0
    assert "overflow " in capsys.readouterr().out
    assert main(["audit", "--backend", "nonsense"]) == 2
    assert "cannot multiply" in capsys.readouterr().err


def test_the_coordinate_check(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    picture = tmp_path / "check.svg"
    assert main(["audit", "--coordinates", str(picture)]) == 1
    assert "blocks.0.ffn.down" in capsys.readouterr().out
    assert picture.read_text().startswith("<svg")
    assert main(["audit", "--coordinates", str(picture), "--mup"]) == 0
    capsys.readouterr()
    assert main(["audit", "--coordinates", str(picture), "--python", f"{code}:by_width", "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["coordinates"]["passed"] is True


def test_wrong_questions(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
    assert main(["audit", "--python", f"{code}:number"]) == 2
    assert "has no function 'number'" in capsys.readouterr().err
    assert main(["audit", "--python", f"{tmp_path}/absent.py:f"]) == 2
    with pytest.raises(SystemExit):
        main(["audit", "--python", "own"])
    for wrong in (
        ["smoke", "--threads", "0"],
        ["smoke", "--seed", "-1"],
        ["parity", "--ranks", "1"],
    ):
        with pytest.raises(SystemExit):
            main(wrong)
    for rate in ("0", "nan", "inf"):
        assert main(["smoke", "--lr", rate]) == 2
    assert main(["parity", "--layouts", "sideways"]) == 2
    assert "choose of ddp" in capsys.readouterr().err


@pytest.mark.slow
def test_parity_of_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--twin-hidden", "16", "--layers", "1", "--steps", "2", "--layouts", "ddp,tp", "--json"]  # fmt: skip
    assert main(["parity", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert [(r["layout"], r["status"]) for r in document["layouts"]] == [("ddp", "agrees"), ("tp", "agrees")]  # fmt: skip


@pytest.mark.slow
def test_parity_of_the_users_own_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case.py").write_text(
        "from tests.preflight.probes.planted import Planted\n"
        "def build():\n    return Planted('dropped-gradient')()\n"
    )
    assert main(["parity", "--python", f"{tmp_path}/case.py:build", "--layouts", "ddp", "--json"]) == 1  # fmt: skip
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["values"]["tensor"]
