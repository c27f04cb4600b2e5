"""Training configs of any framework, read into one `Settings` record each.

The only reader of configs; nothing in a config is ever run. `read_config` gives canonical settings,
`flat_config` the file's own keys, `joined` puts together what one run keeps in several files.
"""

from trimtab.configs.flat import flat_config
from trimtab.configs.multi_file import joined
from trimtab.configs.read import read_config
from trimtab.configs.settings import Setting, Settings

__all__ = ["Setting", "Settings", "flat_config", "joined", "read_config"]
