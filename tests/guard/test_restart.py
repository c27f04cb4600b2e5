"""A start that would give a run up: refused with a sentence, or consented to, never silent.

Missing, damaged and unreadable are three things: the first two are passed over for an older
checkpoint where there is one; what cannot be read now may come back, so the start is refused.
"""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.guard.inner import inner
from tests.guard.tiny import events_of, guard_of, make, train_guarded
from trimtab.checkpoints import manifest
from trimtab.checkpoints.manifest import list_checkpoints, set_grade, verify
from trimtab.errors import ChronicleError, ReadError, TrimtabError
from trimtab.guard.state import checkpoint_io
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 40
Run = Callable[..., Path]
POLICY = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs with a checkpoint every ten steps that were left at a step, as by a kill."""
    runs: dict[int, Path] = {}
    for until in (5, 25, 35):
        runs[until], s = tmp_path_factory.mktemp("trained") / "run", make()
        guard = guard_of(s, runs[until], steps=STEPS, policy=POLICY)
        train_guarded(s, guard, until=until)
        guard.close()
    return runs


@pytest.fixture
def broken_run(trained: dict[int, Path], tmp_path: Path) -> Run:
    """Gives a run that was left at step 25 with checkpoints at 10 and 20, or at another step."""

    def copy(until: int = 25) -> Path:
        return Path(shutil.copytree(trained[until], tmp_path / "run"))

    return copy


def start(run: Path, **settings: Any) -> int:
    """Start the same script; return the step it goes on from."""
    said: list[str] = []
    guard = guard_of(
        make(), run, **{"steps": STEPS, "policy": POLICY, "say": said.append} | settings
    )
    guard.close()
    return guard.step_number


def tree(run: Path) -> dict[str, bytes]:
    """The files of all checkpoints, in place and moved aside."""
    return {
        str(p.relative_to(run)): p.read_bytes()
        for folder in ("checkpoints", "aside")
        for p in (run / folder).rglob("*")
        if p.is_file()
    }


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Ends of paths whose reading fails, with the error number."""
    failing: dict[str, int] = {}
    is_open, listed, looked = Path.open, os.scandir, Path.lstat

    def check(path: object) -> None:
        text = os.fspath(path) if isinstance(path, str | Path) else ""
        for end, number in failing.items():
            if text.endswith(end):
                raise OSError(number, os.strerror(number), text)

    def open_file(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "r" in mode and "+" not in mode:
            check(self)
        return is_open(self, mode, *more, **named)

    def list_folder(path: Any = ".") -> Any:
        check(path)
        return listed(path)

    listdir = os.listdir

    def list_names(path: Any = ".") -> Any:
        check(path)
        return listdir(path)

    def look(self: Path) -> Any:
        if failing.get(str(self.parent.name)) == errno.EACCES:
            check(self.parent)
        return looked(self)

    monkeypatch.setattr(Path, "open", open_file)
    monkeypatch.setattr(os, "scandir", list_folder)
    monkeypatch.setattr(os, "listdir", list_names)
    monkeypatch.setattr(Path, "lstat", look)
    yield failing
    failing.clear()


# -- unreadable is not absent -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("manifest.json", errno.EIO),
        ("manifest.json", errno.EACCES),
        ("manifest.json", errno.ESTALE),
        ("step-00000020/manifest.json", errno.EMFILE),
        ("health.json", errno.EIO),
        (".metadata", errno.EIO),
    ],
)
def test_checkpoints_that_cannot_be_read_now_refuse_the_start_and_come_back(
    broken_run: Run, unreadable: dict[str, int], what: str, number: int
) -> None:
    run = broken_run()
    before = tree(run)
    unreadable[what] = number
    with pytest.raises(ReadError, match=rf"step-00000020.*{os.strerror(number)}.*mount the disk"):
        start(run)
    unreadable.clear()
    assert tree(run) == before
    assert start(run) == 20, "nothing was given up for it"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_folder_of_checkpoints_that_cannot_be_listed_refuses_the_start(
    broken_run: Run, unreadable: dict[str, int], number: int
) -> None:
    run = broken_run()
    unreadable["/checkpoints"] = number
    with pytest.raises(TrimtabError, match=r"checkpoints: cannot be listed"):
        start(run)
    unreadable.clear()
    assert start(run) == 20


