"""The standard deviations of a model's init, read on the meta device without drawing numbers."""

from __future__ import annotations

import importlib
import json
import math
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import ConfigError, MissingExtraError, ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["AskedStds", "from_hf_config"]

_MAX_BYTES = 8 * 1024 * 1024
_SIZES = {
    "hidden_size",
    "n_embd",
    "d_model",
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "vocab_size",
    "intermediate_size",
    "max_position_embeddings",
}
_MOST = {"layer": 2_000, "expert": 4_096}
"""Most modules of a kind that are made from a config; published models have up to 126 layers and
512 experts."""
_TRUNCATED = "_no_grad_trunc_normal_"
"""Where torch.nn.init.trunc_normal_ ends up, also where it was imported by name."""


_Argument: TypeAlias = "float | Tensor"
"""What the operations that fill a tensor are called with."""


class AskedStds(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes, for each tensor that is filled while it is active, the std that the fill asks for.

    Follows normal, uniform and constant fills, copies and the scaling of a filled tensor. Of a
    truncated normal the cut is neglected: at ±2σ it is 12 %. A tensor filled otherwise is absent or
    NaN.
    """

    def __init__(self) -> None:
        """Start without a record."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._stds: dict[int, float] = {}
        self._truncated: object = None

    def __enter__(self) -> AskedStds:
        """Start recording.

        On the meta device torch skips truncated normals, so a plain normal replaces them.
        """
        self._truncated = getattr(nn.init, _TRUNCATED, None)
        if self._truncated is not None:
            setattr(nn.init, _TRUNCATED, _plain_normal)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        if self._truncated is not None:
            setattr(nn.init, _TRUNCATED, self._truncated)

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[_Argument, ...] = (),
        kwargs: dict[str, _Argument] | None = None,
    ) -> object:
        """Run the operation, and note what it does to its first argument."""
        result = func(*args, **(kwargs or {}))
        if args and isinstance(args[0], Tensor):
            self._note(str(func), args[0], args[1:], kwargs or {})
        return result

    def _note(
        self, name: str, filled: Tensor, rest: Sequence[_Argument], named: Mapping[str, _Argument]
    ) -> None:
        key = self._key(filled)
        operation = name.removeprefix("aten.").partition(".")[0]
        if operation == "normal_":
            self._stds[key] = float(named.get("std", rest[1] if len(rest) > 1 else 1.0))
        elif operation == "uniform_":
            low = float(named.get("from", rest[0] if rest else 0.0))
            high = float(named.get("to", rest[1] if len(rest) > 1 else 1.0))
            # The standard deviation of a uniform distribution.
            self._stds[key] = (high - low) / math.sqrt(12)
        elif operation in ("zero_", "fill_", "ones_like", "zeros_like"):
            # A view that is zeroed, such as a padding row, leaves the tensor's std.
            self._stds[key] = 0.0 if filled._base is None else self._stds.get(key, 0.0)
        elif operation in ("mul_", "div_") and rest and isinstance(rest[0], int | float):
            self._stds[key] = self._stds.get(key, math.nan) * (
                abs(rest[0]) if operation == "mul_" else 1 / abs(rest[0])
            )
        elif operation == "copy_":
            self._stds[key] = (
                self._stds.get(self._key(rest[0]), math.nan)
                if rest and isinstance(rest[0], Tensor)
                else math.nan
            )

    @staticmethod
    def _key(tensor: Tensor) -> int:
        # By storage: a parameter, its `.data` and its views are different objects over one memory.
        return int(tensor.untyped_storage()._cdata)

    def by_name(self, model: nn.Module) -> dict[str, float]:
        """Return parameter → std as last asked for; a parameter that was not filled is absent."""
        known = ((n, self._stds.get(self._key(w.detach()))) for n, w in model.named_parameters())
        return {n: std for n, std in known if std is not None}


def _plain_normal(
    tensor: Tensor, mean: float, std: float, *_cut: object, **_named: object
) -> Tensor:
    with torch.no_grad():
        return tensor.normal_(mean, std)


def from_hf_config(path: str | Path) -> tuple[nn.Module, dict[str, float]]:
    """Return the model of a transformers `config.json` on the meta device, and its init stds.

    Only classes of the installed transformers are used: nothing that the file names is executed or
    fetched. No memory is taken for weights.

    Raises:
        MissingExtraError: transformers is not installed.
        ReadError: The file cannot be read, or is no such config.
        ConfigError: The installed transformers has no such causal language model.
    """
    file = Path(path)
    stated = _stated(file)
    if not isinstance(stated, dict) or not isinstance(stated.get("model_type"), str):
        raise ReadError(f"{file}: has no model_type; give the config.json of a transformers model")
    try:
        library = importlib.import_module("transformers")
    except ImportError:
        raise MissingExtraError("`trimtab audit CONFIG.json`", "hf") from None
    kind = stated.pop("model_type")
    # `auto_map` names code to run; the others would load a library or cast, and change no shape.
    for key in ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version"):
        stated.pop(key, None)
    _check_sizes(file, stated)
    asked = AskedStds()
    try:
        config = library.AutoConfig.for_model(kind, **stated)
        make: Callable[..., nn.Module] = library.AutoModelForCausalLM.from_config
        with torch.device("meta"):
            model = make(config, trust_remote_code=False)
            with asked:
                model.apply(model._init_weights)  # type: ignore[arg-type]
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"{file}: transformers {library.__version__} makes no causal language model of it"
            f" ({why})"
        ) from error
    return model, asked.by_name(model)


def _stated(file: Path) -> object:
    """Return the contents of a JSON file.

    Raises:
        ReadError: It is none, or no file.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ReadError(f"{file}: is no file; give a model's config.json")
        with file.open("rb") as opened:
            # One byte more than allowed shows that there is more, without reading all of it.
            raw = opened.read(_MAX_BYTES + 1)
        return json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except OSError as error:
        raise ReadError(f"{file}: cannot be read ({error.strerror})") from error
    except RecursionError:
        raise ReadError(f"{file}: nests too deep; give a model's config.json") from None
    except ValueError as error:
        raise ReadError(f"{file}: is not JSON ({error}); give a model's config.json") from error


def _check_sizes(file: Path, stated: Mapping[str, object]) -> None:
    """Refuse counts of layers and experts that no model has: each is a module, and is made.

    Raises:
        ConfigError: Names one.
    """
    for name, value in stated.items():
        if isinstance(value, dict):
            _check_sizes(file, value)
        if name in _SIZES and isinstance(value, int) and value < 1:
            raise ConfigError(f"{file}: {name} is {value}; give at least 1")
        for word, most in _MOST.items():
            if word in name and isinstance(value, int) and value > most:
                raise ConfigError(f"{file}: {name} is {value}; more than {most:,} are not made")
