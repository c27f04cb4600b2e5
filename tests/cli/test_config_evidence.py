"""What preflight finds in a config is evidence for causes, in `inspect` and in `plan causes`."""

import json
from pathlib import Path

import numpy as np

from tests.cli.conftest import Run, parse
from trimtab import analyze

N = 700


def test_a_rate_that_preflight_calls_too_high_is_a_cause(run: Run, tmp_path: Path) -> None:
    config, log = tmp_path / "train.sh", tmp_path / "run.jsonl"
    config.write_text(
        "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12"
        " --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257"
        " --global-batch-size 512 --micro-batch-size 8 --train-iters 5000 --lr 0.03 --bf16\n"
    )
    rng = np.random.default_rng(0)
    loss = 3 + 3 * np.exp(-np.arange(1, N + 1) / 150) + 0.03 * rng.standard_normal(N)
    rows = [
        {"step": i + 1, "loss": float(x), "lr": 0.03}
        for i, x in enumerate(loss + 3.0 * np.exp(-np.abs(np.arange(N) - 300) / 40))
    ]
    log.write_text("".join(json.dumps(r) + "\n" for r in rows))
    alone = analyze(log).runs[0].incidents[0].diagnosis
    told = analyze(log, config=config).runs[0].incidents[0].diagnosis
    assert told.share("learning-rate-too-high") > 1.5 * alone.share("learning-rate-too-high")
    assert told.top.cause == "learning-rate-too-high"
    assert "peak rate" in " ".join(told.top.evidence)
    text = run("inspect", log, "--config", config)[1]
    assert "GPT-3" in text


def test_plan_causes_lists_what_preflight_finds(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "pretrain_gpt.py --num-layers 64 --hidden-size 11600 --num-attention-heads 80"
        " --seq-length 2048 --max-position-embeddings 2048 --global-batch-size 2048"
        " --micro-batch-size 1 --train-iters 100000 --lr 6e-4 --init-method-std 0.02 --fp16"
        " --adam-beta2 0.999 --clip-grad 1.0 --lr-warmup-iters 2000\n"
    )
    code, text, _ = run("plan", "causes", script)
    assert code == 0
    lines = [line for line in text.splitlines() if line[:1].isdigit()]
    assert lines[0].split()[1] == "rate:"
    assert "×" in text
    told = parse(run("plan", "causes", script, "--json")[1])
    assert "init" in [h["id"] for h in told["left"] if not h["within"]][:4]
    rate = next(h for h in told["left"] if h["id"] == "rate")
    assert rate["config"]
    sound = tmp_path / "sound.sh"
    sound.write_text(script.read_text().replace("6e-4", "6e-5").replace("0.02", "0.006"))
    order = [h["id"] for h in parse(run("plan", "causes", sound, "--json")[1])["left"]]
    assert order.index("data") < order.index("rate")
