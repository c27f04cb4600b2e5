"""What is trained and from where: adapters, preferences, clipping that is left out."""

import pytest

from tests.configs.conftest import Read
from trimtab.config_rules.lint import lint

TRL = (
    "model_name_or_path: org/base-7b\nlearning_rate: {lr}\nper_device_train_batch_size:"
    " 2\nnum_train_epochs: 1\nbf16: true\nwarmup_ratio: 0.1\n"
)


def test_a_projector_alone_is_adapter_training(read: Read) -> None:
    command = (
        "deepspeed llava/train/train_mem.py --model_name_or_path org/vicuna-13b"
        " --tune_mm_mlp_adapter {} --bf16 True --per_device_train_batch_size 32 --learning_rate"
        " 1e-3 --warmup_ratio 0.03 --num_train_epochs 1\n"
    )
    adapter = read("a.sh", command.format("True"))
    assert adapter.get("adapter") is True
    assert "L06" not in {f.rule for f in lint(adapter)}
    full = read("b.sh", command.format("False"))
    assert full.get("adapter") is False
    assert "L06" in {f.rule for f in lint(full)}


@pytest.mark.parametrize(
    ("name", "extra", "objective"),
    [
        ("train.yaml", "beta: 0.1\nloss_type: sigmoid\n", "dpo"),
        ("train.yaml", "dpo_beta: 5\n", "dpo"),
        ("train.yaml", "", None),
    ],
)
def test_preferences_are_told_by_the_keys_of_their_loss(
    read: Read, name: str, extra: str, objective: str | None
) -> None:
    settings = read(name, TRL.format(lr="1.9e-5") + extra)
    assert settings.get("objective") == objective
    assert settings.get("beta1") == 0.9, "the beta of a preference loss is not Adam's"
    assert ("L06" in {f.rule for f in lint(settings)}) is (objective == "dpo")


def test_preferences_are_told_by_the_name_of_the_file_or_program(read: Read) -> None:
    assert "L06" in {f.rule for f in lint(read("mistral-orpo.yaml", TRL.format(lr="1.9e-5")))}
    command = (
        "accelerate launch run_dpo.py --model_name_or_path org/base-7b --learning_rate 1e-6"
        " --per_device_train_batch_size 2\n"
    )
    assert read("a.sh", command).get("objective") == "dpo"
    assert (
        read("b.sh", "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512\n").get("objective")
        is None
    )


@pytest.mark.parametrize(
    ("name", "text", "clip"),
    [
        (
            "a.yaml",
            (
                "checkpoint_dir: checkpoints/org/base-8b\ntrain: {global_batch_size: 8,"
                " micro_batch_size: 1, max_norm: null}\n"
            ),
            0,
        ),
        (
            "a.yaml",
            (
                "checkpoint_dir: checkpoints/org/base-8b\ntrain: {global_batch_size: 8,"
                " micro_batch_size: 1, max_norm: 1.0}\n"
            ),
            1.0,
        ),
        (
            "a.json",
            (
                '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam", "params":'
                ' {"lr": 1e-4}}, "bf16": {"enabled": true}}'
            ),
            0,
        ),
        (
            "a.json",
            (
                '{"train_micro_batch_size_per_gpu": 4, "gradient_clipping": "auto", "bf16":'
                ' {"enabled": true}}'
            ),
            None,
        ),
        ("a.json", '{"zero_optimization": {"stage": 3}, "fp16": {"enabled": "auto"}}', None),
    ],
)
def test_clipping_left_out_is_off_where_the_framework_says_so(
    read: Read, name: str, text: str, clip: float | None
) -> None:
    settings = read(name, text)
    assert settings.get("clip") == clip
    assert ("L13" in {f.rule for f in lint(settings)}) is (clip == 0)


def test_model_names_an_architecture_where_pretraining_is_done(read: Read) -> None:
    facts = (
        '{"framework": "megatron-deepspeed", "model": "org-175b", "args": ["--deepspeed",'
        ' "--num-layers", "96", "--hidden-size", "12288", "--lr", "6e-5"]}'
    )
    assert read("a.json", facts).get("pretrained") is None


def test_a_clip_that_is_stated_empty_is_off_unless_the_framework_has_one(read: Read) -> None:
    plain = "learning_rate: 1e-4\nmax_steps: 10\n"
    off = read("a.yaml", f"{plain}gradient_clip_val: null\n").values["clip"]
    assert (off.value, off.origin, off.key) == (0, "stated", "gradient_clip_val")
    trainer = read("b.yaml", f"{plain}per_device_train_batch_size: 8\nmax_grad_norm: null\n")
    assert trainer.get("clip") == 1.0
    assert "clip" not in read("c.yaml", f"{plain}evaluation:\n  grad_clip: null\n")
