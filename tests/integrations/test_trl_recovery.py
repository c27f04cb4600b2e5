"""DPO and GRPO with a planted fault: recovered by what their own evaluation says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="needs the trl extra", exc_type=ImportError)
datasets = pytest.importorskip("datasets")

from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from transformers import GPT2LMHeadModel  # noqa: E402

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.hf_lab import Fit, Losses, guard_settings, quiet, rows_of  # noqa: E402
from tests.integrations.test_trl import lines, model, tokenizer  # noqa: E402
from trimtab.integrations.trl import GuardedDPOTrainer, GuardedGRPOTrainer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BATCH = 8
FAULT_STEP = 60
SWAPPED = range((FAULT_STEP - 1) * BATCH, (FAULT_STEP + 7) * BATCH)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr("trl.trainer.base_trainer._BaseTrainer._send_telemetry", lambda _self: None)
    datasets.disable_progress_bars()
    with quiet():
        yield


def train(
    out: Path,
    kind: Any,
    config: Any,
    *,
    lr: float,
    factor: float = 1.0,
    held: Any = None,
    **parts: Any,
) -> Fit:
    """Train from a base on disk: the reference model is loaded from where the model came from."""
    model().save_pretrained(out.parent / "base")
    net = GPT2LMHeadModel.from_pretrained(out.parent / "base")
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    schedule = LambdaLR(optimizer, lambda done: factor if done + 1 >= FAULT_STEP else 1.0)
    settings = guard_settings(
        snapshot_every_steps=5, yardstick_share=0.5, trial_steps=16, verify_steps=16
    )
    log = Losses()
    trainer = kind(
        model=net,
        processing_class=tokenizer(),
        optimizers=(optimizer, schedule),
        callbacks=[log],
        guard=replace(settings, validate_samples=BATCH),
        args=config(
            output_dir=str(out),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            bf16=False,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            learning_rate=lr,
            seed=1,
            gradient_checkpointing=False,
            **parts.pop("args"),
        ),
        **parts,
    )
    for name, value in (held or {}).items():
        setattr(trainer, name, value)
    trainer.train()
    return Fit(trainer, log, out)


def losses_in_history(found: Fit) -> list[int]:
    return [row["step"] for row in found.trainer.state.log_history if "loss" in row]


def pairs(num: int) -> dict[str, list[str]]:
    """Real text against random letters; those of the bad window the other way round."""
    draw = np.random.default_rng(3)
    chosen = lines(num, length=12)
    rejected = ["".join(map(chr, draw.integers(97, 123, 12))) for _ in range(num)]
    for i in SWAPPED:
        chosen[i], rejected[i] = rejected[i], chosen[i]
    return {"prompt": lines(num, length=8), "chosen": chosen, "rejected": rejected}


def test_dpo_leaves_out_pairs_that_were_swapped(tmp_path: Path) -> None:
    steps = 120
    data = pairs((steps + 40) * BATCH)
    found = train(
        tmp_path / "dpo",
        GuardedDPOTrainer,
        trl.DPOConfig,
        lr=1e-3,
        train_dataset=datasets.Dataset.from_dict({k: v[:-BATCH] for k, v in data.items()}),
        eval_dataset=datasets.Dataset.from_dict({k: v[-BATCH:] for k, v in data.items()}),
        args={"max_steps": steps, "max_length": 32, "train_sampling_strategy": "sequential"},
    )
    guard = found.trainer.guard
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    (left_out,) = guard.skipped_samples
    assert left_out[0] <= SWAPPED.start < SWAPPED.stop - 1 <= left_out[1] + BATCH
    assert found.trainer.evaluate()["eval_rewards/accuracies"] == 1.0
    assert losses_in_history(found) == list(range(1, steps + 1))
    assert events_of(found.out / "trimtab", "fault") == []


def following(out: Path, steps: int, held: Any = None) -> Fit:
    """DPO whose reference model follows the policy every third step."""
    data = pairs(80 * BATCH)
    more = {"sync_ref_model": True, "ref_model_sync_steps": 3, "ref_model_mixup_alpha": 0.6}
    return train(
        out,
        GuardedDPOTrainer,
        trl.DPOConfig,
        lr=1e-3,
        held=held,
        train_dataset=datasets.Dataset.from_dict({k: v[: 20 * BATCH] for k, v in data.items()}),
        eval_dataset=datasets.Dataset.from_dict({k: v[-BATCH:] for k, v in data.items()}),
        args={"max_steps": steps, "max_length": 32, **more},
    )


def test_a_reference_that_follows_the_policy_resumes_with_it(tmp_path: Path) -> None:
    straight = following(tmp_path / "straight", 11)
    following(tmp_path / "broken", 7)
    again = following(tmp_path / "broken", 11)
    for name in ("model", "ref_model"):
        pair = [getattr(f.trainer, name).state_dict() for f in (straight, again)]
        assert differences(*pair) == []


def test_what_cannot_go_back_is_only_observed(tmp_path: Path) -> None:
    found = following(tmp_path / "run", 4, held={"rollout_worker": object()})
    assert found.trainer.guard.policy.mode == "observe"
    assert found.trainer.guard_settings.mode == "act"


def variety(completions: list[str], **_: Any) -> list[float]:
    """How many different small letters: a policy that repeats itself gets an eighth."""
    return [len({c for c in text if c.islower()}) / 8 for text in completions]


def test_grpo_goes_back_from_a_collapse_by_its_reward(tmp_path: Path) -> None:
    """Without the guard the reward ends at 0.125; its loss rises in sound training, too (KL)."""
    steps = 100
    prompts = lines(72, length=8)
    found = train(
        tmp_path / "grpo",
        GuardedGRPOTrainer,
        trl.GRPOConfig,
        lr=4e-3,
        factor=30.0,
        reward_funcs=variety,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts[:64]}),
        eval_dataset=datasets.Dataset.from_dict({"prompt": prompts[64:]}),
        args={
            "max_steps": steps,
            "num_generations": BATCH,
            "steps_per_generation": 1,
            "max_completion_length": 8,
            "beta": 0.05,
        },
    )
    guard = found.trainer.guard
    assert [a["remedy"] for a in guard.actions] == ["roll-back+lower-lr"]
    assert found.trainer.evaluate()["eval_reward"] > 0.7
    rows = rows_of(found.out)
    assert {"reward", "kl", "entropy"} <= set(rows[0])
    kept = events_of(found.out / "trimtab", "outcome")[-1]
    assert kept.data["verdict"] == "worked"
    assert losses_in_history(found) == list(range(1, steps + 1))
    assert events_of(found.out / "trimtab", "fault") == []
