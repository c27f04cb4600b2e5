"""The policy: defaults, TOML, refusals."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import ConfigError
from trimtab.plan.policy import Policy
from trimtab.supervise.settings import read_policy


def test_defaults_are_allowed_and_frozen() -> None:
    policy = Policy()
    assert policy.mode == "observe"
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.mode = "act"  # type: ignore[misc]


def test_every_field_has_a_line_that_says_what_it_is() -> None:
    source = inspect.getsource(Policy)
    for field in dataclasses.fields(Policy):
        after = source.split(f"    {field.name}:", 1)[1]
        assert after.split("\n", 2)[1].strip().startswith('"""'), field.name


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('mode = "act"\ntrial_steps = 32\nlr_factors = [0.5, 0.1]\n')
    assert Policy.from_toml(path) == Policy(mode="act", trial_steps=32, lr_factors=(0.5, 0.1))
    path.write_text('title = "other tables are other people\'s"\n[policy]\nmode = "advise"\n')
    assert Policy.from_toml(path) == Policy(mode="advise")
    path.write_text("")
    assert Policy.from_toml(path) == Policy()


def test_a_setting_beside_the_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('trial_steps = 32\n[policy]\nmode = "advise"\n')
    with pytest.raises(ConfigError, match=r"policy\.toml: trial_steps stands beside \[policy\]"):
        Policy.from_toml(path)


def test_an_unknown_key_offers_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("pacience_steps = 3\n")
    with pytest.raises(
        ConfigError,
        match=r"policy.toml: 'pacience_steps' is not a setting; did you mean 'patience_steps'",
    ):
        Policy.from_toml(path)
    path.write_text("zzz = 3\n")
    with pytest.raises(ConfigError, match="settings are mode"):
        Policy.from_toml(path)


@pytest.mark.parametrize(
    "text", ["mode = ", "policy = 3", "trial_steps = 'long'", "trial_steps = true"]
)
def test_bad_files_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"p\.toml"):
        Policy.from_toml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Policy.from_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "kill"},
        {"trial_steps": 0},
        {"trial_steps": 1.5},
        {"snapshots_kept": 0},
        {"max_rollbacks": -1},
        {"verify_tolerance": 0.0},
        {"max_skip_share": 1.1},
        {"max_wasted_share": 5},
        {"max_skip_share": float("nan")},
        {"lr_jump_ratio": 1.0},
        {"lr_factors": ()},
        {"lr_factors": (0.5, 2.0)},
        {"lr_factors": (0.1, 0.5)},
        {"lr_factors": (0.5, 0.5)},
        {"lr_factors": [0.5]},
        {"lr_raise_allowed": True},
        {"trial_steps": 10**20},
        {"probes_off": ("x",)},
        {"probes_off": ["attention"]},
        {"copy_to": "a\0b"},
        {"arms": ("replai",)},
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Policy(**values)


def test_a_table_whose_name_is_next_to_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[policy]\nmode = "act"\n[superivse]\nstop_grace_s = 3\n')
    with pytest.raises(ConfigError, match=r"\[superivse\] .* did you mean \[supervise\]\?"):
        Policy.from_toml(path)
    path.write_text("[polcy]\nmode = 'act'\n[supervise]\nstop_grace_s = 3\n")
    with pytest.raises(ConfigError, match=r"\[polcy\] .* did you mean \[policy\]\?"):
        read_policy(path)
    path.write_text('[policy]\nmode = "act"\n[data]\npath = "x"\n')  # other people's
    assert Policy.from_toml(path).mode == "act"


def test_what_is_no_setting_is_refused_in_python_as_in_a_file() -> None:
    slip: dict[str, Any] = {"patience_step": 8}
    with pytest.raises(ConfigError, match=r"'patience_step' is not a setting.*'patience_steps'"):
        Policy(**slip)
    assert dataclasses.replace(Policy(patience_steps=8), mode="act").patience_steps == 8
