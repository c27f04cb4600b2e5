"""Leave out of doctest collection what has no example, or needs a package that is absent."""

from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

collect_ignore = (
    []
    if find_spec("torch")
    else [
        "src/trimtab/guard",
        "src/trimtab/integrations",
        "src/trimtab/lab",
        "src/trimtab/model_checks",
    ]
)

_NEEDED_BY = {
    "lightning": (
        "src/trimtab/integrations/lightning/*.py",
        "src/trimtab/integrations/fabric/*.py",
        "tests/integrations/lightning_*.py",
    ),
    "deepspeed": (
        "src/trimtab/integrations/deepspeed/*.py",
        "tests/integrations/deepspeed_*.py",
        "benchmarks/drill/deepspeed_job.py",
    ),
    "torchtitan": (
        "src/trimtab/integrations/torchtitan/*.py",
        "tests/integrations/titan_*.py",
        "benchmarks/drill/titan_job.py",
    ),
    "megatron": ("src/trimtab/integrations/megatron/*.py", "tests/integrations/megatron_*.py"),
    "transformers": ("src/trimtab/integrations/huggingface/*.py", "tests/integrations/hf_*.py"),
}
collect_ignore_glob = [
    pattern
    for package, patterns in _NEEDED_BY.items()
    if not find_spec(package)
    for pattern in patterns
]
# A script that reads its command line at its top, as the scripts it stands for do.
collect_ignore_glob.append("benchmarks/drill/nanogpt_job.py")
# For the fork server alone: it trains, and changes the clock of the process that imports it.
collect_ignore_glob.append("tests/guard/nursery.py")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect examples only where there are some: nine modules of ten need not be imported."""
    found = yield
    if file_path.suffix == ".py" and b">>> " not in file_path.read_bytes():
        return [c for c in found if not isinstance(c, DoctestModule)]
    return found
