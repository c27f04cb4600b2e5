"""The families: what is trained, on what, and how its outcome is measured outside the guard.

Each is small enough to train in seconds on one core, and has what is typical of its kind: batch
statistics, a loss below zero, a loss with noise of its own, a router, a reference model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own habit)

from benchmarks.families.data import CONTEXT, digits, held_out_text, text_windows

__all__ = ["FAMILIES", "Built", "Family"]

Batch = tuple[Tensor, ...]
Rows = Callable[[NDArray[np.int64]], Batch]


@dataclass
class Built:
    """One model of a family, ready to train."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    """Loss of a batch in the state the model is in, a scalar."""
    validate: Callable[[nn.Module], float]
    """What the run is judged by, lower is better; held-out data, eval mode, no gradients."""
    rows: Rows
    num_rows: int
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of training."""

    name: str
    build: Callable[[], Built]
    """Draws from torch's global generator: seed it first."""
    lr: float
    steps: int = 400
    batch_size: int = 16
    weight_decay: float = 0.01
    clip: float | None = 1.0
    warmup_steps: int = 20
    optimizer: str = "adamw"
    """adamw or sgd."""


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        done: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, d))
        return done


class _Experts(nn.Module):
    """Top-1 of four experts, with the auxiliary loss of Switch kept from the last pass."""

    def __init__(self, width: int, num_experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(num_experts)
        )
        self.auxiliary: Tensor = torch.zeros(())
        self.register_buffer("tokens_per_expert", torch.zeros(num_experts))
        self.tokens_per_expert: Tensor

    def forward(self, x: Tensor) -> Tensor:
        shape, flat = x.shape, x.flatten(0, -2)
        share = self.router(flat).softmax(-1)
        weight, chosen = share.max(-1)
        counts = F.one_hot(chosen, len(self.experts)).float()
        if self.training:
            self.tokens_per_expert += counts.sum(0)
        self.auxiliary = len(self.experts) * (counts.mean(0) * share.mean(0)).sum()
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            at = chosen == i
            if bool(at.any()):
                out[at] = expert(flat[at]) * weight[at, None]
        return out.view(shape)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool, moe: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads, causal=causal)
        self.feed: nn.Module = (
            _Experts(width)
            if moe
            else nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        )
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        fed: Tensor = x + self.drop(self.feed(self.norm2(x)))
        return fed


