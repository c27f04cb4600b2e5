"""`trimtab.analyze`: any source, one result, the document of the command."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab
from trimtab.analysis.verdict import Ending
from trimtab.cli import main
from trimtab.errors import ConfigError, ReadError
from trimtab.testing.tr8_104b import print_log

CSV = Callable[[], Path]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def columns(num_rows: int = 600) -> dict[str, list[float | None]]:
    """A falling loss with a spike, sparse validation, a stretch of NaN, a late gradient norm."""
    rng = np.random.default_rng(3)
    step = np.arange(1, num_rows + 1)
    loss = 2 + 3 / (1 + step / 40) + rng.normal(0, 0.02, num_rows)
    loss[300:305] += 2.5
    loss[500:503] = np.nan
    norm = np.exp(rng.normal(-1, 0.1, num_rows))
    norm[296:305] *= 12
    return {
        "step": [float(s) for s in step],
        "loss": loss.tolist(),
        "grad_norm": [None if s < 20 else float(v) for s, v in zip(step, norm, strict=True)],
        "lr": [3e-4] * num_rows,
        "val_loss": [2.5 - s / 1e4 if s % 50 == 0 else None for s in step.tolist()],
    }


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "train.csv"
    given = columns()
    lines = [",".join(given)]
    for row in zip(*given.values(), strict=True):
        lines.append(",".join("" if v is None else "nan" if v != v else repr(v) for v in row))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def tr8(tmp_path: Path) -> Path:
    path = tmp_path / "tr8.log"
    path.write_text(print_log())
    return path


def judged(found: "trimtab.Analysis") -> list[dict[str, Any]]:
    (run,) = json.loads(json.dumps(found.to_dict()))["runs"]
    incidents: list[dict[str, Any]] = run["incidents"]
    return incidents


def test_analyze_gives_the_document_of_inspect(
    tr8: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", str(tr8)]) == 0
    assert trimtab.analyze(tr8).to_dict() == json.loads(capsys.readouterr().out)


def test_analyze_of_a_directory_concatenates_its_runs(tr8: Path, csv: Path) -> None:
    (csv.parent / "notes.bin").write_bytes(b"\x00\x01\x02")
    found = trimtab.analyze(csv.parent)
    assert [Path(run.path).name for run in found.runs] == ["tr8.log", "train.csv"]
    assert found.incidents == tuple(i for run in found.runs for i in run.incidents)
    assert len(found.attempts) == sum(len(run.attempts) for run in found.runs)
    assert found.verdict == "incident"
    assert found.errors == ()  # no log, and not damaged: counted in a note
    assert any("1 other file" in note for note in found.runs[-1].record.notes)


def test_analyze_of_a_record_equals_that_of_its_file(tr8: Path) -> None:
    (record,) = trimtab.read(tr8)
    assert trimtab.analyze(record).to_dict() == trimtab.analyze(tr8).to_dict()


@pytest.mark.parametrize(
    "how", ["mapping", "arrays", "pandas", "indexed", "nullable", "polars", "lazy"]
)
def test_analyze_of_columns_gives_the_incidents_of_the_file(how: str, csv: Path) -> None:
    source: object = columns()
    if how == "arrays":
        source = {
            k: np.ma.masked_invalid([np.nan if v is None else v for v in vs])
            if k != "loss"
            else np.array(vs)
            for k, vs in columns().items()
        }
    elif how in ("pandas", "indexed", "nullable"):
        pandas = pytest.importorskip("pandas")
        frame = pandas.read_csv(csv)
        if how == "indexed":
            frame = frame.set_index("step")
        if how == "nullable":
            frame = frame.astype({"grad_norm": "Float64", "val_loss": "Float64"})
        source = frame
    elif how in ("polars", "lazy"):
        polars = pytest.importorskip("polars")
        source = polars.read_csv(csv) if how == "polars" else polars.scan_csv(csv)
    found = trimtab.analyze(source)
    assert judged(found) == judged(trimtab.analyze(csv))
    assert {i["kind"] for i in judged(found)} >= {"non-finite"}
    assert found.runs[0].path == ""


def test_analyze_takes_nan_of_pandas_in_an_evaluation_row_for_missing(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    rows: list[dict[str, float]] = []
    for step in range(1, 401):
        rows.append(
            {"step": step, "loss": 3 - step / 1000 + float(rng.normal(0, 0.01)), "lr": 1e-3}
        )
        if step % 37 == 0 or step in (50, 90):  # at no regular distance
            rows.append({"step": step, "val_loss": 3.0 - step / 1000})
    found = trimtab.analyze(pandas.DataFrame(rows))
    assert found.verdict == "healthy"
    assert found.incidents == ()


def test_analyze_refuses_what_is_no_source() -> None:
    with pytest.raises(ReadError, match="int"):
        trimtab.analyze(3)
    with pytest.raises(ReadError, match="differ in length"):
        trimtab.analyze({"step": [1, 2], "loss": [1.0]})
    with pytest.raises(ReadError, match="no rows"):
        trimtab.analyze({"step": [], "loss": []})
    with pytest.raises(ReadError, match="sequence"):
        trimtab.analyze({"step": 3, "loss": [1.0]})


def test_analyze_takes_what_read_gives_and_no_empty_path(tr8: Path) -> None:
    found = trimtab.analyze(trimtab.read(tr8))
    assert judged(found) == judged(trimtab.analyze(tr8))
    with pytest.raises(ReadError, match="the path is empty"):
        trimtab.analyze("")


def test_analyze_reads_the_first_of_two_columns_of_one_name_as_of_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    calm, spiked = columns()["loss"], list(columns()["loss"])
    spiked[400:] = [9.0] * 200
    frame = pandas.DataFrame({"step": range(600), "loss": spiked, "other": calm})
    frame.columns = ["step", "loss", "loss"]
    frame.to_csv(tmp_path / "twice.csv", index=False)
    assert trimtab.analyze(frame).verdict == trimtab.analyze(tmp_path / "twice.csv").verdict
    assert trimtab.analyze(frame).verdict == "incident"


def test_analyze_reads_flags_of_a_table_as_it_reads_those_of_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns())[["step", "loss", "lr"]].dropna()
    frame["skipped"] = [i % 50 == 0 for i in range(len(frame))]
    frame.to_csv(tmp_path / "flags.csv", index=False)
    assert judged(trimtab.analyze(tmp_path / "flags.csv")) == judged(trimtab.analyze(frame))


def test_analyze_reads_keys_as_a_person_says(tmp_path: Path) -> None:
    own = dict(columns())
    own["zielwert"] = own.pop("loss")
    assert trimtab.analyze(own, columns={"loss": "zielwert"}).incidents
    rows = [dict(zip(own, values, strict=True)) for values in zip(*own.values(), strict=True)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = judged(trimtab.analyze(path, columns={"loss": "zielwert"}))
    assert named == judged(trimtab.analyze(columns()))
    for wrong in ({"los": "zielwert"}, {"loss": 5}, "loss=zielwert"):
        with pytest.raises(ConfigError, match="columns"):
            trimtab.analyze(path, columns=wrong)  # type: ignore[arg-type]


def test_analyze_and_watch_refuse_values_of_a_wrong_type(tr8: Path) -> None:
    found = trimtab.analyze(tr8)
    whats: list[tuple[Callable[[], object], str]] = [
        (lambda: found.plot(run=9), "run=9: expected 0 to 0"),
        (lambda: found.to_html(run=9), "run=9"),
        (lambda: found.stitched(run=9), "run=9"),
        (lambda: trimtab.analyze(tr8, detectors=5), "detectors=5"),  # type: ignore[arg-type]
        (lambda: trimtab.watch(tr8, interval_s="a"), "interval 'a'"),  # type: ignore[arg-type]
        (lambda: trimtab.watch(tr8, until_idle_s="a"), "until idle 'a'"),  # type: ignore[arg-type]
        (lambda: trimtab.watch(tr8, hang_factor=None), "hang None"),  # type: ignore[arg-type]
    ]
    for what, said in whats:
        with pytest.raises(ConfigError, match=said):
            what()


@pytest.mark.parametrize("num_rows", [16, 40, 100])
def test_a_log_that_is_over_has_the_same_verdict_watched_and_inspected(
    num_rows: int, tmp_path: Path
) -> None:
    noise = 0.01 * np.random.default_rng(0).normal(size=num_rows)
    losses = 0.5 + 2 * np.exp(-np.arange(num_rows) / 15) + noise
    rows = [f"{i + 1},{loss:.4f},{loss + 0.1:.4f}" for i, loss in enumerate(losses)]
    path = tmp_path / "history.csv"
    path.write_text("\n".join(["epoch,loss,val_loss", *rows]) + "\n")
    watch = trimtab.watch(path, until_idle_s=0, interval_s=0.01)
    list(watch)
    assert watch.account is not None
    assert watch.account.verdict == trimtab.analyze(path).verdict == "healthy"


def test_verdict_of_each_kind(tmp_path: Path) -> None:
    steps = list(range(1500))
    quiet = [3 - s / 10000 + (s * 7919 % 13) / 1000 for s in steps]
    healthy = trimtab.analyze({"step": steps, "loss": quiet})
    assert healthy.verdict == "healthy"
    short = trimtab.analyze({"step": steps[:5], "loss": quiet[:5]})
    assert short.verdict == "not-judged"
    assert trimtab.analyze({"step": steps, "grad_norm": quiet}).verdict == "not-judged"
    spiked = trimtab.analyze({"step": steps, "loss": [*quiet[:200], *[9.0] * 4, *quiet[204:]]})
    assert spiked.verdict == "incident"
    (run,) = spiked.runs
    calm = replace(run, incidents=tuple(replace(i, dismissed="known") for i in run.incidents))
    assert calm.verdict == "healthy"
    assert replace(run, ending=Ending(why="gave up")).verdict == "ended-badly"


def test_verdict_of_a_run_that_its_guard_gave_up(tmp_path: Path) -> None:
    (tmp_path / "signals").mkdir()
    event = '{"t": "2026-01-01T00:00:00Z", "event": "start", "attempt": "1.0", "step": 0}\n'
    (tmp_path / "journal.jsonl").write_text(event)
    rows = "".join(json.dumps({"step": s, "loss": 3 - s / 1000}) + "\n" for s in range(1, 200))
    (tmp_path / "signals" / "1.0.jsonl").write_text(rows)
    assert trimtab.analyze(tmp_path).verdict != "ended-badly"
    (tmp_path / "verdict.json").write_text(
        '{"schema": 1, "state": "given-up", "reason": "all NaN"}'
    )
    assert trimtab.analyze(tmp_path).verdict == "ended-badly"
    assert trimtab.analyze(tmp_path).runs[0].ended_badly == "all NaN"
    (tmp_path / "verdict.json").write_text("[1")
    assert trimtab.analyze(tmp_path).verdict != "ended-badly"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))


def test_repr_html_is_self_contained_and_escaped(tmp_path: Path) -> None:
    path = tmp_path / "<script>alert(1)</script>.csv".replace("/", "_")
    given = columns()
    path.write_text(
        "\n".join(
            [
                ",".join(given),
                *(
                    ",".join("" if v is None else str(v) for v in row)
                    for row in zip(*given.values(), strict=True)
                ),
            ]
        )
    )
    html = trimtab.analyze(path)._repr_html_()
    tags = Tags()
    tags.feed(html)
    assert {tag for tag, _ in tags.tags} <= {"div", "p", "b", "img", "table", "tr", "th", "td"}
    sources = [value for _, attrs in tags.tags for key, value in attrs if key in ("src", "href")]
    assert all(value is not None and value.startswith("data:") for value in sources)
    assert "incident" in html


def test_str_is_the_text_of_inspect(tr8: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = trimtab.analyze(tr8)
    assert "CRITICAL" in str(found)
    assert "unrecovered" not in repr(found)
    assert "incident" in repr(found)


def test_to_pandas_has_a_row_for_each_incident(tr8: Path) -> None:
    pytest.importorskip("pandas")
    found = trimtab.analyze(tr8)
    frame = found.to_pandas()
    assert list(frame["kind"]) == [i.kind for i in found.incidents]
    assert list(frame["onset"]) == [i.onset for i in found.incidents]
    assert frame["cause"].notna().all()


@pytest.mark.slow
def test_plot_draws_the_signals(tr8: Path, csv: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for path in (tr8, csv):
        figure = trimtab.analyze(path).plot()
        figure.savefig(tmp_path / "run.png")
        assert len(figure.axes) >= 2
        assert (tmp_path / "run.png").stat().st_size > 5000


def test_plot_of_several_runs_draws_the_worst_and_says_which() -> None:
    pytest.importorskip("matplotlib")
    loss = {"step": range(400), "loss": [2 - 0.001 * i for i in range(400)]}
    good = trimtab.analyze(loss).runs[0]
    broken = trimtab.analyze({**loss, "loss": [*loss["loss"][:300], *[math.nan] * 100]}).runs[0]
    figure = trimtab.Analysis(runs=(good, broken, good)).plot()
    title = figure.get_suptitle()
    assert f"{broken.verdict} (run=1, the worst of 3; 2 not drawn)" in title


def test_analyze_takes_a_frame_to_judge_against() -> None:
    pandas = pytest.importorskip("pandas")
    steps = range(400)
    low = {"step": steps, "loss": [2 - 0.001 * i for i in steps]}
    high = {"step": steps, "loss": [2.5 - 0.001 * i for i in steps]}
    found = trimtab.analyze(high, against=pandas.DataFrame(low))
    assert "0.5 above" in " ".join(str(found).split())
    assert "above" not in str(trimtab.analyze(high))


def test_to_html_is_the_page_of_the_report(tr8: Path, csv: Path) -> None:
    assert "<!doctype html>" in trimtab.analyze(tr8).to_html().lower()
    with pytest.raises(ConfigError, match="name one"):
        trimtab.analyze(tr8.parent).to_html()


def test_an_update_is_shown_in_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [f'{{"step": {i}, "loss": {2.0 if i < 90 else 9.0}}}' for i in range(120)]
    path.write_text("\n".join(rows) + "\n")
    updates = list(trimtab.watch(path, until_idle_s=0, interval_s=0.01))
    told = next(u for u in updates if u.incident is not None)
    assert told.record is not None
    assert repr(told) == f"Update(event={told.event!r}, text={told.text!r}, id={told.id})"
