"""Batches, warm-ups and lengths written in ratios, samples, tokens and durations come out in steps
and tokens."""

from collections.abc import Callable

import pytest

from trimtab.config_rules.lint import lint
from trimtab.configs.settings import Settings

Read = Callable[..., Settings]


def test_warm_up_as_a_share_is_of_the_decay_where_that_is_stated(read: Read) -> None:
    # The published GPT-3 175B launch of Megatron-LM: fraction .001 of 430 000 iterations, batch 1536.
    settings = read(
        "gpt.sh",
        "torchrun pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96"
        " --seq-length 2048 --micro-batch-size 1 --global-batch-size 1536 --train-iters 500000"
        " --lr-decay-iters 430000 --lr-warmup-fraction .001 --lr 6.0e-5 --min-lr 6.0e-6 --fp16"
        " --clip-grad 1.0",
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
def test_composer_durations(read: Read, warmup: str, steps: int) -> None:
    settings = read(
        "mpt.yaml",
        "max_seq_len: 2048\nmodel: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12,"
        " expansion_ratio: 4}\ntrain_loader: {name: text}\nscheduler: {name:"
        f" cosine_with_warmup, t_warmup: {warmup}, alpha_f: 0.1}}\noptimizer: {{name:"
        " decoupled_adamw, lr: 6.0e-4}\nmax_duration: 4800ba\nglobal_train_batch_size: 256\n",
    )
    assert settings.framework == "llm-foundry"
    assert settings.get("warmup_steps") == steps
    assert settings.get("train_steps") == 4800
    assert settings.get("min_lr") == pytest.approx(6e-5)
    assert settings.get("ffn") == 3072


def test_text_that_yaml_does_not_see_as_a_number_is_one(read: Read) -> None:
    settings = read("a.yaml", "optimizer:\n  lr: 3e-4\n  eps: 1.0e_8\nmodel:\n  d_model: 1_024\n")
    assert settings.get("lr") == 3e-4
    assert settings.values["lr"].line == 2
    assert settings.get("hidden") == 1024
    assert settings.get("eps") == "1.0e_8"  # a typing error stays visible


def test_warm_up_in_samples_follows_the_batch_ramp(read: Read) -> None:
    # Ramp 32 → 128 by 32 over 3000 samples: 1000 samples each at 32, 64 and 96, then 128.
    settings = read(
        "ramp.sh",
        "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
        " --seq-length 128 --micro-batch-size 1 --global-batch-size 128 --rampup-batch-size 32 32"
        " 3000 --train-samples 100_000 --lr-warmup-samples 3000 --lr 1e-3",
    )
    assert settings.get("warmup_steps") == round(1000 / 32 + 1000 / 64 + 1000 / 96)
    assert settings.get("batch_start_samples") == 32
    assert settings.get("train_steps") == round(1000 / 32 + 1000 / 64 + 1000 / 96 + 97_000 / 128)


def test_batch_of_an_unknown_number_of_devices_is_marked_as_assumed(read: Read) -> None:
    alone = read(
        "a.yaml",
        "base_model: m/llama-8b\nsequence_len: 4096\nmicro_batch_size:"
        " 2\ngradient_accumulation_steps: 4\nlearning_rate: 1e-5\n",
    )
    assert alone.get("batch_tokens") == 2 * 4 * 4096
    assert alone.values["batch_tokens"].origin == "default"
    assert any("number of devices" in note for note in alone.note)
    known = read(
        "b.yaml",
        "tokens: {sequence_length: 2048, micro_batch_size: 4, batch_accumulation_per_replica: 4,"
        " train_steps: 10}\nparallelism: {dp: 64, tp: 2, pp: 1, pp_engine: 1f1b}\noptimizer:"
        " {learning_rate_scheduler: {learning_rate: 5e-4}}\n",
    )
    assert known.get("batch_tokens") == 64 * 4 * 4 * 2048
    assert known.values["batch_tokens"].origin == "derived"


def test_a_batch_size_that_can_only_be_tokens_is_taken_as_tokens(read: Read) -> None:
    tokens = read("a.yaml", "seq_len: 2048\ntotal_batch_size: 524288\nlr: 0.02\n")
    assert tokens.get("batch_tokens") == 524288
    assert tokens.get("batch_samples") == 256
    # BERT's 64 K sequences of 128 tokens are sequences.
    sequences = read("b.yaml", "seq_len: 128\ntotal_batch_size: 65536\nlr: 0.02\n")
    assert sequences.get("batch_samples") == 65536


@pytest.mark.parametrize(
    ("rule", "text", "ffn", "effective"),
    [
        # Llama-7B by Meta's rule: 2/3 of 4 * 4096, rounded up to 256.
        (
            "lingua",
            (
                "optim: {lr: 1e-3, lr_min_ratio: 0.1}\nmodel: {dim: 4096, n_layers: 32,"
                " multiple_of: 256}\n"
            ),
            None,
            11008,
        ),
        # OLMo counts both halves of SwiGLU in mlp_ratio.
        (
            "olmo",
            (
                "model: {d_model: 2048, n_layers: 16, mlp_ratio: 8, activation_type: swiglu,"
                " block_type: sequential, layer_norm_type: default}\n"
            ),
            16384,
            8192,
        ),
        # GPT-NeoX with SwiGLU takes 2/3 of the stated width and splits it in two.
        (
            "gpt-neox",
            (
                "num_layers: 2\nhidden_size: 4096\nintermediate_size: 12288\nactivation:"
                " swiglu\npipe_parallel_size: 1\n"
            ),
            12288,
            4096,
        ),
        (
            "internevo",
            (
                "data: {micro_bsz: 1, seq_len: 2048}\nmodel: {hidden_size: 4096, num_layers: 2,"
                " mlp_ratio: 2.6666666666666665}\n"
            ),
            10922,
            11008,
        ),
    ],
)
def test_feed_forward_width_by_the_rule_of_the_framework(
    read: Read, rule: str, text: str, ffn: int | None, effective: int
) -> None:
    settings = read("a.yaml", text)
    assert settings.framework == rule
    assert settings.get("ffn") == ffn
    assert settings.get("ffn_effective") == effective


def test_parameters_from_the_shape_and_from_a_name(read: Read) -> None:
    # Llama-3-8B has 8.03 B parameters.
    shape = read(
        "a.json",
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,'
        ' "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,'
        ' "hidden_act": "silu", "vocab_size": 128256, "tie_word_embeddings": false}',
    )
    assert shape.get("params") == pytest.approx(8.03e9, rel=0.002)
    assert shape.framework == "hf-config"
    assert shape.get("lr") is None
    named = read(
        "b.yaml",
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nper_device_train_batch_size:"
        " 1\nlearning_rate: 1e-5\n",
    )
    assert named.get("params") == 8e9
    assert named.values["params"].origin == "derived"
    # Many fine experts whose width is not stated: no guess.
    mixture = read(
        "c.sh",
        "train --num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432"
        " --num-experts 256 --micro-batch-size 1 --lr 1e-4",
    )
    assert mixture.get("params") is None


@pytest.mark.parametrize(
    ("text", "clip"),
    [
        ("max_grad_norm: 0.0", 0),
        ("grad_clip: -1", 0),
        ("gradient_clipping: false\ngradient_clipping_threshold: 1.0", 0),
        ("gradient_clipping: 1.0", 1),
    ],
)
def test_clipping_that_is_switched_off_is_zero(read: Read, text: str, clip: float) -> None:
    assert read("a.yaml", f"lr: 1e-4\n{text}\n").get("clip") == clip


def test_the_schedule_of_olmo_counts_in_the_unit_that_it_states(read: Read) -> None:
    text = """
model: {d_model: 4096, n_layers: 32, n_heads: 32, max_sequence_length: 4096}
scheduler: {name: cosine_with_warmup, units: UNIT, t_warmup: 8388608000, t_max: 5e12}
global_train_batch_size: 1024
max_duration: 4e12T
"""
    run = read("olmo.yaml", text.replace("UNIT", "tokens"))
    assert run.get("warmup_steps") == 2000
    assert run.get("warmup_tokens") == 8388608000
    assert run.get("decay_steps") == 1192093
    assert run.get("train_steps") == 953674
    assert read("steps.yaml", text.replace("UNIT", "steps")).get("warmup_steps") == 8388608000


def test_a_warm_up_of_less_than_a_step_of_tokens_is_none(read: Read) -> None:
    text = (
        "model: {d_model: 4096, max_sequence_length: 4096}\nscheduler: {units: tokens, t_warmup:"
        " 2000}\nglobal_train_batch_size: 1024\n"
    )
    run = read("olmo.yaml", text)
    assert run.get("warmup_steps") == 0
    (said,) = [f for f in lint(run) if f.rule == "L07"]
    assert "2 000 tokens, 0 steps" in said.message


def test_a_hybrid_model_is_counted_by_the_kinds_of_its_layers(read: Read) -> None:
    # Mamba-2-Hybrid 8B of arXiv:2406.07887: 24 Mamba-2, 4 attention and 28 feed-forward layers of width 4096, 8.66 B parameters
    pattern = "M-" * 24 + "*-" * 4
    run = read(
        "run.sh",
        "torchrun pretrain_mamba.py --hidden-size 4096 --num-attention-heads 32"
        " --group-query-attention --num-query-groups 8 --ffn-hidden-size 16384"
        f" --hybrid-override-pattern '{pattern}' --seq-length 4096 --vocab-size 256000"
        " --untie-embeddings-and-output-weights --micro-batch-size 4 --global-batch-size 128 --lr"
        " 2.5e-4 --train-iters 100000 --bf16\n",
    )
    assert run.get("layers") == 56
    assert run.get("params") == pytest.approx(8.66e9, rel=0.03)