def test_a_folder_of_checkpoints_that_is_not_mounted_refuses_the_start(broken_run: Run) -> None:
    run = broken_run()
    (run / "checkpoints").rename(run / "unmounted")
    with pytest.raises(ReadError, match=r"checkpoints is missing; the journal names step-00000010"):
        start(run)
    (run / "checkpoints").mkdir()  # the mount point of a disk that is not there
    with pytest.raises(ReadError, match="step-00000020 is not there, and the journal names it"):
        start(run)
    (run / "checkpoints").rmdir()
    (run / "unmounted").rename(run / "checkpoints")
    assert start(run) == 20
    assert not (run / "aside").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_journal_that_cannot_be_read_refuses_the_start(
    broken_run: Run, unreadable: dict[str, int], number: int
) -> None:
    run = broken_run()
    before = (run / "journal.jsonl").read_bytes()
    unreadable["journal.jsonl"] = number
    with pytest.raises(TrimtabError, match=r"journal\.jsonl: cannot be"):
        start(run)
    unreadable.clear()
    assert (run / "journal.jsonl").read_bytes() == before
    assert start(run) == 20


def test_rows_that_the_disk_refuses_now_refuse_the_start(
    broken_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = broken_run(), os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).endswith("1.0.jsonl") and not flags & os.O_CREAT:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ReadError, match=r"1\.0\.jsonl: cannot be read"):
        start(run)
    monkeypatch.undo()
    assert start(run) == 20


def test_rows_that_make_no_sense_are_told_of(broken_run: Run) -> None:
    run, said = broken_run(), list[str]()
    rows = run / "signals" / "1.0.jsonl"
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join([*lines[:5], '{"step": 6, "loss": "many"}\n', *lines[6:]]))
    assert start(run, say=said.append) == 20
    assert any("the rows so far cannot be taken in" in line for line in said)


def test_rows_that_a_power_cut_took_are_no_fault_of_the_guard(broken_run: Run) -> None:
    run, said = broken_run(), list[str]()
    (run / "signals" / "1.0.jsonl").write_text("")
    assert start(run, say=said.append) == 20
    assert not [line for line in said if "a fault of its own" in line]
    assert not events_of(run, "fault")


def test_a_journal_that_is_gone_beside_its_samples_refuses_step_0(broken_run: Run) -> None:
    run = broken_run(until=5)
    (run / "journal.jsonl").unlink()
    with pytest.raises(ChronicleError, match=r"journal\.jsonl: is gone or empty"):
        start(run)
    (run / "journal.head").unlink()
    with pytest.raises(ReadError, match=r"journal\.jsonl is gone, though .*signals holds samples"):
        start(run)
    with pytest.raises(ReadError, match="is gone"):
        start(run)  # the empty file that the refused start has made changes nothing
    assert start(run, start_over=True) == 0


