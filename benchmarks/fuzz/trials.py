"""The harnesses: what an input of each kind is made of, and what must hold of it.

Whatever the bytes, an input is read, or refused with one sentence that names it.
"""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from benchmarks.fuzz.damage import HOSTILE, damage_binary, damage_config, damage_json
from benchmarks.fuzz.engine import Trial
from benchmarks.fuzz.seeds import config_seeds, data_seeds, make_run
from benchmarks.logs.fuzzing import examine, mutated, seed_logs
from trimtab.analysis.json_form import run_to_json
from trimtab.analysis.self_test import SelfTester
from trimtab.analysis.source import account_of
from trimtab.checkpoints.find import find_checkpoints
from trimtab.checkpoints.manifest import list_checkpoints, newest_healthy, read_checkpoint, verify
from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.links import linked_files, links_markdown
from trimtab.chronicle.logbook import render_logbook
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli import main
from trimtab.config_rules.preflight import preflight_config
from trimtab.configs import flat_config, read_config
from trimtab.data_scan import ScanSettings, scan
from trimtab.data_scan.report import document
from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import Judge, JudgeState
from trimtab.errors import ReadError, TrimtabError
from trimtab.readers import read_each
from trimtab.record import RunRecord
from trimtab.report.html import render_html
from trimtab.report.terminal import render_terminal

__all__ = ["TRIALS"]

_SELF_TEST_EVERY = 100
"""The judge's self-test, four fifths of an analysis, is made for one of so many inputs."""
_COMMAND_EVERY = 200
"""The command line, which is slow beside the reading, is tried on one of so many inputs."""


def _check_sentence(said: str, path: Path) -> None:
    """An error is one line of bounded length that names the file or its folder."""
    assert "\n" not in said, "the error has several lines"
    assert len(said) < 2000, "the error is longer than 2000 characters"
    assert path.name in said or str(path.parent) in said, "the error does not name the file"


def _command(*arguments: str) -> str:
    """Run a command of trimtab in this process; return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    assert code in (0, 1, 2), f"exit code {code}"
    assert "Traceback" not in err.getvalue(), "a traceback on stderr"
    assert code != 2 or err.getvalue().strip(), "exit code 2 without a word"
    return out.getvalue()


class _DataTrial:
    """`scan` of one damaged file."""

    def __init__(self, seeds: Path) -> None:
        self._seeds = data_seeds(seeds)
        self._others = tuple(self._seeds.values())
        self._names = [n for n in self._seeds if n != "m.bin"]
        # pyarrow's formats are the ones that died: they come twice as often.
        self._names += [n for n in self._names if n.endswith((".arrow", ".feather", ".parquet"))]
        self._quick = True

    def input(self, rng: random.Random, folder: Path) -> None:
        name = rng.choice(self._names)
        data = self._seeds[name]
        if name.endswith(".jsonl") and rng.random() < 0.7:
            made = damage_json(data.decode(), rng, self._others)
        else:
            made = damage_binary(data, rng, self._others)
        (folder / name).write_bytes(made)
        if name == "m.idx":
            other = self._seeds["m.bin"]
            (folder / "m.bin").write_bytes(
                damage_binary(other, rng) if rng.random() < 0.2 else other
            )
        self._quick = rng.random() < 0.8

    def examine(self, folder: Path) -> bool:
        path = min(folder.iterdir(), key=lambda p: (p.suffix == ".bin" and p.stem == "m", p.name))
        with np.errstate(all="ignore"):
            result = scan([str(path)], ScanSettings(duplicates=not self._quick, vocab=50_000))
            json.dumps(document(result), allow_nan=False)
        for error in result.errors:
            _check_sentence(error["error"], path)
        return not result.errors


class _ConfigTrial:
    """A damaged config, read to settings and to flat keys, as `compare --configs` does."""

    def __init__(self, seeds: Path) -> None:
        del seeds
        self._seeds = config_seeds()
        self._others = tuple(text.encode() for text in self._seeds.values())

    def input(self, rng: random.Random, folder: Path) -> None:
        name = rng.choice(list(self._seeds))
        made = damage_config(self._seeds[name], rng, self._others)
        if rng.random() < 0.05:
            name = rng.choice(("c.yaml", "c.toml", "c.json", "c.py", "c.sh", "c.ini", "c"))
        (folder / name).write_bytes(made)

    def examine(self, folder: Path) -> bool:
        (path,) = folder.iterdir()
        read = 0
        for reader in (read_config, flat_config):
            try:
                reader(path)
                read += 1
            except ReadError as error:
                _check_sentence(str(error), path)
        return read > 0


class _PreflightTrial(_ConfigTrial):
    """A damaged config, checked by every rule, and by the command now and then."""

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self._with_command = False

    def input(self, rng: random.Random, folder: Path) -> None:
        super().input(rng, folder)
        self._with_command = rng.random() < 1 / _COMMAND_EVERY

    def examine(self, folder: Path) -> bool:
        (path,) = folder.iterdir()
        result = preflight_config(path)
        for error in result.errors:
            _check_sentence(error["error"], path)
        json.dumps(result.to_dict(), default=str)
        if self._with_command:
            _command("preflight", str(path))
            json.loads(_command("preflight", "--json", str(path)))
        return not result.errors


class _RunTrial:
    """A run directory with one damaged file; the file and its damage are the subclass's."""

    def __init__(self, seeds: Path) -> None:
        self._root = make_run(seeds / "run")
        self._paths = sorted(p.relative_to(self._root) for p in self._files(self._root))
        self._others = tuple((self._root / p).read_bytes() for p in self._paths)
        self._with_command = False

    def _files(self, root: Path) -> Iterable[Path]:
        raise NotImplementedError

    def input(self, rng: random.Random, folder: Path) -> None:
        # Links to the files that stay sound: an input costs one small file.
        shutil.copytree(self._root, folder / "run", copy_function=_link, dirs_exist_ok=True)
        for _ in range(rng.choice((1, 1, 1, 2))):
            path = rng.choice(self._paths)
            data = (self._root / path).read_bytes()
            if path.suffix == ".bin":
                made = damage_binary(data, rng, self._others)
            elif path.suffix == ".toml":
                made = damage_config(data.decode(), rng, self._others)
            else:
                made = damage_json(data.decode(), rng, self._others)
            target = folder / "run" / path
            target.unlink(missing_ok=True)
            if rng.random() > 0.02:  # else it is missing
                target.write_bytes(made)
        self._with_command = rng.random() < 1 / _COMMAND_EVERY

    def _commands(self, root: Path) -> None:
        if self._with_command:
            _command("inspect", str(root))
            _command("chronicle", str(root))
            json.loads(_command("inspect", "--json", str(root)))


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


