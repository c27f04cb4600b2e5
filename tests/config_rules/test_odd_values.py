"""Whatever a config holds, the rules answer or are silent, and what they say can be printed."""

import io
import json
import random
from typing import Any

import pytest
from rich.console import Console

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.advice import reach
from trimtab.config_rules.budget import Machine, plan_config, plan_lines
from trimtab.config_rules.lint import lint
from trimtab.config_rules.presets import difference, find_preset
from trimtab.config_rules.rules import rule_table
from trimtab.config_rules.terminal import render_config, render_difference
from trimtab.configs.settings import NAMES

_ODD: tuple[Any, ...] = (
    0,
    -1,
    1,
    1e-300,
    1e300,
    10**400,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    "",
    "auto",
    "${X}",
    "1.0e_8",
    "[red]x",
    [1, 2],
    {"a": 1},
    0.5,
    2048,
    1e9,
    "fp16",
    "bf16",
    "adamw",
    "muon",
    "lora",
    3e-4,
    -0.0,
    "\ud800",
)


@pytest.mark.slow
def test_odd_values_in_any_setting_break_nothing() -> None:
    draw = random.Random(0)
    names = sorted(NAMES)
    for trial in range(1500):
        chosen = draw.sample(names, draw.randint(1, 25))
        run = make_settings(
            draw.choice(["megatron", "hf", "x"]), **{n: draw.choice(_ODD) for n in chosen}
        )
        found = lint(run)
        json.dumps([f.message for f in found])
        assert all(f.message and f.severity in ("error", "warning", "info") for f in found)
        differs = difference(run, find_preset("bloom", run).as_settings(), absent=True)
        reach(run)
        plan = plan_config(
            run,
            Machine(
                devices=64, device_gib=80, save_seconds=30, tokens_per_second=1e5, corpus_tokens=1e9
            ),
        )
        plan_lines(plan)
        if trial % 30 == 0:
            console = Console(file=io.StringIO(), width=80)
            console.print(render_config(run, found, fine=(), everything=True, width=80))
            console.print(render_difference("x", "", differs))


@pytest.mark.parametrize(("num", "told"), [(1, "1 rule satisfied"), (2, "2 rules satisfied")])
def test_rules_are_counted_in_words_that_agree(num: int, told: str) -> None:
    console = Console(file=io.StringIO(), width=80)
    fine = tuple(rule_table().values())[:num]
    console.print(render_config(make_settings(layers=1, hidden=96), [], fine=fine, width=80))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert told in text
    assert "1 layer ×" in text
