"""A value that cannot be read, or cannot be, is named with key, text and line.

And no default takes its place.
"""

from collections.abc import Callable

import pytest

from trimtab.config_rules.lint import ConfigFinding, lint, satisfied
from trimtab.configs.settings import Settings

Read = Callable[..., Settings]
_MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    " --seq-length 2048 --micro-batch-size 1 --global-batch-size 512 --train-iters 100000"
    " --lr-warmup-iters 2000 --bf16 "
)
_TRAINER = "per_device_train_batch_size: 8\nmax_steps: 10000\nwarmup_steps: 500\noutput_dir: out\n"


def said(run: Settings, rule: str) -> list[ConfigFinding]:
    return [f for f in lint(run) if f.rule == rule]


@pytest.mark.parametrize(
    ("option", "rule", "typed"),
    [
        ("--lr 3e-4,", "PARSE", "--lr 3e-4"),
        ("--lr 3e−4", "PARSE", "--lr 3e-4"),
        ("--weight-decay O.1", "PARSE", "--weight-decay 0.1"),
        ("--clip-grad 1,0", "PARSE", "--clip-grad 1.0"),
        ("--lr fast", "PARSE", "write --lr as a number above 0, such as 3e-4"),
        ("--lr 3e4", "KEY", "give a number above 0, such as 3e-4"),
        ("--lr -3e-4", "KEY", "give a number above 0, such as 3e-4"),
        ("--adam-beta2 9.5", "KEY", "give a number from 0 to below 1, such as 0.95"),
        ("--lr-warmup-fraction 5", "KEY", "give a share of the run from 0 to 1, such as 0.01"),
    ],
)
def test_a_command_line(read: Read, option: str, rule: str, typed: str) -> None:
    run = read("run.sh", _MEGATRON + option)
    (finding,) = said(run, rule)
    key, text = option.split(" ", 1)
    assert finding.severity == "error"
    assert key in finding.message
    assert text in finding.message
    assert "line 1" in finding.message
    assert finding.instead == typed


def test_no_default_stands_in_for_it_and_no_rule_counts_as_satisfied(read: Read) -> None:
    run = read("run.sh", _MEGATRON + "--adam-beta2 9.5 --clip-grad 1,0 --lr 3e-4,")
    assert run.get("beta2") is None
    assert run.get("clip") is None
    assert run.get("beta1") == 0.9, "other defaults stay"
    assert not {"L06", "L09", "L13"} & {r.id for r in satisfied(run, lint(run))}


@pytest.mark.parametrize(
    "line",
    [
        "adam_beta2: 1.5",
        "learning_rate: 0",
        "weight_decay: -0.1",
        "warmup_ratio: 5",
        "per_device_train_batch_size: 0",
        "bf16: true\nfp16: true",
    ],
)
def test_what_the_trainer_refuses_at_step_0(read: Read, line: str) -> None:
    base = _TRAINER if "batch" not in line else _TRAINER.replace("per_device", "#")
    assert said(read("a.yaml", base + line), "KEY"), line


def test_betas_one_of_which_cannot_be(read: Read) -> None:
    text = (
        "model: {d_model: 512}\nglobal_train_batch_size: 64\noptimizer: {betas: [0.9,"
        " 95]}\nmax_grad_norm: one\n"
    )
    run = read("olmo.yaml", text)
    assert "optimizer.betas [0.9, 95] (line 3)" in said(run, "KEY")[0].message
    assert 'max_grad_norm "one" (line 4)' in said(run, "PARSE")[0].message
    assert run.get("beta2") is None


@pytest.mark.parametrize(
    "option",
    [
        "--lr $LR",
        "--lr auto",
        "--lr {lr}",
        "--lr args.lr",
        "--lr 1e-4",
        "--clip-grad -1",
        "--train-iters -1",
        "--lr 1e-4,3e-4",
        "--adam-beta2 0.95",
        "--weight-decay 0",
    ],
)
def test_placeholders_sweeps_and_sound_values_are_left_alone(read: Read, option: str) -> None:
    run = read("run.sh", _MEGATRON + option)
    assert not said(run, "PARSE")
    assert not said(run, "KEY")


def test_a_word_in_an_unknown_framework_is_a_warning(read: Read) -> None:
    run = read("x.yaml", "lr: fast\nweight_decay: 0.1\nn_layers: 4\n")
    assert [f.severity for f in said(run, "PARSE")] == ["warning"]


def test_an_exponent_that_pyyaml_reads_as_text_is_a_number_with_a_remark(read: Read) -> None:
    run = read("a.yaml", _TRAINER + "learning_rate: 4e-4\n")
    assert run.get("lr") == 4e-4
    (finding,) = said(run, "PARSE")
    assert finding.severity == "info"
    assert "learning_rate 4e-4" in finding.message
    assert not said(read("b.yaml", _TRAINER + "learning_rate: 4.0e-4\n"), "PARSE")
    assert not said(read("c.toml", 'lr = 4e-4\nsteps = 10\nweight_decay = "0.1"\n'), "PARSE")


@pytest.mark.parametrize(
    ("name", "text", "message", "typed"),
    [
        (
            "a.toml",
            "[model]\nflavor = '8B'\n[training]\nsteps = 100\nmax_nrom = 1.0\n",
            "not read: training.max_nrom 1.0 (line 5)",
            "did you mean max_norm?",
        ),
        (
            "a.yaml",
            _TRAINER + "wieght_decay: 0.1\n",
            "not read: wieght_decay 0.1 (line 5)",
            "did you mean weight_decay?",
        ),
        (
            "a.sh",
            _MEGATRON + "--grad-clip 1.0",
            "not read: --grad-clip 1.0 (line 1)",
            "Megatron-LM's option is --clip-grad",
        ),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest_one(
    read: Read, name: str, text: str, message: str, typed: str
) -> None:
    (finding,) = said(read(name, text), "READ")
    assert finding.severity == "info"
    assert (finding.message, finding.instead) == (message, typed)


@pytest.mark.parametrize(
    "text",
    [
        _TRAINER + "weight_decay: 0.1\n",
        _TRAINER + "max_grad_norm: 1.0\ngradient_norms: 3\n",  # the clip is stated
        _TRAINER + "eval:\n  wieght_decay: 0.1\n",
        _TRAINER + "my_own_knob: 7\n",
        _TRAINER + "wieght_decay: heavy\n",
    ],
)
def test_other_unknown_keys_are_left_alone(read: Read, text: str) -> None:
    assert not said(read("a.yaml", text), "READ")


def test_where_no_framework_is_known_only_a_plain_slip_is_an_error(read: Read) -> None:
    def severities(line: str) -> list[str]:
        run = read("x.yaml", f"n_layers: 4\nweight_decay: 0.1\n{line}\n")
        return [f.severity for f in lint(run) if f.rule in ("PARSE", "KEY")]

    assert severities("lr: 3e4") == ["error", "info"]
    assert severities("lr: '3e-4,'") == ["error"]
    assert severities("lr: 3e-4 at peak") == ["warning"]
    assert severities("lr: 0") == []
    assert severities("seq_len: '4096,8192'") == []
    assert severities("warmup_ratio: 3%") == []
    assert severities("adam_beta: 0.9") == []
