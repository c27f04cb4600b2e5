"""The command that measures the structure of the code finds each fault, and only faults."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.house import ANCHOR_NAMES, ANCHORS, Measure, as_check, as_table, main, measure


def tree(root: Path, files: Mapping[str, str]) -> dict[str, Measure]:
    """Write files below src/trimtab (or elsewhere, with a leading slash) and measure them."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / name[1:] if name.startswith("/") else root / "src" / "trimtab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return measure(root)


LINEAR = {
    "a/__init__.py": "from trimtab.a.one import One\n__all__ = ['One']\n",
    "a/one.py": "from trimtab.a.two import Two\nclass One: ...\n",
    "a/two.py": "class Two: ...\n",
    "b.py": "from trimtab.a import One\nimport trimtab.a.two\n",
}


def test_circles_not_seen_in_a_package_that_exports_its_own_modules(tmp_path: Path) -> None:
    rows = tree(tmp_path, LINEAR)
    assert rows["circles"].value == 0
    assert rows["package_circles"].value == 0


@pytest.mark.parametrize(
    "line",
    [
        "from trimtab.a.one import One",
        "import trimtab.a.one",
        "from trimtab.a import one",
        "from .one import One",
        "from . import one",
        "from ..a import one as other",
        "def late():\n    from trimtab.a.one import One",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trimtab.a.one import One",
        "try:\n    import trimtab.a.one as other\nexcept ImportError:\n    pass",
    ],
)
def test_circles_count_every_import_statement(tmp_path: Path, line: str) -> None:
    rows = tree(tmp_path, LINEAR | {"a/two.py": f"{line}\n"})
    assert rows["circles"].value == 1
    first, *places = rows["circles"].offenders
    assert first == "circle of 2: trimtab.a.one, trimtab.a.two"
    assert places[0] == "  src/trimtab/a/one.py:1: imports trimtab.a.two"
    assert len(places) == 2


def test_circles_count_a_name_taken_from_the_package_that_exports_the_taker(tmp_path: Path) -> None:
    rows = tree(tmp_path, LINEAR | {"a/two.py": "from trimtab.a import One\n"})
    assert rows["circles"].offenders[0] == "circle of 3: trimtab.a, trimtab.a.one, trimtab.a.two"


def test_circles_tell_a_function_from_the_module_of_its_name(tmp_path: Path) -> None:
    files = {
        "a/__init__.py": "from trimtab.a.inner import check\n",
        "a/check.py": "",
        "a/inner.py": "def check(): ...\n",
        "a/user.py": "from trimtab.a import check\n",
    }
    assert tree(tmp_path, files)["circles"].value == 0
    files["a/inner.py"] += "import trimtab.a.user\n"
    assert tree(tmp_path, files)["circles"].value == 1


def test_circles_of_packages_without_one_of_modules(tmp_path: Path) -> None:
    rows = tree(
        tmp_path,
        {
            "a/__init__.py": "",
            "a/one.py": "from trimtab.b.one import x\n",
            "a/two.py": "y = 1\n",
            "b/__init__.py": "",
            "b/one.py": "x = 1\n",
            "b/two.py": "from trimtab.a.two import y\n",
        },
    )
    assert rows["circles"].value == 0
    assert rows["package_circles"].value == 1
    assert rows["package_circles"].offenders[0] == "circle of 2: trimtab.a, trimtab.b"


def test_imports_by_string_are_told_apart(tmp_path: Path) -> None:
    text = (
        "from importlib import import_module\nimport_module(f'trimtab.{1}')\n"
        "import_module('os')\nimport_module(x)\n"
    )
    assert tree(tmp_path, {"a.py": text})["string_imports"].offenders == ("src/trimtab/a.py:2",)


GUARD = """
class Guard:
    limit: int = 0
    _kind = "plain"
    def __init__(self, engine):
        self._engine = engine
    def _apply(self): return self._engine
def _helper(): ...
"""


