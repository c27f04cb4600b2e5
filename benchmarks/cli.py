"""`python -m benchmarks PART`, also `trimtab bench PART`: detection, cost and speed.

One function per part; to add one, write `_add_NAME(parts)` and put it into `_PARTS`.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    cli_crash,
    cli_domains,
    cli_drill,
    cli_everyday,
    cli_fuzz,
    cli_goodput,
    cli_guard,
    cli_lineage,
    cli_page,
    cli_read,
    cli_slurm,
    cli_surgery,
    cli_trust,
)
from benchmarks.causes.command import add_causes
from benchmarks.confidence_levels import level_figures, levels_text, stated_alarms
from benchmarks.cross_validate import cross_validate
from benchmarks.detect import detect
from benchmarks.leave_out import left_out_text, score_left_out
from benchmarks.live_replay import MOST_ROWS, live_text, replay_live
from benchmarks.logs.calibration import reliability, reliability_table, simulate_pairs
from benchmarks.manifest import read_manifest
from benchmarks.noise import measure_noise
from benchmarks.peers.table import UNFED
from benchmarks.predictions import Prediction, write_predictions
from benchmarks.reliability import calibration_error
from benchmarks.scan_speed import measure_scan, scan_text
from benchmarks.self_test_power import measure_power, power_table
from benchmarks.tables import cross_validation_text, detection_text, noise_text
from benchmarks.trust import cli_power
from trimtab.cli.lab_options import whole_number
from trimtab.cli.output import print_json, tell_error
from trimtab.errors import ConfigError, TrimtabError

__all__ = ["add", "main"]

FIRST_SEED = 100


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `bench` of `trimtab` and its parts."""
    parser = commands.add_parser(
        "bench", help="measure trimtab beside the published rules of others, and other readers"
    )
    _add_parts(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part and return its exit code; an error of ours is one line on stderr, and 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures trimtab, and others on the same data."
    )
    _add_parts(parser)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except TrimtabError as error:
        tell_error(error)
        return 2
    return code


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(title="parts", metavar="PART", required=True)
    for add_part in _PARTS:
        add_part(parts)


def _add_detect(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = parts.add_parser("detect", help="on labelled logs: recall, precision, false alarms")
    parser.add_argument(
        "--corpus",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder with manifest.jsonl and the logs it names (docs/formats.md)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--write-predictions", metavar="FILE", type=Path, help="also write trimtab's lines here"
    )
    parser.add_argument(
        "--write-peers", metavar="DIR", type=Path, help="and the lines of each peer, a file each"
    )
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="also move the thresholds and score each repository under those chosen without it",
    )
    parser.add_argument(
        "--leave-out",
        action="store_true",
        help="also score each repository without the rules that it alone suggested (origins/)",
    )
    parser.add_argument(
        "--live",
        metavar="ROWS",
        nargs="?",
        const=MOST_ROWS,
        type=whole_number(1, 1_000_000),
        help="only replay logs, of up to ROWS records, as they grew: delays, alerts withdrawn,"
        " alarms a week",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="with --live: keep each log's alerts here, and go on where a run was stopped",
    )
    parser.set_defaults(run=_detect)


def _add_noise(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = parts.add_parser("noise", help="on made-up runs: events caught, false alarms on noise")
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=20, help="runs per case, from seed 100 on"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_noise)