class _CheckpointTrial(_RunTrial):
    """Damaged manifests, grades, states and tensors of committed checkpoints."""

    def _files(self, root: Path) -> Iterable[Path]:
        return (p for p in (root / "checkpoints").rglob("*") if p.is_file())

    def examine(self, folder: Path) -> bool:
        root = folder / "run"
        checkpoints = root / "checkpoints"
        listed = list_checkpoints(checkpoints, hashes=True)
        for path in checkpoints.iterdir():
            problem = verify(path)
            assert "\n" not in problem, "the problem has several lines"
            assert len(problem) < 2000, "the problem is longer than 2000 characters"
            found = read_checkpoint(path, hashes=True)
            assert (found is None) == bool(problem), "read, but not whole, or the other way round"
        with contextlib.suppress(ReadError):  # the newest may be of a newer schema
            newest_healthy(checkpoints)
        find_checkpoints(root)
        self._commands(root)
        return len(listed) == 2


class _JournalTrial(_RunTrial):
    """Damaged journals, samples, settings and verdicts of a run directory."""

    def _files(self, root: Path) -> Iterable[Path]:
        run = RunDirectory(root)
        return (run.journal, run.journal, run.settings, run.verdict, *run.signals.iterdir())

    def examine(self, folder: Path) -> bool:
        root = folder / "run"
        try:
            events, _ = read_journal(RunDirectory(root).journal)
        except TrimtabError as error:
            _check_sentence(str(error), root / "journal.jsonl")
            events = ()
        record = None
        for _, outcome in read_each(root):
            if isinstance(outcome, ReadError):
                _check_sentence(str(outcome), root)
            else:
                record = outcome
        text = render_logbook(events, record, files=links_markdown(linked_files(root), root))
        assert HOSTILE not in text, "HTML in the logbook is not escaped"
        self._commands(root)
        return record is not None and bool(events)


class _PageTrial(_RunTrial):
    """The page of damaged records: valid, and nothing of the records runs in it."""

    def _files(self, root: Path) -> Iterable[Path]:
        run = RunDirectory(root)
        return (run.journal, run.settings, *run.signals.iterdir())

    def examine(self, folder: Path) -> bool:
        root = folder / "run"
        read = False
        for path, outcome in read_each(root):
            if isinstance(outcome, ReadError):
                continue
            read = True
            with np.errstate(all="ignore"):
                page = render_html(account_of(outcome, path), title=f"run {HOSTILE}")
            _check_page(page)
        return read


class _ReaderTrial:
    """A damaged log of any format, alone or in a directory of what trackers write."""

    def __init__(self, seeds: Path) -> None:
        self._seeds = seed_logs(seeds)
        self._names = list(self._seeds)
        self._others = tuple(self._seeds.values())

    def input(self, rng: random.Random, folder: Path) -> None:
        made = mutated(self._seeds[rng.choice(self._names)], rng, self._others)
        if rng.random() < _IN_FOLDER:
            for place in rng.sample(_PLACES, 3):
                path = folder / "runs" / place
                path.parent.mkdir(parents=True, exist_ok=True)
                other = self._seeds[rng.choice(self._names)]
                path.write_bytes(made if rng.random() < 0.6 else other)
        else:
            (folder / f"log{rng.choice(_ENDINGS)}").write_bytes(made)

    def examine(self, folder: Path) -> bool:
        (path,) = folder.iterdir()
        with np.errstate(all="ignore"):
            return bool(examine(path))


