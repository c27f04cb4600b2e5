"""`trimtab plan KIND ...`: what to launch next, and what its outcome will say.

Nothing is run or changed.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from trimtab.analysis.settings_diff import flat_config
from trimtab.bounded_toml import read_toml_text
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli import plan_guard, plan_search
from trimtab.cli.output import print_json, tell
from trimtab.config_rules.lint import lint
from trimtab.config_rules.spelling import spell
from trimtab.configs.read import read_config
from trimtab.configs.settings import NAMES, Settings
from trimtab.errors import ConfigError, ReadError
from trimtab.plan.changes import ChangeSet, Narrowing, change_set
from trimtab.plan.fake_sgd import check_fake_sgd
from trimtab.plan.fallback import plan_b
from trimtab.plan.hypotheses import (
    Hypothesis,
    aspect_ratio,
    edited,
    guided_test,
    still_open,
    weighed,
)
from trimtab.plan.knobs import KnobOutcome, knob_ledger, knob_menu
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.readers import read_run

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command with its kinds."""
    parser = commands.add_parser(
        "plan", help="what to launch next to find a cause, and what its outcome says"
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)

    causes = kinds.add_parser("causes", help="hypotheses to test, cheapest for their prior first")
    causes.add_argument("config", metavar="CONFIG", type=Path, help="the run's config")
    causes.add_argument(
        "--test", metavar="ID", help="the two launches of one test, and their table"
    )
    causes.add_argument(
        "--costs", metavar="FILE", type=Path, help="TOML with [ID] cost and prior of your own"
    )
    causes.add_argument(
        "--outcome",
        metavar="ID=well|fails",
        action="append",
        default=[],
        help="how a changed run went; what that rules out is left out",
    )
    causes.set_defaults(run=run, plan=_causes)

    changes = kinds.add_parser("changes", help="what a config changes, and how to bisect it")
    changes.add_argument("parent", metavar="PARENT", type=Path)
    changes.add_argument("child", metavar="CHILD", type=Path)
    changes.add_argument(
        "--outcome",
        metavar="KEY,KEY=well|fails",
        action="append",
        default=[],
        help="how the run with only these changes went, in the order of the schedule",
    )
    changes.set_defaults(run=run, plan=_changes)

    match = kinds.add_parser(
        "match", help="what a config would have to set to match an earlier run"
    )
    match.add_argument("path", metavar="RUN", type=Path, help="a run directory, or a config")
    match.add_argument("config", metavar="CONFIG", type=Path, help="the same of the new run")
    match.set_defaults(run=run, plan=_match)

    knobs = kinds.add_parser(
        "knobs", help="the few knobs there are and every toggle of a run, each with its outcome"
    )
    knobs.add_argument("path", metavar="RUN")
    knobs.set_defaults(run=run, plan=_knobs)

    plan_search.add_machines(kinds, run)
    plan_search.add_direction(kinds, run)
    plan_guard.add_guard(kinds, run)

    fallback = kinds.add_parser("fallback", help="until when published settings can take over")
    for name, what in (
        ("days-left", "days until the machines are gone"),
        ("tokens-left", "tokens of the present lineage still to train"),
        ("tokens-per-day", "tokens a day while nothing fails"),
        ("goodput", "share of them that ends up in the lineage, 0 to 1"),
        ("plan-b-tokens", "tokens of published settings, from scratch"),
    ):
        fallback.add_argument(f"--{name}", type=float, required=True, metavar="X", help=what)
    fallback.set_defaults(run=run, plan=_fallback)

    sgd = kinds.add_parser("fake-sgd", help="whether Adam with these settings is SGD, and in force")
    sgd.add_argument("--wanted", metavar="BETA1,EPS,LR", required=True, help="as asked for")
    sgd.add_argument(
        "--held", metavar="BETA1,EPS,LR", help="as the optimizer holds them; default: as asked for"
    )
    sgd.add_argument(
        "--grad-rms",
        type=float,
        required=True,
        metavar="X",
        help="root mean square of a gradient element",
    )
    sgd.set_defaults(run=run, plan=_fake_sgd)
    for kind in kinds.choices.values():
        kind.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Reckon and print."""
    lines, document = arguments.plan(arguments)
    if arguments.json:
        print_json({"schema": 1, **document})
    else:
        tell("\n".join(lines))
    return 0


Told = tuple[list[str], Mapping[str, object]]


def _causes(arguments: argparse.Namespace) -> Told:
    config = flat_config(arguments.config)
    settings = next(iter(read_config(arguments.config)), None)
    hypotheses = edited(_costs(arguments.costs))
    if settings is not None:
        hypotheses = weighed(hypotheses, _found(settings))
    by_id = {h.id: h for h in hypotheses}
    if arguments.test is not None:
        if arguments.test not in by_id:
            raise ConfigError(f"--test {arguments.test!r} is none of {', '.join(by_id)}")
        return _guided(by_id[arguments.test], config, settings)
    outcomes = {}
    for given in arguments.outcome:
        name, well = plan_search.outcome(given)
        if name not in by_id:
            raise ConfigError(f"--outcome {given!r}: {name!r} is none of {', '.join(by_id)}")
        outcomes[name] = well
    left = still_open(outcomes, hypotheses)
    lines = []
    for name, well in outcomes.items():
        lines.append(f"{name}: {by_id[name].heals if well else by_id[name].fails}")
    for number, h in enumerate(left, start=1):
        part = f" (part of {h.within})" if h.within else ""
        lines.append(
            f"{number}. {h.id}{part}: {h.title}  · cost {h.cost:g} · prior {h.prior:g} · {h.stage}"
        )
        lines += [f"   the config: {message}" for message in h.config]
        lines.append(f"   {h.probe}")
    shape = _shape(settings)
    if shape:
        lines.append(shape)
    document = {
        "outcomes": outcomes,
        "left": [
            {
                "id": h.id,
                "title": h.title,
                "within": h.within,
                "cost": h.cost,
                "prior": h.prior,
                "stage": h.stage,
                "probe": h.probe,
                "config": list(h.config),
            }
            for h in left
        ],
        "shape": shape,
    }
    return lines, document


_SPEAKS_FOR = {
    "L06": "rate",
    "L07": "rate",
    "L01": "init",
    "L02": "init",
    "L03": "init",
    "L09": "beta2",
    "L24": "fp16",
    "L25": "loss-scale",
    "L28": "softmax",
    "L18-aspect": "design",
}
"""Rule of preflight -> the hypothesis that it speaks for."""


def _found(settings: Settings) -> Mapping[str, list[tuple[str, str]]]:
    """Return (severity, message) of what preflight finds, by the hypothesis it speaks for."""
    found: dict[str, list[tuple[str, str]]] = {}
    for f in lint(settings):
        ratio = f.values.get("ratio")
        low = f.rule == "L06" and isinstance(ratio, int | float) and ratio <= 1
        if f.rule in _SPEAKS_FOR and f.severity != "info" and not low:
            found.setdefault(_SPEAKS_FOR[f.rule], []).append((f.severity, f.message))
    return found


def _shape(settings: Settings | None) -> str:
    hidden, layers = (
        None if settings is None else settings.number(n) for n in ("hidden", "layers")
    )
    if not hidden or not layers:
        return ""
    ratio, said = aspect_ratio(hidden, layers)
    return f"width / depth: {hidden:g} / {layers:g} = {ratio:.4g}, {said}"


def _costs(path: Path | None) -> Mapping[str, Mapping[str, object]]:
    if path is None:
        return {}
    try:
        table = read_toml_text(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReadError(f"{path}: cannot be read as TOML ({error})") from error
    costs = {k: v for k, v in table.items() if isinstance(v, dict)}
    bad = next((k for k in table if k not in costs), None)
    if bad is not None:
        raise ConfigError(f"{path}: {bad} is no table; write [ID] with cost and prior")
    return costs


def _guided(hypothesis: Hypothesis, config: Mapping[str, str], settings: Settings | None) -> Told:
    keys = {}
    if settings is not None:
        own = {_bare(key): key for key in config}
        keys = {n: own[_bare(s.key)] for n, s in settings.values.items() if _bare(s.key) in own}
    test = guided_test(hypothesis, config, keys)
    lines = [f"{hypothesis.title}: {hypothesis.probe}"]
    for launch in test.launches:
        lines.append(launch.name)
        lines += [f"  {k} = {v}" for k, v in launch.settings.items()]
    if settings is not None:
        change = {
            k: v
            for k, v in hypothesis.change.items()
            if k in NAMES and v != "+1" and not v.startswith("x")
        }
        lines.append(f"in the config's own keys: {spell(settings, change)}" if change else "")
        lines = [line for line in lines if line]
    lines.append(f"{'control':<12} {'test':<12} it says")
    lines += [f"{a:<12} {b:<12} {said}" for a, b, said in test.verdicts]
    document = {
        "test": hypothesis.id,
        "launches": [
            {
                "name": x.name,
                "settings": dict(x.settings),
                "changed": {k: list(v) for k, v in x.changed.items()},
            }
            for x in test.launches
        ],
        "verdicts": [{"control": a, "test": b, "says": said} for a, b, said in test.verdicts],
    }
    return lines, document


def _bare(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _changes(arguments: argparse.Namespace) -> Told:
    found = change_set(flat_config(arguments.parent), flat_config(arguments.child))
    narrowing = _narrowed(found, arguments.outcome)
    lines = [f"{c}" for c in found.changes] or ["no key differs"]
    lines += [f"warning: {lint.text}" for lint in found.lints]
    if len(found.changes) > 1:
        runs = narrowing.schedule()
        if len(narrowing.blamed) == 1 and runs:
            lines.append(f"to blame: {narrowing.blamed[0]}, as what is left over")
            lines.append("a run with this change alone confirms it; where it goes well, several")
            lines.append("changes do it together, and the schedule goes on")
        elif runs:
            lines.append("runs that narrow it down, each with only these changes:")
            lines += [f"  {', '.join(keys)}" for keys in runs]
        else:
            together = ", together: none does it alone" * (len(narrowing.blamed) > 1)
            lines.append(f"to blame: {', '.join(narrowing.blamed)}{together}")
    document = {
        "changes": [{"key": c.key, "was": c.was, "now": c.now} for c in found.changes],
        "lints": [{"id": x.id, "text": x.text} for x in found.lints],
        "blamed": list(narrowing.blamed),
        "schedule": [list(keys) for keys in narrowing.schedule()],
    }
    return lines, document


def _match(arguments: argparse.Namespace) -> Told:
    wanted, given = (flat_config(_config_of(p)) for p in (arguments.path, arguments.config))
    changes = change_set(wanted, given).changes
    lines = [
        f"set {c.key} to {c.was}, it is {c.now}" for c in changes if None not in (c.was, c.now)
    ]
    lines += [f"set {c.key} to {c.was}, it is not stated" for c in changes if c.now is None]
    lines += [f"take {c.key} out, it is {c.now}" for c in changes if c.was is None]
    document = {
        "matches": not changes,
        "changes": [{"key": c.key, "was": c.was, "now": c.now} for c in changes],
    }
    return lines or [f"matches {arguments.path}: no key differs"], document


def _config_of(path: Path) -> Path:
    return RunDirectory(path).settings if path.is_dir() else path


def _narrowed(found: ChangeSet, outcomes: list[str]) -> Narrowing:
    narrowing = found.narrowing()
    for given in outcomes:
        names, well = plan_search.outcome(given)
        expected = narrowing.next_run
        if sorted(names.split(",")) != sorted(expected):
            raise ConfigError(
                f"--outcome {given!r}: the next run of the schedule changes"
                f" {', '.join(expected) or 'nothing'}"
            )
        narrowing.report(failed=not well)
    return narrowing


def _knobs(arguments: argparse.Namespace) -> Told:
    record = read_run(arguments.path)
    menu = knob_menu(record)
    lines = [f"the {len(menu)} knobs there are, each with what it did last in this run:"]
    lines += [f"  {k.knob.title:<14} {_last_outcome(k)}" for k in menu]
    toggles = knob_ledger(record)
    lines += [
        "every change:" if toggles else "no attempt states a setting that differs from its parent's"
    ]
    lines += [
        f"  {t.attempt} against {t.parent}, {t.steps} steps: {t.text}\n    {t.label.text()}"
        for t in toggles
    ]
    document = {
        "toggles": [
            {
                "attempt": t.attempt,
                "parent": t.parent,
                "steps": t.steps,
                "changes": [
                    {"key": k, "was": a, "now": b}
                    for k, a, b in zip(t.keys, t.was, t.now, strict=True)
                ],
                "label": t.label.overall,
                "metrics": dict(t.label.metrics),
                "figures": {m: list(v) for m, v in t.label.figures.items()},
            }
            for t in toggles
        ],
        "menu": [
            {
                "knob": k.knob.id,
                "attempt": k.attempt or None,
                "parent": k.parent or None,
                "change": k.text or None,
                "steps": k.steps,
                "label": None if k.label is None else k.label.overall,
                "with_others": k.with_others,
                "worked_elsewhere": [e.run for e in REMEDY_BY_ID[k.knob.remedy].worked],
                "failed_elsewhere": [e.run for e in REMEDY_BY_ID[k.knob.remedy].failed],
            }
            for k in menu
        ],
    }
    return lines, document


def _last_outcome(outcome: KnobOutcome) -> str:
    if outcome.label is not None:
        before, after = outcome.label.figures["loss"]
        also = ", together with others" if outcome.with_others else ""
        return (
            f"{outcome.label.overall}: {outcome.attempt} against {outcome.parent}, {outcome.text}"
            f"{also}; loss {before:.3g} to {after:.3g} over {outcome.steps} steps"
        )
    known = REMEDY_BY_ID[outcome.knob.remedy]
    said = [
        f"{what} {', '.join(e.run for e in of)}"
        for what, of in (("worked for", known.worked), ("did not help", known.failed))
        if of
    ]
    return f"not turned; elsewhere it {' and '.join(said)}" if said else "not turned"


def _fallback(arguments: argparse.Namespace) -> Told:
    found = plan_b(
        days_left=arguments.days_left,
        tokens_left=arguments.tokens_left,
        tokens_per_day=arguments.tokens_per_day,
        goodput=arguments.goodput,
        plan_b_tokens=arguments.plan_b_tokens,
    )
    lines = [f"{found.advice}: {found.text}"]
    if found.advice == "switch":
        lines.append(
            "published settings: trimtab preflight CONFIG --like gpt3 (or megatron's, see --like)"
        )
    document = {
        "advice": found.advice,
        "days_needed": found.days_needed,
        "days_needed_b": found.days_needed_b,
        "switch_within_days": found.switch_within_days,
        "text": found.text,
    }
    return lines, document


def _fake_sgd(arguments: argparse.Namespace) -> Told:
    wanted = _triple("--wanted", arguments.wanted)
    held = wanted if arguments.held is None else _triple("--held", arguments.held)
    found = check_fake_sgd(wanted, held, grad_rms=arguments.grad_rms)
    lines = [f"SGD at a rate of {found.rate:.4g}, to {found.gap:.2%}"] if found.effective else []
    lines += [f"warning: {w}" for w in found.warnings]
    document = {
        "effective": found.effective,
        "gap": found.gap,
        "rate": found.rate,
        "warnings": list(found.warnings),
    }
    return lines, document


def _triple(option: str, text: str) -> dict[str, float]:
    try:
        beta1, eps, lr = (float(x) for x in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected three numbers, beta1,eps,lr") from error
    return {"beta1": beta1, "eps": eps, "lr": lr}
