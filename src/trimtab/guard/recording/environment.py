"""What a result may depend on besides the settings: seeds, flags of torch, versions, the layout.

A guarded run writes all of it into `run.toml`, and `trimtab compare` names what differs.
"""

from __future__ import annotations

import os
import platform
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["embedding_dropout", "layout", "reproducibility", "seed_all"]

_LARGEST_SEED = 2**32 - 1
"""NumPy accepts no larger seed."""

_EMBEDDING_DROPOUTS = ("embd_pdrop", "embedding_dropout", "embed_dropout", "emb_dropout")

_WORKSPACE = ":4096:8"
"""CUBLAS_WORKSPACE_CONFIG with which cuBLAS is deterministic, from its documentation."""


def seed_all(seed: int, *, deterministic: bool = False) -> dict[str, str | int]:
    """Seed Python, NumPy and torch on every device; return what `reproducibility` gives then.

    Call it before anything random is drawn: before the model, the sampler and the workers are made.
    On several ranks, use the same seed where the model is made, and `seed + rank` where data is
    drawn if the ranks should draw differently.

    Args:
        seed: 0 to 2**32 - 1.
        deterministic: Also let torch use deterministic kernels only; an operation without one then
            raises. Costs speed; on CUDA, set it before CUDA is first used.

    Raises:
        ConfigError: The seed is out of range.

    Example:
        >>> report = seed_all(7)
        >>> report["seed"], float(torch.rand(1)) == float(torch.rand(1))
        (7, False)
    """
    whole: object = seed
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed is {seed!r}, expected a whole number from 0 to {_LARGEST_SEED}")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what users' own code draws from
    torch.manual_seed(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACE)
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False
    return {"seed": seed, **reproducibility()}


def reproducibility() -> dict[str, str | int]:
    """Return the seeds and flags in force, and versions, as plain values.

    `seed` is that of torch: the last one given to `torch.manual_seed`, or its initial one.
    """
    found: dict[str, str | int] = {
        "seed": torch.initial_seed(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "platform": platform.system().lower(),
        "threads": str(torch.get_num_threads()),
        "deterministic_algorithms": _word(torch.are_deterministic_algorithms_enabled()),
        "cudnn_benchmark": _word(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": _word(torch.backends.cudnn.deterministic),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
    }
    # Asking a device for its name starts CUDA, and a process in which it is started cannot fork.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found |= {
            "cuda": str(torch.version.cuda),
            "device": torch.cuda.get_device_name(),
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "default"),
        }
    return found


def embedding_dropout(model: torch.nn.Module) -> dict[str, float]:
    """Return {"embedding_dropout": p}, read off a model; empty where it does not say.

    From its config under the usual names, else from its largest dropout module that is named after
    embeddings, or named `drop` (nanoGPT's and GPT-2's, right behind them); dropout elsewhere does
    not count. 0 where it has embeddings and modules, but no such dropout.
    """
    config = getattr(model, "config", None)
    stated = [getattr(config, name, None) for name in _EMBEDDING_DROPOUTS]
    found = [float(p) for p in stated if isinstance(p, int | float)]
    if not found:
        modules = list(model.named_modules())
        drops = [(n.lower(), m.p) for n, m in modules if isinstance(m, torch.nn.Dropout)]
        found = [p for n, p in drops if "emb" in n or n.rpartition(".")[2] == "drop"]
        if not found and any(isinstance(m, torch.nn.Embedding) for _, m in modules):
            found = [0.0]
    return {"embedding_dropout": max(found)} if found else {}


def _word(flag: object) -> str:
    return "on" if flag else "off"


def layout(
    parameters: Iterable[torch.Tensor], world_size: int, num_stages: int = 1
) -> dict[str, int]:
    """Return how the ranks share the work: world size, data, tensor and pipeline parallel sizes.

    Read from the device meshes of the parameters. A dimension whose name contains `tp`, `pp` or
    `cp` is tensor, pipeline or context parallel; every other dimension (`dp`, `fsdp`, unnamed) is
    data parallel. Without a mesh all ranks are data parallel, as under DDP; `num_stages` are
    those of a pipeline without one.
    """
    sizes: dict[str, int] = {}
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            names = mesh.mesh_dim_names or tuple(f"dp{i}" for i in range(mesh.ndim))
            sizes |= {name: mesh.size(i) for i, name in enumerate(names)}
    found = {"tensor": 1, "pipeline": 1, "context": 1}
    for name, size in sizes.items():
        for kind, mark in (("tensor", "tp"), ("pipeline", "pp"), ("context", "cp")):
            if mark in name:
                found[kind] *= size
    found["pipeline"] = max(found["pipeline"], num_stages)
    data = max(world_size // (found["tensor"] * found["pipeline"] * found["context"]), 1)
    return {
        "world_size": world_size,
        "data_parallel_size": data,
        **{f"{kind}_parallel_size": size for kind, size in found.items()},
    }
