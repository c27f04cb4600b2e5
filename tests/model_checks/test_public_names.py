"""The names that `trimtab.model_checks` promises, whatever was imported before."""

import importlib
import pkgutil

import pytest

import trimtab.model_checks
from trimtab.cli import main

pytestmark = pytest.mark.torch


def test_model_checks_names_are_functions_after_every_import() -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    for module in pkgutil.iter_modules(trimtab.model_checks.__path__):
        importlib.import_module(f"trimtab.model_checks.{module.name}")
    for name in trimtab.model_checks.__all__:
        assert callable(getattr(trimtab.model_checks, name))
    earlier = trimtab.model_checks.Case  # type: ignore[attr-defined]
    assert earlier is trimtab.model_checks.LayoutCase


def test_model_checks_refuses_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_check"):
        trimtab.model_checks.no_such_check  # type: ignore[attr-defined]  # noqa: B018
