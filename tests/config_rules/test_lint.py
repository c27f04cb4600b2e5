"""Order, phases and wording of what is found; presets, tables, advice."""

import itertools
from typing import Any

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.advice import advise, consider, menu, reach
from trimtab.config_rules.lint import in_phase, lint, satisfied
from trimtab.config_rules.presets import Preset, difference, find_preset, presets
from trimtab.config_rules.references import GPT3_LR, TABLES
from trimtab.config_rules.rules import rule_table
from trimtab.config_rules.rules.shape import depth_risk
from trimtab.config_rules.spelling import spell
from trimtab.configs.facts import Facts, small_init, wide_init
from trimtab.configs.settings import Setting, Settings
from trimtab.errors import ConfigError
from trimtab.plan.remedy_table import REMEDIES

_BAD: dict[str, Any] = {
    "hidden": 11600,
    "layers": 64,
    "heads": 80,
    "ffn": 46400,
    "init_std": 0.02,
    "dtype": "fp16",
    "beta2": 0.999,
    "eps": 1e-6,
    "batch_tokens": 1.6e6,
    "lr": 6e-5,
    "clip": 3.0,
    "corpus_tokens": 100e9,
    "train_tokens": 300e9,
    "weight_decay": 1.0,
    "warmup_steps": 100,
}


@pytest.mark.covers("S242")
def test_data_bf16_and_init_come_first_at_equal_severity() -> None:
    found = lint(make_settings(**_BAD))
    severities = [f.severity for f in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    errors = [f.rule for f in found if f.severity == "error"]
    assert errors == ["L01", "L11"]
    warnings = [f.rule for f in found if f.severity == "warning"]
    assert warnings[:2] == ["L37", "L24"], "data, then bf16"
    assert {"L07", "L09", "L10", "L13"} <= set(warnings[2:])


@pytest.mark.covers("S249")
def test_phases_are_disjoint_and_whole() -> None:
    found = lint(make_settings(**_BAD))
    start, mid = in_phase(found, "start"), in_phase(found, "mid")
    assert start
    assert mid
    assert {f.rule for f in start}.isdisjoint(f.rule for f in mid)
    assert len(start) + len(mid) == len(found)
    before, during = menu("start"), menu("mid")
    assert {r.id for r in before}.isdisjoint(r.id for r in during)
    assert len(before) + len(during) == len(REMEDIES)
    assert {"init-std", "embedding-layernorm"} <= {r.id for r in before}
    assert {"roll-back", "skip-data", "lower-lr"} <= {r.id for r in during}


def test_every_finding_has_a_price_and_says_when_it_can_be_made() -> None:
    for finding in lint(make_settings(**_BAD)):
        assert finding.cost
        assert finding.when in ("mid-run", "from scratch", "unsure")
    when = {r.id: r.when for r in rule_table().values()}
    assert when["L01"] == when["L05"] == "from scratch"
    assert when["L06"] == when["L13"] == "mid-run"
    assert when["L09"] == "unsure"


def test_satisfied_rules_are_those_that_could_be_answered() -> None:
    run = make_settings(lr=6e-5, clip=1.0)
    assert {r.id for r in satisfied(run, lint(run))} == {"L13"}, "no size, so no word on the rate"
    sized = make_settings(lr=6e-5, clip=1.0, params=175e9)
    assert {r.id for r in satisfied(sized, lint(sized))} == {"L06", "L13", "L21"}


def test_a_rule_that_does_not_concern_a_config_is_not_satisfied_by_it() -> None:
    values: dict[str, Any] = {
        "hidden": 4096,
        "layers": 32,
        "init_std": 0.02,
        "optimizer": "adamw",
        "dtype": "bf16",
        "beta2": 0.999,
    }
    tuned = make_settings("hf-trainer", objective="sft", **values)
    fine = {r.id for r in satisfied(tuned, lint(tuned))}
    assert "L24" in fine
    assert not fine & {"L01", "L05", "L09", "L18-aspect", "L22", "L25", "L27"}


def test_impossible_numbers_of_the_user_are_refused() -> None:
    with pytest.raises(ConfigError, match="params is -1"):
        lint(make_settings(), params=-1)
    with pytest.raises(ConfigError, match="hidden is 0"):
        advise(hidden=0)


# ------------------------------------------------------------ what to type


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("megatron", "--init-method-std 0.00587"),
        ("nemo", "model.init_method_std=0.00587"),
        ("gpt-neox", 'init_method: "small_init"'),
        ("levanter", "model.initializer_range: 0.00587"),
        ("something new", "set the init's standard deviation to 0.00587"),
    ],
)
def test_the_framework_is_spoken_to_in_its_own_words(framework: str, expected: str) -> None:
    run = make_settings(framework, default=("init_std",), init_std=0.02)
    assert spell(run, {"init_std": 0.00587}) == expected


