"""Configs of frameworks that nobody named.

Keys, places and sizes tell what is meant, and what is beside the point.
"""

from collections.abc import Callable

import pytest

from trimtab.configs.settings import Settings

Read = Callable[..., Settings]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("nlayers: 12", "layers", 12),
        ("model: {depth: 12}", "layers", 12),
        ("width: 1024\ndepth: 8", "hidden", 1024),
        ("net: {num_attn_heads: 8}", "heads", 8),
        ("hp: {peak_lr: '3e-4'}", "lr", 3e-4),
        ("adamw_learning_rate: 3e-4", "lr", 3e-4),
        ("optimizer: {config: {lr: 5.0e-5}}", "lr", 5e-5),
        ("lr_init: 6e-4\nlr_final: 1e-5", "lr", 6e-4),
        ("lr_init: 6e-4\nlr_final: 1e-5", "min_lr", 1e-5),
        ("warmup: {steps: 500}", "warmup_steps", 500),
        ("trainer: {mixed_precision: {dtype: bfloat16}}", "dtype", "bf16"),
        ("mixed_precision: fp16", "dtype", "fp16"),
        ("precision: 32-true", "dtype", "fp32"),
        ("initializer: {name: truncated_normal, std: 0.02}", "init_std", 0.02),
        ("model: {dropout_rate: 0.1}", "dropout", 0.1),
        ("grad_accumulation: {num_batches: 2}\nbatch_size: 4\nseq_len: 128", "batch_tokens", 1024),
        ("regime: {num_steps: 76000}", "train_steps", 76000),
        ("betas: '0.9 0.95'", "beta2", 0.95),
        ("b1: 0.9\nb2: 0.95", "beta2", 0.95),
        ("hyperparameters: {tokens: 276e9}", "train_tokens", 276e9),
        ("pe: rotary\nseq: 2048", "seq", 2048),
        ("ffn_type: swiglu\nd_model: 64", "gated_ffn", True),
        (
            (
                "cores_per_replica: 8\ntpu_size: 256\nper_replica_batch:"
                " 1\ngradient_accumulation_steps: 16"
            ),
            "batch_samples",
            512,
        ),
        ("model: {initial_scale: 2}\nlr: 1", "layers", None),
    ],
)
def test_common_names_without_a_known_framework(
    read: Read, text: str, name: str, value: object
) -> None:
    settings = read("a.yaml", text + "\nseed: 1\n", ())
    assert settings.framework == "generic"
    assert settings.get(name) == value


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("eval: {batch_size: 8}\nbatch_size: 64", "batch_samples", 64),
        (
            "val_dataloader: {batch_size: 8}\ntrain_dataloader: {batch_size: 64}",
            "batch_samples",
            64,
        ),
        ("eval_loader: {batch_size: 8}", "batch_samples", None),
        ("vision_encoder: {hidden_size: 1024}\ntext_model: {hidden_size: 4096}", "hidden", 4096),
        ("lora: {dropout: 0.05}", "dropout", None),
        ("profilers: {torch: {num_warmup_steps: 1}}", "warmup_steps", None),
        ("model: {eps: 1e-5}\noptimizer: {eps: 1e-8}", "eps", 1e-8),
        ("rms_norm_eps: 1e-5", "eps", None),
        ("model: {layers: [1, 2, 3]}", "layers", None),
        ("lr: auto", "lr", None),
        ("lr: null", "lr", None),
        ("num_layers: 12.5", "layers", None),
        ("beta1: 900", "beta1", None),
        ("checkpoint: {hidden_size: -3}", "hidden", None),
        ("world_size: -1", "world_size", None),
        ("dpo: {beta: 0.1}\nbeta: 5", "beta1", None),
        ("max_position_embeddings: 131072", "seq", None),
        ("learning_rate_schedule: cosine", "lr", None),
        ("moe: {router: {dtype: fp32}}\ntraining: {dtype: bf16}", "dtype", "bf16"),
        ("num_experts: 1", "experts", None),
    ],
)
def test_what_stands_beside_the_point_is_left_alone(
    read: Read, text: str, name: str, value: object
) -> None:
    assert read("a.yaml", text + "\nseed: 1\n", ()).get(name) == value


def test_key_and_line_say_where_a_value_stands(read: Read) -> None:
    settings = read("a.yaml", "# peak\noptim:\n  inner:\n    lr: 1e-3\n", ())
    assert settings.values["lr"].key == "optim.inner.lr"
    assert settings.values["lr"].line == 4
    assert settings.values["lr"].origin == "stated"


def test_the_size_is_taken_from_the_name_of_the_model_file(read: Read) -> None:
    settings = read(
        "a.sh",
        "torchrun main.py --model_config configs/llama_7b.json --lr 2.5e-3 --warmup_steps 15000"
        " --optimizer adamw\n",
    )
    assert settings.get("params") == 7e9
    assert settings.framework == "generic"
    assert (
        read("b.yaml", "model: {n_dim: 768, n_blocks: 16}\noptim: {max_lr: 6.0e-4}\n").get("hidden")
        == 768
    )
