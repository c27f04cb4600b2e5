"""The convergence test: sound settings pass, settings that do not train fail."""

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_checks.planted import Planted
from trimtab.cli import main
from trimtab.configs.settings import Setting, Settings
from trimtab.configs.shrink import Twin, shrink
from trimtab.errors import ConfigError
from trimtab.lab.text import load_text
from trimtab.model_checks.ngrams import bigram_loss, unigram_loss
from trimtab.model_checks.smoke_run import smoke

pytestmark = pytest.mark.torch

QUICK = Twin(hidden=32, layers=1, heads=2, context=32)


def settings(**values: Any) -> Settings:
    return Settings("x", "test", {k: Setting(v) for k, v in values.items()})


# ------------------------------------------------------------ the tables


def test_tables_against_a_loop() -> None:
    source = np.random.default_rng(0)
    train = source.integers(0, 5, size=400).astype(np.uint8)
    test = source.integers(0, 5, size=50).astype(np.uint8)
    single = {t: (int((train == t).sum()) + 1) / (len(train) + 5) for t in range(5)}
    assert unigram_loss(train, test, vocab=5) == pytest.approx(
        -np.mean([math.log(single[t]) for t in test])
    )
    losses = []
    for a, b in itertools.pairwise(test):
        follows = train[1:][train[:-1] == a]
        losses.append(-math.log((int((follows == b).sum()) + single[b]) / (len(follows) + 1)))
    assert bigram_loss(train, test, vocab=5) == pytest.approx(np.mean(losses))


def test_a_text_that_repeats_is_known_to_bigrams_alone() -> None:
    text = np.tile(np.arange(8, dtype=np.uint8), 500)
    assert unigram_loss(text, text, vocab=8) == pytest.approx(math.log(8), rel=1e-3)
    assert bigram_loss(text, text, vocab=8) < 0.01
    with pytest.raises(ConfigError, match="fewer than two"):
        bigram_loss(text[:1], text)


# ------------------------------------------------------------ the twin of a run


def test_rate_and_init_keep_their_proportion_to_the_width() -> None:
    twin = shrink(
        settings(
            hidden=12288,
            lr=6e-5,
            init_std=0.02,
            layers=96,
            beta1=0.9,
            beta2=0.999,
            eps=1e-6,
            weight_decay=0.2,
            clip=0.5,
            norm="LayerNorm",
            position="learned",
            tied_embeddings=True,
            warmup_steps=50,
            train_steps=1000,
            min_lr=6e-6,
        )
    )
    assert twin.lr == pytest.approx(6e-5 * 192)
    assert twin.init_std == pytest.approx(0.02 * math.sqrt(192))
    assert (twin.betas, twin.eps, twin.weight_decay, twin.clip) == ((0.9, 0.999), 1e-6, 0.2, 0.5)
    assert (twin.layers, twin.norm, twin.tied) == (3, "layernorm", True)
    assert (twin.warmup_share, twin.final_lr_share) == pytest.approx((0.05, 0.1))
    assert shrink(settings()) == Twin()
    assert "not carried over" in twin.notes[-1]
    assert "positions alibi" in shrink(settings(position="alibi")).notes[0]


def test_what_a_config_does_not_state_is_a_reservation() -> None:
    assert shrink(settings(lr=3e-4, hidden=4096)).caveats == ()
    (width,) = shrink(settings(lr=3e-4)).caveats
    assert "lr 0.0003 was tried as it stands at width 64" in width
    (rate,) = shrink(settings(hidden=4096)).caveats
    (other,) = shrink(settings(lr=3e-4, hidden=4096, architecture="lstm")).caveats
    assert "lstm" in other
    assert "a pass says nothing of that model" in other
    assert "no learning rate is stated" in rate


def test_an_impossible_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden is 0"):
        shrink(settings(hidden=0))
    for wrong in ({"lr": 0.0}, {"beta2": 1.0}, {"weight_decay": -1.0}, {"eps": math.nan}):
        with pytest.raises(ConfigError):
            shrink(settings(**wrong))


# ------------------------------------------------------------ training


def test_settings_that_do_not_train_fail() -> None:
    text = np.tile(np.frombuffer(b"the cat sat on the mat. ", dtype=np.uint8), 400)
    for wrong, word in (
        (replace(QUICK, lr=1e-7), "learned nothing"),
        (replace(QUICK, lr=1e30, clip=0.0), "NaN or Inf"),
    ):
        done = smoke(wrong, text, text, steps=12)
        assert not done.passed
        assert word in done.findings[0].message
        assert (done.findings[0].rule, done.findings[0].severity) == ("L43", "error")