def _add_calibration(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = parts.add_parser(
        "calibration", help="on made-up runs: how often alarms are right, by how sure they were"
    )
    parser.add_argument(
        "--corpus",
        metavar="DIR",
        type=Path,
        help="instead on labelled logs: the levels, cross-validated over repositories",
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=20, help="seeds, from 100 on; some 8 s each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_calibration)


def _calibration(arguments: argparse.Namespace) -> int:
    progress = _Progress()
    if arguments.corpus is not None:
        alarms = stated_alarms(arguments.corpus, say=progress.say)
        progress.end()
        figures = level_figures(alarms)
        if arguments.json:
            print_json({"schema": 1, "levels": [dataclasses.asdict(f) for f in figures]})
        else:
            print(levels_text(figures, alarms))
        return 0
    seeds = _seeds(arguments.seeds)
    pairs: list[tuple[float, bool]] = []
    for seed in seeds:
        progress.say(f"seed {seed}: {len(pairs)} alarms so far")
        pairs += [(p.confidence, p.right) for p in simulate_pairs([seed])]
    progress.end()
    if arguments.json:
        rows = [{"said": s, "right": r, "alarms": n} for s, r, n in reliability(pairs)]
        print_json({"schema": 1, "seeds": list(seeds), "bins": rows})
    else:
        print(reliability_table(pairs))
    return 0


def _add_self_test(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = parts.add_parser(
        "self-test", help="on made-up runs: the power that a self-test states, and that there is"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=20, help="seeds, from 100 on; some 12 s each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_self_test)


def _self_test(arguments: argparse.Namespace) -> int:
    seeds = _seeds(arguments.seeds)
    progress = _Progress()
    planted = measure_power(seeds, say=progress.say)
    progress.end()
    if arguments.json:
        rows = [dataclasses.asdict(p) for p in planted]
        print_json({"schema": 1, "seeds": list(seeds), "faults": rows})
    else:
        print(power_table(planted))
    return 0


def _seeds(number: int) -> range:
    if not 1 <= number <= 1000:
        raise ConfigError(f"--seeds {number}: expected 1 to 1000")
    return range(FIRST_SEED, FIRST_SEED + number)


def _add_scan(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = parts.add_parser("scan", help="how many MB of data a core scans in a second")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_scan)


def _scan(arguments: argparse.Namespace) -> int:
    progress = _Progress()
    speeds = measure_scan(say=progress.say)
    progress.end()
    if arguments.json:
        print_json({"schema": 1, "results": [dataclasses.asdict(s) for s in speeds]})
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(scan_text(speeds))
    return 0


def _detect(arguments: argparse.Namespace) -> int:
    progress = _Progress()
    if arguments.live:
        live = replay_live(
            arguments.corpus,
            read_manifest(arguments.corpus),
            say=progress.say,
            most_rows=arguments.live,
            results=arguments.out,
        )
        progress.end()
        if arguments.json:
            print_json({"schema": 1, "live": dataclasses.asdict(live)})
        else:
            print(live_text(live, arguments.live))
        return 0
    found = detect(arguments.corpus, say=progress.say)
    if arguments.write_predictions:
        _write(arguments.write_predictions, found.own.predictions)
    for system in found.systems[1:] if arguments.write_peers else ():
        name = "".join(c if c.isalnum() else "-" for c in system.name)
        _write(arguments.write_peers / f"{name}.jsonl", system.predictions)
    validation = None
    if arguments.cross_validate:
        validation = cross_validate(arguments.corpus, found.runs, say=progress.say)
    left_out = None
    if arguments.leave_out:
        left_out = score_left_out(arguments.corpus, found.runs, say=progress.say)
    progress.end()
    if not arguments.json:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.print(detection_text(found))
        if left_out is not None:
            console.print(left_out_text(left_out))
        if validation is not None:
            console.print(cross_validation_text(validation))
        return 0
    document: dict[str, Any] = {
        "schema": 1,
        "corpus": str(arguments.corpus),
        "systems": [
            {
                "name": s.name,
                "unfed_runs": sorted(s.unfed),
                "figures": s.figures,
                "figures_fed": s.figures_fed,
            }
            for s in found.systems
        ],
        "unfed": [dataclasses.asdict(u) for u in UNFED],
        "reliability": {
            "error": calibration_error(found.reliability),
            "bins": [dataclasses.asdict(b) for b in found.reliability],
        },
        "predictions": [p.to_json() for p in found.own.predictions],
    }
    if validation is not None:
        document["cross_validation"] = dataclasses.asdict(validation)
    if left_out is not None:
        document["left_out"] = dataclasses.asdict(left_out)
    print_json(document)
    return 0


def _noise(arguments: argparse.Namespace) -> int:
    seeds = _seeds(arguments.seeds)
    progress = _Progress()
    results = measure_noise(seeds=seeds, say=progress.say)
    progress.end()
    if arguments.json:
        rows = [dataclasses.asdict(r) for r in results]
        print_json({"schema": 1, "seeds": list(seeds), "results": rows})
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(noise_text(results))
    return 0


def _write(path: Path, predictions: Sequence[Prediction]) -> None:
    try:
        write_predictions(path, predictions)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error


class _Progress:
    """Says on stderr how far it is: on one line in a terminal, else every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = 0.0

    def say(self, line: str) -> None:
        """Tell of one thing done."""
        now = time.monotonic()
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif now - self._last >= 10:
            self._last = now
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


_PARTS: tuple[Callable[..., None], ...] = (
    _add_detect,
    _add_noise,
    _add_calibration,
    _add_self_test,
    cli_read.add,
    cli_crash.add,
    cli_surgery.add,
    cli_drill.add,
    cli_goodput.add,
    cli_slurm.add,
    _add_scan,
    cli_page.add,
    cli_lineage.add,
    cli_guard.add_cost,
    cli_guard.add_tail,
    cli_guard.add_acceptance,
    cli_guard.add_families,
    cli_guard.add_plan,
    cli_guard.add_loader,
    cli_power.add_power,
    cli_power.add_durability,
    cli_fuzz.add,
    cli_trust.add_faults,
    cli_trust.add_kills,
    cli_trust.add_damage,
    cli_everyday.add_everyday,
    add_causes,
    cli_domains.add_domains,
)
