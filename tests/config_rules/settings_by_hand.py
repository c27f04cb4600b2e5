"""Settings from keyword arguments, as a reader would make them."""

from typing import Any

from trimtab.configs.settings import NAMES, Setting, Settings


def make_settings(
    framework: str = "megatron", path: str = "run.sh", default: tuple[str, ...] = (), **values: Any
) -> Settings:
    assert set(values) <= set(NAMES)
    return Settings(
        path,
        framework,
        {k: Setting(v, "default" if k in default else "stated") for k, v in values.items()},
    )
