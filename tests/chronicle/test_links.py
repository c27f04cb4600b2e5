"""The logbook's links lead somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from trimtab.chronicle.journal import Journal
from trimtab.chronicle.links import linked_files, links_markdown
from trimtab.cli import main
from trimtab.errors import ReadError


def a_run(root: Path) -> Path:
    (root / "signals").mkdir(parents=True)
    journal = Journal(root / "journal.jsonl")
    journal.append("attempt", attempt="1.0", step=0, number="1.0")
    journal.close()
    rows = [f'{{"step": {s}, "loss": {2 + 0.01 * (s % 7)}}}\n' for s in range(1, 50)]
    (root / "signals" / "1.0.jsonl").write_text("".join(rows))
    (root / "run.toml").write_text("seed = 1\n")
    (root / "report.html").write_text("<!DOCTYPE html>")
    (root / "main log (node #1) [x].out").write_text("step 1\n")
    (root / "tb" / "rank 0").mkdir(parents=True)
    (root / "tb" / "rank 0" / "events.out.tfevents.1.host").write_bytes(b"")
    return root


def targets(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", text)


@pytest.mark.covers("S37")
@pytest.mark.parametrize("where", ["RUN", "beside", "deep/down"])
def test_every_link_leads_somewhere(where: str, tmp_path: Path) -> None:
    root = a_run(tmp_path / "runs" / "my run")
    slurm = tmp_path / "slurm logs" / "job-1.txt"
    slurm.parent.mkdir()
    slurm.write_text("step 1\n")
    folder = root if where == "RUN" else tmp_path / where
    out = folder / "LOGBOOK.md"
    assert main(["chronicle", str(root), "--out", str(out), "--link", str(slurm)]) == 0
    links = targets(out.read_text())
    found = {(folder / unquote(link)).resolve() for link in links}
    assert all(path.exists() for path in found)
    assert not any(link.startswith(("/", "file:")) for link in links)
    wanted = {
        root / "journal.jsonl",
        root / "signals" / "1.0.jsonl",
        root / "report.html",
        root / "run.toml",
        root / "main log (node #1) [x].out",
        root / "tb" / "rank 0",
        slurm,
    }
    assert {p.resolve() for p in wanted} == found
    assert "TensorBoard: " in out.read_text()


def test_the_folder_moves_and_the_links_still_work(tmp_path: Path) -> None:
    root = a_run(tmp_path / "a")
    main(["chronicle", str(root), "--out", str(root / "LOGBOOK.md")])
    moved = root.rename(tmp_path / "elsewhere")
    links = targets((moved / "LOGBOOK.md").read_text())
    assert len(links) >= 5
    assert all((moved / unquote(link)).exists() for link in links)


def test_what_is_not_there_is_not_linked_to(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="not there"):
        linked_files(tmp_path, [tmp_path / "none.log"])
    assert links_markdown(linked_files(tmp_path), tmp_path) == ""
