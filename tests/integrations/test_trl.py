"""TRL's trainers, guarded by the mixin.

SFT with a loss of its own, and GRPO, which makes its own data.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="needs the trl extra", exc_type=ImportError)
datasets = pytest.importorskip("datasets")

from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402

from tests.guard.tiny import DEVICE, differences, events_of  # noqa: E402
from tests.integrations.hf_lab import (  # noqa: E402
    CONTEXT,
    PEAK_LR,
    Fit,
    Losses,
    guard_settings,
    quiet,
    rows_of,
    text,
)
from trimtab.integrations.huggingface import GuardMixin  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BAD_STEPS = range(160, 172)
BATCH = 8


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("trl.trainer.base_trainer._BaseTrainer._send_telemetry", lambda _self: None)
    with quiet():
        yield


def tokenizer() -> Any:
    """One token per character of Latin-1."""
    vocabulary = {chr(i): i for i in range(256)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=chr(1)))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, eos_token=chr(0), pad_token=chr(2), unk_token=chr(1)
    )


def model() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT + 1,
            n_embd=32,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def lines(num: int, bad: range = range(0), *, length: int = CONTEXT) -> list[str]:
    """Pieces of real text; those of `bad` are noise."""
    data, draw = text().train, np.random.default_rng(0)
    starts = draw.integers(0, len(data) - length, num)
    pieces = [
        draw.integers(3, 256, length) if i in bad else data[at : at + length]
        for i, at in enumerate(starts)
    ]
    return ["".join(chr(max(int(c), 3)) for c in piece) for piece in pieces]


class OwnLoss(trl.SFTTrainer):  # type: ignore[misc, name-defined]
    """SFT with a loss of its own, a figure beside it, and a NaN where it is asked for."""

    guard: Any = None
    nan_steps: tuple[int, ...] = ()

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        spread = sum(p.square().mean() for p in model.parameters())
        if self.guard is not None:
            self.guard.note_signals(weight_size=float(spread.detach()))
        if self.state.global_step + 1 in self.nan_steps:
            spread = spread * math.nan
        return loss + 1e-3 * spread


class GuardedSFT(GuardMixin, OwnLoss):
    pass


def sft(
    out: Path,
    kind: type,
    *,
    steps: int,
    bad: range = range(0),
    nan: tuple[int, ...] = (),
    **guard: Any,
) -> Fit:
    log = Losses()
    rows = range((bad.start - 1) * BATCH, (bad.stop - 1) * BATCH) if bad else range(0)
    trainer = kind(
        model=model(),
        processing_class=tokenizer(),
        train_dataset=datasets.Dataset.from_dict({"text": lines(2 * steps * BATCH, rows)}),
        callbacks=[log],
        **guard,
        args=trl.SFTConfig(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            bf16=False,
            logging_steps=1,
            use_cpu=DEVICE == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            learning_rate=PEAK_LR,
            warmup_steps=20,
            lr_scheduler_type="constant_with_warmup",
            seed=1,
            max_length=CONTEXT + 1,
            train_sampling_strategy="sequential",
            gradient_checkpointing=False,
        ),
    )
    trainer.nan_steps = nan
    trainer.train()
    return Fit(trainer, log, out)


def test_sft_with_a_loss_of_its_own_is_unchanged_while_observed(tmp_path: Path) -> None:
    plain = sft(tmp_path / "plain", OwnLoss, steps=12)
    found = sft(tmp_path / "found", GuardedSFT, steps=12, guard=guard_settings("observe"))
    assert len(plain.log.by_step()) == 12
    assert found.log.logs == plain.log.logs
    assert differences(found.weights, plain.weights) == []
    rows = rows_of(found.out)
    assert all(r["weight_size"] > 0 for r in rows)
    accuracy = [logs["mean_token_accuracy"] for _, logs in plain.log.logs if "loss" in logs]
    assert [r["mean_token_accuracy"] for r in rows] == accuracy


def test_sft_goes_back_from_bad_data_and_leaves_out_a_nan(tmp_path: Path) -> None:
    found = sft(tmp_path, GuardedSFT, steps=240, bad=BAD_STEPS, nan=(101,), guard=guard_settings())
    guard = found.trainer.guard
    assert [a["remedy"] for a in guard.actions] == ["skip-update", "roll-back+skip-data"]
    assert guard.skipped_samples == (
        ((BAD_STEPS.start - 1) * BATCH, (BAD_STEPS.stop - 1) * BATCH - 1),
    )
    assert found.trainer.state.global_step == 240
    assert np.mean(list(found.log.by_step().values())[-20:]) < 2.7
    assert events_of(tmp_path / "trimtab", "fault") == []


class Spoiled(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """GRPO whose loss is NaN the first time that some steps are done."""

    nan_steps: tuple[int, ...] = ()

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        step = self.state.global_step + 1
        bad, self.nan_steps = step in self.nan_steps, tuple(s for s in self.nan_steps if s != step)
        return loss * math.nan if bad else loss


class GuardedGRPO(GuardMixin, Spoiled):
    pass


def share_of_e(completions: list[str], **_: Any) -> list[float]:
    return [c.count("e") / max(len(c), 1) for c in completions]


def grpo(out: Path, kind: type, *, steps: int, nan: tuple[int, ...] = (), **guard: Any) -> Fit:
    """4 completions of each of 2 prompts, of which two steps are made, each twice."""
    log, base = Losses(), out.parent / "base"
    model().save_pretrained(base)  # the reference model is loaded from where the model came from
    trainer = kind(
        model=GPT2LMHeadModel.from_pretrained(base),
        processing_class=tokenizer(),
        reward_funcs=share_of_e,
        callbacks=[log],
        train_dataset=datasets.Dataset.from_dict({"prompt": lines(16, length=8)}),
        **guard,
        args=trl.GRPOConfig(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=4,
            num_generations=4,
            steps_per_generation=2,
            num_iterations=2,
            max_completion_length=8,
            beta=0.05,
            bf16=False,
            logging_steps=1,
            use_cpu=DEVICE == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            seed=1,
            gradient_checkpointing=False,
        ),
    )
    trainer.nan_steps = nan
    trainer.train()
    return Fit(trainer, log, out)


def figures(found: Fit) -> list[tuple[int, dict[str, Any]]]:
    """What was logged, less the times."""
    return [(s, {k: v for k, v in logs.items() if "time" not in k}) for s, logs in found.log.logs]


def test_grpo_is_unchanged_while_observed_and_its_reward_is_recorded(tmp_path: Path) -> None:
    plain = grpo(tmp_path / "plain", Spoiled, steps=14)
    found = grpo(tmp_path / "found", GuardedGRPO, steps=14, guard=guard_settings("observe"))
    assert figures(found) == figures(plain)
    assert differences(found.weights, plain.weights) == []
    rows = rows_of(found.out)
    assert [r["step"] for r in rows] == list(range(1, 15))
    assert len({r["reward"] for r in rows if "reward" in r}) > 1
    assert any(r["kl"] > 0 for r in rows)


def test_grpo_goes_on_bit_equal_with_the_completions_it_had(tmp_path: Path) -> None:
    """Stopped at step 10, whose completions serve two further steps."""
    straight = grpo(tmp_path / "straight", GuardedGRPO, steps=14, guard=guard_settings("observe"))
    grpo(tmp_path / "broken", GuardedGRPO, steps=10, guard=guard_settings("observe"))
    again = grpo(tmp_path / "broken", GuardedGRPO, steps=14, guard=guard_settings("observe"))
    assert again.log.by_step() == {s: x for s, x in straight.log.by_step().items() if s > 10}
    assert differences(again.weights, straight.weights) == []


def test_grpo_leaves_out_steps_whose_loss_is_lost(tmp_path: Path) -> None:
    found = grpo(
        tmp_path,
        GuardedGRPO,
        steps=80,
        nan=(40, 41, 42),
        guard=guard_settings(snapshot_every_steps=5),
    )
    guard = found.trainer.guard
    assert [a["remedy"] for a in guard.actions][-1] == "skip-update"
    assert found.trainer.state.global_step == 80
    assert all(p.isfinite().all() for p in found.trainer.model.parameters())
    assert events_of(tmp_path / "trimtab", "fault") == []
