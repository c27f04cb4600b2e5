"""Detectors and thresholds of the user's own: the same in `analyze`, `watch` and the judge."""

import json
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import trimtab
from trimtab.cli import main
from trimtab.detectors.contract import Finding, Row
from trimtab.detectors.judge import Judge, make_judge
from trimtab.errors import ConfigError


@dataclass(frozen=True)
class Above:
    """Whether the limit was passed."""

    passed: bool = False


@dataclass(frozen=True, kw_only=True)
class AboveDetector:
    """Reports the first loss above a limit."""

    name: str = "above"
    signals: tuple[str, ...] = ("loss",)
    limit: float = 2.5

    def start(self) -> Above:
        return Above()

    def update(self, state: Above, row: Row) -> tuple[Above, tuple[Finding, ...]]:
        value = float(row.values[0])
        if state.passed or not value > self.limit:
            return state, ()
        found = Finding(
            detector=self.name,
            kind="shift",
            signal="loss",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=row.index,
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=value,
            expected=self.limit,
            score=value - self.limit,
            text=f"loss {value:.3g} above {self.limit:g}",
        )
        return Above(passed=True), (found,)


LOSS = [2.0 + 0.01 * (7919 * i % 199 - 99) / 165 + (0.6 if i == 120 else 0.0) for i in range(200)]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "train.jsonl"
    rows = [json.dumps({"step": i, "loss": v}) + "\n" for i, v in enumerate(LOSS)]
    path.write_text("".join(rows))
    return path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("above", "tests.api.test_detectors:AboveDetector", "trimtab.detectors")
    monkeypatch.setattr("trimtab.detectors.settings.entry_points", lambda group: [point])


def texts(incidents: object) -> set[str]:
    assert isinstance(incidents, tuple)
    return {f.text for i in incidents for f in i.incident.findings if f.detector == "above"}


def findings_of(judge: Judge) -> set[str]:
    state, texts = judge.start(), set[str]()
    for i, value in enumerate(LOSS):
        state, found = judge.update(state, i, float(i), {"loss": value})
        texts |= {f.text for f in found if f.detector == "above"}
    return texts


def test_own_detector_says_the_same_offline_watched_and_live(log: Path) -> None:
    offline = texts(trimtab.analyze(log, detectors=[AboveDetector()]).incidents)
    follower = trimtab.watch(log, interval_s=0.001, until_idle_s=0, detectors=[AboveDetector()])
    watched = texts(tuple(u.incident for u in follower if u.incident is not None))
    live = findings_of(make_judge([AboveDetector()]))
    assert offline == watched == live == {"loss 2.6 above 2.5"}
    assert texts(trimtab.analyze(log).incidents) == set()


def test_entry_point_is_loaded_by_its_name(log: Path, installed: None) -> None:
    del installed
    assert texts(trimtab.analyze(log, detectors=["above"]).incidents) == {"loss 2.6 above 2.5"}
    assert findings_of(make_judge("above")) == {"loss 2.6 above 2.5"}
    assert findings_of(make_judge(AboveDetector())) == {"loss 2.6 above 2.5"}


def test_threshold_changes_built_in_and_own_detectors(log: Path) -> None:
    own = {"above.limit": 3, "spike.threshold_sigma": 1e6}
    found = trimtab.analyze(log, detectors=[AboveDetector()], thresholds=own)
    assert texts(found.incidents) == set()
    assert not [i for i in found.incidents if i.kind == "spike"]


