"""Leave the parts that need torch out of doctest collection where torch is absent."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("torch")
    else [
        "src/trimtab/guard",
        "src/trimtab/integrations",
        "src/trimtab/lab",
        "src/trimtab/preflight/probes",
    ]
)
