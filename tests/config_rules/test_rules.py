"""Every rule fires where it should, is silent where it should be, and says where it comes from."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.lint import ConfigFinding, lint
from trimtab.config_rules.planning import epoch_ledger
from trimtab.config_rules.rules import rule_table
from trimtab.config_rules.rules.rule import ConfigRule
from trimtab.configs.settings import Setting, Settings
from trimtab.errors import ConfigError

_GPT3 = {
    "hidden": 12288,
    "layers": 96,
    "heads": 96,
    "ffn": 49152,
    "gated_ffn": False,
    "seq": 2048,
    "batch_tokens": 3.2e6,
    "lr": 6e-5,
    "warmup_steps": 2000,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 1.0,
    "init_std": 0.0057,
    "dtype": "bf16",
    "train_steps": 100_000,
}

# rule: (severity, what is put on GPT-3's settings so that it fires, what so that it is silent)
CASES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "L01": ("error", {"hidden": 11600, "layers": 64, "init_std": 0.02}, {"init_std": 0.006}),
    "L02": ("warning", {"init_std_output": 0.0057}, {"init_std_output": 0.00041}),
    "L03": ("error", {"embedding_scale": 110.9}, {"embedding_scale": 1.0}),
    "L05": ("warning", {"embed_norm": False, "dtype": "fp16"}, {"embed_norm": True}),
    "L06": ("error", {"lr": 3e-4}, {"lr": 6e-5}),
    "L07": ("warning", {"warmup_steps": 100}, {"warmup_steps": 2000}),
    "L08": ("info", {"save_steps": 3000}, {"save_steps": 100}),
    "L09": ("warning", {"beta2": 0.999}, {"beta2": 0.95}),
    "L10": ("warning", {"eps": 1e-6}, {"eps": 1e-8}),
    "L11": ("error", {"weight_decay": 1.0}, {"weight_decay": 0.1}),
    "L12": ("warning", {"decay_norms_and_biases": True}, {"decay_norms_and_biases": False}),
    "L13": ("warning", {"clip": 3.0}, {"clip": 1.0}),
    "ADAM-RATE": (
        "warning",
        {"architecture": "unet", "optimizer": "adam", "lr": 0.3},
        {"architecture": "unet", "optimizer": "sgd", "lr": 0.3},
    ),
    "L16": ("info", {"batch_tokens": 8e6}, {"batch_tokens": 8e6, "batch_start_samples": 192}),
    "L17": ("warning", {"batch_tokens": 32768}, {"batch_tokens": 2e6}),
    "LOCAL": (
        "info",
        {"batch_samples": 2048, "data_parallel": 8},
        {"batch_samples": 2048, "data_parallel": 64},
    ),
    "L18": ("error", {"hidden": 16384, "ffn": 20480, "layers": 100, "heads": 128}, {"ffn": 49152}),
    "L18-aspect": (
        "error",
        {"hidden": 16384, "layers": 32, "ffn": 65536, "heads": 128},
        {"hidden": 11600, "layers": 64, "heads": 80, "ffn": 46400},
    ),
    "L19": ("error", {"heads": 100}, {"heads": 96}),
    "L20": (
        "info",
        {"vocab": 128256, "weight_decay": 0},
        {"vocab": 128256, "weight_decay": 0, "z_loss": 1e-4},
    ),
    "L21": (
        "warning",
        {"lr": 5e-4, "hidden": 4096, "layers": 32, "qk_norm": False},
        {"lr": 5e-4, "hidden": 4096, "layers": 32, "qk_norm": True},
    ),
    "L22": ("warning", {"optimizer": "muon"}, {"optimizer": "muon", "qk_norm": True}),
    "L23": ("info", {"softcap_attention": 5.0}, {"softcap_attention": 50.0}),
    "L24": ("warning", {"dtype": "fp16"}, {"dtype": "bf16"}),
    "L25": ("error", {"dtype": "fp16", "loss_scale": 1}, {"dtype": "fp16", "loss_scale": 0}),
    "L27": (
        "error",
        {"reduce_dtype": "bf16", "data_parallel": 64},
        {"reduce_dtype": "fp32", "data_parallel": 64},
    ),
    "L30": (
        "info",
        {"dtype": "fp16", "activation": "gelu_tanh"},
        {"dtype": "bf16", "activation": "gelu_tanh"},
    ),
    "L32": ("info", {"batch_tokens": 30e6}, {"batch_tokens": 3.2e6}),
    "L35": ("info", {"save_steps": 10_000}, {"save_steps": 100}),
    "L37": ("warning", {"corpus_tokens": 180e9}, {"corpus_tokens": 400e9}),
    "SCHED": ("error", {"warmup_steps": 3000, "train_steps": 2000}, {"train_steps": 100_000}),
    "OPT": ("warning", {"optimizer": "brandnewopt"}, {"optimizer": "adamw"}),
    "NORMFORMER": ("info", {"norm": "normformer"}, {"norm": "layernorm"}),
    "PARSE": ("error", {"eps": "1.0e_8"}, {"init_std": "small_init"}),
    "KEY": ("warning", {"beta1": 0.95, "beta2": 0.9}, {"beta1": 0.9, "beta2": 0.95}),
    "BATCH": (
        "error",
        {"batch_samples": 2044, "micro_batch": 1, "data_parallel": 8},
        {"batch_samples": 2048, "micro_batch": 1, "data_parallel": 8},
    ),
    "STAGES": ("warning", {"pipeline_parallel": 5}, {"pipeline_parallel": 16}),
    "POSITIONS": ("error", {"max_positions": 1024}, {"max_positions": 2048}),
    "ROUTER": (
        "warning",
        {"experts": 8, "router_aux_loss": 0},
        {"experts": 8, "router_aux_loss": 0, "router_bias": True},
    ),
    "SAVE": ("warning", {"saves": False}, {"save_steps": 100}),
    "RESUME": ("info", {"resumes": True, "lr": None}, {"resumes": True}),
    "GROUP": (
        "error",
        {"objective": "rl", "lr": 1e-6, "group_size": 1},
        {"objective": "rl", "lr": 1e-6, "group_size": 8},
    ),
    "SEQ": ("info", {"batch_samples": 16}, {"batch_samples": 1536}),
}


def found(**changes: Any) -> dict[str, ConfigFinding]:
    return {f.rule: f for f in lint(make_settings(**{**_GPT3, **changes}))}


def judged(**values: Any) -> dict[str, ConfigFinding]:
    return {f.rule: f for f in lint(make_settings(**values))}


def test_no_rule_lacks_a_case_and_no_case_a_rule() -> None:
    with_files = {"READ"}  # its cases need files: reading/test_together.py and test_doubt.py
    assert {r.id for r in rule_table().values() if r.check is not None} == set(CASES) | with_files
    assert len(rule_table()) == len(rule_table().values())


@pytest.mark.parametrize("rule", CASES)
def test_it_fires(rule: str) -> None:
    severity, fires, _ = CASES[rule]
    said = found(**fires)
    assert rule in said
    assert said[rule].severity == severity
    assert said[rule].instead, "says what to type"
    assert said[rule].values, "says on which numbers"


@pytest.mark.parametrize("rule", CASES)
def test_it_is_silent(rule: str) -> None:
    assert rule not in found(**CASES[rule][2])


@pytest.mark.covers("S27")
@pytest.mark.parametrize(
    ("width", "fires"),
    [(8, True), (63, True), (64, False), (128, False), (256, False), (257, True)],
)
def test_a_local_batch_outside_8_to_32_is_an_info(width: int, fires: bool) -> None:
    said = found(batch_samples=2048, data_parallel=width)
    assert ("LOCAL" in said) == fires
    assert not fires or said["LOCAL"].severity == "info"


@pytest.mark.parametrize("rule", CASES)
def test_what_is_not_stated_gives_no_finding(rule: str) -> None:
    assert rule not in judged()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["lr", "init_std", "hidden", "layers", "batch_tokens", "warmup_steps", "clip", "eps"]
)
def test_numbers_that_are_none_break_nothing(name: str, value: float) -> None:
    said = found(**{name: value})
    said.pop("KEY", None)  # which names the value that cannot be; no other rule reckons with it
    assert not any(re.search(r"\b(nan|inf)\b", f.message, re.IGNORECASE) for f in said.values())


def test_kb_ids_are_all_there() -> None:
    listed = {r.id for r in rule_table().values()}
    assert {f"L{n:02d}" for n in range(1, 46)} <= listed
    assert {"SCHED", "SEQ", "KEY", "BIAS", "PARSE"} <= listed


@pytest.mark.parametrize("rule", rule_table().values(), ids=lambda r: r.id)
def test_it_names_source_reason_and_price(rule: ConfigRule) -> None:
    for text in (rule.source, rule.why, rule.cost, rule.title, rule.when):
        assert text
    assert (rule.check is None) == (rule.elsewhere is not None)


def test_a_rule_that_cannot_be_explained_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no cost"):
        ConfigRule(
            id="X", title="t", topic="init", why="w", source="s", elsewhere="audit", when="mid-run"
        )
    with pytest.raises(ConfigError, match="not both"):
        ConfigRule(id="X", title="t", topic="init", why="w", source="s", cost="c", when="mid-run")


# ------------------------------------------------------------ what the sources did


@pytest.mark.covers("S173")
def test_the_init_of_the_104b() -> None:
    said = judged(hidden=11600, init_std=0.02, lr=6e-5)["L01"]
    assert said.severity == "error"
    assert "0.00587" in said.message
    assert said.instead == "--init-method-std 0.00587"
    assert "Transformers without Tears" in said.source


def test_norms_on_queries_and_keys_tame_a_large_init() -> None:
    assert found(init_std=0.02, qk_norm=True)["L01"].severity == "info"


def test_a_default_init_of_a_llama_like_model_is_no_error() -> None:
    shape = {"hidden": 8192, "layers": 80, "init_std": 0.02, "lr": 1.5e-4, "gated_ffn": True}
    assert judged(**shape)["L01"].severity == "error"
    assert judged(**shape, default=("init_std",))["L01"].severity == "warning"
    assert (
        judged(hidden=12288, layers=96, init_std=0.02, lr=6e-5, default=("init_std",))[
            "L01"
        ].severity
        == "error"
    )


def test_a_model_that_nobody_trains_here_is_no_error() -> None:
    only_shape = judged(framework="hf", hidden=16384, layers=126, init_std=0.02)
    assert only_shape["L01"].severity == "info"
    assert "L01" not in judged(hidden=16384, init_std=0.02, lr=1e-5, pretrained=True)


@pytest.mark.covers("S185")
def test_five_times_the_published_rate_is_an_error() -> None:
    said = judged(params=175e9, lr=3e-4)["L06"]
    assert said.severity == "error"
    assert said.values["ratio"] == pytest.approx(5.0)
    assert "L06" not in judged(params=175e9, lr=6e-5)


@pytest.mark.covers("S186")
def test_starting_high_to_drop_later_is_called_risky_on_opts_outcome() -> None:
    said = judged(params=175e9, lr=3e-4)["L06"]
    assert "OPT-175B started high at 3e-4" in said.why
    assert "Starting high to drop later is risky" in said.why


def test_published_runs_above_the_table_are_no_errors() -> None:
    for params, lr in (
        (135e6, 3e-3),
        (8e9, 1e-3),
        (8e9, 3e-4),
        (70e9, 1.5e-4),
        (405e9, 8e-5),
        (1.7e9, 5e-4),
    ):
        said = judged(params=params, lr=lr).get("L06")
        assert said is None or said.severity != "error", (params, lr)
    assert judged(params=32e9, lr=6e-4, qk_norm=True)["L06"].severity == "info"
    assert judged(params=8e9, lr=2.1e-3)["L06"].severity == "error"  # Marin 8B was unstable at 2e-3


def test_small_models_are_given_more_room() -> None:
    assert judged(params=2e7, lr=2e-2)["L06"].severity == "warning"
    assert judged(params=2e8, lr=2e-2)["L06"].severity == "error"


def test_a_rate_a_thousand_times_too_high_is_an_error_at_any_size() -> None:
    small = {"hidden": 256, "layers": 4, "heads": 4}
    assert judged(**small, lr=3.0)["L06"].severity == "error"
    assert judged(**small, lr=0.02)["L06"].severity == "warning"
    assert judged(lr=3.0)["L06"].severity == "error"


def test_the_kind_of_training_is_taken_from_the_name_where_the_file_is_silent() -> None:
    assert "L06" not in judged(
        path="8B_lora_single_device.yaml", params=8e9, lr=3e-4, pretrained=True
    )
    projector = judged(path="v1_5_pretrain.sh", params=13e9, lr=1e-3, pretrained=True)["L06"]
    assert projector.severity == "warning"
    assert judged(path="8b-sft.yaml", params=8e9, lr=2e-4)["L06"].severity == "error"
    assert (
        judged(path="exploration.yaml", params=8e9, lr=2e-4, pretrained=True)["L06"].severity
        == "error"
    )


def test_rates_of_tuning_are_held_against_tuning() -> None:
    assert "L06" not in judged(params=7e9, lr=2e-5, pretrained=True)
    assert "L06" not in judged(params=7e9, lr=2e-4, adapter=True, pretrained=True)
    assert judged(params=7e9, lr=2e-4, pretrained=True)["L06"].severity == "error"
    assert judged(params=7e9, lr=5e-5, objective="dpo")["L06"].severity == "warning"
    assert "L06" not in judged(params=0.1e9, lr=2e-4, pretrained=True)


def test_a_mixture_is_looked_up_as_its_dense_shape() -> None:
    shape = {"hidden": 4096, "layers": 32, "experts": 8, "params": 47e9}
    assert "L06" not in judged(**shape, lr=1e-4)
    assert judged(lr=4e-3, experts=128, optimizer="AdamW")["L06"].severity == "error"


def test_a_rate_far_below_any_published_one() -> None:
    assert judged(hidden=512, layers=12, lr=1e-5)["L06"].severity == "warning"
    assert judged(params=8e9, lr=3e-5, optimizer="lamb").get("L06") is None


@pytest.mark.covers("S187")
def test_short_warm_up_is_flagged_with_what_longer_brought() -> None:
    said = found(warmup_steps=115)["L07"]
    assert "115 steps" in said.message
    assert "below 500" in said.message
    assert "A longer warm-up did not help the 104B" in said.why
    assert found(warmup_steps=0)["L07"].severity == "error"
    assert found(warmup_steps=0, lr=1e-5)["L07"].severity == "warning"
    assert found(warmup_steps=430)["L07"].severity == "info"  # 1.4 B tokens


def test_warm_up_in_tokens_counts_in_tokens() -> None:
    given = {k: v for k, v in _GPT3.items() if k != "warmup_steps"}
    assert "L07" not in judged(**given, warmup_tokens=375e6)
    assert "L07" in judged(**given, warmup_tokens=37e6)


def test_tuning_and_normalised_transformers_need_no_warm_up() -> None:
    assert found(warmup_steps=0, pretrained=True, lr=1e-5)["L07"].severity == "info"
    assert "L07" not in found(warmup_steps=0, norm="ngpt")


@pytest.mark.covers("S188")
def test_long_memory_with_large_batches_cites_both_sides() -> None:
    said = found(beta2=0.999, batch_tokens=1e6)["L09"]
    assert said.severity == "warning"
    assert "advisers saw 0.95 steady" in said.why
    assert "did not help the 104B" in said.why
    assert found(beta2=0.999, batch_tokens=0.5e6)["L09"].severity == "info"
    assert "L09" not in found(beta2=0.98)


@pytest.mark.covers("S189")
def test_epsilon() -> None:
    assert judged(eps=1e-6)["L10"].severity == "warning"
    assert "L10" not in judged(eps=1e-8)
    assert judged(eps=1e-15)["L10"].severity == "info"


@pytest.mark.covers("S190")
def test_a_weight_decay_of_one_is_an_error_that_cites_the_contradiction() -> None:
    said = judged(weight_decay=1.0)["L11"]
    assert said.severity == "error"
    assert "contradict" in said.why
    for usual in (0.01, 0.05, 0.1):
        assert "L11" not in judged(weight_decay=usual)
    assert "L11" not in judged(weight_decay=1.0, optimizer="lion")


@pytest.mark.covers("S191")
def test_clipping() -> None:
    assert found(clip=0)["L13"].severity == "error"
    assert found(clip=3)["L13"].severity == "warning"
    assert "L13" not in found(clip=1)
    assert "L13" not in judged(lr=1e-4), "not stated is not off"
    assert judged(clip=0, adapter=True, lr=2e-4, params=7e9)["L13"].severity == "warning"


@pytest.mark.covers("S195")
def test_bf16_from_ten_billion_on() -> None:
    assert judged(dtype="fp16", params=1.2e10)["L24"].severity == "warning"
    assert "L24" not in judged(dtype="bf16", params=1.2e10)
    assert "L24" not in judged(dtype="fp16", params=1e8)


@pytest.mark.covers("S198")
def test_the_width_over_depth_of_the_104b_is_in_order() -> None:
    assert "L18-aspect" not in judged(hidden=11600, layers=64, heads=80)
    assert round(11600 / 64) == 181
    said = judged(hidden=11600, layers=16)["L18-aspect"]
    assert said.severity == "error"
    assert "725" in said.message


def test_the_lopsided_104b() -> None:
    said = judged(hidden=16384, layers=32, ffn=20480, gated_ffn=False)["L18"]
    assert said.severity == "error"
    assert "left over" in said.message
    assert said.instead == "--ffn-hidden-size 65536"
    gated = judged(hidden=4096, ffn=14336, ffn_effective=4779, gated_ffn=True)["L18"]
    assert gated.severity == "error"
    assert "L18" not in judged(hidden=4096, ffn=11008, gated_ffn=True)
    assert "L18" not in judged(hidden=4096, ffn=1024, gated_ffn=True, default=("ffn",))


def test_heads() -> None:
    assert judged(hidden=16384, heads=32)["L19"].severity == "error"
    assert judged(hidden=2048, heads=8)["L19"].severity == "warning"
    assert "L19" not in judged(hidden=2048, heads=8, head_dim=256)
    assert judged(hidden=4096, heads=32, kv_heads=5)["L19"].severity == "error"


@pytest.mark.covers("S181")
def test_normformer_was_removed_in_run_12() -> None:
    said = judged(norm="NormFormer")["NORMFORMER"]
    assert said.severity == "info"
    assert "removed them in run 12" in said.message


@pytest.mark.covers("S203")
def test_an_unknown_optimizer_is_said() -> None:
    said = judged(optimizer="brandnewopt", lr=1e-4)["OPT"]
    assert said.severity == "warning"
    assert "do not transfer" in said.message
    assert judged(optimizer="lion")["OPT"].severity == "info"
    assert "OPT" not in judged(optimizer="paged_adamw_8bit")


@pytest.mark.covers("S207")
def test_repeating_the_corpus_is_warned_of() -> None:
    said = judged(corpus_tokens=180e9, train_tokens=300e9, batch_tokens=2**21)["L37"]
    assert said.severity == "warning"
    assert "1.67 epochs" in said.message
    assert "L37" not in judged(corpus_tokens=300e9, train_tokens=300e9, batch_tokens=2**21)


def test_bf16_moments_are_an_error_in_tuning_too() -> None:
    assert judged(optimizer_dtype="bf16", pretrained=True)["L27"].severity == "error"
    assert "L27" not in judged(optimizer_dtype="fp32")


def test_numbers_as_text() -> None:
    said = judged(framework="gpt-neox", eps="1.0e_8")["PARSE"]
    assert "1.0e_8" in said.message
    assert "1e-8" in said.instead
    for text in ("${LR}", "auto", "small_init", "1_000", "$LR"):
        assert "PARSE" not in judged(lr=text)


def test_impossible_values() -> None:
    assert judged(beta2=1.5)["KEY"].severity == "error"
    assert judged(lr=-1e-4)["KEY"].severity == "error"
    assert judged(eps=math.nan)["KEY"].severity == "error"
    assert "KEY" not in judged(lr=0, vocab=-1, layers=-1), "placeholders"
    assert judged(lr=1e-4, min_lr=1e-3)["SCHED"].severity == "error"
    assert judged(lr=1e-4, min_lr=0.1)["SCHED"].severity == "warning"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"params": 1.3e8},
        {"params": 1e9},
        {"pretrained": True},
        {"pretrained": True, "params": 3e8},
    ],
)
def test_a_rate_above_every_published_one_is_found_at_any_size(values: dict[str, Any]) -> None:
    def rate(lr: float) -> ConfigFinding | None:
        run = make_settings("hf-trainer", "train.json", lr=lr, dtype="bf16", **values)
        return next((f for f in lint(run) if f.rule == "L06"), None)

    assert rate(5e-3) is not None
    assert rate(5e-3).severity in ("warning", "error")  # type: ignore[union-attr]
    assert "params" in values or rate(2.9e-3) is None or values.get("pretrained")
    tiny = make_settings("hf-trainer", "train.json", lr=8e-3, pretrained=True, params=2e7)
    assert not any(f.rule == "L06" for f in lint(tiny))


# ------------------------------------------------------------ a schedule and the run it is for


@pytest.mark.parametrize(
    ("values", "severity", "words"),
    [
        ({"decay_steps": 10_000}, "warning", "the decay ends at 10000 of 100000 steps"),
        ({"decay_steps": 1_000_000}, "warning", "the run ends at a high rate"),
        ({"decay_steps": 80_000}, "info", "the decay ends at 80000"),
        ({"decay_steps": 110_000}, None, ""),
        ({"schedule": "constant_with_warmup"}, "info", "the rate never decays"),
        ({"schedule": "cosine"}, None, ""),
        ({"warmup_steps": 50_000}, "warning", "warm-up takes 50% of the run"),
        ({"warmup_steps": 40_000}, "info", "warm-up takes 40% of the run"),
        ({"min_lr": 6e-4}, "error", "above the peak"),
        ({"min_lr": 6e-6}, None, ""),
    ],
)
def test_the_schedule_fits_the_run(
    values: dict[str, Any], severity: str | None, words: str
) -> None:
    said = found(**values).get("SCHED")
    assert (said.severity if said else None) == severity
    assert words in (said.message if said else "")


def test_every_fault_of_a_schedule_is_told() -> None:
    faults: dict[str, Any] = {
        **_GPT3,
        "warmup_steps": 200_000,
        "min_lr": 6e-4,
        "decay_steps": 10_000,
    }
    run = make_settings(**faults)
    told = [f.message for f in lint(run) if f.rule == "SCHED"]
    assert len(told) == 3


def test_torchs_cosine_rises_again_after_its_period() -> None:
    values = {n: Setting(v) for n, v in _GPT3.items()}
    values["decay_steps"] = Setting(10_000, "stated", "sched.T_max")
    (said,) = [f for f in lint(Settings("a.py", "generic", values)) if f.rule == "SCHED"]
    assert "rises to the peak again" in said.message
    assert said.instead == "sched.T_max = 100000"


@pytest.mark.parametrize(
    ("save", "params", "severity"),
    [
        (40_000, 7e9, "warning"),
        (10_000, 7e9, None),
        (10_000, 70e9, "info"),
        (1_000, 70e9, None),
        (200_000, 70e9, "info"),
        (40_000, 1e8, None),
    ],
)
def test_few_checkpoints(save: int, params: float, severity: str | None) -> None:
    said = judged(save_steps=save, train_steps=100_000, params=params).get("L35")
    assert (said.severity if said else None) == severity


def test_the_step_of_the_second_epoch_is_that_of_the_plan() -> None:
    said = judged(corpus_tokens=180e9, train_tokens=300e9, batch_tokens=2**21)["L37"]
    assert "second pass begins at step 85831" in said.message
    assert epoch_ledger(180e9, 2**21, 300e9).steps == (85_831,)
