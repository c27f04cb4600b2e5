"""Reads the training configs of any framework into one `Settings` record each.

Nothing in a config is ever run.
"""

from trimtab.configs.multi_file import joined
from trimtab.configs.read import read_config

__all__ = ["joined", "read_config"]
