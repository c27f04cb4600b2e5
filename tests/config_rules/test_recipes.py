"""Published recipes of 2023 to 2026 raise no error; slips planted in them are found."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from trimtab.config_rules.preflight import preflight_config
from trimtab.config_rules.presets import Preset, PresetValue, presets
from trimtab.configs.facts import Facts

OLD = ("gpt3", "opt", "bloom")  # before 2023
RECIPES = [p for p in presets() if not p.name.startswith(OLD)]

# Canonical name -> a key that users write; the others are written as they are called.
KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "moe_ffn": "moe_intermediate_size",
    "experts": "num_experts",
    "topk": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "vocab": "vocab_size",
    "seq": "seq_length",
    "lr": "learning_rate",
    "min_lr": "min_learning_rate",
    "clip": "max_grad_norm",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "eps": "adam_epsilon",
    "init_std": "initializer_range",
    "activation": "hidden_act",
    "schedule": "lr_scheduler_type",
    "group_size": "num_generations",
    "objective": "stage",
    "pretrained": "finetune",
    "batch_samples": "global_batch_size",
}


def judge(folder: Path, values: Mapping[str, object]) -> dict[str, str]:
    """Return the severities by rule of a config written to a file, infos left out."""
    path = folder / "config.json"
    path.write_text(json.dumps({KEYS.get(k, k): v for k, v in values.items()}))
    report = preflight_config(path).configs[0]
    return {f.rule: f.severity for f in report.findings if f.severity != "info"}


def planted(values: Mapping[str, PresetValue]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield a recipe with one slip each: of a zero, a unit, a copy from elsewhere, a typing."""
    number = {k: float(v) for k, v in values.items() if isinstance(v, int | float)}
    tuned = values.get("objective") in ("rl", "dpo", "sft")
    own = dict(values)
    if lr := number.get("lr"):
        yield "rate × 100", {**own, "lr": lr * 100}
        yield "rate as text", {**own, "lr": f"{lr:.1e}".replace("e-", "e_")}
        yield "rate negative", {**own, "lr": -lr}
        yield "final rate above the peak", {**own, "min_lr": lr * 10}
        if not tuned:
            yield "rate × 10", {**own, "lr": lr * 10}
            yield "rate / 100", {**own, "lr": lr / 100}
            yield "no warm-up", {**own, "warmup_steps": 0}
    if "beta2" in values:
        yield "betas swapped", {**own, "beta1": own["beta2"], "beta2": own["beta1"]}
        yield "beta2 of 1", {**own, "beta2": 1.0}
    if "weight_decay" in values and not tuned:
        yield "weight decay × 10", {**own, "weight_decay": number["weight_decay"] * 10}
    if "heads" in values:
        yield "heads that do not divide", {**own, "kv_heads": 7}
        if "head_dim" not in values and "attention" not in values:
            yield "one head too many", {**own, "heads": number["heads"] + 1}
    if "ffn" in values and "experts" not in values:
        yield "feed-forward width without its first digit", {**own, "ffn": number["ffn"] // 10}
    if "init_std" in values and not isinstance(values["init_std"], str):
        yield "init × 10", {**own, "init_std": number["init_std"] * 10}
    if not tuned and number.get("params", 0) >= 6e9:
        yield "fp16", {**own, "dtype": "fp16"}
        yield "fp16 without a loss scale", {**own, "dtype": "fp16", "loss_scale": 1}
    if "group_size" in values:
        yield "one completion per prompt", {**own, "group_size": 1}


def test_there_are_twenty_recipes_with_a_source_each() -> None:
    assert len(RECIPES) >= 20
    assert all(len(recipe.source) > 10 for recipe in RECIPES)
    names = {recipe.name.split("-")[0] for recipe in RECIPES}
    assert {"qwen3", "deepseek", "kimi", "olmo3", "smollm3", "moonlight", "dapo"} <= names


@pytest.mark.parametrize("recipe", RECIPES, ids=[r.name for r in RECIPES])
def test_a_published_recipe_raises_no_error(recipe: Preset, tmp_path: Path) -> None:
    assert "error" not in judge(tmp_path, recipe.values).values()


@pytest.mark.slow
def test_slips_in_published_recipes_are_found(tmp_path: Path) -> None:
    missed, count = [], 0
    for recipe in RECIPES:
        calm = judge(tmp_path, recipe.values)
        for name, values in planted(recipe.values):
            count += 1
            said = judge(tmp_path, values)
            if not any(said[rule] != calm.get(rule) for rule in said):
                missed.append(f"{recipe.name}: {name}")
    assert count >= 200
    assert 1 - len(missed) / count >= 0.9, missed


@pytest.mark.parametrize("recipe", RECIPES, ids=[r.name for r in RECIPES])
def test_sizes_of_the_shapes_are_those_published(recipe: Preset, tmp_path: Path) -> None:
    shape = {
        k: v for k, v in recipe.values.items() if k not in ("params", "active_params", "attention")
    }
    if "hidden" not in shape or recipe.values.get("attention") == "mla":
        pytest.skip("no shape is published, or not of its latent attention")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({KEYS.get(k, k): v for k, v in shape.items()}))
    counted = Facts(preflight_config(path).configs[0].settings).params
    assert counted is not None
    assert math.isclose(counted, float(recipe.values["params"]), rel_tol=0.06)
