"""What preflight advises agrees with itself: a config that follows it has no new error."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.config_rules.lint import ConfigFinding, lint
from trimtab.configs import read_config
from trimtab.configs.facts import Facts

GPT: dict[str, Any] = {
    "n_layer": 6,
    "n_embd": 512,
    "n_head": 8,
    "vocab_size": 50257,
    "block_size": 512,
    "learning_rate": 0.03,
    "beta2": 0.999,
    "weight_decay": 5.0,
    "grad_clip": 0.0,
    "dtype": "float16",
    "warmup_iters": 0,
    "max_iters": 1000,
    "batch_size": 12,
    "min_lr": 0.1,
}


def findings(config: dict[str, Any], folder: Path) -> tuple[ConfigFinding, ...]:
    file = folder / "train.json"
    file.write_text(json.dumps(config))
    (read,) = read_config(file)
    return lint(read)


def followed(config: dict[str, Any], said: tuple[ConfigFinding, ...]) -> dict[str, Any]:
    """Return the config with every `key: value` that was advised."""
    new = dict(config)
    for finding in said:
        for part in finding.instead.partition("; ")[0].split(", "):
            key, _, value = part.partition(": ")
            if key in config:
                new[key] = float(value) if isinstance(config[key], float) else yaml.safe_load(value)
    return new


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advice")


def test_a_warm_up_is_advised_that_the_run_has_room_for(folder: Path) -> None:
    said = {f.rule: f for f in findings(GPT, folder)}
    assert said["L07"].instead == "warmup_iters: 100"
    long = {f.rule: f for f in findings(GPT | {"max_iters": 100_000}, folder)}
    assert long["L07"].instead == "warmup_iters: 2000"
    assert "SCHED" not in {f.rule for f in findings(followed(GPT, tuple(said.values())), folder)}


def test_a_minimum_rate_follows_the_advised_peak(folder: Path) -> None:
    said = {f.rule: f for f in findings(GPT, folder)}
    assert said["SCHED"].instead == "min_lr: 6e-5"
    # A minimum below today's peak and above the advised one changes with it.
    below = {f.rule: f for f in findings(GPT | {"min_lr": 0.003}, folder)}
    assert below["L06"].instead == "learning_rate: 6e-4, min_lr: 6e-5"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    max_iters=st.sampled_from([1, 7, 50, 300, 1000, 1500, 6000, 20_000, 600_000]),
    warmup_iters=st.sampled_from([0, 1, 20, 150, 499, 2000, 10_000]),
    learning_rate=st.sampled_from([1e-6, 6e-4, 0.03, 1.0]),
    min_lr=st.sampled_from([0.0, 6e-5, 6e-4, 0.003, 0.1]),
    n_embd=st.sampled_from([64, 512, 4096]),
    beta2=st.sampled_from([0.95, 0.999, 0.9999]),
)
def test_following_all_advice_gives_no_new_error(folder: Path, **changed: Any) -> None:
    config = GPT | changed
    said = findings(config, folder)
    before = {f.rule for f in said if f.severity == "error"}
    again = findings(followed(config, said), folder)
    after = {f.rule for f in again if f.severity == "error"}
    assert not after - before
    assert not after & {"SCHED", "L06", "L07", "L11", "L13"}
    assert not {f.rule for f in again if f.severity == "warning"} & {"SCHED", "L06", "L07"}


LSTM = """
model: {type: lstm, vocab_size: 128, hidden_size: 96, num_layers: 1}
optimizer: {name: adam, lr: 0.06, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 0.0}
training: {steps: 1500, batch_size: 16, seq_len: 48, warmup_steps: 50, grad_clip: 1.0}
"""


def test_another_architecture_is_neither_counted_nor_judged_as_a_transformer(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(LSTM)
    (read,) = read_config(file)
    assert Facts(read).params is None
    assert Facts(read, params=66432).params == 66432
    said = {f.rule: f for f in lint(read)}
    assert not said.keys() & {"L06", "L07", "L09", "L11"}
    assert "lstm" in said["READ"].message
    file.write_text(LSTM.replace("lr: 0.06", "lr: -0.06"))
    (read,) = read_config(file)
    assert "KEY" in {f.rule for f in lint(read)}, "what holds for any model is still judged"


@pytest.mark.parametrize(
    ("named", "other"),
    [
        ("model_type: cnn", True),
        ("arch: resnet50", True),
        ("model: {name: UNet2D}", True),
        ("model: vae", True),
        ("rnn_type: GRU", True),
        ("model_type: llama", False),
        ("model: {name: gpt2}", False),
        ("optimizer: {type: adamw}", False),
        ("model: {type: transformer, ffn: {type: mlp}}", False),
        ("arch: vision_transformer", False),
    ],
)
def test_the_architecture_is_read_where_a_config_names_it(
    named: str, other: bool, tmp_path: Path
) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(f"{named}\nhidden_size: 96\nnum_layers: 2\nlr: 0.001\nsteps: 100\n")
    (read,) = read_config(file)
    assert (Facts(read).other_architecture != "") is other
    assert (Facts(read).params is None) is other


def test_plain_adam_is_not_advised_weight_decay(folder: Path) -> None:
    adam = GPT | {"optimizer": "adam", "weight_decay": 0.0}
    assert "L11" not in {f.rule for f in findings(adam, folder)}
    assert "L11" in {f.rule for f in findings(adam | {"optimizer": "adamw"}, folder)}
