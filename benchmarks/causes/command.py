"""`python -m benchmarks causes`: how often the first cause is right, and how sure it was."""

import argparse
import dataclasses
from collections.abc import Sequence

from benchmarks.causes.generated import FAULTS, Guess, guesses
from benchmarks.causes.stated import StatedScore, read_stated, score_stated, summary, wilson
from trimtab.cli.output import print_json
from trimtab.diagnosis.cause_levels import CAUSE_LEVELS, cause_level
from trimtab.errors import ConfigError

__all__ = ["add_causes", "causes_text", "level_rows"]

FIRST_SEED = 100


def add_causes(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part."""
    parser = parts.add_parser(
        "causes", help="first causes: on what public sources state, and on made-up faults"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=20, help="made-up runs per fault, from seed 100"
    )
    parser.add_argument("--all", action="store_true", help="also print each stated event")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.seeds <= 1000:
        raise ConfigError(f"--seeds {arguments.seeds}: expected 0 to 1000")
    scores = score_stated(read_stated())
    made_up = guesses(range(FIRST_SEED, FIRST_SEED + arguments.seeds))
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "stated": {
                    **summary(scores),
                    "events_told": [
                        {
                            "run": s.stated.run,
                            "stated": list(s.stated.cause),
                            "rank": s.rank,
                            "share": s.share,
                            "source": s.stated.source,
                        }
                        for s in scores
                    ],
                },
                "made_up": [dataclasses.asdict(g) for g in made_up],
                "levels": level_rows(scores, made_up),
            }
        )
    else:
        print(causes_text(scores, made_up, every=arguments.all))
    return 0


def level_rows(scores: Sequence[StatedScore], made_up: Sequence[Guess]) -> list[dict[str, object]]:
    """Return hits and numbers of both sorts by level, from the lowest up."""
    stated = [(_first_share(s), s.rank == 1) for s in scores]
    seen = [(g.share, g.right) for g in made_up if g.seen]
    rows: list[dict[str, object]] = []
    for level in CAUSE_LEVELS:
        row: dict[str, object] = {"level": level.name, "from": level.floor}
        for name, told in (("made_up", seen), ("stated", stated)):
            here = [right for share, right in told if cause_level(share).name == level.name]
            low, high = wilson(sum(here), len(here))
            row[name] = {
                "hits": sum(here),
                "number": len(here),
                "hit_rate": sum(here) / len(here) if here else None,
                "low": low,
                "high": high,
            }
        rows.append(row)
    return rows


def _first_share(score: StatedScore) -> float:
    named = [c.confidence for c in score.diagnosis.causes if c.cause != "unknown"]
    return max(named, default=0.0)


def causes_text(scores: Sequence[StatedScore], made_up: Sequence[Guess], *, every: bool) -> str:
    """Return the figures as text."""
    s = summary(scores)
    lines = [
        f"stated by public sources: {s['events']} events, {s['runs_with_assumed_numbers']} of them"
        " with a number that the source does not print",
        f"  first named cause right {s['first']:.0%} ({s['first_low']:.0%} to"
        f" {s['first_high']:.0%}), among the first three {s['in_three']:.0%}",
        f"  log loss {s['log_loss']:.2f} nats; base rates of the other events"
        f" {s['log_loss_base']:.2f}",
    ]
    if every:
        lines += [
            f"  {x.rank or '—'}  {x.share:.2f}  {x.stated.run}: {' or '.join(x.stated.cause)}"
            for x in scores
        ]
    if made_up:
        lines.append("made-up faults, judged from their logs:")
        lines.append("  fault                      runs  seen  right  share given")
        for fault in FAULTS:
            here = [g for g in made_up if g.fault == fault]
            seen = [g for g in here if g.seen]
            right = sum(g.right for g in seen)
            mean = sum(g.given for g in seen) / len(seen) if seen else float("nan")
            lines.append(f"  {fault:<26} {len(here):4d}  {len(seen):4d}  {right:5d}  {mean:11.2f}")
    lines.append("levels of the first named cause, right / number (90 % interval):")
    for row in level_rows(scores, made_up):
        parts = [f"  {row['level']!s:<7} from {row['from']}"]
        for name in ("made_up", "stated"):
            part = row[name]
            assert isinstance(part, dict)
            parts.append(
                f"{name.replace('_', '-')} {part['hits']}/{part['number']}"
                f" ({part['low']:.2f}-{part['high']:.2f})"
            )
        lines.append("  ".join(parts))
    return "\n".join(lines)