def test_a_config_is_answered_with_its_own_key() -> None:
    run = Settings("a.yml", "something new", {"lr": Setting(1e-3, "stated", "opt.peak")})
    assert spell(run, {"lr": 6e-5}) == "opt.peak: 6.0e-5", "YAML 1.1 reads 6e-5 as text"
    run = Settings("a.sh", "megatron", {"lr": Setting(1e-3, "stated", "--lr")})
    assert spell(run, {"lr": 6e-5}, "and watch") == "--lr 6e-5; and watch"


@pytest.mark.parametrize(
    ("path", "framework", "name", "setting", "change", "expected"),
    [
        (
            "a.json",
            "deepspeed",
            "beta2",
            Setting(0.999, "stated", "optimizer.params.betas"),
            0.95,
            "optimizer.params.betas: [0.9, 0.95]",
        ),
        (
            "a.sh",
            "metaseq",
            "beta2",
            Setting(0.98, "stated", "--adam-betas", None, "(0.9, 0.98)"),
            0.95,
            "--adam-betas '(0.9, 0.95)'",
        ),
        (
            "a.sh",
            "x",
            "beta2",
            Setting(0.98, "stated", "--betas", None, "['0.9', '0.98']"),
            0.95,
            "--betas 0.9 0.95",
        ),
        (
            "a.toml",
            "torchtitan",
            "dtype",
            Setting("fp16", "stated", "training.mixed_precision_param", None, "float16"),
            "bf16",
            'training.mixed_precision_param = "bfloat16"',
        ),
        (
            "a.yaml",
            "olmo",
            "dtype",
            Setting("fp16", "stated", "precision", None, "amp_fp16"),
            "bf16",
            "precision: amp_bf16",
        ),
        (
            "a.yaml",
            "generic",
            "dtype",
            Setting("fp16", "stated", "net.dtype", None, "half"),
            "bf16",
            "net.dtype: bf16",
        ),
        (
            "a.yaml",
            "generic",
            "dtype",
            Setting("fp16", "stated", "trainer.precision", None, "16-mixed"),
            "bf16",
            "trainer.precision: bf16-mixed",
        ),
        (
            "a.yaml",
            "generic",
            "dtype",
            Setting("fp16", "stated", "run.fp16", None, "True"),
            "bf16",
            "run.bf16: true",
        ),
        (
            "a.toml",
            "torchtitan",
            "reduce_dtype",
            Setting("bf16", "stated", "training.mixed_precision_reduce", None, "bfloat16"),
            "fp32",
            'training.mixed_precision_reduce = "float32"',
        ),
        (
            "a.sh",
            "hf-trainer",
            "weight_decay",
            Setting(0.0, "stated", "--weight_decay"),
            0.1,
            "--weight_decay 0.1",
        ),
        ("a.py", "generic", "lr", Setting(6e-3, "stated", "LR"), 1.2e-4, "LR = 1.2e-4"),
        (
            "a.yaml",
            "llm-foundry",
            "warmup_steps",
            Setting(100, "stated", "scheduler.t_warmup", None, "100ba"),
            2000,
            "scheduler.t_warmup: 2000ba",
        ),
        (
            "a.toml",
            "torchtitan",
            "saves",
            Setting(False, "stated", "checkpoint.enable"),
            True,
            "checkpoint.enable = true",
        ),
    ],
)
def test_a_file_is_answered_in_its_own_key_unit_and_words(
    path: str, framework: str, name: str, setting: Setting, change: Any, expected: str
) -> None:
    assert spell(Settings(path, framework, {name: setting}), {name: change}) == expected


def test_a_command_line_is_answered_with_options() -> None:
    run = Settings("a.sh", "hf-trainer", {"lr": Setting(1e-4, "stated", "--learning_rate")})
    assert spell(run, {"weight_decay": 0.1}) == "--weight_decay 0.1"
    assert spell(run, {"dtype": "bf16"}) == "--bf16"


def test_swapped_betas_are_answered_once_where_one_key_has_both() -> None:
    key = "optimizer.betas"
    values = {"beta1": Setting(0.95, "stated", key), "beta2": Setting(0.9, "stated", key)}
    run = Settings("a.yaml", "olmo", values)
    assert spell(run, {"beta1": 0.9, "beta2": 0.95}) == "optimizer.betas: [0.9, 0.95]"


def test_a_warm_up_is_answered_in_the_unit_in_which_the_file_has_it() -> None:
    values = {
        "batch_tokens": Setting(4194304),
        "warmup_tokens": Setting(2000, "stated", "scheduler.t_warmup"),
        "warmup_steps": Setting(0, "derived", "scheduler.t_warmup"),
    }
    assert (
        spell(Settings("a.yaml", "olmo", values), {"warmup_steps": 2000})
        == "scheduler.t_warmup: 8388608000"
    )
    values = {
        "train_steps": Setting(100_000),
        "warmup_ratio": Setting(0.5, "stated", "warmup_ratio"),
    }
    assert (
        spell(Settings("a.yaml", "hf-trainer", values), {"warmup_steps": 2000})
        == "warmup_ratio: 0.02"
    )


# ------------------------------------------------------------ published sets


@pytest.mark.parametrize("preset", presets(), ids=lambda p: p.name)
def test_published_settings_are_no_errors(preset: Preset) -> None:
    settings = preset.as_settings()
    assert not [f.message for f in lint(settings) if f.severity == "error"]