class LanguageModel(nn.Module):
    """A decoder over bytes; with `moe`, experts in each block."""

    def __init__(self, width: int = 48, num_layers: int = 2, *, moe: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(2 * CONTEXT, width)
        self.blocks = nn.ModuleList(
            _Block(width, 4, causal=True, moe=moe) for _ in range(num_layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embed.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, t, 256] for tokens int64 [n, t]."""
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _next_byte(model: nn.Module, batch: Batch) -> Tensor:
    tokens = batch[0]
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    routers = [m.auxiliary for m in model.modules() if isinstance(m, _Experts)]
    return loss + 0.01 * torch.stack(routers).sum() if routers else loss


@torch.no_grad()
def _text_loss(model: nn.Module) -> float:
    tokens = held_out_text()
    logits = model(tokens[:, :-1])
    return float(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def _text(model: nn.Module) -> Built:
    rows, count = text_windows()
    return Built(model, _next_byte, _judged(_text_loss), rows, count)


class LstmModel(nn.Module):
    """Two layers of LSTM over bytes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.cell = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, t, 256]."""
        logits: Tensor = self.head(self.cell(self.embed(tokens))[0])
        return logits


# -- images ---------------------------------------------------------------------------------


def _digit_rows(index: NDArray[np.int64]) -> Batch:
    images, labels, _, _ = digits()
    at = torch.from_numpy(index)
    return images[at], labels[at]


def _images(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor],
    validate: Callable[[nn.Module], float],
) -> Built:
    return Built(model, loss, _judged(validate), _digit_rows, len(digits()[0]))


def _judged(validate: Callable[[nn.Module], float]) -> Callable[[nn.Module], float]:
    """Return a measure in eval mode that leaves mode and random state as they were."""

    def measure(model: nn.Module) -> float:
        was, state = model.training, torch.get_rng_state()
        model.eval()
        try:
            torch.manual_seed(0)
            return validate(model)
        finally:
            model.train(was)
            torch.set_rng_state(state)

    return measure


def _classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def _digit_loss(model: nn.Module) -> float:
    _, _, images, labels = digits()
    return float(F.cross_entropy(model(images), labels))


def _cnn() -> Built:
    def conv(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

    model = nn.Sequential(
        *conv(1, 16), nn.MaxPool2d(2), *conv(16, 32), nn.Dropout(0.0), nn.Flatten(),
        nn.Linear(512, 10),
    )  # fmt: skip
    return _images(model, _classify, _digit_loss)


class VisionTransformer(nn.Module):
    """Patches of 2 x 2, two blocks, a class by the mean."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(_Block(width, 4, causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [n, 10]."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class Autoencoder(nn.Module):
    """A variational autoencoder whose loss is a Gaussian log likelihood: it goes below zero."""

    def __init__(self, width: int = 96, latent: int = 8) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 64))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reconstructions [n, 64], mean and log variance of the latents [n, latent]."""
        mean, log_var = self.encode(images.flatten(1)).chunk(2, -1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decode(mean + (0.5 * log_var).exp() * noise), mean, log_var


def _vae_loss(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, Autoencoder)
    out, mean, log_var = model(batch[0])
    scale = model.log_scale.clamp(-2.5, 2.5)
    # without the constant, and with a scale: below zero once the model is good
    fit = 0.5 * ((batch[0].flatten(1) - out) / scale.exp()).square() + scale
    kl = -0.5 * (1 + log_var - mean.square() - log_var.exp())
    loss: Tensor = fit.mean() + 0.2 * kl.mean()
    return loss


@torch.no_grad()
def _vae_measure(model: nn.Module) -> float:
    return float(_vae_loss(model, (digits()[2],)))


class Denoiser(nn.Module):
    """Predicts the noise in a digit at a time of the diffusion."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(65, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 64),
        )  # fmt: skip

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the noise [n, 64]."""
        out: Tensor = self.net(torch.cat([noisy, time[:, None]], 1))
        return out


def _diffusion_loss(model: nn.Module, batch: Batch) -> Tensor:
    clean = batch[0].flatten(1)
    time, noise = torch.rand(len(clean)), torch.randn_like(clean)
    keep = torch.cos(0.5 * math.pi * time)[:, None]
    noisy = keep * clean + (1 - keep.square()).clamp(min=0).sqrt() * noise
    return F.mse_loss(model(noisy, time), noise)


@torch.no_grad()
def _diffusion_measure(model: nn.Module) -> float:
    return float(_diffusion_loss(model, (digits()[2].repeat(4, 1, 1, 1),)))


def _contrastive_loss(model: nn.Module, batch: Batch) -> Tensor:
    images = batch[0]
    a, b = (F.normalize(model(images + 0.3 * torch.randn_like(images)), dim=-1) for _ in range(2))
    return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(images)))


@torch.no_grad()
def _contrastive_measure(model: nn.Module) -> float:
    images = digits()[2]
    losses = [
        _contrastive_loss(model, (part,)) for part in torch.split(images, 32) if len(part) == 32
    ]
    return float(torch.stack(losses).mean())


def _contrastive() -> Built:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32)
    )
    return _images(model, _contrastive_loss, _contrastive_measure)


# -- rewards and preferences ----------------------------------------------------------------


def _policy_loss(model: nn.Module, batch: Batch) -> Tensor:
    """REINFORCE with a mean baseline: name the digit, a reward of 1 where it is right."""
    log_share = model(batch[0]).log_softmax(-1)
    # NaN stays in the loss; sampling itself would raise
    action = torch.multinomial(log_share.detach().exp().nan_to_num(0.1), 1)
    reward = (action[:, 0] == batch[1]).float()
    advantage = reward - reward.mean()
    taken = log_share.gather(1, action)[:, 0]
    entropy = -(log_share.exp() * log_share).sum(-1)
    loss: Tensor = -(advantage * taken).mean() - 0.01 * entropy.mean()
    return loss


@torch.no_grad()
def _policy_measure(model: nn.Module) -> float:
    _, _, images, labels = digits()
    # expected share of wrong answers: what the reward is about
    return 1.0 - float(model(images).softmax(-1)[torch.arange(len(labels)), labels].mean())


def _policy() -> Built:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    return _images(model, _policy_loss, _policy_measure)


class Preferences(nn.Module):
    """A language model that is trained on pairs, and its frozen copy."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = LanguageModel(32, 1)
        self.reference = copy.deepcopy(self.policy)
        for p in self.reference.parameters():
            p.requires_grad = False

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log probability of each text, [n], by the model and by its copy."""
        return self._score(self.policy, tokens), self._score(self.reference, tokens)

    @staticmethod
    def _score(model: nn.Module, tokens: Tensor) -> Tensor:
        logits = model(tokens[:, :-1]).log_softmax(-1)
        found: Tensor = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)
        return found


def _dpo_loss(model: nn.Module, batch: Batch) -> Tensor:
    good, bad = batch
    (a, a0), (b, b0) = model(good), model(bad)
    return -F.logsigmoid(0.1 * ((a - a0) - (b - b0))).mean()


def _worse(tokens: Tensor) -> Tensor:
    """Return texts with their second half turned around: what the pairs call worse."""
    half = tokens.shape[1] // 2
    return torch.cat([tokens[:, :half], tokens[:, half:].flip(1)], 1)


@torch.no_grad()
def _dpo_measure(model: nn.Module) -> float:
    good = held_out_text()
    return float(_dpo_loss(model, (good, _worse(good))))


def _dpo() -> Built:
    rows, count = text_windows()

    def pairs(index: NDArray[np.int64]) -> Batch:
        (good,) = rows(index)
        return good, _worse(good)

    return Built(Preferences(), _dpo_loss, _judged(_dpo_measure), pairs, count)


FAMILIES: Mapping[str, Family] = {
    f.name: f
    for f in (
        Family(name="lm", build=lambda: _text(LanguageModel()), lr=3e-3),
        Family(name="lstm", build=lambda: _text(LstmModel()), lr=4e-3),
        Family(name="moe-lm", build=lambda: _text(LanguageModel(moe=True)), lr=3e-3),
        Family(name="cnn-bn", build=_cnn, lr=0.05, optimizer="sgd", clip=None),
        Family(
            name="vit", build=lambda: _images(VisionTransformer(), _classify, _digit_loss), lr=3e-3
        ),
        Family(
            name="vae",
            build=lambda: _images(Autoencoder(), _vae_loss, _vae_measure),
            lr=3e-3,
            batch_size=32,
        ),
        Family(
            name="diffusion",
            build=lambda: _images(Denoiser(), _diffusion_loss, _diffusion_measure),
            lr=3e-3,
            batch_size=64,
        ),
        Family(name="contrastive", build=_contrastive, lr=3e-3, batch_size=32),
        Family(name="policy", build=_policy, lr=3e-3, batch_size=64, clip=None),
        Family(name="dpo", build=_dpo, lr=1e-3, batch_size=8),
    )
}
"""All families by name."""
