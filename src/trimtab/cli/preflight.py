"""`trimtab preflight CONFIG...`.

What went wrong elsewhere with such settings, before the first device hour.
"""

import argparse
import dataclasses
import math
from dataclasses import asdict

from rich.text import Text

from trimtab.cli.output import SafeConsole, print_json, tell_error
from trimtab.config_rules.advice import advise, consider, menu, points
from trimtab.config_rules.budget import Machine, plan_lines
from trimtab.config_rules.lint import phase_of
from trimtab.config_rules.planning import Trend, gain_trend
from trimtab.config_rules.preflight import ConfigReport, PreflightResult, preflight_config
from trimtab.config_rules.rules import ConfigRule, rule_table
from trimtab.config_rules.rules.rule import compact
from trimtab.config_rules.terminal import (
    render_advice,
    render_config,
    render_difference,
    render_points,
    render_remedies,
    render_rules,
)
from trimtab.configs import read_config
from trimtab.configs.export import ARCHITECTURES, export, left_open
from trimtab.errors import ConfigError

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "preflight", help="check a training config for what went wrong elsewhere, before the run"
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="CONFIG",
        help="a config of any framework, a launch script, or a directory of them",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=(
            "also remarks, satisfied rules, and those that are checked elsewhere; without a CONFIG,"
            " every rule"
        ),
    )
    parser.add_argument(
        "--phase",
        choices=("start", "mid"),
        help="start: what is settled before the run; mid: what a run in trouble can still change",
    )
    parser.add_argument(
        "--like",
        metavar="PRESET",
        help=(
            "show the difference to a published run: gpt3-175b, opt, bloom, pythia, llama1, llama2,"
            " llama3, olmo2, olmo3, smollm2, smollm3, qwen3, deepseek-v3, kimi-k2, moonlight,"
            " glm-4.5, dapo, tulu3, … (an unknown name lists them all)"
        ),
    )
    parser.add_argument("--against", metavar="CONFIG", help="show the difference to another config")
    parser.add_argument(
        "--export",
        metavar="ARCHITECTURE",
        help=(
            f"print the config.json of {', '.join(ARCHITECTURES)}; what it cannot hold is named by"
            " its layer"
        ),
    )
    _add_questions(parser)
    _add_machine(parser)
    parser.set_defaults(run=run)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_argument_group("without a config")
    asked.add_argument(
        "--advise",
        action="store_true",
        help=(
            "settings for --hidden, --layers or --params; with --phase, the remedies of that phase"
        ),
    )
    asked.add_argument("--hidden", type=_positive, metavar="N")
    asked.add_argument("--layers", type=_positive, metavar="N")
    asked.add_argument(
        "--points",
        action="store_true",
        help="the published rates, batches and warm-ups that are interpolated",
    )
    asked.add_argument(
        "--consider",
        metavar="REMEDY",
        help="what a remedy costs, where it worked and where not, such as double-batch",
    )
    asked.add_argument(
        "--gain",
        action="append",
        type=_gain,
        metavar="PARAMS:GAIN",
        help="gain of a change at a size, three times or more: does it persist as models grow?",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    known = parser.add_argument_group("what a config does not state")
    for flag, text in (
        ("--params", "parameters, such as 175e9"),
        ("--corpus-tokens", "tokens before any repeat"),
        ("--train-tokens", "tokens to train"),
        ("--tokens-per-second", "of the whole job"),
        ("--deadline-days", "days the effort has"),
        ("--spent-days", "days of them that are gone"),
        ("--devices", "accelerators"),
        ("--device-gib", "memory of one"),
        ("--save-seconds", "for which a save holds training up"),
    ):
        known.add_argument(flag, type=_positive, metavar="N", help=text)


def _positive(text: str) -> float:
    """Return a positive number; `175B`, `2M` and the like are numbers."""
    units = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    plain, factor = (
        (text[:-1], units[text[-1:].lower()]) if text[-1:].lower() in units else (text, 1.0)
    )
    try:
        value = float(plain) * factor
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a positive number, such as 175e9 or 175B"
        )
    return value


def _gain(text: str) -> tuple[float, float]:
    size, _, gain = text.partition(":")
    try:
        return _positive(size), float(gain)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected PARAMS:GAIN, such as 1.3e9:0.02"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Answer what is asked without a config, then read, judge and tell every config."""
    if arguments.export:
        return _export(arguments)
    document: dict[str, object] = {"schema": 1}
    console = SafeConsole(stderr=arguments.json, highlight=False)
    answered = _answer(arguments, document, console)
    if not arguments.paths and not answered:
        raise ConfigError(
            "nothing to check; give a CONFIG, or --advise --hidden N, --points, --consider REMEDY"
        )
    result = PreflightResult(configs=())
    if arguments.paths:
        result = preflight_config(
            *arguments.paths,
            machine=_machine(arguments),
            phase=arguments.phase,
            like=arguments.like,
            against=arguments.against,
        )
        document |= result.to_dict()
        for error in result.errors:
            tell_error(error["error"])
    if arguments.json:
        print_json(document)
    else:
        for report in result.configs:
            _print_report(report, arguments, console)
    return result.exit_code