_IN_FOLDER = 0.05
_ENDINGS = ("", "", ".log", ".csv", ".json", ".jsonl", ".txt", ".ipynb")
_PLACES = (
    "trainer_state.json",
    "checkpoint-1/trainer_state.json",
    "checkpoint-2/trainer_state.json",
    "runs/a/events.out.tfevents.1",
    "events.out.tfevents.2",
    "train/events.out.tfevents.1",
    "validation/events.out.tfevents.1",
    "lightning_logs/version_0/metrics.csv",
    "lightning_logs/version_0/events.out.tfevents.1",
    "wandb/run-20240101_120000-abc/run-abc.wandb",
    "wandb/run-20240101_120000-abc/files/output.log",
    "signals/1.0.jsonl",
    "mlruns/0/metrics/loss",
    "outputs/train.log",
    "model.safetensors",
)


class _AnalysisTrial:
    """A damaged log of some hundred rows, judged, and told in every form."""

    def __init__(self, seeds: Path) -> None:
        del seeds
        rng = np.random.default_rng(0)
        loss = 3.0 * np.exp(-np.arange(160) / 90) + 1.5 + 0.02 * rng.standard_normal(160)
        loss[90:94] += (1.0, 2.0, 1.5, 0.6)
        norm = 1.0 + 0.1 * rng.standard_normal(160)
        norm[90:92] = 20.0
        rows = [
            {"step": i, "loss": round(float(x), 4), "grad_norm": round(float(g), 3), "lr": 1e-3}
            for i, (x, g) in enumerate(zip(loss, norm, strict=True))
        ]
        keys = list(rows[0])
        table = [",".join(keys), *(",".join(str(r[k]) for k in keys) for r in rows)]
        self._seeds = (
            "".join(json.dumps(r) + "\n" for r in rows).encode(),
            ("\n".join(table) + "\n").encode(),
            "".join(" ".join(f"{k} {r[k]}" for k in keys) + "\n" for r in rows).encode(),
            json.dumps({"log_history": rows}).encode(),
        )
        self._with_page = False
        self._with_self_test = False

    def input(self, rng: random.Random, folder: Path) -> None:
        data = rng.choice(self._seeds)
        (folder / "log").write_bytes(mutated(data, rng, self._seeds))
        self._with_page = rng.random() < 1 / _COMMAND_EVERY
        self._with_self_test = rng.random() < 1 / _SELF_TEST_EVERY

    def examine(self, folder: Path) -> bool:
        read = False
        for path, outcome in read_each(folder / "log"):
            if isinstance(outcome, ReadError):
                _check_sentence(str(outcome), folder / "log")
                assert "a fault of trimtab's own" not in str(outcome), str(outcome)[-300:]
                continue
            read = True
            with np.errstate(all="ignore"):
                tester = SelfTester() if self._with_self_test else _Untested()
                account = account_of(outcome, path, tester=tester)
                json.dumps(run_to_json(account, path=path), default=str)
                render_terminal(account)
                if self._with_page:
                    _check_page(render_html(account, title=f"run {HOSTILE}"))
        return read


class _Untested(SelfTester):
    """Injects nothing, and wants no state of the judge for it: that is half of an analysis."""

    def places(self, record: RunRecord) -> dict[int, JudgeState]:
        del record
        return {}

    def run(
        self,
        record: RunRecord,
        judge: Judge,
        findings: Sequence[Finding],
        before: Mapping[int, JudgeState],
    ) -> None:
        del record, judge, findings, before


_ELEMENTS_NEVER = frozenset({"img", "iframe", "object", "embed", "form", "base"})


class _Page(HTMLParser):
    """Collects what a browser would run, and the islands of data."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.islands: list[str] = []
        self.scripts = 0
        self._island = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        values: Mapping[str, str | None] = dict(attrs)
        assert tag not in _ELEMENTS_NEVER, f"the page holds an element {tag}"
        handlers = [name for name in values if name.startswith("on")]
        assert not handlers, f"the page holds a handler {handlers[:1]}"
        link = (values.get("href") or "").strip().lower()
        assert not link.startswith(("javascript:", "data:text")), "the page holds a link that runs"
        if tag == "script":
            self._island = values.get("type") == "application/json"
            self.scripts += not self._island

    def handle_data(self, data: str) -> None:
        if self._island:
            self.islands.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._island = False


def _check_page(page: str) -> None:
    parser = _Page()
    parser.feed(page)
    parser.close()
    assert parser.scripts == 1, f"the page holds {parser.scripts} scripts"
    assert parser.islands, "the page holds no data"
    json.loads("".join(parser.islands), parse_constant=_refuse_constant)
    page.encode("utf-8")


def _refuse_constant(name: str) -> object:
    raise AssertionError(f"the data of the page holds {name}, which is no JSON")


TRIALS: Mapping[str, Callable[[Path], Trial]] = {
    "scan": _DataTrial,
    "configs": _ConfigTrial,
    "checkpoints": _CheckpointTrial,
    "journal": _JournalTrial,
    "page": _PageTrial,
    "readers": _ReaderTrial,
    "analysis": _AnalysisTrial,
    "preflight": _PreflightTrial,
}
