"""The record that every config is read into: settings by canonical name, each with its origin.

A setting that a file does not state and its framework does not define is absent: `Settings.get`
gives None, and no rule speaks of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["NAMES", "UNEVEN", "Doubt", "Origin", "Setting", "Settings"]

UNEVEN = "layers are divided over pipeline stages as the file says, not evenly"
"""Note of the reader where a file divides its layers itself."""

Origin = Literal["stated", "derived", "default"]
"""stated: written in the file; derived: computed from stated ones; default: of the framework."""

NAMES: Mapping[str, str] = {
    # shape
    "hidden": "width of the residual stream",
    "layers": "transformer blocks",
    "heads": "attention heads",
    "kv_heads": "key-value heads",
    "head_dim": "width of one head",
    "ffn": "inner width of the feed-forward block, as the framework's own key states it",
    "ffn_effective": "inner width that the framework builds from it (rounding, 2/3 of it, …)",
    "gated_ffn": "whether the feed-forward block is gated (SwiGLU, GeGLU)",
    "vocab": "rows of the embedding",
    "seq": "tokens of one training sequence",
    "attention": "mha, gqa, mqa or mla: how keys and values are shared or compressed",
    "max_positions": "positions that the model has room for",
    "experts": "routed experts",
    "topk": "routed experts that one token uses",
    "shared_experts": "experts that every token uses",
    "moe_ffn": "inner width of one expert",
    "tied_embeddings": "whether input and output embedding share their weights",
    "params": "parameters, stated or computed from the shape",
    "active_params": "of a mixture of experts: parameters that one token uses",
    # architecture
    "architecture": "lstm, cnn, unet, …, where the file names one that is no transformer",
    "qk_norm": "whether queries and keys are normalised",
    "embed_norm": "whether the embedding output is normalised",
    "norm": "layernorm, rmsnorm, …",
    "activation": "gelu, gelu-tanh, relu, silu, …",
    "position": "learned, sinusoidal, rotary, alibi, none",
    "dropout": "dropout of the hidden states, 0 to 1",
    "attention_dropout": "",
    "embedding_dropout": "",
    "softcap_attention": "",
    "softcap_final": "",
    "z_loss": "coefficient of the z-loss on the output logits; 0 where it is off",
    "router_z_loss": "the same for the router of a mixture of experts",
    "router_aux_loss": "coefficient of the loss that balances experts; 0 where it is off",
    "router_bias": "whether a bias balances experts instead",
    # init
    "init_std": "standard deviation of the weight init; text where it is a named scheme",
    "init_std_output": "the same for the layers that write to the residual stream",
    "embedding_scale": "factor on the embedding output",
    # optimizer
    "optimizer": "adamw, adam, muon, …",
    "lr": "peak learning rate",
    "lr_factor": "factor of a schedule whose peak follows from width and warm-up (Noam)",
    "min_lr": "learning rate at the end of the decay",
    "schedule": "cosine, linear, wsd, constant, …",
    "warmup_steps": "",
    "warmup_samples": "",
    "warmup_tokens": "",
    "warmup_epochs": "",
    "warmup_ratio": "warm-up as a share of the run, where the file gives it so",
    "decay_steps": "",
    "beta1": "",
    "beta2": "",
    "eps": "",
    "weight_decay": "",
    "decay_norms_and_biases": "whether weight decay acts on norms and biases",
    "decay_embeddings": "whether weight decay acts on embeddings",
    "label_smoothing": "share of each target that is spread over all classes",
    "clip": "norm that gradients are clipped to; 0 where clipping is off",
    # batch and length
    "batch_samples": "sequences of one optimizer step",
    "batch_tokens": "tokens of one optimizer step",
    "micro_batch": "sequences of one device's forward pass",
    "grad_accum": "forward passes of one device that are summed into one optimizer step",
    "batch_start_samples": "where a ramp begins",
    "train_steps": "",
    "train_samples": "",
    "train_tokens": "",
    "corpus_tokens": "tokens of the corpus before any is repeated",
    "epochs": "",
    # precision
    "dtype": "bf16, fp16, fp32, fp8",
    "reduce_dtype": "dtype of the gradient reduction",
    "optimizer_dtype": "dtype of the optimizer's states",
    "loss_scale": "fixed loss scale; 0 where it is dynamic",
    "loss_scale_init": "",
    "loss_scale_window": "",
    "loss_scale_hysteresis": "",
    "loss_scale_min": "",
    # layout and habits
    "tensor_parallel": "",
    "pipeline_parallel": "",
    "context_parallel": "",
    "data_parallel": "",
    "zero_stage": (
        "what data-parallel ranks share: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights"
        " too (FSDP)"
    ),
    "world_size": "",
    "saves": "whether checkpoints are written",
    "save_steps": "",
    "eval_steps": "",
    "seed": "",
    "pretrained": "whether training starts from given weights (fine-tuning)",
    "adapter": "whether only an adapter (LoRA, QLoRA) is trained",
    "resumes": "whether training goes on from a checkpoint of its own",
    "group_size": "completions of one prompt that are compared with each other (GRPO)",
    "objective": "pretrain, sft, dpo, rl, …",
}
"""Canonical names, with their meaning where the name does not say it."""


@dataclass(frozen=True)
class Setting:
    """One value and where it comes from."""

    value: object
    origin: Origin = "stated"
    key: str = ""
    """The framework's own key, as a user would search for it: `--init-method-std`, `model.d_model`.
    """
    line: int | None = None
    text: str = ""
    """The value as the file has it, where the setting is in other words: `amp_fp16` for fp16."""


@dataclass(frozen=True)
class Doubt:
    """A value under a known key that was not used."""

    name: str
    """What the key states, by canonical name where there is one."""
    key: str
    text: str
    """The value as written, at most 40 characters of it."""
    line: int | None
    expected: str
    kind: Literal[
        "unreadable", "impossible", "conflict", "disagree", "word", "unsure", "not-read"
    ] = "unreadable"
    """Not a number; out of its range; refused beside another key; other than another key; a number
    that YAML 1.1 takes for text; a word where the framework is not known; a key or file that
    nothing here reads."""
    meant: str = ""
    """What was plainly meant, where a slip of typing shows."""


@dataclass(frozen=True)
class Settings:
    """What one config says, by canonical name."""

    path: str
    framework: str
    values: Mapping[str, Setting] = field(default_factory=dict)
    note: tuple[str, ...] = ()
    """What was assumed while reading, for people."""
    doubts: tuple[Doubt, ...] = ()
    """Values that could not be used; no default replaces them."""
    parts: tuple[str, ...] = ()
    """Other files that were read into it."""
    names_files: tuple[str, ...] = ()
    """Configs that it names, read or not."""

    def get(self, name: str) -> object:
        """Return the value of a setting, or None where it is absent."""
        if name not in NAMES:
            raise KeyError(name)
        found = self.values.get(name)
        return None if found is None else found.value

    def number(self, name: str) -> float | None:
        """Return a setting as a number; None where it is absent or not one (booleans included)."""
        value = self.get(name)
        return (
            float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that are present."""
        return iter(self.values)
