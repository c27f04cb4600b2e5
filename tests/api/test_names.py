"""The promised names of `import trimtab`: listed, callable, and never hidden by a module."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import trimtab

NAMES = [
    "Analysis",
    "Detector",
    "Guard",
    "Policy",
    "__version__",
    "analyze",
    "compare",
    "integrations",
    "preflight",
    "read",
    "watch",
]
PACKAGE = Path(trimtab.__file__).parent

CALL_EVERY_NAME = """
import importlib, json, pkgutil, sys
import trimtab
importlib.import_module({first!r})
if {every}:
    skip = ("guard", "integrations", "lab", "model_checks", "__main__")
    for found in pkgutil.walk_packages(trimtab.__path__, "trimtab."):
        if found.name.split(".")[1] not in skip:
            importlib.import_module(found.name)
log, config = sys.argv[1:]
found = trimtab.analyze(log)
assert isinstance(found, trimtab.Analysis)
records = trimtab.read(log)
updates = list(trimtab.watch(log, interval_s=0.001, until_idle_s=0))
preflight = trimtab.preflight(config)
compared = trimtab.compare(log, records[0])
assert trimtab.Policy(mode="act").mode == "act"
assert trimtab.Detector.__name__ == "Detector"
assert trimtab.integrations.__name__ == "trimtab.integrations"
print(json.dumps({{
    "verdict": found.verdict, "records": len(records), "version": trimtab.__version__,
    "events": [u.event for u in updates], "configs": len(preflight.to_dict()["configs"]),
    "compared": compared.to_dict()["schema"],
}}))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    rows = [{"step": s, "loss": 3 - s / 1000 + (s * s * 7919 % 1009) / 80_000} for s in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 3.0e-4\nmax_steps: 1000\nper_device_train_batch_size: 8\n")
    return path


def test_all_lists_the_promised_names() -> None:
    assert trimtab.__all__ == NAMES
    assert set(NAMES) <= set(dir(trimtab))


@pytest.mark.parametrize(
    "first", ["trimtab", "trimtab.cli", pytest.param("every", marks=pytest.mark.slow)]
)
def test_promised_names_are_callable_after_any_import(first: str, log: Path, config: Path) -> None:
    every = first == "every"
    code = CALL_EVERY_NAME.format(first="trimtab" if every else first, every=every)
    done = subprocess.run(
        [sys.executable, "-c", code, str(log), str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "healthy"
    assert told["records"] == told["configs"] == told["compared"] == 1
    assert told["events"] == ["started"]


def test_no_module_has_the_name_of_a_promised_function() -> None:
    modules = {p.stem for p in PACKAGE.glob("*.py")} | {
        p.parent.name for p in PACKAGE.glob("*/__init__.py")
    }
    assert modules & set(NAMES) == {"integrations"}


@pytest.mark.skipif(not find_spec("torch"), reason="needs the torch extra")
def test_guard_is_the_class_of_the_guard_package() -> None:
    from trimtab.guard import Guard

    assert trimtab.Guard is Guard


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="analyse"):
        trimtab.analyse  # noqa: B018