def test_a_readable_journal_without_a_checkpoint_starts_again_and_says_so(
    broken_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken_run(until=5)
    assert start(run) == 0
    assert "no checkpoint of this run is there" in capsys.readouterr().err
    assert any("no checkpoint of this run" in e.data["text"] for e in events_of(run, "note"))


def test_a_newer_one_that_is_damaged_is_passed_over_aloud_for_an_older_one(broken_run: Run) -> None:
    run, said = broken_run(), list[str]()
    (run / "checkpoints/step-00000020/state.json").write_text("{}")
    assert start(run, say=said.append) == 10
    assert any("passed over: step-00000020: state.json has" in line for line in said)
    assert not (run / "aside").exists(), "it is left where it is"


def test_all_damaged_refuse_step_0_until_it_is_consented_to(
    broken_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken_run()
    for path in run.glob("checkpoints/*/manifest.json"):
        path.unlink()
    before = tree(run)
    with pytest.raises(ReadError, match=r"step 0 is not begun unasked.*Guard\(start_over=True\)"):
        start(run)
    assert start(run, start_over=True) == 0
    assert tree(run) == before
    assert "starting over from step 0 by start_over=True" in capsys.readouterr().err
    (action,) = events_of(run, "action")
    assert action.data["remedy"] == "start-over"
    assert [e.data["number"] for e in events_of(run, "attempt")] == ["1.0", "2.0"]


def test_after_a_consented_start_the_new_lineage_is_gone_on_with(
    broken_run: Run, unreadable: dict[str, int]
) -> None:
    run = broken_run(until=35)  # checkpoints at 10, 20 and 30
    unreadable["manifest.json"] = errno.EIO
    s = make()
    guard = guard_of(s, run, steps=STEPS, policy=POLICY, start_over=True)
    unreadable.clear()
    train_guarded(s, guard, until=15)
    guard.close()
    found = {c.step: c.lineage for c in list_checkpoints(run / "checkpoints")}
    assert found == {10: "2", 20: "1", 30: "1"}, "retention removes no lineage for another"
    assert start(run) == 10, "not the newer one of the lineage that was given up"
    assert start(run, start_over=True) == 10, "consent is needed, and used, only where it is asked"


def test_a_finished_run_without_a_healthy_checkpoint_is_not_trained_again(tmp_path: Path) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=STEPS, policy=POLICY))
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        set_grade(path, "suspect", "a test")
    with pytest.raises(ReadError, match=r"the run is done, 40 steps, and none of its .* healthy"):
        start(tmp_path / "run")
    assert start(tmp_path / "run", start_over=True) == 0


# -- schemas ------------------------------------------------------------------------------------


def rewrite(path: Path, **fields: Any) -> None:
    data = json.loads(path.read_text("utf-8"))
    data.update(fields)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}), encoding="utf-8")


@pytest.mark.parametrize("name", ["manifest.json", "health.json"])
def test_what_a_newer_trimtab_wrote_refuses_the_start(broken_run: Run, name: str) -> None:
    run = broken_run()
    rewrite(run / "checkpoints/step-00000020" / name, schema=99)
    with pytest.raises(ReadError, match=rf"{name} is of schema 99, this version .* up to 1"):
        start(run)


@pytest.mark.parametrize("schema", [0, -1, True, "1", 1.5, [], {}])
def test_a_schema_that_was_never_written_is_damage(broken_run: Run, schema: object) -> None:
    run = broken_run()
    rewrite(run / "checkpoints/step-00000020/manifest.json", schema=schema, sha256=None)
    assert "no schema that trimtab ever wrote" in verify(run / "checkpoints/step-00000020")
    assert start(run) == 10


def as_first_written(run: Path) -> None:
    """Take from a run directory what its first released form did not have."""
    for folder in (run / "checkpoints").iterdir():
        rewrite(folder / "manifest.json", schema=None, sha256=None)
        rewrite(folder / "health.json", schema=None)
    (run / "journal.head").unlink(missing_ok=True)
    lines = (run / "journal.jsonl").read_text("utf-8").splitlines()
    kept = [
        {k: v for k, v in json.loads(x).items() if k not in ("writer", "seq", "crc")} for x in lines
    ]
    (run / "journal.jsonl").write_text("".join(json.dumps(x) + "\n" for x in kept), "utf-8")


def as_second_written(run: Path) -> None:
    """The same with schemas, without a hash of the manifest itself."""
    as_first_written(run)
    for folder in (run / "checkpoints").iterdir():
        rewrite(folder / "manifest.json", schema=1)


@pytest.mark.parametrize("former", [as_first_written, as_second_written])
def test_run_directories_of_every_released_form_are_gone_on_with(
    broken_run: Run, former: Callable[[Path], None]
) -> None:
    run = broken_run()
    former(run)
    assert start(run) == 20


# -- foreign files, and pickles -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["extra.bin", "tensors/__0_9.distcp", "tensors/deep/er.pt", "rank-00007.json"]
)
def test_a_file_that_the_manifest_does_not_list_is_refused(broken_run: Run, name: str) -> None:
    run = broken_run()
    file = run / "checkpoints/step-00000020" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"x")
    assert "is not listed in manifest.json" in verify(file.parents[len(Path(name).parts) - 1])
    assert start(run) == 10