@pytest.mark.parametrize(
    ("thresholds", "named"),
    [
        ({"spike.treshold_sigma": 8}, "spike.threshold_sigma"),
        ({"spik.min_rows": 8}, "spike.min_rows"),
        ({"spike.min_rows": 8.5}, "whole number"),
        ({"spike.min_rows": 1}, "min_rows=1"),
        ({"spike.signals": 1}, "spike.signals"),
        ({"spike.threshold_sigma": float("nan")}, "expected a number"),
    ],
)
def test_make_judge_refuses_a_threshold(thresholds: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_judge(thresholds=thresholds)


def test_make_judge_refuses_what_is_no_detector() -> None:
    for given, named in (
        ([3], "no detector"),
        ([AboveDetector], r"a class; give an instance, AboveDetector\(\)"),
        (AboveDetector, r"give an instance, AboveDetector\(\)"),
        ([int], "no detector"),
        ([AboveDetector(signals=("los",))], "'loss'"),
        ([AboveDetector(name="spike")], "'spike'"),
        (["absent"], "trimtab.detectors"),
    ):
        with pytest.raises(ConfigError, match=named):
            make_judge(given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_inspect_and_watch_take_both_options(
    log: Path, installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    del installed
    assert main(["inspect", "--json", "--detectors", "above", str(log)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["verdict"] == "incident"
    watch = ["watch", "--until-idle", "0", "--interval", "0.001", "--detectors", "above", str(log)]
    assert main([*watch, "--fail-on", "warning"]) == 1
    capsys.readouterr()
    assert main([*watch, "--threshold", "above.limit=3", "--fail-on", "warning"]) == 0
    assert main(["inspect", "--threshold", "above.limit=3", str(log)]) == 2
    assert "above.limit" in capsys.readouterr().err


@dataclass(frozen=True, kw_only=True)
class Unsaved(AboveDetector):
    """Its state is no JSON value: from the beginning, or after some rows."""

    name: str = "unsaved"
    first: object = 0.0
    later: object = frozenset()

    def start(self) -> object:  # type: ignore[override]
        if self.first is None:
            raise ZeroDivisionError("of the user's")
        return self.first

    def update(self, state: object, row: Row) -> tuple[object, tuple[Finding, ...]]:  # type: ignore[override]
        return (self.later if row.index > 3 else state), ()


@pytest.mark.parametrize("first", [{1, 2}, None])
def test_make_judge_names_a_detector_whose_first_state_cannot_be_saved(first: object) -> None:
    with pytest.raises(ConfigError, match=r"detectors: unsaved: start\(\) gives no state"):
        make_judge([Unsaved(first=first)])


@pytest.mark.torch
def test_guard_saves_on_without_a_detector_whose_state_can_no_longer_be_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 1)
    guard = trimtab.Guard(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data=torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4),
        run=tmp_path / "run",
        steps=12,
        detectors=[Unsaved()],
        policy=trimtab.Policy(checkpoint_every_steps=5),
    )
    for batch in guard:
        guard.backward((model(batch) ** 2).mean())
        guard.step()
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    said = capsys.readouterr().err
    assert "the detector 'unsaved' raised TypeError" in said
    assert "fault of its own (checkpoint)" not in said


@pytest.mark.torch
@pytest.mark.parametrize("extra", [{"a": 1}, [1], {1: None}])
def test_guard_refuses_an_extra_that_cannot_be_saved(tmp_path: Path, extra: object) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 1)
    with pytest.raises(ConfigError, match=r"Guard\(extra="):
        trimtab.Guard(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data=torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4),
            run=tmp_path / "run",
            extra=extra,  # type: ignore[arg-type]
        )


@pytest.mark.torch
@pytest.mark.parametrize(
    "given",
    [{"check_resume": "a"}, {"check_resume": -1}, {"loaded_step": -1}, {"loaded_step": "a"}],
)
def test_guard_refuses_counts_that_are_none(tmp_path: Path, given: dict[str, object]) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 1)
    with pytest.raises(ConfigError, match="expected a whole number of at least 0"):
        trimtab.Guard(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data=torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4),
            run=tmp_path / "run",
            **given,  # type: ignore[arg-type]
        )


def test_make_judge_refuses_signals_that_are_no_names() -> None:
    with pytest.raises(ConfigError, match="above has signals=None"):
        make_judge([AboveDetector(signals=None)])  # type: ignore[arg-type]
