"""One run in several files: group files of hydra, a model's config.json, a DeepSpeed config, what
could not be read."""

import json
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.config_rules.lint import lint
from trimtab.configs import joined, read_config
from trimtab.configs.settings import Settings

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "initializer_range": 0.02,
    "hidden_act": "silu",
}
_TRAINING = (
    "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nlearning_rate:"
    " 3.0e-3\nmax_steps: 10000\noutput_dir: out\n"
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rules(run: Settings) -> dict[str, str]:
    return {f.rule: f.message for f in lint(run)}


def by_name(found: list[Settings]) -> dict[str, Settings]:
    return {Path(s.path).name: s for s in found}


# ------------------------------------------------------------ a model beside its training


def test_config_json_gives_the_training_beside_it_its_size(tmp_path: Path) -> None:
    write(tmp_path, config_dot_json=json.dumps(_MODEL), args_dot_yaml=_TRAINING)
    found = by_name(read_config(tmp_path))
    run = found["args.yaml"]
    assert run.get("hidden") == 8192
    assert run.get("params") == found["config.json"].get("params")
    assert rules(run)["L06"].startswith("peak rate 0.003 is 43 × that of GPT-3 at 79.9 B")
    assert any(note.startswith("shape taken from") for note in run.note)
    assert {f.rule: f.instead for f in lint(run)}[
        "L01"
    ] == "initializer_range: 0.00699 (in config.json)"


def test_a_run_on_named_weights_and_one_with_its_own_shape_take_none(tmp_path: Path) -> None:
    write(
        tmp_path,
        config_dot_json=json.dumps(_MODEL),
        a_dot_yaml=_TRAINING + "model_name_or_path: meta-llama/Llama-3.1-8B\n",
        b_dot_yaml=_TRAINING + "hidden_size: 512\nnum_hidden_layers: 4\n",
    )
    found = by_name(read_config(tmp_path))
    assert found["a.yaml"].get("hidden") is None
    assert found["b.yaml"].get("hidden") == 512


def test_two_descriptions_of_other_names_fit_nobody_but_a_named_one_does(tmp_path: Path) -> None:
    small = json.dumps({**_MODEL, "hidden_size": 1024, "num_hidden_layers": 24})
    write(
        tmp_path,
        big_dot_json=json.dumps(_MODEL),
        small_dot_json=small,
        a_dot_yaml=_TRAINING,
        b_dot_yaml=_TRAINING + "config_name: ./small.json\n",
    )
    found = by_name(read_config(tmp_path))
    assert found["a.yaml"].get("hidden") is None
    assert found["b.yaml"].get("hidden") == 1024
    assert "READ" not in rules(found["b.yaml"])


def test_files_given_together_are_judged_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, models__big_dot_json=json.dumps(_MODEL), a_dot_yaml=_TRAINING)
    model, args = str(tmp_path / "models/big.json"), str(tmp_path / "a.yaml")
    assert main(["preflight", args, "--json"]) == 0
    capsys.readouterr()
    assert main(["preflight", args, model, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["configs"][0]
    assert told["settings"]["hidden"] == 8192


def test_a_description_named_in_place_of_weights_is_no_fine_tuning(tmp_path: Path) -> None:
    write(
        tmp_path,
        config_dot_json=json.dumps(_MODEL),
        a_dot_yaml=_TRAINING + "model_name_or_path: ./config.json\n",
    )
    run = by_name(read_config(tmp_path))["a.yaml"]
    assert run.get("pretrained") is None
    assert run.get("hidden") == 8192


# ------------------------------------------------------------ hydra


_HYDRA = (
    "defaults:\n  - model: big\n  - optim@opt: adamw\n  - _self_\ntrainer: {max_steps: 20000,"
    " precision: 16-mixed}\ndata: {seq_len: '${model.block_size}'}\nopt: {weight_decay: 0.2}\n"
)
_BIG = "n_embd: 5120\nn_layer: 40\nn_head: 40\nblock_size: 2048\n"
_ADAMW = "lr: 1.0e-3\nbetas: [0.9, 0.999]\nweight_decay: 0.01\nwarmup_steps: 30000\n"


def test_group_files_beside_a_hydra_config_are_composed(tmp_path: Path) -> None:
    write(tmp_path, config_dot_yaml=_HYDRA, model__big_dot_yaml=_BIG, optim__adamw_dot_yaml=_ADAMW)
    (run,) = read_config(tmp_path)
    assert {
        n: run.get(n) for n in ("hidden", "lr", "beta2", "seq", "warmup_steps", "weight_decay")
    } == {
        "hidden": 5120,
        "lr": 1e-3,
        "beta2": 0.999,
        "seq": 2048,
        "warmup_steps": 30000,
        "weight_decay": 0.2,
    }
    assert run.values["lr"].key == "opt.lr", "under the package that the list gives it"
    assert {"SCHED", "L06", "L24"} <= set(rules(run))
    assert "composed with model/big.yaml, optim/adamw.yaml" in run.note


def test_the_order_of_self_decides_who_wins(tmp_path: Path) -> None:
    first = _HYDRA.replace("  - _self_\n", "").replace("defaults:\n", "defaults:\n  - _self_\n")
    write(tmp_path, config_dot_yaml=first, model__big_dot_yaml=_BIG, optim__adamw_dot_yaml=_ADAMW)
    assert read_config(tmp_path / "config.yaml")[0].get("weight_decay") == 0.01


def test_a_group_file_may_say_its_own_package_and_name_further_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        config_dot_yaml=_HYDRA.replace("adamw", "shared"),
        model__big_dot_yaml=_BIG,
        optim__shared_dot_yaml="# @package _global_\ndefaults: [base]\ntraining: {lr: 2.0e-4}\n",
        optim__base_dot_yaml="seed: 7\n",  # beside the file that names it
        base_dot_yaml="seed: 8\n",
    )
    (run,) = read_config(tmp_path)
    assert run.values["lr"].key == "training.lr", "not under opt"
    assert run.get("seed") == 7


def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, config_dot_yaml=_HYDRA, model__big_dot_yaml=_BIG)
    (run,) = read_config(tmp_path / "config.yaml")
    assert run.get("lr") is None
    assert rules(run)["READ"].startswith("not read: optim/adamw;")


