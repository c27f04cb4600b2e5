"""The demo: healthy, faulty and guarded runs, a public log, one table and one page.

One table, one page.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.table import Table

from trimtab.analysis.assemble import events_of, make_account
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError
from trimtab.lab.demo_page import render_demo
from trimtab.lab.outcome import ScenarioOutcome
from trimtab.lab.run import run_scenario, run_unguarded
from trimtab.lab.scenarios import SCENARIOS, get_scenario, healthy_twin, training_settings
from trimtab.lab.text import load_text
from trimtab.readers import read_run
from trimtab.report.html import render_html
from trimtab.report.terminal import render_terminal
from trimtab.testing.tr8_104b import print_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from trimtab.analysis.account import RunAccount
    from trimtab.lab.scenarios import Scenario
    from trimtab.lab.text import Text

__all__ = ["run_demo"]

_MARK = ".trimtab-demo"


def run_demo(
    names: Sequence[str], seed: int, text_path: Path | None, out: Path, console: Console
) -> dict[str, object]:
    """Run the demo and return its figures as JSON values.

    Raises:
        ConfigError: No such scenario, or `out` holds something that is not a demo.
    """
    scenarios = [get_scenario(name) for name in names]
    started = time.perf_counter()
    text = load_text(text_path)
    work = _workspace(out)
    minutes = sum(s.expected_minutes for s in scenarios) + 1
    _say_line(
        console,
        f"about {minutes:.0f} minutes on two idle cores; {out} is replaced when all is done",
    )
    console.print(
        f"text: {text.source} · {len(text.train) / 1e6:.1f} MB to train on,"
        f" {len(text.validation) / 1e3:.0f} kB held out",
        markup=False,
    )
    console.print(
        f"      sha256 train {text.train_sha256[:16]} · held out {text.validation_sha256[:16]} ·"
        f" seed {seed}",
        markup=False,
    )
    twins: dict[Scenario, tuple[float, list[float]]] = {}
    account = _inspect_public_log(work, console)
    outcomes = [_run_one(s, seed, text, work, twins, console) for s in scenarios]
    RunDirectory(work).report.write_text(
        render_demo(outcomes, account, text=text, seed=seed), encoding="utf-8"
    )
    _replace(out, work, console)
    page = RunDirectory(out if not work.exists() else work).report
    console.rule("what the guard did, and what came of it", align="left")
    for o in outcomes:
        for line in _actions(o):
            _say_line(console, line)
    minutes = (time.perf_counter() - started) / 60
    _say_line(console, f"report: {page}    all in {minutes:.1f} min")
    console.print(_table(outcomes))  # last: what a reader wants to see when it is done
    return {
        "schema": 1,
        "seed": seed,
        "text": {
            "source": text.source,
            "train_sha256": text.train_sha256,
            "validation_sha256": text.validation_sha256,
        },
        "scenarios": [_row(o) for o in outcomes],
        "report": str(page),
    }


def _workspace(out: Path) -> Path:
    """Return an empty folder beside `out` to work in; an earlier demo stays until this one is done.

    Raises:
        ConfigError: `out` holds files that no demo made, or cannot be written beside.
    """
    work = out.with_name(out.name + ".partial")
    for folder in (out, work):
        if folder.is_symlink() or (
            folder.exists() and not (folder.is_dir() and _made_by_demo(folder))
        ):
            raise ConfigError(f"{folder}: holds files that are no demo; choose another --out")
    try:
        # Of a demo that was broken off: `_made_by_demo` has been asked above.
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        (work / _MARK).touch()
    except OSError as error:
        raise ConfigError(
            f"{work}: cannot be written ({error.strerror}); choose another --out"
        ) from error
    return work


def _made_by_demo(folder: Path) -> bool:
    """Tell whether a folder is empty or holds what a demo makes, and nothing else."""
    ours = {_MARK, "report.html", "tr8-104b.log", *(s.name for s in SCENARIOS)}
    names = {p.name for p in folder.iterdir()}
    return not names or (_MARK in names and names <= ours)


def _replace(out: Path, work: Path, console: Console) -> None:
    """Put the finished demo in the place of the earlier one."""
    if out.exists():
        if not _made_by_demo(out):  # files came in while the demo ran
            _say_line(console, f"{out} holds other files now; this demo stays in {work}")
            return
        shutil.rmtree(out)
    work.rename(out)


def _actions(o: ScenarioOutcome) -> list[str]:
    """Return what the guard did and why, a line each."""
    actions = [f"  step {a['step']}: {a['remedy']}: {a['why']}" for a in o.act.actions]
    return [f"{o.scenario.name}", *(actions or ["  nothing was done: the run was left alone"])]


def _run_one(
    scenario: Scenario,
    seed: int,
    text: Text,
    out: Path,
    twins: dict[Scenario, tuple[float, list[float]]],
    console: Console,
) -> ScenarioOutcome:
    console.rule(f"{scenario.name}: {scenario.title}", align="left")
    twin = healthy_twin(scenario)
    healthy = get_scenario("healthy")
    # Scenarios with the same settings share one twin, a third of each one's runs.
    key = healthy if training_settings(twin) == training_settings(healthy) else twin
    if key not in twins:
        twins[key] = run_unguarded(key, seed, text, on_step=_progress("healthy   "))
    reference, twin_losses = twins[key]
    _say_line(console, f"(a) healthy    validation loss {reference:.4f}")
    off = run_scenario(
        scenario.name,
        seed,
        "off",
        text,
        out,
        reference_loss=reference,
        on_step=_progress("no guard  "),
    )
    _say_line(
        console, f"(b) no guard   validation loss {off.final_loss:.4f}   ratio {off.ratio:.4f}"
    )
    run = out / scenario.name
    act = run_scenario(
        scenario.name,
        seed,
        "act",
        text,
        run,
        reference_loss=reference,
        say=lambda line: _say_line(console, f"    {line}"),
        on_step=_progress("guarded   "),
    )
    _say_line(
        console,
        f"(c) guarded    validation loss {act.final_loss:.4f}   ratio {act.ratio:.4f}   wasted"
        f" {act.wasted_steps:.1%}",
    )
    account = make_account(read_run(run), events=events_of(run))
    RunDirectory(run).report.write_text(
        render_html(account, title=f"{scenario.name}, seed {seed}, guarded"), encoding="utf-8"
    )
    return ScenarioOutcome(
        scenario=scenario,
        twin_losses=tuple(twin_losses),
        off=off,
        act=act,
        account=account,
        run=scenario.name,
    )


def _inspect_public_log(out: Path, console: Console) -> RunAccount:
    """Print the re-typed lines of a public log as its framework did, and inspect them."""
    log = out / "tr8-104b.log"
    log.write_text(print_log(), encoding="utf-8")
    console.rule(f"trimtab inspect {log}   (BigScience tr8-104B, 2021)", align="left")
    started = time.perf_counter()
    record = read_run(log)
    account = make_account(record, read_s=time.perf_counter() - started)
    console.print(render_terminal(account))
    return account


def _say_line(console: Console, line: str) -> None:
    console.print(line, markup=False)


def _progress(name: str) -> Callable[[int, int, float], None] | None:
    """Return a progress line for people; every 200 steps a plain line where nobody watches."""
    watched = sys.stderr.isatty()
    # The loss of one small batch jumps about; a person wants to see where it goes.
    recent: deque[float] = deque(maxlen=31)
    furthest = 0

    def show(step: int, steps: int, loss: float) -> None:
        nonlocal furthest
        recent.append(loss)
        if step <= furthest:  # replayed after a rollback
            return
        furthest = step
        line = f"    {name} step {step:>5}/{steps}  loss {statistics.median(recent):.3f}"
        if watched and (step % 10 == 0 or step == steps):
            sys.stderr.write(line + ("  \r" if step < steps else "\r\033[K"))
            sys.stderr.flush()
        elif not watched and step % 300 == 0:
            sys.stderr.write(line + "\n")

    return show


def _row(o: ScenarioOutcome) -> dict[str, object]:
    return {
        "off": o.off.to_json(),
        "act": o.act.to_json(),
        "gap_closed": o.gap_closed,
        "run": o.run,
    }


def _table(outcomes: Sequence[ScenarioOutcome]) -> Table:
    table = Table(title="final validation loss, nats per token", title_justify="left")
    table.add_column("scenario", no_wrap=True)
    for name in ("(a) healthy", "(b) no guard", "(c) guarded", "wasted"):
        table.add_column(name, justify="right")
    for o in outcomes:
        table.add_row(
            o.scenario.name,
            f"{o.off.reference_loss:.4f}",
            f"{o.off.final_loss:.4f} (x{o.off.ratio:.3f})",
            f"{o.act.final_loss:.4f} (x{o.act.ratio:.3f})",
            f"{o.act.wasted_steps:.1%}",
        )
    return table
