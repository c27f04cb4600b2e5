"""`trimtab audit` and `trimtab parity` as commands; `smoke` has its tests beside the probe."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

from trimtab.cli import main

pytestmark = pytest.mark.torch

CODE = """
import torch
from torch import nn
from trimtab.model_checks.twin import TwinModel, make_optimizer
from trimtab.configs.shrink import Twin

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


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


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


@pytest.mark.covers("S214")
def test_modules_ranked(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--python", f"{code}:sound", "--rank-modules", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["modules"]
    errors = [row["error"] for row in rows]
    assert errors == sorted(errors, reverse=True)
    assert (
        0 < errors[-1] < errors[0] < 0.05
    )  # bf16 keeps 8 bits: each operation within a few of 256
    assert main(["audit", "--python", f"{code}:sound", "--rank-modules"]) == 0
    told = capsys.readouterr().out
    assert rows[0]["module"] in told
    assert "relative" in told


def test_the_backend_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--backend", "cpu"]) == 0
    assert "overflow " in capsys.readouterr().out
    assert main(["audit", "--backend", "nonsense"]) == 2
    assert "cannot multiply" in capsys.readouterr().err


@pytest.mark.slow
def test_the_coordinate_check(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "check.svg"
    assert main(["audit", "--coordinates", str(picture)]) == 1
    assert "blocks.0.ffn.down" in capsys.readouterr().out
    assert picture.read_text().startswith("<svg")
    assert main(["audit", "--coordinates", str(picture), "--mup"]) == 0
    capsys.readouterr()
    assert (
        main(["audit", "--coordinates", str(picture), "--python", f"{code}:by_width", "--json"])
        == 0
    )
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
    flags = [
        "--twin-hidden",
        "16",
        "--layers",
        "1",
        "--steps",
        "2",
        "--layouts",
        "ddp,tp",
        "--json",
    ]
    assert main(["parity", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert [(r["layout"], r["status"]) for r in document["layouts"]] == [
        ("ddp", "agrees"),
        ("tp", "agrees"),
    ]


@pytest.mark.slow
def test_parity_of_the_users_own_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case.py").write_text(
        "from tests.model_checks.planted import Planted\n"
        "def build():\n    return Planted('dropped-gradient')()\n"
    )
    assert (
        main(["parity", "--python", f"{tmp_path}/case.py:build", "--layouts", "ddp", "--json"]) == 1
    )
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["values"]["tensor"]


USERS = """
import sys, torch
from torch import nn

def small():
    return nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 100))
def none():
    return None
def text():
    return "model"
def number():
    return 3
def lazy():
    return nn.Sequential(nn.LazyLinear(4))
def fails():
    raise RuntimeError("cannot \\x1b[31mbuild \\u202e[/red]\\nsecond line")
def ends():
    sys.exit(0)
def base():
    raise BaseException("base")
def needs(width):
    return small()
def two():
    return small(), "adam"
def three():
    return small(), None, 3
def unknown():
    return {"model": small(), "foo": 1}
def nothing():
    return {}
def prints():
    print("noise {")
    return small()
def colours():
    model = small()
    model.add_module("x\\x1b[31m[red]\\u202e\\x9b", nn.Linear(4, 4))
    return model
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "none gives NoneType; give a model"),
        ("text", "text gives str; give a model"),
        ("number", "number gives int; give a model"),
        ("lazy", "lazy modules"),
        ("fails", r"line 16: RuntimeError: cannot \x1b[31mbuild \u202e[/red] second line"),
        ("ends", "line 18: ended the program (sys.exit): 0"),
        ("base", "BaseException: base"),
        ("needs", "is called without arguments, and needs width"),
        ("two", "optimizer is str"),
        ("three", "three gives tuple"),
        ("unknown", "a dict with foo"),
        ("nothing", "a dict without model"),
    ],
)
def test_what_a_users_function_does_wrong_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "u.py").write_text(USERS)
    assert main(["audit", "--python", f"{tmp_path}/u.py:{name}"]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert main(["audit", "--python", f"{tmp_path}/u.py:{name}", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["errors"][0]["path"] == f"{tmp_path}/u.py:{name}"


def test_what_a_users_function_prints_stays_out_of_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.py").write_text(USERS)
    main(["audit", "--python", f"{tmp_path}/u.py:prints", "--json"])
    told = capsys.readouterr()
    assert json.loads(told.out)["schema"] == 1
    assert "noise {" in told.err


def test_names_in_a_model_cannot_steer_the_terminal_or_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.py").write_text(USERS)
    out = ""
    for more in (["--all"], ["--json"]):
        main(["audit", "--python", f"{tmp_path}/u.py:colours", *more])
        out = capsys.readouterr().out
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)
        assert "\\u202e" in out
    assert "x\x1b[31m[red]\u202e\x9b.weight" in {
        t["name"] for t in json.loads(out)["audit"]["tensors"]
    }


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hidden_size": -4}, "hidden_size is -4; give at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": "abc"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 7}, "multiple"),
        ({"initializer_range": float("nan")}, "nan"),
        ({"num_hidden_layers": 10**7}, "more than 2,000 are not made"),
        ({"text_config": {"num_experts": 10**6}}, "num_experts is 1000000"),
        ({"model_type": "x\x1b[31m"}, r"x\x1b[31m"),
    ],
)
def test_a_config_that_makes_no_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, object], said: str
) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | more))
    assert main(["audit", str(path)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_config_that_is_no_file_or_nests_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    for name, said in (
        ("pipe.json", "is no file"),
        ("deep.json", "nests too deep"),
        ("", "is no file"),
    ):
        assert main(["audit", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "meant", "warned"),
    [
        ("learned", "sinusoidal", True),
        ("learned", "rotary", True),
        ("learned", "alibi", True),
        ("learned", "none", True),
        ("learned", "learned", False),
        ("rotary", "rotary", False),
        ("rotary", "learned", True),
        ("none", "none", False),
    ],
)
def test_positions_that_are_not_what_they_are_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, meant: str, warned: bool
) -> None:
    (tmp_path / "own.py").write_text(CODE.replace("Twin()", f"Twin(position={kind!r})"))
    main(["audit", "--python", f"{tmp_path}/own.py:sound", "--position", meant])
    told = " ".join(capsys.readouterr().out.split())
    assert ("positions are to be" in told or "embeddings are to be" in told) == warned
    if (kind, meant) == ("rotary", "rotary"):
        assert "positions: rotary, nothing to measure" in told


CASES = """
import os, torch
from torch import nn
from trimtab.model_checks import LayoutCase

def build(value=0.5, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 16))
    model[1].weight.data.fill_(value)
    return LayoutCase(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=.1), loss=lambda m, b: m(b).mean(), batch=torch.randint(0, 100, (4, 8)))
def nan():
    return build(float("nan"))
def dies():
    os._exit(0)
def ends():
    raise SystemExit(0)
def small():
    return nn.Linear(2, 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan", "the loss of one process alone is NaN at step 1"),
        ("dies", "without a word and with exit code 0"),
        ("ends", "ended the program (sys.exit)"),
        ("small", "build gives Linear"),
    ],
)
def test_parity_says_why_nothing_could_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "case.py").write_text(CASES)
    assert main(["parity", "--python", f"{tmp_path}/case.py:{name}", "--layouts", "ddp"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_example_in_the_help_of_parity_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["parity", "--help"])
    text = capsys.readouterr().out
    code = textwrap.dedent(text[text.index("  import torch\n") :])
    (tmp_path / "own_model.py").write_text(
        "from trimtab.model_checks.twin import TwinModel\nfrom trimtab.configs.shrink import Twin\n"
        "def Model():\n    return TwinModel(Twin(hidden=16, layers=1))\n"
    )
    (tmp_path / "own.py").write_text(code)
    assert main(["parity", "--python", f"{tmp_path}/own.py:case", "--layouts", "ddp"]) == 0, (
        capsys.readouterr()
    )
