"""Reads the training configs of any framework into one `Settings` record each. Nothing in a config is ever run."""

from trimtab.preflight.reading.read import read_config
from trimtab.preflight.reading.together import joined

__all__ = ["joined", "read_config"]
