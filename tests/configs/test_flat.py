"""The keys of a config as text, for a comparison: the same reading as that into settings."""

import time
from pathlib import Path

import pytest

from trimtab.analysis.settings_diff import diff, flat_config, setting_changes
from trimtab.configs import read_config
from trimtab.errors import ReadError

BOMB = "a: &a [{x: 1}, {x: 2}, {x: 3}, {x: 4}, {x: 5}, {x: 6}, {x: 7}, {x: 8}, {x: 9}]\n" + "".join(
    f"{name}: &{name} [*{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}, *{of}]\n"
    for of, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""387 million values in 400 bytes, once its aliases are expanded."""
MEGATRON = (
    "#!/bin/bash\nLR=6e-5\nexport X=1\n# --lr 1\ntorchrun --nproc_per_node 8 pretrain_gpt.py \\\n"
    '  --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr $LR --name "a b" --fp16 \\\n'
    "  --micro-batch-size 4 --seed -1 --extra $UNKNOWN\n"
)
SAMES: tuple[tuple[str, str], ...] = (
    ("run.sh", MEGATRON),
    ("a.yaml", "model: {hidden_size: 64, num_layers: 2}\noptim: {lr: 6.0e-5}\nseed: 1\n"),
    ("a.json", '{"model": {"hidden_size": 64, // width\n "num_layers": 2}, "lr": 6e-5,}'),
    ("a.toml", "[training]\nsteps = 10\n[optimizer]\nlr = 6e-5\n"),
    ("a.py", "learning_rate = 6e-5\nn_layer = 2 * 1\nn_embd = 64\n"),
    ("a.gin", "train.lr = 6e-5\ntrain.num_layers = 2\ntrain.hidden_size = 64\n"),
    ("a.txt", "--lr 6e-5 --num-layers 2 --hidden-size 64"),
)


def test_flat_config_refuses_an_alias_bomb_at_once(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text(BOMB)
    began = time.process_time()
    with pytest.raises(ReadError, match="aliases") as caught:
        flat_config(bomb)
    assert time.process_time() - began < 5
    with pytest.raises(ReadError) as other:
        read_config(bomb)
    assert str(caught.value) == str(other.value)


@pytest.mark.parametrize(("name", "text"), SAMES)
def test_flat_config_holds_what_read_config_states(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    keys = flat_config(path)
    (settings,) = read_config(path)
    stated = [s for s in settings.values.values() if s.origin == "stated" and s.line is not None]
    assert stated or name.endswith((".gin", ".txt"))
    for setting in settings.values.values():
        if setting.origin == "stated":
            told = keys[setting.key.lstrip("-").removeprefix("launcher.")]
            value = setting.text or str(setting.value)
            assert diff({"x": told.lower()}, {"x": value.lower()}) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "[1, 2]"), ("a.yaml", "a: [1"), ("a.toml", "a = "), ("a.sh", "echo done\n")],
)
def test_flat_config_and_read_config_refuse_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    for reader in (flat_config, read_config):
        with pytest.raises(ReadError, match=name):
            reader(path)


def test_flat_config_of_a_script_has_its_options_as_typed(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON)
    assert flat_config(path) == {
        "nproc_per_node": "8",
        "num-layers": "2",
        "hidden-size": "64",
        "num-attention-heads": "4",
        "lr": "6e-5",
        "name": "a b",
        "fp16": "true",
        "micro-batch-size": "4",
        "seed": "-1",
        "extra": "$UNKNOWN",
    }


def test_flat_config_numbers_several_documents_and_items(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("lr: 1.0e-4\ngroups: [{name: a}, {name: b}]\n---\nlr: 2.0e-4\n")
    assert flat_config(path) == {
        "[0].lr": "0.0001",
        "[0].groups[0].name": "a",
        "[0].groups[1].name": "b",
        "[1].lr": "0.0002",
    }


def test_setting_changes_compares_frameworks_by_canonical_name(tmp_path: Path) -> None:
    script, trainer = tmp_path / "run.sh", tmp_path / "train.yaml"
    script.write_text(MEGATRON)
    trainer.write_text(
        "model_name_or_path: x/y\nlearning_rate: 3.0e-5\nper_device_train_batch_size: 4\n"
        "output_dir: out\n"
    )
    found = {c.key: (c.a, c.b) for c in setting_changes(script, trainer)}
    assert found["lr"] == ("6e-05", "3e-05")
    assert "micro_batch" not in found
    assert "layers" not in found  # one side only
    assert setting_changes(script, script) == ()