@pytest.mark.parametrize(
    "text",
    [
        "from trimtab.guard.guard import _helper\n",
        "import trimtab.guard.guard as g\nprint(g._helper)\n",
        "def act(x): return x._engine\n",
        "def act(x): return x.inner[0]._apply()\n",
        "def act(x): return getattr(x, '_engine')\n",
        "from trimtab.guard.guard import Guard\nprint(Guard._kind)\n",
        "from trimtab.guard.guard import Guard\n"
        "class Mine(Guard):\n    def go(self): self._apply()\n",
        "from trimtab.guard.guard import Guard\n"
        "class Mine(Guard):\n    def go(self): super()._apply()\n",
        "from trimtab.guard.guard import Guard\n"
        "class Mine(Guard):\n    def go(self): self._engine = 1\n",
        # The class is known, so a member of the same name in this package is no excuse.
        "from trimtab.guard.guard import Guard\nclass Own:\n    _engine = 1\n"
        "def act(guard: 'Guard | None'): return guard._engine\n",
        "from trimtab.guard.guard import Guard\nclass Own:\n    _engine = 1\n"
        "    def __init__(self, guard: Guard): self.guard = guard\n"
        "    def go(self): return self.guard._engine\n",
        "from trimtab.guard import _secret\n",
        "from trimtab.guard._secret import x\n",
    ],
)
def test_private_names_across_packages_are_found(tmp_path: Path, text: str) -> None:
    files = {"guard/__init__.py": "", "guard/_secret.py": "x = 1\n", "guard/guard.py": GUARD}
    rows = tree(tmp_path, files | {"integrations/hf.py": text})
    assert rows["private"].value == 1, rows["private"].offenders
    (offender,) = rows["private"].offenders
    assert offender.startswith("src/trimtab/integrations/hf.py:")
    assert offender.endswith(" of guard")


@pytest.mark.parametrize(
    "text",
    [
        "class Own:\n    def __init__(self): self._engine = 1\n"
        "    def go(self): return self._engine\n",
        "class Own:\n    _engine = 1\ndef act(x): return x._engine\n",
        "import torch\ndef act(x): return x._grad_fn, torch._dynamo\n",
        "from torch import Engine\ndef act(x: Engine): return x._engine\n",
        "from torch import Trainer\nclass Own(Trainer):\n    def go(self): return self._engine\n",
        "def act(x): return x.__dict__, x._replace(a=1)\n",
        "for _ in range(3): ...\n",
        "from trimtab._shared import number\n",
        "from trimtab.guard.guard import Guard\ndef act(x: Guard): return x.limit\n",
    ],
)
def test_private_names_of_the_package_itself_or_of_others_do_not_count(
    tmp_path: Path, text: str
) -> None:
    files = {"guard/__init__.py": "", "guard/guard.py": GUARD, "_shared.py": "number = 1\n"}
    rows = tree(tmp_path, files | {"integrations/hf.py": text})
    assert rows["private"].offenders == ()


def test_private_names_between_folders_of_a_package_count_in_the_stricter_row(
    tmp_path: Path,
) -> None:
    rows = tree(
        tmp_path,
        {
            "guard/loop/one.py": "class One:\n    _x = 1\n",
            "guard/recovery/two.py": "def act(y): return y._x\n",
        },
    )
    assert rows["private"].value == 0
    assert rows["private_rooms"].offenders == (
        "src/trimtab/guard/recovery/two.py:1: _x of guard.loop",
    )


def test_private_names_read_by_tests_are_listed(tmp_path: Path) -> None:
    rows = tree(
        tmp_path,
        {
            "guard/guard.py": GUARD,
            "/tests/test_a.py": "def test_a(guard): assert guard._engine and guard._foreign\n",
        },
    )
    assert rows["private_outside"].offenders == ("tests/test_a.py:1: _engine",)


def test_duplicates_are_public_classes_at_the_top_of_two_modules(tmp_path: Path) -> None:
    rows = tree(
        tmp_path,
        {
            "a.py": "class Finding: ...\nclass _Own: ...\nclass Once:\n    class Inner: ...\n",
            "b.py": "\nclass Finding: ...\nclass _Own: ...\nclass Inner: ...\n"
            "def f():\n    class Once: ...\n",
            "/benchmarks/c.py": "class Finding: ...\n",
            "/benchmarks/d.py": "class Case: ...\n",
        },
    )
    assert rows["duplicates"].offenders == ("Finding: src/trimtab/a.py:1, src/trimtab/b.py:2",)
    assert rows["duplicates_benchmarks"].value == 0


def test_chain_counts_our_classes_across_files(tmp_path: Path) -> None:
    files = {
        "errors.py": "class TrimtabError(Exception): ...\n",
        "a/__init__.py": "from trimtab.errors import TrimtabError as Base\n",
        "a/one.py": "from trimtab.a import Base\nclass ConfigError(Base, ValueError): ...\n",
    }
    rows = tree(tmp_path, files)
    assert (rows["chain"].value, rows["chain"].met, rows["chain"].offenders) == (2, True, ())
    files["b.py"] = "import trimtab.a.one as one\nclass Third(one.ConfigError): ...\n"
    rows = tree(tmp_path, files)
    assert (rows["chain"].value, rows["chain"].met) == (3, False)
    assert rows["chain"].offenders == (
        "src/trimtab/b.py:2: 3: Third -> ConfigError -> TrimtabError",
    )


