"""A scan writes over nothing that is not its own."""

from pathlib import Path

import numpy as np
import pytest

from tests.data_scan.data import CLEAN, write_jsonl
from trimtab.cli import main
from trimtab.data_scan import scan
from trimtab.data_scan.state import load_state, save_state
from trimtab.errors import ConfigError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "d.jsonl", CLEAN[:20])


@pytest.mark.parametrize("option", ["--state", "--write-skip"])
@pytest.mark.parametrize("which", ["data", "text", "array", "empty", "pickle"])
def test_a_file_that_is_not_a_scans_own_is_left_as_it_is(
    data: Path, option: str, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data if which == "data" else data.with_name("precious")
    if which == "text":
        path.write_text("precious")
    elif which == "array":
        with path.open("wb") as file:
            np.savez(file, weights=np.arange(5))
    elif which == "empty":
        path.touch()
    elif which == "pickle":
        path.write_bytes(b"\x80\x04}\x94.")
    before = path.read_bytes()
    assert main(["scan", str(data), option, str(path)]) == 2
    assert path.read_bytes() == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pickle" not in said.replace(str(path), "")
    assert ("is data to be scanned" if which == "data" else "is there and is not") in said
    if option == "--state":
        with pytest.raises(ConfigError):
            scan([str(data)], state_path=path)
        assert path.read_bytes() == before


def test_a_link_to_the_data_is_the_data(data: Path) -> None:
    link = data.with_name("link.json")
    link.symlink_to(data)
    assert main(["scan", str(data), "--write-skip", str(link)]) == 2
    assert main(["scan", str(data.parent), "--state", str(link)]) == 2
    assert link.is_symlink()
    assert data.exists()


@pytest.mark.parametrize("option", ["--state", "--write-skip"])
def test_a_place_that_cannot_be_is_told_before_the_scan(
    data: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, said in (
        (data.parent / "none" / "x.json", "there is no directory"),
        (data.parent, "is a directory"),
        (Path(), "is a directory"),
    ):
        assert main(["scan", str(data), option, str(place)]) == 2
        told = capsys.readouterr()
        assert said in told.err
        assert told.out == ""
    assert sorted(p.name for p in data.parent.iterdir()) == ["d.jsonl"]


def test_a_temporary_name_of_anothers_is_left_alone(data: Path) -> None:
    theirs = [data.with_name("skip.json.tmp"), data.with_name("s.npz.tmp")]
    for path in theirs:
        path.write_text("precious")
    skip, state = data.with_name("skip.json"), data.with_name("s.npz")
    assert main(["scan", str(data), "--write-skip", str(skip), "--state", str(state)]) == 0
    save_state(state, {"accounts": []})
    assert [p.read_text() for p in theirs] == ["precious", "precious"]


def test_ones_own_are_written_anew_and_are_no_data(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip = data.with_name("skip.json")
    assert main(["scan", str(data), "--write-skip", str(skip)]) == 0
    save_state(data.with_name("old.state.npz"), {"accounts": [], "n": np.arange(3)})
    assert load_state(data.with_name("old.state.npz"))["n"].tolist() == [0, 1, 2]
    assert main(["scan", str(data.parent), "--write-skip", str(skip), "--json"]) == 0
    assert len(scan([str(data.parent)]).sources) == 1
    assert sum("passed over" in n for n in scan([str(data.parent)]).notes) == 2


def test_one_name_for_two_files_is_refused(data: Path) -> None:
    place = str(data.with_name("x"))
    assert main(["scan", str(data), "--write-skip", place, "--state", place]) == 2
