"""Batches, warm-ups and lengths written in ratios, samples, tokens and durations come out in steps and tokens."""

from pathlib import Path

import pytest

from trimtab.preflight.reading import read_config
from trimtab.preflight.settings import Settings


def read(tmp_path: Path, name: str, text: str) -> Settings:
    path = tmp_path / name
    path.write_text(text)
    (settings,) = read_config(path)
    return settings


def test_warm_up_as_a_share_is_of_the_decay_where_that_is_stated(tmp_path: Path) -> None:
    # The published GPT-3 175B launch of Megatron-LM: fraction .001 of 430 000 iterations, batch 1536.
    settings = read(
        tmp_path,
        "gpt.sh",
        "torchrun pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
        "--micro-batch-size 1 --global-batch-size 1536 --train-iters 500000 --lr-decay-iters 430000 "
        "--lr-warmup-fraction .001 --lr 6.0e-5 --min-lr 6.0e-6 --fp16 --clip-grad 1.0",
    )
    assert settings.framework == "megatron"
    assert settings.get("warmup_steps") == 430
    assert settings.values["warmup_steps"].origin == "derived"
    assert settings.get("batch_tokens") == 1536 * 2048
    assert settings.get("ffn") == 4 * 12288
    assert settings.get("dtype") == "fp16"


@pytest.mark.parametrize(
    ("warmup", "steps"),
    [("100ba", 100), ("0.01dur", 48), ("52428800tok", 100), ("25600sp", 100), ("2000", 2000)],
)
def test_composer_durations(tmp_path: Path, warmup: str, steps: int) -> None:
    settings = read(
        tmp_path,
        "mpt.yaml",
        f"max_seq_len: 2048\nmodel: {{name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, expansion_ratio: 4}}\n"
        f"train_loader: {{name: text}}\nscheduler: {{name: cosine_with_warmup, t_warmup: {warmup}, alpha_f: 0.1}}\n"
        "optimizer: {name: decoupled_adamw, lr: 6.0e-4}\nmax_duration: 4800ba\nglobal_train_batch_size: 256\n",
    )
    assert settings.framework == "llm-foundry"
    assert settings.get("warmup_steps") == steps
    assert settings.get("train_steps") == 4800
    assert settings.get("min_lr") == pytest.approx(6e-5)
    assert settings.get("ffn") == 3072


def test_text_that_yaml_does_not_see_as_a_number_is_one(tmp_path: Path) -> None:
    settings = read(
        tmp_path, "a.yaml", "optimizer:\n  lr: 3e-4\n  eps: 1.0e_8\nmodel:\n  d_model: 1_024\n"
    )
    assert settings.get("lr") == 3e-4
    assert settings.values["lr"].line == 2
    assert settings.get("hidden") == 1024
    assert settings.get("eps") == "1.0e_8"  # a typing error stays visible