def test_the_same_seed_gives_the_same_bits() -> None:
    text = np.random.default_rng(0).integers(0, 256, size=2000).astype(np.uint8)
    losses = [smoke(QUICK, text, text, steps=10, seed=s).loss for s in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_impossible_questions() -> None:
    text = np.zeros(2000, dtype=np.uint8)
    with pytest.raises(ConfigError, match="at least 10"):
        smoke(QUICK, text, text, steps=5)
    with pytest.raises(ConfigError, match="a sequence 33"):
        smoke(QUICK, text, text[:20])
    with pytest.raises(ConfigError, match="vocab is 8"):
        smoke(replace(QUICK, vocab=8), text + 8, text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, True), ({"lr": 0.6}, False), ({"init_std": 4.0, "clip": 0.0}, False)],
    ids=["sound", "rate × 100", "init × 50"],
)
def test_on_real_text(changes: dict[str, Any], passes: bool) -> None:
    text = load_text()
    done = smoke(replace(Twin(), **changes), text.train, text.validation, steps=200)
    assert done.passed == passes
    assert 2.3 < done.bigram < 2.6 < done.unigram < 3.6


# ------------------------------------------------------------ the command


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    source = np.random.default_rng(0)
    words = [bytes(source.integers(97, 123, size=4).astype(np.uint8)) for _ in range(50)]
    file.write_bytes(b" ".join(words[i] for i in source.integers(0, 50, size=40_000)))
    return file


def run(*arguments: str) -> int:
    return main(["smoke", "--twin-hidden", "16", "--layers", "1", *arguments])


def test_json_and_exit_code(text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--text", str(text_file), "--steps", "12", "--lr", "1e-9", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["passed"] is False
    assert {"loss", "unigram", "bigram", "seconds", "findings", "twin", "steps"} <= set(document)


@pytest.mark.slow
@pytest.mark.covers("S80")
def test_a_small_model_in_the_layout_of_the_run(
    text_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ["--text", str(text_file), "--steps", "300", "--lr", "2e-2", "--layouts", "tp"]
    assert run(*good, "--json") == 0
    (seen,) = json.loads(capsys.readouterr().out)["layouts"]["layouts"]
    assert (seen["layout"], seen["status"]) == ("tp", "agrees")
    # The bug that BLOOM had: what one process trains well, two ranks of a layout do not.
    monkeypatch.setattr(
        "trimtab.model_checks.twin_case.TwinCase", lambda _: Planted("rank-not-clipped")
    )
    assert run(*good) == 1
    assert "tp on 2 ranks: differs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.covers("S201")
def test_a_launch_waits_for_the_test(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "started"
    launch = ["--launch", sys.executable, "-c", f"open({str(mark)!r}, 'w'); raise SystemExit(7)"]
    bad = ["--text", str(text_file), "--steps", "12", "--lr", "1e-9"]
    assert run(*bad, *launch) == 1
    assert not mark.exists()
    assert "not started" in capsys.readouterr().err
    assert run(*bad, "--anyway", *launch) == 7
    assert mark.exists()
    mark.unlink()
    good = ["--text", str(text_file), "--steps", "300", "--lr", "2e-2"]
    assert run(*good, *launch) == 7
    assert mark.exists()


def test_a_config_of_any_framework(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.sh"
    config.write_text(
        "python pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --lr"
        " 3e-4 --adam-beta2 0.95 --seq-length 2048 --max-position-embeddings 2048\n"
    )
    assert run(str(config), "--text", str(text_file), "--steps", "10", "--json") in (0, 1)
    twin = json.loads(capsys.readouterr().out)["twin"]
    assert twin["lr"] == pytest.approx(3e-4 * 1024 / 16)


@pytest.mark.parametrize("flag", ["--hidden", "--layers", "--train-steps"])
def test_a_width_of_nothing_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", flag, "0"]) == 2
    assert f"{flag} is 0; give at least 1" in capsys.readouterr().err


def test_a_pass_says_what_it_does_not_speak_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.model_checks.smoke_run._judge", lambda *_: 0.0)  # passes
    text = tmp_path / "text.txt"
    text.write_bytes(b"the cat sat on the mat. " * 20_000)
    config = tmp_path / "c.json"
    arguments = ["smoke", str(config), "--text", str(text), "--steps", "10", "--twin-hidden", "16"]
    stated = {"num_layers": 96, "num_attention_heads": 96, "lr": 3e-4, "adam_beta2": 0.95}
    config.write_text(json.dumps(stated))
    assert main(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "passed, with reservations" in told
    assert "the width is not stated" in told
    large = {
        "hidden_size": 12288,
        "fp16": True,
        "init_method_std": 0.02,
        "seq_length": 2048,
        "vocab_size": 50257,
    }
    config.write_text(json.dumps(stated | large))
    assert main(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "passed, with reservations" in told
    assert "went wrong at size, where the twin is blind (" in told
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["caveats"] == []
    assert document["preflight_errors"]
