"""Files and figures that nobody means to give: one clear error each, and no waiting."""

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.analysis.source import store

Run = Callable[..., tuple[int, str, str]]


def rows(
    loss: Callable[[int], float] = lambda i: 4.0 if 200 <= i < 205 else 3.0 + i % 7 / 100,
) -> str:
    return "".join(f"{json.dumps({'step': i, 'loss': loss(i)})}\n" for i in range(400))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text(rows())
    return path


def test_pipes_and_devices_are_refused_at_once(run: Run, log: Path) -> None:
    pipe = log.with_name("pipe.yaml")
    os.mkfifo(pipe)
    for arguments in (
        ("preflight", pipe),
        ("preflight", "/dev/zero"),
        ("inspect", log, "--config", pipe),
        ("compare", log, log, "--configs", pipe, pipe),
    ):
        code, _, err = run(*arguments)
        assert (code, "not a regular file" in err) == (2, True), arguments


def test_a_torn_line_in_the_store_spoils_no_later_dismissal(run: Run, log: Path) -> None:
    store().parent.mkdir(parents=True, exist_ok=True)
    store().write_text('{"t": "2026')
    assert run("dismiss", log, "A", "--why", "data change")[0] == 0
    assert "data change" in run("inspect", log)[1]


def test_a_store_that_is_a_pipe_is_not_waited_for(run: Run, log: Path) -> None:
    store().parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(store())
    assert run("inspect", log)[0] == 0
    code, _, err = run("dismiss", log, "A", "--why", "fine")
    assert (code, "not a regular file" in err) == (2, True)


def test_a_damaged_file_in_a_folder_hides_no_other(run: Run, log: Path) -> None:
    folder = log.with_name("among")
    folder.mkdir()
    (folder / "ok.jsonl").write_text(rows())
    packed = bytearray(lzma.compress(b"<table>" + os.urandom(1 << 18)))
    packed[1 << 17] ^= 255
    (folder / "bad.html.xz").write_bytes(packed)
    code, out, err = run("similar", log, "A", "--among", folder, "--json")
    assert (code, len(json.loads(out)["among"])) == (2, 1)
    assert err.count("trimtab: ") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "LOG", "--at", "nan"], "at nan"),
        (["compare", "LOG", "--at", "inf"], "at inf"),
        (["similar", "LOG", "A", "--among", "LOG", "--most", "0"], "--most 0"),
        (["dismiss", "LOG", "A", "--why", ""], "no reason given"),
        (["watch", "LOG", "--exec", ""], "--exec: empty"),
        (["inspect", "LOG", "--html", "/dev/full"], "cannot be written"),
        (["inspect", "EMPTY"], "no log in this directory"),
        (["explain", "a" * 100_000], "no kind, cause"),
    ],
)
def test_refused_in_its_own_words(run: Run, log: Path, arguments: list[str], told: str) -> None:
    empty = log.with_name("empty")
    empty.mkdir()
    code, _, err = run(*({"LOG": log, "EMPTY": empty}.get(a, a) for a in arguments))
    assert code == 2
    assert told in err
    assert "--out" not in err
    assert len(err) < 1000


def test_a_file_that_is_there_wins_over_an_attempt(run: Run, log: Path) -> None:
    odd = log.with_name("train@1.0")
    odd.write_text(rows())
    assert run("compare", odd, log)[0] == 0


@pytest.mark.slow
def test_the_head_of_a_long_output_is_no_error(log: Path) -> None:
    command = [sys.executable, "-m", "trimtab", "inspect", *[str(log)] * 8]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip()  # a width of 0 is no width
        process.stdout.close()
    assert process.returncode == 0


@pytest.mark.slow
def test_losses_of_inf_leave_stderr_empty(log: Path) -> None:
    log.write_text(rows(lambda i: (float("inf"), 1e308, -1e308, float("nan"))[i % 4]))
    command = [sys.executable, "-m", "trimtab", "inspect", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.slow
def test_variables_that_double_and_endless_options_end(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    doubling = "".join(f"A{i + 1}=$A{i}$A{i}$A{i}$A{i}\n" for i in range(30))
    script.write_text(f"A0=xxxxxxxxxx\n{doubling}python train.py --lr $A30 --num-layers 12\n")
    assert run("preflight", script)[0] == 0
    script.write_text("python train.py " + " ".join(f"--x{i} {i}" for i in range(20_000)))
    code, _, err = run("preflight", script)
    assert (code, "more than 10000 words" in err) == (2, True)


def test_a_batch_of_next_to_nothing_overflows_nothing(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("global_batch_size: 1e-320\ntrain_samples: 1e8\nlr: 3e-4\nnum_layers: 24\n")
    assert run("preflight", config)[0] in (0, 1)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_columns_in_other_words_are_read_as_a_person_says(run: Run, log: Path, form: str) -> None:
    data = [json.loads(line) for line in log.read_text().splitlines()]
    foreign = log.with_name(f"fremd.{form}")
    lines = {
        "csv": ["Zug,Zeug", *(f"{d['step']},{d['loss']}" for d in data)],
        "jsonl": [json.dumps({"Zug": d["step"], "Zeug": d["loss"]}) for d in data],
    }[form]
    foreign.write_text("\n".join(lines) + "\n")
    code, _, err = run("inspect", foreign)
    assert code == 2, err
    code, out, err = run("inspect", foreign, "--json", "--columns", "loss=Zeug,step=Zug")
    found, known = json.loads(out)["runs"][0], json.loads(run("inspect", log, "--json")[1])
    assert (code, found["rows"]) == (0, 400), err
    kinds = [(i["kind"], i["onset"], i["onset_row"]) for i in found["incidents"]]
    assert kinds == [(i["kind"], i["onset"], i["onset_row"]) for i in known["runs"][0]["incidents"]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("loss", "'loss' is not NAME=COLUMN"),
        ("los=loss", "no signal is called 'los'"),
        ("lr=rate", "no column 'rate' for 'lr'; found 'loss'"),
    ],
)
def test_a_column_that_is_not_there_is_named(run: Run, log: Path, given: str, told: str) -> None:
    code, _, err = run("inspect", log, "--columns", given)
    assert code == 2
    assert told in err


def test_a_column_that_a_table_lacks_is_named(run: Run, log: Path) -> None:
    table = log.with_name("german.csv")
    table.write_text("Schritt;Verlust\n" + "".join(f"{i};{3 - i / 100}\n" for i in range(99)))
    code, _, err = run("inspect", table, "--columns", "loss=Quatsch")
    assert code == 2
    assert "no column 'quatsch' for 'loss'; found 'Schritt', 'Verlust'" in err


def test_a_log_without_a_loss_fails_where_it_must_be_judged(run: Run, log: Path) -> None:
    table = log.with_name("rates.csv")
    table.write_text("step,lr\n" + "".join(f"{i},0.001\n" for i in range(300)))
    assert run("inspect", table, "--fail-on", "not-judged")[0] == 1