@pytest.mark.parametrize("name", ["extra", "tensors/extra"])
def test_a_link_in_a_checkpoint_is_refused(tmp_path: Path, broken_run: Run, name: str) -> None:
    run = broken_run()
    (run / "checkpoints/step-00000020" / name).symlink_to(tmp_path)
    assert "is a link" in verify(run / "checkpoints/step-00000020")
    assert start(run) == 10


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def plant(run: Path, index: bytes, *, listed: bool) -> None:
    """Put another index in the place of the tensors' own in all checkpoints of a run."""
    for folder in (run / "checkpoints").iterdir():
        (folder / "tensors" / ".metadata").write_bytes(index)
        data = json.loads((folder / "manifest.json").read_text("utf-8"))
        if listed:
            digest = sha256(index).hexdigest()
            data["files"]["tensors/.metadata"] = {"size_bytes": len(index), "sha256": digest}
        else:
            del data["files"]["tensors/.metadata"]
        data.pop("sha256")
        (folder / "manifest.json").write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("listed", [True, False])
def test_a_planted_pickle_never_runs(tmp_path: Path, broken_run: Run, listed: bool) -> None:
    run = broken_run()
    plant(run, pickle.dumps(Bomb(tmp_path / "ran")), listed=listed)
    told = r"is no index of a checkpoint .* names \w+\.mkdir" if listed else "is not listed"
    with pytest.raises(ReadError, match=told):
        start(run)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["../../../secret", "/etc/hostname", "__0_7.distcp"])
def test_an_index_that_names_other_files_is_refused(broken_run: Run, path: str) -> None:
    run = broken_run()
    index = pickle.loads((run / "checkpoints/step-00000020/tensors/.metadata").read_bytes())
    next(iter(index.storage_data.values())).relative_path = path
    plant(run, pickle.dumps(index), listed=True)
    with pytest.raises(ReadError, match="it names a file outside the manifest"):
        start(run)


# -- saves that fail, retention -----------------------------------------------------------------


def test_a_save_that_fails_at_any_place_spares_the_older_one_and_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=POLICY)
    train_guarded(s, guard, until=10)
    for step, (place, name) in enumerate(
        [
            (checkpoint_io, "write_tensors"),
            (manifest, "sha256_of"),
            (manifest, "write_whole"),
            (manifest, "sync_folder"),
            (manifest, "move"),
        ],
        start=11,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, _fail)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # nor can it be tidied up
            with pytest.raises(TrimtabError, match="cannot be"):
                guard.checkpoint()
        assert list_checkpoints(tmp_path / "run/checkpoints")[0].step == 10
        guard.checkpoint()  # over one of the same step too
        train_guarded(s, guard, until=step)
    guard.close()
    assert all(verify(c.path) == "" for c in list_checkpoints(tmp_path / "run/checkpoints"))
    assert start(tmp_path / "run") >= 14


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_like_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    policy = Policy(checkpoint_every_steps=5, checkpoints_kept=2, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=policy)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before its first file
        train_guarded(s, guard, until=22)
    guard.close()
    folder = tmp_path / "run/checkpoints"
    assert sorted(p.name for p in folder.iterdir() if "removing" not in p.name) == [
        "step-00000015",
        "step-00000020",
    ]
    assert start(tmp_path / "run", policy=policy) == 20
    assert list(folder.glob("*.removing")) == []


def test_suspect_ones_that_come_after_them_never_cost_the_last_healthy_ones(
    tmp_path: Path,
) -> None:
    s = make()
    policy = Policy(checkpoint_every_steps=5, checkpoints_kept=2, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=policy)
    train_guarded(s, guard, until=10)
    for step in (11, 12, 13, 14):
        train_guarded(s, guard, until=step)
        inner(guard).engine.save_checkpoint("a test", doubt="not judged")
    guard.close()
    found = [(c.step, c.grade) for c in list_checkpoints(tmp_path / "run/checkpoints")]
    assert found[:2] == [(5, "healthy"), (10, "healthy")]


def test_starting_over_by_hand_reports_the_waste_of_the_run_that_it_ends(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=POLICY)
    train_guarded(s, guard, until=25)
    guard.start_over(why="a test", confirm=True)
    assert guard.wasted_steps == 0.0
    assert events_of(tmp_path / "run", "end")[-1].data["wasted_steps"] == 0.0
    assert start(tmp_path / "run") == 0