@pytest.mark.parametrize("name", ["../secret", "/etc/secret", "link"])
def test_nothing_outside_the_folder_is_read(tmp_path: Path, name: str) -> None:
    write(
        tmp_path,
        secret_dot_yaml=_ADAMW,
        run__config_dot_yaml=f"defaults:\n  - {name}\nn_layer: 4\nlr: 1.0e-4\n",
    )
    (tmp_path / "run/link.yaml").symlink_to(tmp_path / "secret.yaml")
    (run,) = read_config(tmp_path / "run/config.yaml")
    assert run.get("beta2") is None
    assert not run.parts


# ------------------------------------------------------------ DeepSpeed beside transformers

_ZERO: dict[str, object] = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": "auto",
    "fp16": {"enabled": True},
    "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4}},
    "zero_optimization": {"stage": 3},
}
_LAUNCH = (
    "deepspeed --num_gpus 8 --num_nodes 4 run_clm.py --deepspeed DS --learning_rate 3e-4"
    " --per_device_train_batch_size 4 --max_steps 50000 --bf16\n"
)


def test_what_the_deepspeed_config_says_otherwise_is_an_error(tmp_path: Path) -> None:
    write(
        tmp_path,
        zero__ds_dot_json=json.dumps(_ZERO),
        run_dot_sh=_LAUNCH.replace("DS", "zero/ds.json"),
    )
    (run,) = read_config(tmp_path / "run.sh")
    assert run.framework == "hf-trainer"
    said = " ".join(f.message for f in lint(run) if f.rule == "KEY" and f.severity == "error")
    assert (
        "--per_device_train_batch_size 4 and the DeepSpeed config's"
        " train_micro_batch_size_per_gpu 3" in said
    )
    assert "--learning_rate 0.0003 and the DeepSpeed config's optimizer.params.lr 0.0006" in said
    assert "--bf16 and deepspeed_json.fp16.enabled both on" in said
    assert "gradient_accumulation_steps" not in said, "auto takes the script's"


def test_a_deepspeed_config_that_agrees_or_lies_elsewhere(tmp_path: Path) -> None:
    agreeing = {
        **_ZERO,
        "train_micro_batch_size_per_gpu": "auto",
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    }
    write(tmp_path, ds_dot_json=json.dumps(agreeing), run_dot_sh=_LAUNCH.replace("DS", "ds.json"))
    (run,) = read_config(tmp_path / "run.sh")
    assert "KEY" not in rules(run)
    assert run.get("world_size") == 32, "8 devices on each of 4 nodes"
    write(tmp_path, sub__run_dot_sh=_LAUNCH.replace("DS", "../ds.json"))
    (away,) = read_config(tmp_path / "sub/run.sh")
    assert rules(away)["READ"].startswith("not read: ../ds.json;")
    together = joined([away, *read_config(tmp_path / "ds.json")], given_together=True)
    assert "READ" not in rules(together[0])
