"""`compare`: identical until where, what differs first, who is worse, and by how much."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run, parse
from trimtab import compare

Row = dict[str, float]
Edit = Callable[[Row], None]


def rows_of(seed: int = 0, *, order: int = 0, steps: int = 600) -> list[Row]:
    """A healthy run; `order` is another order of the same data, so other noise on one curve."""
    rng = np.random.default_rng([seed, order])
    noise, norm = rng.standard_normal(steps), rng.standard_normal(steps)
    return [
        {
            "step": s,
            "loss": 2.2 + 3 * math.exp(-s / 120) + 0.02 * float(noise[s - 1]),
            "grad_norm": 0.4 * math.exp(0.1 * float(norm[s - 1])),
            "lr": 1e-3 * min(1.0, s / 50),
        }
        for s in range(1, steps + 1)
    ]


def write(path: Path, rows: list[Row], edit: Edit | None = None) -> Path:
    for row in rows:
        if edit is not None:
            edit(row)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def jump(row: Row) -> None:
    """The rate ×30 from step 241 on, the loss 0.8 higher after a while."""
    if row["step"] > 240:
        row["lr"] *= 30
    if row["step"] > 245:
        row["loss"] += min(0.8, 0.05 * (row["step"] - 245))


def test_identical_until_a_step_then_the_rate_differs_first(run: Run, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", rows_of())
    bad = write(tmp_path / "bad.jsonl", rows_of(), jump)
    code, text, _ = run("compare", good, bad)
    assert code == 0
    head = text.splitlines()[1]
    assert "bad.jsonl is worse" in head
    assert "identical until step 240" in text
    assert "no setting" not in text
    told = parse(run("compare", good, bad, "--json")[1])
    first = told["first_difference"]
    assert (first["identical_until"], first["at"]) == (240, 241)
    assert [s["signal"] for s in first["signals"]] == ["lr"]
    assert first["signals"][0]["ratio"] == pytest.approx(30)
    assert "learning rate, logged" in {c["key"] for c in told["changed"]}
    assert told["worse"] == "b"
    assert told["worse_by"] == pytest.approx(0.8, abs=0.05)
    assert 240 < told["apart_from"] <= 270


@pytest.mark.parametrize("swapped", [False, True])
def test_the_healthy_run_is_never_accused(run: Run, tmp_path: Path, *, swapped: bool) -> None:
    """The bad run spikes and falls back, so its slope is steep; the healthy one is not slow."""

    def spoilt(row: Row) -> None:
        if row["step"] >= 380:
            row["loss"] += 3.0 * math.exp(-(row["step"] - 380) / 120) + 0.3

    pair = (
        write(tmp_path / "good.jsonl", rows_of()),
        write(tmp_path / "bad.jsonl", rows_of(order=1), spoilt),
    )
    text = run("compare", *(pair[::-1] if swapped else pair))[1]
    assert "more slowly" not in text
    assert "no longer falls" not in text
    accused = [line for line in text.splitlines() if line.startswith("●")]
    assert accused
    assert all("good.jsonl" not in line.split(" worse")[0] for line in accused)


def test_another_order_of_data_is_no_difference_beyond_noise(run: Run, tmp_path: Path) -> None:
    for seed in range(5):
        one = write(tmp_path / "one.jsonl", rows_of(seed))
        two = write(tmp_path / "two.jsonl", rows_of(seed, order=1))
        told = parse(run("compare", one, two, "--json")[1])
        assert told["worse"] is None
        assert told["apart_from"] is None
        assert told["first_difference"]["identical_until"] is None
        assert "no difference beyond noise" in run("compare", one, two)[1]


def test_two_equal_logs_are_identical(run: Run, tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{n}.jsonl", rows_of()) for n in "ab")
    told = parse(run("compare", one, two, "--json")[1])
    assert told["first_difference"]["at"] is None
    assert told["first_difference"]["identical_until"] == 600
    assert "identical in all 600 rows" in run("compare", one, two)[1]


def test_infinite_beside_finite_is_a_difference(tmp_path: Path) -> None:
    steps = list(range(1, 101))
    loss = [2.0 + 0.01 * (s * 37 % 11) for s in steps]
    broken = [*loss[:60], math.inf, *loss[61:]]
    found = compare({"step": steps, "loss": loss}, {"step": steps, "loss": broken})
    first = found.sides.first_difference if found.sides is not None else None
    assert first is not None
    assert first.at == 61
    assert first.identical_until == 60
    nan = [*loss[:60], math.nan, *loss[61:]]
    same = compare({"step": steps, "loss": nan}, {"step": steps, "loss": nan})
    assert same.sides is not None
    assert same.sides.first_difference is not None
    assert same.sides.first_difference.at is None


def test_a_run_that_ends_in_nan_is_worse_than_one_that_does_not(tmp_path: Path) -> None:
    steps = list(range(1, 201))
    loss = [3.0 - 0.005 * s + 0.01 * (s * 37 % 11) for s in steps]
    found = compare(
        {"step": steps, "loss": loss}, {"step": steps, "loss": [*loss[:150], *[math.nan] * 50]}
    )
    assert found.sides is not None
    assert found.sides.worse == "b"
    assert "NaN" in str(found)


def test_the_place_of_data_is_named(run: Run, tmp_path: Path) -> None:
    def fed(skip: float) -> Edit:
        def edit(row: Row) -> None:
            row["samples_seen"] = 32 * row["step"] + (skip if row["step"] > 300 else 0)
            if row["step"] > 300 and skip:
                row["loss"] += 0.001

        return edit

    one = write(tmp_path / "one.jsonl", rows_of(), fed(0))
    two = write(tmp_path / "two.jsonl", rows_of(), fed(6400))
    first = parse(run("compare", one, two, "--json")[1])["first_difference"]
    assert first["at"] == 301
    assert {"samples_seen", "loss"} == {s["signal"] for s in first["signals"]}
    assert first["what"] == "data"


def test_three_runs_are_compared_with_the_first(run: Run, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.jsonl", rows_of()),
        write(tmp_path / "b.jsonl", rows_of(order=1)),
        write(tmp_path / "c.jsonl", rows_of(), jump),
    ]
    code, text, _ = run("compare", *paths)
    assert code == 0
    told = parse(run("compare", *paths, "--json", "--html", tmp_path / "p.html")[1])
    assert [o["b"] for o in told["others"]] == [str(paths[2])]
    assert told["others"][0]["worse"] == "b"
    assert told["ranking"][-1]["run"].endswith("c.jsonl")
    assert "c.jsonl is worse" in text
    page = (tmp_path / "p.html").read_text()
    assert all(f"{n}.jsonl" in page for n in "abc")
    assert len(compare(*paths).others) == 1


@pytest.mark.slow
def test_inspect_judges_a_run_by_a_reference(run: Run, tmp_path: Path) -> None:
    """A run that learns more slowly from the start shows nothing by itself."""

    def slow(row: Row) -> None:
        row["loss"] += 0.25 * (1 - math.exp(-row["step"] / 200))

    good = write(tmp_path / "good.jsonl", rows_of())
    bad = write(tmp_path / "bad.jsonl", rows_of(order=1), slow)
    assert parse(run("inspect", bad, "--json")[1])["runs"][0]["incidents"] == []
    code, out, _ = run("inspect", bad, "--against", good, "--json", "--fail-on", "warning")
    (incident,) = parse(out)["runs"][0]["incidents"]
    assert code == 1
    assert incident["kind"] == "behind-reference"
    assert incident["severity"] == "warning"
    assert incident["onset"] < 200
    assert "good.jsonl" in incident["headline"]
    # and the healthy twin of it is left alone, whichever order its data came in
    for order in range(1, 6):
        twin = write(tmp_path / "twin.jsonl", rows_of(order=order))
        assert (
            parse(run("inspect", twin, "--against", good, "--json")[1])["runs"][0]["incidents"]
            == []
        )


def test_a_setting_that_differs_from_the_reference_is_the_cause(run: Run, tmp_path: Path) -> None:
    """Nobody is told to lower a rate that is a tenth of the reference's."""

    def rate(peak: float, slower: float) -> Callable[[Row], None]:
        def change(row: Row) -> None:
            row["lr"] = peak * min(1.0, (row["step"] + 1) / 50)
            row["loss"] += slower * (1 - math.exp(-row["step"] / 200))

        return change

    good = write(tmp_path / "good.jsonl", rows_of(), rate(1e-3, 0.0))
    low = write(tmp_path / "low.jsonl", rows_of(order=1), rate(1e-4, 0.25))
    (found,) = parse(run("inspect", low, "--against", good, "--json")[1])["runs"][0]["incidents"]
    assert found["causes"][0]["cause"] == "differs-from-reference"
    assert "lr 0.1 times that of good.jsonl" in found["causes"][0]["evidence"][0]
    remedy, *_ = found["plan"]
    assert remedy["remedy"] == "as-reference"
    assert remedy["values"] == {"factor of lr": pytest.approx(10)}
    # a schedule that is a row further differs by less than what counts
    same = write(tmp_path / "same.jsonl", rows_of(order=1), rate(1.01e-3, 0.25))
    (found,) = parse(run("inspect", same, "--against", good, "--json")[1])["runs"][0]["incidents"]
    assert found["causes"][0]["cause"] != "differs-from-reference"


