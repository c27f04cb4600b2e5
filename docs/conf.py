"""Settings of Sphinx. `make docs` builds the site; nothing is fetched from the network."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

import generated  # noqa: E402

from trimtab.version import __version__  # noqa: E402

project = "trimtab"
author = "the trimtab authors"
copyright = "2026, the trimtab authors. Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated", "_ext"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings name things in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["deepspeed", "megatron", "torchtitan", "trl"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
nitpicky = True
nitpick_ignore_regex = [
    # Types of other packages, whose pages an offline build cannot look up.
    ("py:.*", r"(?!trimtab).*"),
    # Types inside of what is documented, which nobody needs to name.
    ("py:.*", r"trimtab\.(readers|chronicle)\..*"),
    ("py:.*", r"trimtab\.integrations\.loggers\..*"),
    ("py:.*", r"trimtab\.analysis\.(side_by_side|settings_diff|impact|verdict|self_test)\..*"),
    ("py:.*", r"trimtab\..*\.StateT"),
]

html_theme = "furo"
html_title = f"trimtab {__version__}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
highlight_language = "none"
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # `--flag` is no dash
pygments_style = "friendly"
pygments_dark_style = "github-dark"

generated.write_all(HERE / "_generated")
