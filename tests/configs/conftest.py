"""One way to write a config and read it back."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trimtab.configs import read_config
from trimtab.configs.frameworks import Framework
from trimtab.configs.settings import Settings

Read = Callable[..., Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a text under a name and return the one record read from it."""

    def from_text(name: str, text: str, frameworks: Sequence[Framework] | None = None) -> Settings:
        path = tmp_path / name
        path.write_text(text)
        (settings,) = read_config(path, frameworks)
        return settings

    return from_text
