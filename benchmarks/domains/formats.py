"""Courses -> logs, as the frameworks write them."""

import json
import math
from collections.abc import Callable, Mapping

from benchmarks.domains.courses import Courses

__all__ = ["FORMATS", "file_name", "log_text"]

_TRL = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "reward": "reward",
    "reward_std": "reward_std",
    "policy_entropy": "entropy",
    "policy_kl": "kl",
    "policy_clip_share": "clip_ratio/region_mean",
    "zero_variance_share": "frac_reward_zero_std",
    "completion_length": "completions/mean_length",
    "truncated_share": "completions/clipped_ratio",
    "rollout_mismatch": "sampling/sampling_logp_difference/mean",
    "importance_ratio": "sampling/importance_sampling_ratio/mean",
    "eval_score": "eval_reward",
    "value_loss": "loss/value_avg",
    "update_kl": "policy/approxkl_avg",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "reward_margin": "rewards/margins",
    "preference_accuracy": "rewards/accuracies",
    "chosen_logp": "logps/chosen",
    "rejected_logp": "logps/rejected",
    "token_accuracy": "mean_token_accuracy",
    "advantage_std": "advantages_std",
    "explained_variance": "explained_variance",
}
_VERL = {
    "loss": "actor/pg_loss",
    "lr": "actor/lr",
    "grad_norm": "actor/grad_norm",
    "reward": "critic/score/mean",
    "reward_std": "critic/score/std",
    "policy_entropy": "actor/entropy",
    "policy_kl": "actor/kl_loss",
    "update_kl": "actor/ppo_kl",
    "policy_clip_share": "actor/pg_clipfrac",
    "zero_variance_share": "actor/zero_advantage_frac",
    "completion_length": "response_length/mean",
    "truncated_share": "response_length/clip_ratio",
    "advantage_std": "critic/advantages/std",
    "value_loss": "critic/vf_loss",
    "explained_variance": "critic/vf_explained_var",
    "rollout_mismatch": "training/rollout_probs_diff_mean",
    "importance_ratio": "rollout_corr/rollout_is_mean",
    "eval_score": "val-core/acc",
}
_OPENRLHF = {
    "loss": "policy_loss",
    "lr": "actor_lr",
    "grad_norm": "actor_grad_norm",
    "reward": "reward",
    "reward_std": "reward_std",
    "policy_entropy": "entropy",
    "policy_kl": "kl",
    "update_kl": "ppo_kl",
    "policy_clip_share": "ppo_clip_ratio",
    "zero_variance_share": "zero_std_ratio",
    "completion_length": "response_length",
    "truncated_share": "truncated_ratio",
    "advantage_std": "advantages_std",
    "value_loss": "critic_loss",
    "explained_variance": "explained_variance",
    "rollout_mismatch": "vllm_kl",
    "importance_ratio": "importance_ratio",
    "eval_score": "eval/score",
    "chosen_reward": "chosen_reward",
    "rejected_reward": "reject_reward",
    "reward_margin": "reward_margin",
    "preference_accuracy": "acc_mean",
    "chosen_logp": "chosen_logps",
    "rejected_logp": "rejected_logps",
}
_NEMO = {
    **_TRL,
    "reward": "train/reward",
    "policy_entropy": "train/approx_entropy",
    "policy_kl": "train/kl_penalty",
    "importance_ratio": "train/token_mult_prob_error",
    "rollout_mismatch": "train/gen_kl_error",
    "completion_length": "train/mean_gen_tokens_per_sample",
    "eval_score": "validation/accuracy",
}
_PRIME = {
    **_TRL,
    "reward": "reward/mean",
    "policy_entropy": "entropy/mean",
    "rollout_mismatch": "mismatch_kl/mean",
    "completion_length": "seq_len/mean",
    "truncated_share": "is_truncated/mean",
    "eval_score": "eval/avg@k",
}
_MEGATRON = {
    "loss": "lm loss",
    "lr": "learning rate",
    "grad_norm": "grad norm",
    "aux_loss": "load_balancing_loss",
    "router_z_loss": "z_loss",
}
_MOE = {
    "router_entropy": "moe/router_entropy",
    "expert_load_max": "moe/load_imbalance",
    "max_violation": "moe/max_violation",
    "expert_load_std": "moe/load_cv",
    "dead_experts": "moe/dead_experts",
    "dropped_tokens": "moe/token_drop_rate",
    "aux_loss": "moe/load_balancing_loss",
    "router_z_loss": "moe/z_loss",
}
_OLMOE = {
    "loss": "train/CrossEntropyLoss",
    "lr": "optim/learning_rate_group0",
    "grad_norm": "optim/total_grad_norm",
    **_MOE,
    "aux_loss": "train/LoadBalancingLoss",
    "router_z_loss": "train/RouterZLoss",
}
_FP8 = {
    "amax": "fp8/amax",
    "fp8_scale": "fp8/scale",
    "overflow_share": "fp8/overflow_rate",
    "underflow_share": "fp8/underflow_rate",
    "precision_fallback": "fp8/fallback_rate",
    "lost_updates": "zero_update_share",
    "update_ratio": "update_ratio",
    "quantization_error": "fp8/quant_error",
}
_GAN = {
    "discriminator_loss": "Loss_D",
    "generator_loss": "Loss_G",
    "d_real": "D(x)",
    "d_fake": "D(G(z))",
    "gradient_penalty": "gradient_penalty",
    "sample_diversity": "lpips_diversity",
}
_VAE = {"loss": "loss", "recon_loss": "recon", "latent_kl": "kld"}
_Q = {"loss": "td_loss", "reward": "ep_return", "q_value": "q_mean"}
_SSL = {"loss": "loss", "lr": "lr", "embedding_std": "z_std"}
_DIFFUSION = {
    "low_noise_loss": "loss_q0",
    "high_noise_loss": "loss_q3",
    "ema_loss": "ema_loss",
    "fid": "fid",
}