def test_published_shapes_have_their_published_sizes() -> None:
    for preset in presets():
        # mixtures are counted where their keys are read: test_recipes.py
        if "hidden" not in preset.values or "experts" in preset.values:
            continue
        values = {k: v for k, v in preset.as_settings().values.items() if k != "params"}
        size = Facts(Settings("p", "preset", values)).params
        assert size == pytest.approx(preset.values["params"], rel=0.1), preset.name


@pytest.mark.covers("S208")
def test_difference_to_the_mutually_consistent_set() -> None:
    ours = make_settings(params=175e9, lr=3e-4, weight_decay=0.05, beta2=0.98, clip=2.5, heads=96)
    preset = find_preset("gpt3/megatron")
    assert preset.name == "gpt3-175b"
    found = {d.setting: (d.ours, d.theirs) for d in difference(ours, preset.as_settings())}
    assert found == {
        "lr": (3e-4, 6e-5),
        "weight_decay": (0.05, 0.1),
        "beta2": (0.98, 0.95),
        "clip": (2.5, 1.0),
    }


def test_two_names_of_one_thing_are_no_difference() -> None:
    ours = make_settings(
        position="rope", norm="RMSNorm", activation="swiglu", optimizer="adamw_torch"
    )
    theirs = make_settings(position="rotary", norm="rmsnorm", activation="silu", optimizer="adamw")
    assert difference(ours, theirs) == ()
    assert [d.setting for d in difference(make_settings(position="alibi"), theirs)] == ["position"]


def test_a_family_gives_the_member_of_the_nearest_size() -> None:
    assert find_preset("llama3", make_settings(params=65e9)).name == "llama3-70b"
    assert find_preset("olmo2", make_settings(params=12e9)).name == "olmo2-13b"
    assert find_preset("opt").name == "opt-175b"
    with pytest.raises(ConfigError, match="gpt3-175b"):
        find_preset("gpt9")


def test_dropout_of_embeddings_is_on_record_and_its_change_shows() -> None:
    before = make_settings(dropout=0.1, embedding_dropout=0.1)
    after = make_settings(dropout=0.1, embedding_dropout=0.0)
    assert before.get("embedding_dropout") == 0.1
    assert [d.setting for d in difference(before, after)] == ["embedding_dropout"]
    assert [d.setting for d in difference(before, make_settings(dropout=0.1), absent=True)] == [
        "embedding_dropout"
    ]


# ------------------------------------------------------------ tables


def test_tables_keep_their_points_and_lie_between_them() -> None:
    for table in TABLES:
        for point in table.points:
            assert table.at(point.params) == pytest.approx(point.value, rel=1e-12)
        for low, high in itertools.pairwise(table.points):
            middle = table.at((low.params * high.params) ** 0.5)
            assert middle == pytest.approx((low.value * high.value) ** 0.5, rel=1e-9)
        assert table.at(1.0) == table.points[0].value
        assert table.at(1e15) == table.points[-1].value
    assert [p.run for p in GPT3_LR.around(1e9)] == ["GPT-3 Large", "GPT-3 XL"]


def test_reach_over_the_largest_verified_size() -> None:
    assert reach(make_settings(params=350e9))["GPT-3 rate table"] == pytest.approx(2.0)
    assert reach(make_settings()) == {}


# ------------------------------------------------------------ advice


@pytest.mark.covers("S174")
def test_both_init_rules_to_five_digits() -> None:
    assert round(wide_init(14336), 5) == 0.00482
    assert round(small_init(11600), 5) == 0.00587
    formulas = " ".join(a.formula for a in advise(hidden=14336))
    assert "√(.4/14336)" in formulas
    assert "√(.333/14336)" in formulas


def test_advice_for_a_shape_has_price_and_source() -> None:
    given = advise(hidden=12288, layers=96)
    assert all(a.cost and a.source for a in given)
    assert {a.setting: a.value for a in given}["peak learning rate"] == "6.01e-5"


@pytest.mark.covers("S199")
@pytest.mark.parametrize(("hidden", "layers"), [(11600, 64), (4096, 32), (12288, 96), (576, 30)])
def test_twice_the_depth_is_one_step_more_risk(hidden: int, layers: int) -> None:
    def printed(depth: int) -> int:
        return int({a.setting: a.value for a in advise(hidden, depth)}["depth risk"])

    assert printed(2 * layers) == printed(layers) + 1 == depth_risk(hidden, layers) + 1


@pytest.mark.covers("S192")
def test_doubling_the_batch_shows_opts_outcome_and_the_price_in_tokens() -> None:
    remedy, price = consider("double-batch", make_settings(batch_tokens=2e6))
    assert any("not much difference" in e.note for e in remedy.failed if "OPT" in e.run)
    assert price.startswith("2 M tokens more for each update (2 M tokens to 4 M tokens)")
    assert consider("double-batch")[1] == ""
    with pytest.raises(ConfigError, match="no remedy"):
        consider("prayer")
