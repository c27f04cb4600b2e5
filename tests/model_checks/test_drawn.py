"""The init a model asks for, read off the meta device.

Transformers configs where it is installed.
"""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.model_checks.models import twin
from trimtab.cli import main
from trimtab.errors import ConfigError, MissingExtraError, ReadError
from trimtab.model_checks.drawn import AskedStds, from_hf_config
from trimtab.model_checks.model_audit import audit

pytestmark = pytest.mark.torch

needs_hf = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the hf extra")


def asked_of(fill: Any) -> tuple[float, float]:
    """Return the std that a fill asks for on the meta device.

    And that of the same fill on the CPU.
    """
    with torch.device("meta"):
        meta = nn.Linear(400, 400, bias=False)
    with AskedStds() as asked:
        fill(meta.weight)
    std: float = asked.by_name(meta)["weight"]
    torch.manual_seed(0)
    real = nn.Linear(400, 400, bias=False)
    fill(real.weight)
    return std, float(real.weight.detach().std())


@pytest.mark.parametrize(
    "fill",
    [
        lambda w: nn.init.normal_(w, std=0.006),
        lambda w: nn.init.normal_(w, 0.0, 0.006),
        lambda w: w.data.normal_(mean=0.0, std=0.3),
        lambda w: nn.init.uniform_(w, -0.2, 0.1),
        nn.init.xavier_uniform_,
        nn.init.xavier_normal_,
        lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
        lambda w: nn.init.trunc_normal_(w, std=0.02),
        lambda w: w.data.normal_(std=0.02).mul_(0.5),
        nn.init.zeros_,
    ],
)
def test_a_fill_is_read_off(fill: Any) -> None:
    asked, real = asked_of(fill)
    assert asked == pytest.approx(real, rel=0.02, abs=1e-9)


def test_a_model_on_the_meta_device_is_judged_by_what_it_asks_for() -> None:
    with torch.device("meta"):
        model = twin(layers=3)
    with AskedStds() as asked:
        model.initialize()
    done = audit(model, asked_stds=asked.by_name(model))
    rows = {t.name: t for t in done.tensors}
    assert rows["blocks.0.ffn.down.weight"].follows == "σ/√(2L)"
    assert "meta device" in done.facts["notes"][0]
    assert not [f for f in done if f.severity == "error"]
    assert math.isnan({t.name: t for t in audit(model).tensors}["lm_head.weight"].std)


def write(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "vocab_size": 50257}


@pytest.mark.slow
@needs_hf
def test_a_175b_config_is_audited_without_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write(tmp_path, **GPT3, initializer_range=0.0048)
    assert main(["audit", str(small), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["audit"]
    assert 1.7e11 < document["facts"]["params"] < 1.8e11
    rows = {t["name"]: t for t in document["tensors"]}
    assert rows["transformer.h.0.mlp.c_proj.weight"]["follows"] == "σ/√(2L)"
    large = write(tmp_path, **GPT3, initializer_range=0.02)
    assert main(["audit", str(large), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["audit"]["findings"]
    assert [f["rule"] for f in found if f["severity"] == "error"] == ["L01"]


@needs_hf
def test_code_that_a_config_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = write(
        tmp_path,
        **{**GPT3, "n_embd": 64, "n_layer": 2, "n_head": 2},
        auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"},
    )
    model, asked = from_hf_config(config)
    assert asked
    assert all(w.is_meta for w in model.parameters())
    assert not (tmp_path / "ran").exists()


@needs_hf
def test_a_type_that_transformers_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="makes no causal language model"):
        from_hf_config(write(tmp_path, model_type="no-such-model"))


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cannot be read"):
        from_hf_config(tmp_path / "absent.json")
    with pytest.raises(ReadError, match="no model_type"):
        from_hf_config(write(tmp_path, hidden_size=4))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ReadError, match="is not JSON"):
        from_hf_config(tmp_path / "bad.json")


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is there")
def test_without_transformers_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match="'hf' extra"):
        from_hf_config(write(tmp_path, **GPT3))
