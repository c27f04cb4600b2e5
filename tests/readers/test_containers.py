"""Files with a log inside: archives, notebooks, pages, arrays; and binaries that are refused."""

import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read, read_each, read_run

LOG = "".join(f"step {i} loss {5 - 0.05 * i:.3f}\n" for i in range(40))


def zipped(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/"), text)
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_of_logs(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "logs.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, text in (
            ("../../a/train.log", LOG),
            ("b/train.log", LOG),
            ("notes.md", "# loss\n"),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
        archive.addfile(tarfile.TarInfo("directory/"))
    records = read(path)
    assert [r.num_loss_rows for r in records] == [40, 40]
    assert records[1].source == f"{path}#b/train.log"


def test_a_zip_of_logs_and_one_of_them_by_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "logs.zip", a__log=LOG, b__log=LOG * 2, c="nothing")
    assert [r.num_loss_rows for r in read(path)] == [40, 80]
    assert [r.num_loss_rows for r in read(f"{path}#b/log")] == [80]
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_without_a_log(tmp_path: Path) -> None:
    checkpoint = zipped(tmp_path / "model.pt", archive__data="x", **{"archive__data.pkl": LOG})
    empty = zipped(tmp_path / "docs.zip", readme="hello")
    broken = tmp_path / "broken.zip"
    broken.write_bytes(zipped(tmp_path / "b.zip", log=LOG).read_bytes()[:60])
    for path in (checkpoint, empty, broken):
        with pytest.raises(ReadError, match=path.name):
            read_run(path)


def test_a_member_that_is_said_to_be_huge_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.readers.containers.MAX_MEMBER_BYTES", 2_000)
    path = zipped(tmp_path / "logs.zip", big=LOG * 10, small=LOG)
    assert [r.num_loss_rows for r in read(path)] == [40]


def test_arrays(tmp_path: Path) -> None:
    loss = np.linspace(5, 3, 40)
    path = tmp_path / "history.npz"
    np.savez(path, step=np.arange(40), train_loss=loss, weights=np.ones((3, 3)))
    record = read_run(path)
    np.testing.assert_allclose(record.columns["loss"].logged(), loss)
    assert record.step.tolist() == list(range(40))
    np.save(tmp_path / "train_loss.npy", loss)
    np.testing.assert_allclose(read_run(tmp_path / "train_loss.npy").columns["loss"].logged(), loss)


class Trap:
    """Would say so if it were ever unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    objects = tmp_path / "objects.npz"
    np.savez(objects, loss=np.array([Trap()], dtype=object))
    plain = tmp_path / "history.pkl"
    plain.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ReadError, match="no log in this archive"):
        read_run(objects)
    with pytest.raises(ReadError, match="a pickle, which is never opened"):
        read_run(plain)


@pytest.mark.parametrize(
    ("head", "message"),
    [(b"PAR1", "Parquet"), (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"ARROW1", "Arrow")],
)
def test_other_tables_say_what_to_do(tmp_path: Path, head: bytes, message: str) -> None:
    path = tmp_path / "history"
    path.write_bytes(head + bytes(range(256)) * 8)
    with pytest.raises(ReadError, match=f"history: .*{message}.*(CSV|JSON)"):
        read_run(path)


def test_a_notebook_without_a_run_and_a_broken_one(tmp_path: Path) -> None:
    for i, text in enumerate(
        (
            json.dumps(
                {"cells": [{"outputs": [{"text": "hello"}]}, 3, {"outputs": 4}], "nbformat": 4}
            ),
            '{"cells": [{"outputs": [{"text": ["step 1 loss 2"',
            json.dumps({"cells": 7, "nbformat": 4}),
        )
    ):
        path = tmp_path / f"{i}.ipynb"
        path.write_text(text)
        with pytest.raises(ReadError, match=path.name):
            read_run(path)


def test_a_page_of_words(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<html><script>loss = 1; step = 2;</script><p>loss 3 <table><tr><td>x</html>")
    with pytest.raises(ReadError, match=r"page\.html"):
        read_run(path)


def test_in_a_directory_containers_without_a_log_are_passed_over(tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", readme="hello")
    (tmp_path / "b.log").write_text(LOG)
    outcomes = dict(read_each(tmp_path))
    assert list(outcomes) == [str(tmp_path / "b.log")]
    assert read_run(tmp_path).num_loss_rows == 40