def _print_report(
    report: ConfigReport, arguments: argparse.Namespace, console: SafeConsole
) -> None:
    console.print(
        render_config(
            report.settings,
            report.findings,
            fine=report.satisfied,
            others=report.other_phase,
            params=arguments.params,
            everything=arguments.all,
            width=console.width,
        )
    )
    for line in plan_lines(report.plan):
        console.print(Text(line), soft_wrap=True)
    if report.deviation is not None:
        found = report.deviation
        console.print(render_difference(found.to, found.source, found.settings, found.warning))
    console.print()


def _export(arguments: argparse.Namespace) -> int:
    """Print one config as that of another architecture."""
    found = [settings for path in arguments.paths for settings in read_config(path)]
    if len(found) != 1:
        raise ConfigError(f"--export takes one config, found {len(found)}; name one file")
    print_json(export(found[0], arguments.export))
    open_ones = left_open(found[0], arguments.export)
    if open_ones:
        told = "; ".join(open_ones)
        tell_error(f"not stated, as {arguments.export} has it: {told}")
    return 0


def _machine(arguments: argparse.Namespace) -> Machine:
    return Machine(
        params=arguments.params,
        corpus_tokens=arguments.corpus_tokens,
        train_tokens=arguments.train_tokens,
        tokens_per_second=arguments.tokens_per_second,
        deadline_days=arguments.deadline_days,
        spent_days=arguments.spent_days or 0.0,
        devices=arguments.devices,
        device_gib=arguments.device_gib,
        save_seconds=arguments.save_seconds,
    )


def _answer(
    arguments: argparse.Namespace, document: dict[str, object], console: SafeConsole
) -> bool:
    """Answer the questions that need no config; return whether there was one."""
    asked = False
    if arguments.all and not arguments.paths:
        asked = True
        document["rules"] = [_rule(rule) for rule in rule_table().values()]
        if not arguments.json:
            console.print(render_rules())
    if arguments.points:
        asked = True
        tables = points(arguments.params)
        document["tables"] = [{**asdict(t), "at": value} for t, value in tables]
        if not arguments.json:
            console.print(render_points(tables))
    if arguments.consider:
        asked = True
        found = [
            consider(arguments.consider, s) for p in arguments.paths for s in read_config(p)
        ] or [consider(arguments.consider)]
        document["remedies"] = [
            {**asdict(remedy), "price_here": price or None} for remedy, price in found
        ]
        if not arguments.json:
            for remedy, price in found:
                console.print(render_remedies([remedy]))
                console.print(Text(f"  here    {price}" if price else ""))
    if arguments.gain:
        asked = True
        trend = gain_trend(arguments.gain, arguments.params)
        document["trend"] = {**asdict(trend), "adopt": trend.adopt}
        if not arguments.json:
            console.print(Text(_gain_words(arguments.gain, arguments.params, trend)))
    if arguments.advise:
        asked = True
        _advise(arguments, document, console)
    return asked


def _gain_words(given: list[tuple[float, float]], params: float | None, trend: Trend) -> str:
    """Return what a trend says, with its target and the unit of its figures."""
    target = params or 10 * max(size for size, _ in given)
    chosen = "--params" if params else "ten times the largest size given; --params sets another"
    return (
        f"the gain {trend.verdict}: {trend.per_decade:+.3g} for ten times the parameters,"
        f" {trend.at_target:.3g} left at {compact(target)} parameters ({chosen}), both in the unit"
        " of the gains given; "
        + ("adopt it" if trend.adopt else "do not adopt it on this evidence")
    )


def _rule(rule: ConfigRule) -> dict[str, object]:
    fields = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}
    return {k: v for k, v in fields.items() if k not in ("check", "decided")} | {
        "elsewhere": rule.elsewhere
    }


def _advise(
    arguments: argparse.Namespace, document: dict[str, object], console: SafeConsole
) -> None:
    """Print settings by rule, before the start; and the remedies of a phase."""
    given = (
        []
        if arguments.phase == "mid"
        else list(advise(arguments.hidden, arguments.layers, arguments.params))
    )
    remedies = menu(arguments.phase) if arguments.phase else ()
    document["advice"] = [{**asdict(a), "phase": "start"} for a in given]
    document["remedies"] = [{**asdict(r), "phase": phase_of(r.when)} for r in remedies]
    if not arguments.json:
        console.print(render_advice(given))
        console.print(render_remedies(remedies))