def _key(names: Mapping[str, str], name: str) -> str:
    if name.startswith("load:"):
        _, layer, expert = name.split(":")
        return f"moe/layer_{layer}/expert_{expert}_load"
    return names.get(name, name)


def _rows(courses: Courses, names: Mapping[str, str]) -> list[dict[str, float]]:
    keys = {name: _key(names, name) for name in courses}
    num_rows = len(next(iter(courses.values())))
    return [
        {keys[n]: float(f"{v[k]:.6g}") for n, v in courses.items() if not math.isnan(v[k])}
        for k in range(num_rows)
    ]


def _jsonl(courses: Courses, names: Mapping[str, str]) -> str:
    rows = _rows(courses, names)
    return "".join(json.dumps({"step": k, **row}) + "\n" for k, row in enumerate(rows, 1))


def _hf_stdout(courses: Courses, names: Mapping[str, str]) -> str:
    rows = _rows(courses, names)
    return "".join(
        f"{ {**row, 'epoch': round(k / len(rows), 4)} }\n" for k, row in enumerate(rows, 1)
    )


def _console(courses: Courses, names: Mapping[str, str]) -> str:
    rows = _rows(courses, names)
    lines = (" - ".join(f"{key}:{value}" for key, value in row.items()) for row in rows)
    return "".join(f"step:{k} - {line}\n" for k, line in enumerate(lines, 1))


def _csv(courses: Courses, names: Mapping[str, str]) -> str:
    rows = _rows(courses, names)
    header = ["step", *(_key(names, n) for n in courses)]
    lines = [",".join(header)]
    for k, row in enumerate(rows, 1):
        lines.append(",".join([str(k), *(str(row.get(key, "")) for key in header[1:])]))
    return "\n".join(lines) + "\n"


def _megatron(courses: Courses, names: Mapping[str, str]) -> str:
    rows = _rows(courses, names)
    return "".join(
        f" iteration {k:8d}/ {len(rows):8d} | consumed samples: {k * 512:12d} | "
        f"elapsed time per iteration (ms): {900 + k % 7:.1f} | "
        + "".join(f"{key}: {value:.6E} | " for key, value in row.items())
        + "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for k, row in enumerate(rows, 1)
    )


Writer = Callable[[Courses, Mapping[str, str]], str]

FORMATS: Mapping[str, Mapping[str, tuple[Writer, Mapping[str, str], str]]] = {
    "rl": {
        "trl": (_hf_stdout, _TRL, "log"),
        "verl": (_console, _VERL, "log"),
        "openrlhf": (_jsonl, _OPENRLHF, "jsonl"),
        "nemo-rl": (_jsonl, _NEMO, "jsonl"),
        "prime-rl": (_csv, _PRIME, "csv"),
    },
    "preference": {"trl": (_hf_stdout, _TRL, "log"), "openrlhf": (_jsonl, _OPENRLHF, "jsonl")},
    "moe": {
        "megatron": (
            _megatron,
            {**_MEGATRON, **{k: v for k, v in _MOE.items() if k not in _MEGATRON}},
            "log",
        ),
        "olmoe": (_jsonl, _OLMOE, "jsonl"),
        "torchtitan": (_csv, {"loss": "loss_metrics/global_avg_loss", **_MOE}, "csv"),
    },
    "moe-loads": {
        "jsonl": (_jsonl, {"loss": "train/loss"}, "jsonl"),
        "csv": (_csv, {"loss": "loss"}, "csv"),
    },
    "low-precision": {
        "jsonl": (_jsonl, {"loss": "train/loss", **_FP8}, "jsonl"),
        "csv": (_csv, {"loss": "loss", **_FP8}, "csv"),
    },
    "gan": {"csv": (_csv, _GAN, "csv"), "jsonl": (_jsonl, _GAN, "jsonl")},
    "vae": {"csv": (_csv, _VAE, "csv"), "jsonl": (_jsonl, _VAE, "jsonl")},
    "q-learning": {"csv": (_csv, _Q, "csv"), "jsonl": (_jsonl, _Q, "jsonl")},
    "self-supervised": {"csv": (_csv, _SSL, "csv"), "jsonl": (_jsonl, _SSL, "jsonl")},
    "diffusion": {"csv": (_csv, _DIFFUSION, "csv"), "jsonl": (_jsonl, _DIFFUSION, "jsonl")},
    "sft": {"trl": (_hf_stdout, _TRL, "log"), "jsonl": (_jsonl, _TRL, "jsonl")},
}
"""Kind of training -> format -> (writer, canonical name -> key, file ending)."""


def log_text(courses: Courses, base: str, name: str) -> str:
    """Return a log in one of the formats of a kind of training."""
    write, names, _ = FORMATS[base][name]
    return write(courses, names)


def file_name(base: str, name: str) -> str:
    """Return a file name with the ending of the format."""
    return f"run.{FORMATS[base][name][2]}"
