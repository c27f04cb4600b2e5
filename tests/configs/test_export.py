"""A config told as another architecture's `config.json`, and what no place is found for."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.cli import main
from trimtab.configs.export import ARCHITECTURES, export, left_open
from trimtab.errors import ConfigError

SHAPE: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 4, "vocab": 100, "seq": 32}
MEGATRON = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32"
    " --max-position-embeddings 32 --lr 1e-3 --vocab-size 100"
)
needs_hf = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the hf extra")


@pytest.mark.covers("S160")
def test_an_embedding_norm_does_not_fit_into_plain_gpt2_and_the_layer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python pretrain_gpt.py {MEGATRON} --embed-layernorm\n")
    assert main(["preflight", str(script), "--export", "gpt2"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "GPT2LMHeadModel has no place for the norm after the embedding" in told.err
    assert "word_embeddings_layernorm" in told.err
    assert "--embed-layernorm = True, line 1" in told.err
    assert "bloom can hold it" in told.err
    script.write_text(f"python pretrain_gpt.py {MEGATRON}\n")
    assert main(["preflight", str(script), "--export", "gpt2"]) == 0
    told = capsys.readouterr()
    config = json.loads(told.out)
    assert (config["n_embd"], config["n_layer"], config["n_inner"]) == (64, 2, 256)
    assert "not stated, as gpt2 has it: the position encoding: learned" in told.err


@pytest.mark.parametrize(
    ("architecture", "stated", "message"),
    [
        ("llama", {"gated_ffn": False}, "LlamaForCausalLM always has the gate"),
        ("llama", {"qk_norm": True}, "no place for the norms of queries and keys.*qwen3, olmo2"),
        ("qwen3", {"qk_norm": False}, "Qwen3ForCausalLM always has the norms of queries"),
        ("gpt2", {"kv_heads": 2}, "no place for grouped key-value heads"),
        ("gpt2", {"experts": 8}, "router and its experts.*no known one can"),
        ("gpt2", {"position": "rotary"}, "position encoding: learned, not rotary"),
        ("opt", {"norm": "RMSNorm"}, "norms of the blocks: layernorm, not rmsnorm"),
        ("bloom", {"ffn": 100}, "feed-forward block fixed at 4 times"),
        ("llama", {"head_dim": 32}, "fixed at hidden / heads.*qwen3"),
    ],
)
def test_what_does_not_fit_is_named(
    architecture: str, stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export(make_settings(**SHAPE, **stated), architecture)


@pytest.mark.parametrize(
    ("architecture", "stated"),
    [
        ("llama", {"kv_heads": 2}),
        ("gpt2", {"kv_heads": 4, "experts": 1}),
        ("qwen3", {"head_dim": 32}),
    ],
)
def test_what_fits_is_exported(architecture: str, stated: dict[str, Any]) -> None:
    config = export(make_settings(**SHAPE, **stated), architecture)
    assert config["model_type"] == architecture


def test_a_config_without_a_shape_and_an_unknown_architecture_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.sh: does not state layers, heads"):
        export(make_settings(hidden=64), "gpt2")
    with pytest.raises(ConfigError, match="no architecture 'gpt9'; known are gpt2"):
        export(make_settings(**SHAPE), "gpt9")
    assert left_open(make_settings(**SHAPE, position="alibi", norm="layernorm"), "bloom") == (
        "the norm after the embedding (word_embeddings_layernorm): yes",
        "the norms of queries and keys (q_norm, k_norm): no",
    )


@needs_hf
@pytest.mark.torch
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_builds_what_is_exported_as_the_table_says_it_is(architecture: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    has = ARCHITECTURES[architecture]
    config = export(make_settings(**SHAPE, ffn=256, tied_embeddings=True), architecture)
    model_type = config.pop("model_type")
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = factory.from_config(AutoConfig.for_model(model_type, **config))
    names = {name for name, _ in model.named_modules()}
    weights = {n.rsplit(".", 1)[0] for n, p in model.named_parameters() if p.dim() == 1}
    assert any("word_embeddings_layernorm" in n for n in names) is has.embed_norm
    assert any(n.endswith("q_norm") for n in weights) is has.qk_norm
    assert any("gate_proj" in n for n in names) is has.gated_ffn
    assert any("256" in str(m) for n, m in model.named_modules() if "mlp" in n or "fc1" in n)
    assert type(model).__name__ == has.cls
