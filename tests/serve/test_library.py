"""The runs of a folder, found again and again without a server."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.serve.library import Library

LOG = "".join(f'{{"step": {s}, "loss": {3 - s / 100}}}\n' for s in range(1, 40))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.05)


def test_library_leaves_out_a_link_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "secret.jsonl").write_text(LOG)
    (folder / "own.jsonl").write_text(LOG)
    (folder / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (folder / "inside.jsonl").symlink_to(folder / "own.jsonl")

    async def names() -> set[str]:
        library = Library([folder], cache=tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        await library.start()
        try:
            return {Path(run.name).name for run in library.runs.values()}
        finally:
            await library.stop()

    assert asyncio.run(names()) == {"own.jsonl", "inside.jsonl"}


@pytest.mark.slow
def test_library_forgets_a_run_whose_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.serve.library.QUIET_LOOK_S", 0.1)
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(LOG)

    async def titles() -> set[str]:
        library = Library([folder], cache=tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        await library.start()
        try:
            await until(lambda: all(r.judged for r in library.runs.values()))
            (folder / "a.jsonl").unlink()
            await until(lambda: len(library.runs) == 1)
            return {run.title for run in library.runs.values()}
        finally:
            await library.stop()

    assert asyncio.run(titles()) == {"b.jsonl"}
