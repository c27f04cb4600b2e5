"""Versions of other people's packages: told, warned of once, never a reason to fail."""

import json
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.integrations import packages
from trimtab.integrations.packages import PACKAGES, Package, State, state_of, warn_of_version

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("installed", "word"),
    [
        ("2.1.7", "tested"),
        ("2.3", "tested"),
        ("2.13.0+cpu", "newer than tested"),
        ("1.99", "older than tested"),
        ("3.0rc1", "newer than tested"),
        ("nightly", "unknown version"),
        ("", "not installed"),
    ],
)
def test_a_version_against_the_tested_range(installed: str, word: str) -> None:
    package = Package(name="x", serves="y", lowest=(2, 1), highest=(2, 3))
    assert State(package, installed).word == word
    assert package.tested == "2.1 to 2.3"


@pytest.mark.usefixtures("unwarned")
def test_outside_the_range_there_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Package(name="pytest", serves="a test", lowest=(0, 1), highest=(0, 2))
    monkeypatch.setattr(packages, "PACKAGES", (theirs,))
    with pytest.warns(
        UserWarning,
        match=rf"pytest {version('pytest')} is newer than tested \(tested: 0\.1 to 0\.2\)",
    ):
        warn_of_version("pytest")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_version("pytest")


def test_each_package_is_in_the_extra_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for package in PACKAGES:
        named = " ".join(project["optional-dependencies"][package.extra])
        assert package.name in named


def test_the_doctor_lists_them_and_what_is_missing_is_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {p["name"]: p["installed"] or "" for p in document["packages"]} == {
        p.name: state_of(p).installed for p in PACKAGES
    }
    assert document["machine"]["trimtab"]
    gone = Package(
        name="no-such-package-here", serves="y", lowest=(2, 1), highest=(2, 3), extra="hf"
    )
    monkeypatch.setattr("trimtab.cli.doctor.PACKAGES", (gone,))
    assert main(["doctor", "--packages"]) == 0
    told = capsys.readouterr().out
    assert "not installed" in told
    assert "pip install 'trimtab[hf]'" in told
    assert "Python" not in told
