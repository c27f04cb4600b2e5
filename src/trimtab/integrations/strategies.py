"""Lightning's strategies, as far as the Trainer and Fabric adapters were tested with them."""

from __future__ import annotations

from trimtab.errors import ConfigError

__all__ = ["check_strategy"]

_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")


def check_strategy(strategy: object, adapter: str) -> None:
    """Refuse a strategy with which the adapter was not tested.

    Raises:
        ConfigError: The message says what to use instead.
    """
    # By name: importing the classes would import what this run does not use. A subclass may do
    # anything, so it is refused.
    name = type(strategy).__name__
    if name not in _STRATEGIES:
        raise ConfigError(
            f"strategy is {name}: {adapter} was tested with {', '.join(_STRATEGIES)} only; for"
            " sharded weights use ModelParallelStrategy (FSDP2)"
        )
    split = getattr(strategy, "_tensor_parallel_size", 1)
    if split != 1:
        raise ConfigError(
            f"ModelParallelStrategy has tensor_parallel_size={split}: {adapter} was tested with 1"
            " (FSDP2) only; for tensor parallel use trimtab.Guard in a loop of your own"
        )
