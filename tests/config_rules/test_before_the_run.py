"""What a reader of configs is asked before a run: each case through `trimtab preflight`."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main

MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers {layers} --hidden-size {hidden}"
    " --num-attention-heads {heads} --seq-length 2048 --micro-batch-size 1"
    " --global-batch-size 1024 --lr-warmup-iters 2000 --train-iters 100000 --vocab-size 50304"
    " --adam-beta2 0.95 --weight-decay 0.1 --save out --save-interval 500"
)
TRL = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
beta: 0.04
learning_rate: {lr}
per_device_train_batch_size: 8
num_train_epochs: 1
bf16: true
"""


class Preflight:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, name: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return settings and findings by rule."""
        (self._folder / name).write_text(text)
        main(["preflight", "--json", "--all", str(self._folder / name)])
        config = json.loads(self._capsys.readouterr().out)["configs"][0]
        return config["settings"], {f["rule"]: f for f in config["findings"]}


@pytest.fixture
def preflight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Preflight:
    return Preflight(tmp_path, capsys)


def test_checkpoints_that_are_off_are_told_in_torchtitans_words(preflight: Preflight) -> None:
    settings, found = preflight(
        "titan.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[optimizer]\nname = "AdamW"\nlr = 3e-4\n'
        "[training]\nsteps = 100000\nseq_len = 8192\nlocal_batch_size = 1\nmax_norm = 1.0\n"
        "[checkpoint]\nenable_checkpoint = false\ninterval = 500\n",
    )
    assert settings["saves"] is False
    assert found["SAVE"]["severity"] == "warning"
    assert found["SAVE"]["instead"] == "checkpoint.enable_checkpoint = true"


def test_a_rate_is_advised_in_a_form_that_yaml_reads_as_a_number(preflight: Preflight) -> None:
    _, found = preflight(
        "sft.yaml",
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\n"
        "learning_rate: 3.0e-4\nper_device_train_batch_size: 1\nbf16: true\n",
    )
    assert "learning_rate: 2.0e-5" in found["L06"]["instead"]
    _, found = preflight(
        "sft.json",
        json.dumps(
            {
                "model_name_or_path": "meta-llama/Llama-3.1-8B",
                "stage": "sft",
                "finetuning_type": "full",
                "learning_rate": 3e-4,
            }
        ),
    )
    assert "2e-5" in found["L06"]["instead"], "JSON has no such trap"


def test_fp16_from_scratch_is_a_warning_from_5_b_on(preflight: Preflight) -> None:
    shape = MEGATRON.format(layers=32, hidden=4096, heads=32)
    _, found = preflight("a.sh", f"{shape} --fp16 --lr 1.2e-4 --init-method-std 0.0098")
    assert found["L24"]["severity"] == "warning"
    small = MEGATRON.format(layers=24, hidden=2048, heads=32)
    _, found = preflight("b.sh", f"{small} --fp16 --lr 2e-4")
    assert found["L24"]["severity"] == "info"


def test_a_shape_is_mended_at_its_own_size(preflight: Preflight) -> None:
    _, found = preflight(
        "a.sh", MEGATRON.format(layers=32, hidden=16384, heads=128) + " --bf16 --lr 6e-5"
    )
    assert found["L18-aspect"]["severity"] == "error"
    assert found["L18-aspect"]["instead"] == "80 layers × 10240 have as many parameters"


def test_a_ratio_of_100_is_written_in_full_and_a_size_with_its_embedding(
    preflight: Preflight,
) -> None:
    settings, found = preflight(
        "train.py",
        "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nbatch_size = 12\n"
        "learning_rate = 6e-2\nmax_iters = 600000\ngradient_accumulation_steps = 40\n",
    )
    assert settings["params"] == pytest.approx(124e6, rel=0.01)
    assert "is 100 × that of GPT-3 at 124 M" in found["L06"]["message"]
    settings, _ = preflight(
        "char.py",
        "dataset = 'shakespeare_char'\nn_layer = 6\nn_head = 6\nn_embd = 384\nblock_size = 256\n"
        "batch_size = 64\nlearning_rate = 1e-3\nmax_iters = 5000\n",
    )
    assert settings["params"] == pytest.approx(10.6e6, rel=0.02), "no sub-words are assumed"


def test_a_resume_without_a_rate_is_told_and_asks_for_no_warm_up(preflight: Preflight) -> None:
    shape = MEGATRON.format(layers=32, hidden=4096, heads=32).replace(
        "--lr-warmup-iters 2000", "--load out --use-checkpoint-opt_param-scheduler"
    )
    settings, found = preflight("resume.sh", f"{shape} --bf16")
    assert settings["resumes"] is True
    assert "RESUME" in found
    assert "L07" not in found
    _, found = preflight("start.sh", f"{shape} --bf16 --lr 1.2e-4".replace("--load out", ""))
    assert "RESUME" not in found


def test_rates_of_a_mixture_go_by_its_active_parameters(preflight: Preflight) -> None:
    # DeepSeek-V3 (arXiv:2412.19437), section 4.2: 671 B, of which 37 B are active.
    shape = {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "hidden_act": "silu",
        "optimizer": "adamw",
    }
    settings, found = preflight("moe.json", json.dumps({**shape, "learning_rate": 2.2e-4}))
    assert settings["params"] == pytest.approx(671e9, rel=0.01)
    assert settings["active_params"] == pytest.approx(37e9, rel=0.02)
    assert found["L06"]["severity"] == "info"
    _, found = preflight("moe.json", json.dumps({**shape, "learning_rate": 2.2e-3}))
    assert found["L06"]["severity"] == "error"


def test_a_size_that_is_only_stated_is_no_dense_model_of_that_size(preflight: Preflight) -> None:
    text = {"params": 671e9, "num_experts": 256, "active_params": 37e9, "learning_rate": 2.2e-4}
    _, found = preflight("moe.json", json.dumps({**text, "optimizer": "adamw"}))
    assert found.get("L06", {"severity": "info"})["severity"] == "info"


def test_64_experts_are_no_dense_model(preflight: Preflight) -> None:
    # OLMoE-1B-7B (arXiv:2409.02060): the feed-forward width is one expert's.
    settings, _ = preflight(
        "moe.sh",
        "torchrun pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 1024"
        " --num-attention-heads 16 --num-experts 64 --moe-router-topk 8 --swiglu --lr 4e-4"
        " --seq-length 4096 --global-batch-size 1024 --train-iters 100 --vocab-size 50304"
        " --untie-embeddings-and-output-weights",
    )
    assert settings["params"] == pytest.approx(6.9e9, rel=0.01)
    assert settings["active_params"] == pytest.approx(1.3e9, rel=0.03)


@pytest.mark.parametrize(
    ("text", "kind", "kv_heads"),
    [
        ({"multi_query": True}, "mqa", 1),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, "mqa", 1),
        ({"num_key_value_heads": 8}, "gqa", 8),
        ({"num_key_value_heads": 32}, "mha", 32),
        ({"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}, "mla", None),
    ],
)
def test_kinds_of_attention(
    preflight: Preflight, text: dict[str, Any], kind: str, kv_heads: int | None
) -> None:
    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    settings, found = preflight("model.json", json.dumps({**shape, **text, "learning_rate": 1e-4}))
    assert settings["attention"] == kind
    assert settings.get("kv_heads") == kv_heads
    assert "L19" not in found


def test_falcon_is_counted_with_one_head_of_keys_and_values(preflight: Preflight) -> None:
    # Falcon-7B: 71 heads, one of keys and values (arXiv:2311.16867); embeddings are tied.
    settings, _ = preflight(
        "config.json",
        json.dumps(
            {
                "model_type": "falcon",
                "multi_query": True,
                "hidden_size": 4544,
                "num_attention_heads": 71,
                "num_hidden_layers": 32,
                "vocab_size": 65024,
                "tie_word_embeddings": True,
            }
        ),
    )
    assert settings["params"] == pytest.approx(6.92e9, rel=0.01)


@pytest.mark.parametrize(
    "sign",
    ["num_generations: 8", "reward_funcs: [accuracy]", "trainer: GRPOTrainer", "rl: grpo"],
)
def test_grpo_is_no_dpo_for_its_beta(preflight: Preflight, sign: str) -> None:
    settings, _ = preflight(
        "grpo.yaml", f"{TRL.format(lr='1.0e-6')}\n{sign}\n".replace("rl:", "rl_type:")
    )
    assert settings["objective"] == "rl"


def test_beta_alone_is_still_dpo(preflight: Preflight) -> None:
    settings, _ = preflight("config.yaml", TRL.format(lr="5.0e-7"))
    assert settings["objective"] == "dpo"


def test_rates_of_rl_are_held_against_rl(preflight: Preflight) -> None:
    _, found = preflight("grpo.yaml", TRL.format(lr="1.0e-4") + "num_generations: 8\n")
    assert found["L06"]["severity"] == "error"
    _, found = preflight("grpo.yaml", TRL.format(lr="1.0e-6") + "num_generations: 8\n")
    assert "L06" not in found
    _, found = preflight("grpo.yaml", TRL.format(lr="1.0e-6") + "num_generations: 1\n")
    assert found["GROUP"]["severity"] == "error"


@pytest.mark.parametrize(
    ("lr", "params", "severity"),
    [
        (0.02, 124e6, "info"),  # modded-nanogpt: updates of spectral norm 1
        (4.2e-4, 16e9, "info"),  # Moonlight: updates scaled to AdamW's
        (2e-4, 1e12, "info"),  # Kimi K2
        (3e-3, 7e9, "warning"),  # neither scale
        (0.5, 124e6, "error"),
        (1e-6, 7e9, "warning"),
    ],
)
def test_muons_rate_has_two_scales(
    preflight: Preflight, lr: float, params: float, severity: str
) -> None:
    text = {"params": params, "learning_rate": lr, "optimizer": "muon", "qk_norm": True}
    _, found = preflight("muon.json", json.dumps({**text, "train_steps": 1000, "seq_length": 4096}))
    assert found["OPT"]["severity"] == severity


NOAM = """
model: {{d_model: 512, n_layers: 18, n_heads: 8}}
optim: {{name: adamw, lr: {lr}, sched: {{name: {name}, warmup_steps: {warmup}}}}}
"""


@pytest.mark.parametrize("name", ["NoamAnnealing", "nemo.core.optim.NoamAnnealing", "noam"])
def test_a_factor_of_noam_is_judged_by_its_peak(preflight: Preflight, name: str) -> None:
    values, findings = preflight("a.yaml", NOAM.format(lr=2.0, name=name, warmup=10000))
    assert values["lr"] == pytest.approx(2 / (512 * 10000) ** 0.5)
    assert "L06" not in findings
    _, findings = preflight("a.yaml", NOAM.format(lr=20.0, name=name, warmup=10000))
    # advice is a factor as well: 6e-4 as a factor would be a peak of 2.7e-7
    assert findings["L06"]["instead"] == "optim.lr: 1.4"


def test_a_factor_of_noam_without_a_warm_up_has_no_known_peak(preflight: Preflight) -> None:
    values, findings = preflight("a.yaml", NOAM.format(lr=2.0, name="NoamAnnealing", warmup=0))
    assert "lr" not in values
    assert "L06" not in findings
    assert "L07" in findings


@pytest.mark.parametrize("name", ["NoamHoldAnnealing", "inverse_sqrt", "warmuplr", "noam"])
def test_a_schedule_that_takes_the_peak_is_read_as_one(preflight: Preflight, name: str) -> None:
    values, _ = preflight("a.yaml", NOAM.format(lr=1e-3, name=name, warmup=10000))
    assert values["lr"] == 1e-3


def test_noam_as_an_optimizer_and_its_options(preflight: Preflight) -> None:
    text = (
        "opt: noam\ntransformer-lr: 10.0\ntransformer-warmup-steps: 25000\nadim: 256\nelayers: 12\n"
    )
    values, _ = preflight("a.yaml", text)
    assert values["lr"] == pytest.approx(10 / (256 * 25000) ** 0.5)
    assert values["optimizer"] == "adam"


def test_an_adapter_with_odd_settings(preflight: Preflight) -> None:
    _, findings = preflight(
        "a.json",
        json.dumps(
            {
                "output_dir": "out",
                "per_device_train_batch_size": 1,
                "learning_rate": 0.2,
                "num_train_epochs": 50,
                "warmup_ratio": 0.0,
                "max_grad_norm": 1,
                "adam_beta2": 0.9999,
                "weight_decay": 10.0,
                "lora_r": 8,
            }
        ),
    )
    assert (findings["L06"]["severity"], findings["L06"]["values"]["usual"]) == ("error", 2e-4)
    assert findings["L09"]["severity"] == "warning"
    assert "typo for 0.1" in findings["L11"]["message"]
    assert findings["L11"]["instead"] == "weight_decay: 0.1"
    assert findings["L07"]["instead"].startswith("warmup_ratio: ")
