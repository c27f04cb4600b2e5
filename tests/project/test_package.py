"""What holds for the package as a whole: light base, honest exports, room for everything."""

import ast
import importlib
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "trimtab"
FILES = sorted(PACKAGE.rglob("*.py"))
NEEDS_TORCH = ("guard", "integrations", "lab", "model_checks")
MAY_REACH_TORCH = {*NEEDS_TORCH, "cli", "__main__", "__init__"}

BLOCK_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "lightning"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK_TORCH + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def export_order(name: str) -> tuple[int, str]:
    """Constants, classes, the rest; each by name: the order that ruff keeps (RUF022)."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def top_level_modules() -> set[str]:
    return {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }


def contracts() -> dict[str, dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for contract in settings["tool"]["importlinter"]["contracts"]:
        found.setdefault(contract["type"], contract)  # the first of its type
    return found


def needs_torch(path: Path) -> bool:
    """Whether a file may import torch at its top."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] in NEEDS_TORCH


def test_the_block_on_torch_works() -> None:
    done = run_without_torch("import torch.nn")
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_base_imports_with_torch_blocked() -> None:
    done = run_without_torch("import trimtab, trimtab.cli; print(trimtab.__version__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == importlib.import_module("trimtab").__version__


@pytest.mark.slow
def test_every_torch_free_module_imports_with_torch_blocked() -> None:
    names = [
        module_name(path) for path in FILES if not needs_torch(path) and path.name != "__main__.py"
    ]
    done = run_without_torch(
        f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_all_is_sorted_and_importable(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    if not exported:
        return
    names = list(exported[0])
    assert names == sorted(set(names), key=export_order)
    lazy = path.relative_to(PACKAGE).as_posix() == "__init__.py"
    if not find_spec("torch") and (needs_torch(path) or lazy):
        pytest.skip("needs the torch extra")
    try:
        module = importlib.import_module(module_name(path))
    except ImportError as error:
        if "integrations" not in path.parts or str(error.name).startswith("trimtab"):
            raise
        pytest.skip(f"a trainer's package is not there: {error}")
    missing = []
    for name in names:
        try:
            getattr(module, name)
        except MissingExtraError:
            continue  # loaded when asked for: a trainer's package is not there
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_there_is_no_utils() -> None:
    vague = {"utils", "util", "helpers", "misc", "common"}
    assert [path for path in PACKAGE.rglob("*") if path.stem in vague] == []


def test_every_folder_of_modules_is_a_package() -> None:
    """Without its __init__.py a folder escapes the wheel's and the linter's notice."""
    folders = {path.parent for path in FILES}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_the_linter_watches_every_part_that_must_not_reach_torch() -> None:
    watched = {name.removeprefix("trimtab.") for name in contracts()["forbidden"]["source_modules"]}
    assert watched == top_level_modules() - MAY_REACH_TORCH


def test_the_layers_name_every_part_once() -> None:
    layers = " | ".join(contracts()["layers"]["layers"])
    names = [name.strip("() ") for name in layers.split("|")]
    assert len(names) == len(set(names))
    assert top_level_modules() - {"__init__"} <= set(names)


def test_base_dependencies_are_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {line.partition(">")[0].partition("[")[0] for line in project["dependencies"]}
    assert names == {"numpy", "orjson", "PyYAML", "rich", "zstandard"}
    assert {"torch", "tensorboard", "hf", "lightning", "plots", "dev"} <= set(
        project["optional-dependencies"]
    )


def test_no_page_names_the_folder_of_this_checkout() -> None:
    pages = [
        path
        for folder in ("src", "tests", "tools", "docs", "changelog.d")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml"} and "__pycache__" not in path.parts
    ] + [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    here = f"{ROOT}/"
    assert [str(path) for path in pages if here in path.read_text(encoding="utf-8")] == []


ROOT_HOLDS = {
    ".ci",
    ".gitignore",
    ".pre-commit-config.yaml",
    ".pre-commit-hooks.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "changelog.d",
    "conftest.py",
    "constraints.txt",
    "docs",
    "examples",
    "pyproject.toml",
    "src",
    "tests",
    "tools",
}


def test_root_holds_nothing_that_a_run_left() -> None:
    """Files of a run were committed at the root once: `trimtab inspect .` took it for a run."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    tops = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert tops <= ROOT_HOLDS
