"""Model, data order and the plain loop: shapes, determinism, and that it learns."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch

from trimtab.errors import ConfigError
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption
from trimtab.lab.data import TextWindows, make_loader
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.scenarios import LrFault, Scenario, learning_rate
from trimtab.lab.text import Text, split_text
from trimtab.lab.train import StepReport, build, evaluate, train, train_plain

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are faster on one thread, and do not wait for busy cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def text() -> Text:
    words = np.random.default_rng(0).choice([b"loss ", b"spike ", b"step ", b"rate\n"], 120_000)
    return split_text({"words": b"".join(words.tolist())}, source="words")


def _scenario(**changes: object) -> Scenario:
    small = Scenario(
        name="test",
        title="A test",
        expect="untouched",
        expected_minutes=1.0,
        steps=40,
        warmup_steps=5,
        batch_size=8,
        model=ModelConfig(width=32, num_layers=2, num_heads=2, context_tokens=32),
    )
    return dataclasses.replace(small, **changes)  # type: ignore[arg-type]


def test_logits_do_not_depend_on_later_tokens() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(width=32))
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40:] = torch.randint(256, (2, 24))
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.shape == (2, 64, 256)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_attention_matches_its_equation() -> None:
    torch.manual_seed(0)
    attention: Any = Transformer(ModelConfig(width=8, num_heads=2)).blocks[0].attention
    x = torch.randn(1, 5, 8)
    q, k, v = attention.qkv(x).split(8, dim=-1)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = q[0, :, head] @ k[0, :, head].T / 2.0
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v[0, :, head])
    expected = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x)[0], expected)


def test_matrices_start_at_the_stated_deviation() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(width=64, num_layers=3))
    std = math.sqrt(2 / (5 * 64))
    assert model.lm_head.weight.std().item() == pytest.approx(std, rel=0.03)
    block: Any = model.blocks[1]
    assert block.down.weight.std().item() == pytest.approx(std / math.sqrt(6), rel=0.03)
    assert block.up.weight.std().item() == pytest.approx(std, rel=0.03)


def test_batch_b_holds_the_samples_from_b_times_batch_size(text: Text) -> None:
    data = TextWindows(text.train, context_tokens=16, num_samples=100, seed=0)
    batches = [batch["tokens"] for batch in make_loader(data, batch_size=16)]
    assert [len(batch) for batch in batches] == [16] * 6 + [4]
    samples = torch.stack([data[index]["tokens"] for index in range(100)])
    assert torch.equal(torch.cat(batches), samples)
    assert samples.shape == (100, 17)


def test_a_pass_visits_each_window_once_and_the_next_in_another_order() -> None:
    text = np.arange(201, dtype=np.uint8)
    data = TextWindows(text, context_tokens=10, num_samples=40, seed=0)
    rows = data.read(np.arange(40))
    starts = rows[:, 0].tolist()
    assert sorted(starts[:20]) == sorted(starts[20:]) == list(range(0, 200, 10))
    assert starts[:20] != starts[20:]
    assert all(np.array_equal(row, np.arange(row[0], row[0] + 11)) for row in rows)
    backwards = data.read(np.arange(39, -1, -1))
    assert np.array_equal(backwards[::-1], rows)


def test_samples_outside_the_data_set_and_too_short_text_are_refused() -> None:
    data = TextWindows(np.zeros(100, dtype=np.uint8), context_tokens=10, num_samples=5, seed=0)
    with pytest.raises(IndexError, match="sample id 5"):
        data.read(np.array([4, 5]))
    with pytest.raises(ConfigError, match="text has 10 bytes"):
        TextWindows(np.zeros(10, dtype=np.uint8), context_tokens=10, num_samples=5, seed=0)


def test_corruption_reaches_the_named_samples_alone(text: Text) -> None:
    scenario = _scenario(corruption=Corruption(kind="repeat", first_sample=16, num_samples=8))
    faulty = build(scenario, 0, text).loader
    clean = build(_scenario(), 0, text).loader
    same = [
        torch.equal(bad["tokens"], good["tokens"]) for bad, good in zip(faulty, clean, strict=True)
    ]
    assert same == [True, True, False] + [True] * 77


def test_plain_loop_learns_repeats_and_tells_steps_apart(text: Text) -> None:
    reports: list[StepReport] = []
    scenario = _scenario()
    first = train_plain(scenario, 0, text, on_step=reports.append)
    assert first == train_plain(scenario, 0, text)
    assert first[0] == pytest.approx(math.log(256), abs=0.3)
    assert first[-1] < 3.0
    assert first[0] != train_plain(dataclasses.replace(scenario, steps=6), 1, text)[0]
    assert [report.step for report in reports] == list(range(1, 41))
    assert [report.loss for report in reports] == first
    expected = [learning_rate(scenario, report.step) for report in reports]
    assert [report.learning_rate for report in reports] == pytest.approx(expected, rel=1e-12)


def test_lr_fault_leaves_all_before_it_bitwise_alone(text: Text) -> None:
    faulty = train_plain(_scenario(lr_fault=LrFault(first_step=20, multiplier=30.0)), 0, text)
    healthy = train_plain(_scenario(), 0, text)
    # The loss of step 20 is taken before the first wrong update.
    assert faulty[:20] == healthy[:20]
    assert faulty[20] != healthy[20]
    assert max(faulty[20:]) > max(healthy[20:]) + 0.2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(text: Text, precision: Literal["bf16", "fp16"]) -> None:
    scenario = _scenario(precision=precision, steps=12)
    parts = build(scenario, 0, text)
    assert (parts.scaler is not None) == (precision == "fp16")
    half = train(parts)
    full = train_plain(dataclasses.replace(scenario, precision="fp32"), 0, text)
    assert half != full
    assert half == pytest.approx(full, abs=0.1)
    assert parts.model.lm_head.weight.dtype == torch.float32


@pytest.mark.slow
def test_evaluation_is_the_mean_over_held_out_text(text: Text) -> None:
    model = build(_scenario(), 0, text).model
    tokens = torch.from_numpy(text.validation.astype(np.int64))
    whole = tokens[: (len(tokens) - 1) // 32 * 32 + 1]
    windows = torch.stack([whole[i : i + 33] for i in range(0, len(whole) - 1, 32)])
    with torch.no_grad():
        expected = next_token_loss(model, windows).item()
    # fp32 sums in another order differ in the last digits.
    assert evaluate(model, text, max_bytes=10**9) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_leaves_no_trace(text: Text, mode: bool) -> None:
    model = build(_scenario(), 0, text).model
    model.train(mode)
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = evaluate(model, text, max_bytes=8 * 1024)
    assert under_autocast == evaluate(model, text, max_bytes=8 * 1024)
    assert model.training is mode
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())


def test_evaluation_reports_a_broken_model_as_it_is(text: Text) -> None:
    model = build(_scenario(), 0, text).model
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    assert math.isnan(evaluate(model, text, max_bytes=8 * 1024))


def test_starting_to_read_data_draws_no_global_random_number(text: Text) -> None:
    loader = build(_scenario(), 0, text).loader
    state = torch.get_rng_state()
    next(iter(loader))
    assert torch.equal(torch.get_rng_state(), state)


def test_more_token_ids_than_the_model_has_are_refused(text: Text) -> None:
    with pytest.raises(ConfigError, match="raise it to 256"):
        build(_scenario(model=ModelConfig(vocab_size=128)), 0, text)
