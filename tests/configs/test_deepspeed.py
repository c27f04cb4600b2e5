"""Where DeepSpeed runs the training, its own config says how the loss is scaled."""

from pathlib import Path

import pytest

from tests.configs.conftest import Read
from trimtab.config_rules.lint import lint
from trimtab.configs import read_config

OPTIONS = (
    "pretrain_gpt.py --num-layers 40 --hidden-size 5120 --num-attention-heads 32 --seq-length 2048"
    " --micro-batch-size 2 --global-batch-size 1024 --lr 1e-4 --fp16 --loss-scale 12"
)
SCALER = (
    '"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500,'
    ' "initial_scale_power": 12}'
)


def rules(path: Path) -> set[str]:
    return {finding.rule for settings in read_config(path) for finding in lint(settings)}


def test_the_scale_of_a_bigscience_script_is_dynamic(tmp_path: Path, read: Read) -> None:
    script = (
        f"config_json=./ds.$SLURM_JOBID.json\ncat <<EOT > $config_json\n{{{SCALER}}}\nEOT\nsrun"
        f" python -m torch.distributed.launch {OPTIONS} --deepspeed --deepspeed_config"
        " $config_json\n"
    )
    settings = read("a.slurm", script)
    assert settings.framework == "megatron-deepspeed"
    assert settings.get("loss_scale") == 0
    assert settings.get("loss_scale_init") == 2**12
    assert any("DeepSpeed" in note for note in settings.note)
    assert "L25" not in rules(tmp_path / "a.slurm")


def test_a_deepspeed_config_beside_the_script_is_read(tmp_path: Path, read: Read) -> None:
    (tmp_path / "ds.json").write_text(f"{{{SCALER}}}")
    settings = read(
        "a.sh", f"deepspeed {OPTIONS} --deepspeed --deepspeed_config /elsewhere/ds.json\n"
    )
    assert settings.get("loss_scale_init") == 2**12
    (tmp_path / "ds.json").write_text("{not json")
    assert (
        read("b.sh", f"deepspeed {OPTIONS} --deepspeed --deepspeed_config ds.json\n").get(
            "loss_scale"
        )
        is None
    )


def test_a_scale_fixed_in_the_deepspeed_config_is_found(tmp_path: Path, read: Read) -> None:
    (tmp_path / "ds.json").write_text(
        SCALER.join("{}").replace('"loss_scale": 0', '"loss_scale": 128')
    )
    settings = read("a.sh", f"deepspeed {OPTIONS} --deepspeed --deepspeed_config ds.json\n")
    assert settings.get("loss_scale") == 128
    assert "L25" in rules(tmp_path / "a.sh")


def test_without_deepspeed_the_option_fixes_the_scale(tmp_path: Path, read: Read) -> None:
    settings = read("a.sh", f"torchrun {OPTIONS}\n")
    assert settings.get("loss_scale") == 12
    assert "L25" in rules(tmp_path / "a.sh")
    dynamic = OPTIONS.replace("--loss-scale 12", "--initial-loss-scale 65536")
    assert read("b.sh", f"torchrun {dynamic}\n").get("loss_scale_init") == 65536
    assert "L25" not in rules(tmp_path / "b.sh")


def test_a_short_command_line_is_told_by_its_words_or_its_program(
    tmp_path: Path, read: Read
) -> None:
    short = "torchrun pretrain_gpt.py --num-layers 64 --hidden-size 11600 --lr 6e-5 --fp16\n"
    settings = read("a.sh", short)
    assert settings.framework == "megatron"
    assert settings.get("init_std") == 0.02
    (init,) = [f for s in read_config(tmp_path / "a.sh") for f in lint(s) if f.rule == "L01"]
    assert init.severity == "error"
    assert init.instead == "--init-method-std 0.00587"
    by_words = (
        "torchrun train.py --num-layers 64 --hidden-size 11600 --num-attention-heads 80 --fp16\n"
    )
    assert read("b.sh", by_words).framework == "megatron"
    assert (
        read("c.sh", "python lstm.py --num-layers 2 --hidden-size 512 --lr 1e-3\n").framework
        == "generic"
    )


def test_a_fragment_of_a_known_framework_is_met_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "fp16":'
        ' {"enabled": true}}'
    )
    (tmp_path / "notes.json").write_text('{"fp16": true, "title": "x"}')
    assert [Path(s.path).name for s in read_config(tmp_path)] == ["ds.json"]


@pytest.mark.parametrize(
    ("name", "text", "stage"),
    [
        ("a.yaml", "learning_rate: 1e-4\nmax_steps: 10\nfsdp: full_shard auto_wrap\n", 3),
        (
            "a.yaml",
            "learning_rate: 1e-4\nmax_steps: 10\nfsdp_config: {sharding_strategy: SHARD_GRAD_OP}\n",
            2,
        ),
        ("a.json", '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}', 2),
        (
            "a.sh",
            (
                "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512"
                " --use-distributed-optimizer\n"
            ),
            1,
        ),
        ("a.sh", "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --lr 1e-4\n", 0),
        ("a.yaml", "learning_rate: 1e-4\nmax_steps: 10\n", None),
    ],
)
def test_the_stage_is_read(read: Read, name: str, text: str, stage: int | None) -> None:
    assert read(name, text).get("zero_stage") == stage