def test_a_passing_excursion_above_the_reference_ends(run: Run, tmp_path: Path) -> None:
    def passing(row: Row) -> None:
        if 300 <= row["step"] < 380:
            row["loss"] += 0.15

    good = write(tmp_path / "good.jsonl", rows_of())
    bad = write(tmp_path / "bad.jsonl", rows_of(order=1), passing)
    found = parse(run("inspect", bad, "--against", good, "--json")[1])["runs"][0]["incidents"]
    behind = [i for i in found if "behind-reference" in (i["kind"], *i["also"])]
    assert len(behind) == 1
    assert abs(behind[0]["onset"] - 300) <= 16
    assert behind[0]["end"] is not None
    assert abs(behind[0]["end"] - 380) <= 20


def test_against_says_what_is_wrong_with_the_reference(run: Run, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", rows_of())
    code, _, err = run("inspect", good, "--against", tmp_path / "none.jsonl")
    assert code == 2
    assert err.count("\n") == 1
    assert "none.jsonl" in err


def test_a_gap_that_stays_is_told_beside_a_run_that_had_a_spike_before(
    run: Run, tmp_path: Path
) -> None:
    """As long as the way back from the spike lasts, it is most of what the gaps differ by."""
    rng = np.random.default_rng(0)
    loss = 1.5 + rng.normal(0, 0.05, 400)
    spoilt, offset = loss.copy(), loss.copy()
    since = np.arange(201) / 25
    spoilt[199:] += 2.6 * np.exp(-since)
    offset[199:] += 0.3 + rng.normal(0, 0.08, 201)
    logs = [tmp_path / "spike.jsonl", tmp_path / "offset.jsonl"]
    for log, values in zip(logs, (spoilt, offset), strict=True):
        rows = ({"step": k + 1, "loss": float(x)} for k, x in enumerate(values))
        log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    told = parse(run("compare", *logs, "--json")[1])
    assert told["worse"] == "b"
    assert told["worse_by"] == pytest.approx(0.3, abs=0.05)
    assert 220 <= told["apart_from"] <= 300
    assert "no difference" not in run("compare", *logs)[1]


def test_what_validation_tells_apart_is_no_equality() -> None:
    """Twins of other data order agree in all signals; a run whose validation failed does not."""

    def sides(every: int, fault: float) -> list[dict[str, list[float]]]:
        runs = []
        for order, score in ((0, 0.95), (1, 0.95 - fault)):
            rng = np.random.default_rng([7, order])
            rows = rows_of(order=order)
            run = {name: [row[name] for row in rows] for name in rows[0]}
            run["val_loss"] = [
                row["loss"] - 1 + score + 0.02 * float(rng.standard_normal())
                if row["step"] % every == 0
                else math.nan
                for row in rows
            ]
            runs.append(run)
        return runs

    for every in (10, 80):
        a, b = sides(every, 0.0)
        assert "no difference beyond noise" in str(compare(a, b))
        a, b = sides(every, 0.94)
        found = compare(a, b)
        assert found.sides is not None
        assert [(x.signal, x.worse) for x in found.sides.apart] == [("val_loss", "a")]
        assert "(a) is worse: val loss 2.1" in found.sides.verdict


def test_a_run_that_learns_by_heart_is_worse_by_the_data_that_are_held_out(tmp_path: Path) -> None:
    epochs = np.arange(60)
    noise = np.random.default_rng(0).normal(0, 0.01, (4, 60))
    sound = 0.5 + 0.8 * np.exp(-epochs / 8) + noise[0], 0.45 + 0.8 * np.exp(-epochs / 8) + noise[1]
    learnt = 1.2 * np.exp(-epochs / 2.5) + 0.01, 1.2 + 3 * (1 - np.exp(-epochs / 9)) + noise[2]
    for name, (train, held_out) in {"sound.csv": sound, "learnt.csv": learnt}.items():
        share = np.exp(-train) + 0.2 * noise[3]
        rows = [
            f"{e},{x:.4f},{y:.4f},{s:.4f}"
            for e, (x, y, s) in enumerate(zip(train, held_out, share, strict=True), 1)
        ]
        (tmp_path / name).write_text("\n".join(["ep,tr_loss,va_loss,tr_acc", *rows]) + "\n")
    sides = compare(tmp_path / "sound.csv", tmp_path / "learnt.csv").sides
    assert sides is not None
    said = sides.verdict
    assert said.startswith("learnt.csv is worse: val loss")
    assert "by the training loss alone sound.csv is worse" in said


def test_numbers_under_unknown_keys_are_compared_and_what_was_not_is_named(
    run: Run, tmp_path: Path
) -> None:
    def averaged(level: float) -> Edit:
        def edit(row: Row) -> None:
            row["data_s"] = 0.001 + 1e-5 * (row["step"] % (3 if level else 5))
            if row["step"] % 30 == 0:
                row["probe/gap"] = level or 2.0 / row["step"]

        return edit

    good = write(tmp_path / "good.jsonl", rows_of(), averaged(0.0))
    bad = write(tmp_path / "bad.jsonl", rows_of(), averaged(2.302))
    told = parse(run("compare", good, bad, "--json")[1])
    assert "no difference" not in told["verdict"]
    assert "probe/gap" in told["verdict"]
    assert told["first_difference"]["at"] == 30
    assert told["worse"] is None
    (apart,) = told["apart"]
    assert apart["b"] == pytest.approx(2.302)
    assert any("probe/gap" in n and "2.302" in n for n in told["notes"])

    def late(row: Row) -> None:
        row["x_time"] = 1.0 if row["step"] < 9 else 2.0

    same = [write(tmp_path / f"{n}.jsonl", rows_of(), late) for n in "ab"]
    told = parse(run("compare", *same, "--json")[1])
    assert told["not_compared"] == ["x_time"]
    assert told["verdict"] == "no difference at all in what was compared"


@pytest.mark.parametrize(("factor", "slow"), [(1.0, False), (1.1, False), (2.7, True)])
def test_a_pace_that_differs_is_said_apart_from_the_loss(
    run: Run, tmp_path: Path, *, factor: float, slow: bool
) -> None:
    def paced(seed: int, factor: float) -> Edit:
        draw = np.random.default_rng(seed)

        def edit(row: Row) -> None:
            later = factor if row["step"] > 300 else 1.0
            row["step_time_s"] = 0.01 * later * math.exp(0.3 * float(draw.standard_normal()))

        return edit

    one = write(tmp_path / "one.jsonl", rows_of(), paced(1, 1.0))
    two = write(tmp_path / "two.jsonl", rows_of(), paced(2, factor))
    told = parse(run("compare", one, two, "--json")[1])
    assert (told["pace"] is not None) is slow
    assert told["worse"] is None
    if slow:
        assert told["pace"]["ratio"] == pytest.approx(2.7, rel=0.1)
        assert abs(told["pace"]["since"] - 301) <= 20
        assert "identical" in told["verdict"]
        assert "two.jsonl is 2." in told["verdict"]


def test_an_agent_is_judged_by_its_reward_and_its_loss_has_no_unit(
    run: Run, tmp_path: Path
) -> None:
    def agent(name: str, every: int, reward: float, loss: float) -> Path:
        draw = np.random.default_rng(every)
        lines = [
            {
                "step": s,
                "td_loss": loss * math.exp(0.1 * float(draw.standard_normal())),
                "return": reward * s / 6000 + 0.1 * float(draw.standard_normal()),
            }
            for s in range(every, 6000, every)
        ]
        return write(tmp_path / name, lines)

    # The worse one has the lower loss; it is worse all the same.
    good, bad = agent("good.jsonl", 20, 0.6, 0.05), agent("bad.jsonl", 30, -0.6, 0.01)
    told = parse(run("compare", good, bad, "--json")[1])
    assert told["worse"] == "b"
    assert told["verdict"].startswith("bad.jsonl is worse: reward")
    assert told["means"]["reward"]["b"] < 0 < told["means"]["reward"]["a"]
    assert told["unit"] is None
    assert "nats" not in run("compare", good, bad)[1]
    assert not any(
        i["kind"] == "behind-reference"
        for i in parse(run("inspect", good, "--against", bad, "--json")[1])["runs"][0]["incidents"]
    )


def test_a_gap_of_nothing_is_not_said(run: Run, tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{n}.jsonl", rows_of()) for n in "ab")
    assert "lies 0" not in " ".join(run("inspect", two, "--against", one)[1].split())
    assert "+0 nats" not in run("compare", one, two)[1]


@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_a_pace_is_compared_by_the_clocks_of_the_rows(slower: float) -> None:
    """Whole seconds, as most loggers write them, in rows that take less than one."""
    steps = np.arange(1.0, 401)
    loss = 2 + 3 * np.exp(-steps / 100)
    pace = np.where(steps > 200, 0.8 * slower, 0.8)
    sides = [
        {"step": steps, "loss": loss, "wall_time_s": np.floor(np.cumsum(p))}
        for p in (0.8 + 0 * pace, pace)
    ]
    said = str(compare(*sides))
    assert ("times as slow" in said) is (slower > 1)
