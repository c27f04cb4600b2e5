"""An accelerator needs a certificate before a guard changes a run on it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.guard.tiny import events_of, make
from trimtab.guard import Guard
from trimtab.guard.loop.certificate import NEEDED, Certificate, CertificateCheck, why_uncertified
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

HERE = {"accelerator": "Acme X1", "torch": "2.9", "cuda": "13.0", "driver": "580.1", "trimtab": "1"}
WHOLE = Certificate(
    machine=HERE,
    model="dense transformer",
    parallelism="one process",
    ranks=1,
    date="2026-01-01T00:00:00+00:00",
    checks=tuple(CertificateCheck(name=name, state="passed", text="seen") for name in NEEDED),
)


def write(path: Path, certificate: Certificate) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(certificate.to_json()), encoding="utf-8")
    return path


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is on an accelerator, as far as the guard knows."""
    monkeypatch.setattr("trimtab.guard.guard.machine_of", lambda _device: HERE)
    monkeypatch.setattr("trimtab.guard.guard.why_uncertified", why_uncertified)


def run_of(folder: Path, **policy: Any) -> tuple[Guard, list[str], dict[str, Any]]:
    s, said = make(), list[str]()
    guard = Guard(
        s.model,
        s.optimizer,
        data=s.loader,
        run=folder / "run",
        steps=2,
        mode="act",
        policy=Policy(checkpoint_in_background=False, **policy),
        say=said.append,
    )
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    return guard, said, json.loads((folder / "run" / "verdict.json").read_text())


@pytest.mark.usefixtures("accelerator")
def test_without_a_certificate_act_is_advise_and_says_so_everywhere(tmp_path: Path) -> None:
    guard, said, verdict = run_of(tmp_path)
    assert guard.policy.mode == "advise"
    assert said[0].startswith("mode advise, not act: no certificate of Acme X1")
    assert verdict["mode"] == "advise"
    assert "Acme X1" in verdict["not_acting"]
    assert any("not act" in str(e.data["text"]) for e in events_of(tmp_path / "run", "note"))


@pytest.mark.usefixtures("accelerator")
def test_an_override_acts_and_is_journalled(tmp_path: Path) -> None:
    guard, said, verdict = run_of(tmp_path, act_uncertified=True)
    assert guard.policy.mode == "act"
    assert "acts without a certificate" in said[0]
    assert (verdict["mode"], verdict["not_acting"]) == ("act", "")
    assert any(
        "act_uncertified" in str(e.data["text"]) for e in events_of(tmp_path / "run", "note")
    )


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("place", ["run/certificate.json", "mine/certificate.json", "mine/a.json"])
def test_a_certificate_is_found_in_the_run_directory_or_where_the_policy_says(
    tmp_path: Path, place: str
) -> None:
    path = write(tmp_path / place, WHOLE)
    given = "" if place.startswith("run") else str(path if path.name == "a.json" else path.parent)
    guard, said, verdict = run_of(tmp_path, certificate=given)
    assert guard.policy.mode == "act"
    assert said[0].startswith("recording to")
    assert verdict["mode"] == "act"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"machine": HERE | {"torch": "2.8"}}, "its torch is 2.8, here it is 2.9"),
        ({"machine": HERE | {"driver": ""}}, ""),
        ({"ranks": 8}, "it is of 8 ranks, this run has 1"),
        ({"checks": WHOLE.checks[1:]}, "not passed there: observe"),
        ({"checks": (replace(WHOLE.checks[0], state="failed"), *WHOLE.checks[1:])}, "not passed"),
    ],
)
def test_a_certificate_holds_for_its_own_machine_and_what_passed(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    path = write(tmp_path / "c.json", replace(WHOLE, **change))
    found = why_uncertified(HERE, Policy(certificate=str(path)), tmp_path / "run", 1)
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', "[" * 100_000, '{"schema": 1}'])
def test_what_is_no_certificate_certifies_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text, encoding="utf-8")
    found = why_uncertified(HERE, Policy(certificate=str(path)), tmp_path / "run", 1)
    assert str(path) in found


def test_a_cpu_needs_none(tmp_path: Path) -> None:
    guard, said, verdict = run_of(tmp_path)
    assert guard.policy.mode == "act"
    assert said[0].startswith("recording to")
    assert verdict["not_acting"] == ""


@pytest.mark.slow
def test_this_machine_qualifies(tmp_path: Path) -> None:
    from trimtab.lab.qualify import qualify

    only = ("observe", "snapshot", "skip", "rollback", "fp16", "late-reads", "cuda-graphs")
    found = qualify("cpu", tmp_path, only=only, say=lambda _check: None)
    states = {c.name: c.state for c in found.checks}
    assert states.pop("cuda-graphs") == "not possible"
    assert set(states.values()) == {"passed"}, found.checks
    read = Certificate.read(write(tmp_path / "c.json", found))
    assert read.misfit({}, 1) == "not passed there: kill"  # `tests/guard/test_resume.py` kills