def test_methods_count_inherited_and_overridden_ones_once(tmp_path: Path) -> None:
    text = (
        "class A:\n    def one(self): ...\n    @property\n    def two(self): ...\n"
        "class B(A):\n    def two(self): ...\n    async def three(self):\n        def no(): ...\n"
    )
    row = tree(tmp_path, {"a.py": text})["methods"]
    assert (row.value, row.shown) == (3, "3 B")


def test_any_is_counted_in_code_and_quoted_annotations_only(tmp_path: Path) -> None:
    text = (
        "from typing import Any\n"
        "def f(x: Any, y: 'list[Any]') -> 'Any': return 'Any'  # Any\n"
        "Anything = 1\n\n"
    )
    rows = tree(tmp_path, {"integrations/a.py": text, "b.py": "x = 1\n" * 4})
    assert rows["any"].value == 500.0
    assert rows["any_integrations"].value == 1000.0


def test_layout_counts_long_lines_and_formatter_marks(tmp_path: Path) -> None:
    rows = tree(
        tmp_path,
        {
            "a.py": f"x = 1  # fmt: skip\n# {'é' * 98}\n# {'é' * 99}\ny = '# fmt: skip'\n",
            "/tests/test_a.py": f"# {'-' * 120}\n",
        },
    )
    assert rows["layout"].offenders == (
        "src/trimtab/a.py:3: too long",
        "src/trimtab/a.py:1: formatter mark",
    )
    assert rows["layout_tests"].value == 1


def test_comments_leave_out_directives_headers_and_docstrings(tmp_path: Path) -> None:
    text = (
        "# Copyright\n"
        '"""Text.\n\nMore # text.\n"""\n\n'
        "# why\n"
        "x = 1  # also why\n"
        "y = '# no'  # noqa: E501\n"
        "z = 2  # type: ignore[x]  # because\n"
        "w = 3\n"
    )
    assert tree(tmp_path, {"a.py": text})["comments"].value == 75.0


def test_sizes_and_functions(tmp_path: Path) -> None:
    text = (
        "def f(x):\n    '''Do.'''\n    if x and x > 1:\n        return [y for y in x if y]\n"
        "    def inner(): return 1 if x else 2\n    return inner\n"
        "def g(): ...\n"
    )
    rows = tree(tmp_path, {"a.py": text, "page.css": "a {}\n"})
    assert (rows["files"].value, rows["lines"].value) == (2, 7)
    assert rows["other_files"].offenders == ("src/trimtab/page.css",)
    assert rows["function_lines"].value == {"median": 1, "p95": 6, "max": 6}
    assert rows["branching"].value == {"median": 2, "p95": 5, "max": 5}
    assert rows["docstring_share"].value == 50.0
    assert rows["docstring_share"].offenders == ("src/trimtab/a.py:7: g",)


def test_table_has_a_cell_for_each_anchor() -> None:
    assert all(len(figures) == len(ANCHOR_NAMES) for figures in ANCHORS.values())


def test_check_names_the_place_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path, LINEAR)
    root = ["--root", str(tmp_path)]
    assert main([*root, "--check"]) == 0
    capsys.readouterr()
    rows = tree(tmp_path, {"c.py": "class One: ...\n"})
    text, status = as_check(rows.values())
    assert status == main([*root, "--check"]) == 1
    assert "One: src/trimtab/a/one.py:2, src/trimtab/c.py:1" in text
    assert capsys.readouterr().out.strip() == text
    assert "not met" in as_table(rows.values(), "trimtab")


def test_main_lists_one_measure_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path, LINEAR | {"c.py": "class One: ...\n"})
    root = ["--root", str(tmp_path)]
    assert main([*root, "--list", "duplicates"]) == 0
    assert capsys.readouterr().out == "One: src/trimtab/a/one.py:2, src/trimtab/c.py:1\n"
    assert main([*root, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["duplicates"] == {"value": 1, "limit": 0, "met": False}
    assert main([*root, "--list", "nothing"]) == 2
    assert main(["--root", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "src/trimtab/broken.py").write_text("def\n")
    assert main(root) == 2
    assert "broken.py" in capsys.readouterr().err
