"""`trimtab audit CONFIG.json`.

A model's init, groups and precision, measured before its first step.
"""

import argparse
import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from trimtab.cli.output import SafeConsole, errors_as_json, print_json, write_file
from trimtab.cli.torch_side import load_function, need_torch, split_function, users_code
from trimtab.config_rules.rules.rule import compact
from trimtab.config_rules.terminal import render_findings
from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from trimtab.model_checks.model_audit import Audit

__all__ = ["add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit", help="measure a model before its first step: init, gradients, groups, precision"
    )
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG.json",
        help=(
            "of a transformers model; made on the meta device, at any size; nothing in it is"
            " executed"
        ),
    )
    parser.add_argument(
        "--python",
        type=split_function,
        metavar="PATH.py:FUNCTION",
        help=(
            "run your own code: a function that gives a model, or (model, optimizer), or the"
            " arguments of audit() as a dict"
        ),
    )
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), help="type of autocast in your run"
    )
    parser.add_argument(
        "--position",
        choices=("learned", "sinusoidal", "rotary", "alibi", "none"),
        help="what positions should be",
    )
    parser.add_argument("--scaler", action="store_true", help="your run has a loss scaler")
    parser.add_argument(
        "--backend",
        metavar="DEVICE",
        help="measure on this device whether attention scores overflow in fp16: cpu, cuda",
    )
    parser.add_argument(
        "--rank-modules",
        action="store_true",
        help="with --python: what each module loses in bf16, or in --dtype",
    )
    parser.add_argument(
        "--coordinates",
        metavar="FILE.svg",
        type=Path,
        help=(
            "coordinate check over widths 64, 128, 256: of --python, whose function takes a width,"
            " else of the standard small model"
        ),
    )
    parser.add_argument(
        "--mup", action="store_true", help="with --coordinates: the small model under µP"
    )
    parser.add_argument("--all", action="store_true", help="also remarks, and every tensor")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is asked for, and tell it."""
    return errors_as_json(arguments, _run)


def _run(arguments: argparse.Namespace) -> int:
    if not (arguments.config or arguments.python or arguments.backend or arguments.coordinates):
        raise ConfigError(
            "nothing to audit; give CONFIG.json, --python PATH.py:FUNCTION, --backend DEVICE or"
            " --coordinates FILE.svg"
        )
    need_torch("`trimtab audit`")
    console = SafeConsole(stderr=arguments.json, highlight=False)
    document: dict[str, object] = {"schema": 1}
    worst = False
    if arguments.coordinates:
        worst |= _coordinates(arguments, document, console)
    elif arguments.config or arguments.python:
        worst |= _model(arguments, document, console)
    if arguments.backend:
        _backend(arguments, document, console)
    if arguments.json:
        print_json(document)
    return int(worst)


def _model(
    arguments: argparse.Namespace, document: dict[str, object], console: SafeConsole
) -> bool:
    from trimtab.model_checks.drawn import from_hf_config
    from trimtab.model_checks.model_audit import audit

    given: dict[str, Any]
    if arguments.python:
        given = _made(arguments.python)
    else:
        model, asked = from_hf_config(arguments.config)
        given = {"model": model, "asked_stds": asked}
    if arguments.dtype:
        given.setdefault("dtype", arguments.dtype)
    if arguments.position:
        given.setdefault("position", arguments.position)
    if arguments.scaler:
        given.setdefault("scaler", object())
    with users_code(_name_of(arguments)):
        done = audit(**given)
    document["audit"] = done.to_json()
    if arguments.rank_modules:
        _rank(arguments, given, document, console)
    if not arguments.json:
        _tell(arguments, done, console)
    return any(f.severity == "error" for f in done)


def _name_of(arguments: argparse.Namespace) -> str:
    return ":".join(map(str, arguments.python)) if arguments.python else str(arguments.config)


def _made(python: tuple[Path, str]) -> dict[str, Any]:
    """Run the user's function; return what it gives as arguments of `audit`.

    Raises:
        ConfigError: It fails, or gives something else.
    """
    from torch import nn

    from trimtab.model_checks.model_audit import audit

    function, name = load_function(*python), f"{python[0]}:{python[1]}"
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if needed:
        raise ConfigError(
            f"{name} is called without arguments, and needs {', '.join(needed)}; only --coordinates"
            " gives one, a width"
        )
    with users_code(name):
        made = function()
    if isinstance(made, dict):
        wrong = sorted(set(map(str, made)) - set(inspect.signature(audit).parameters))
        if wrong or "model" not in made:
            raise ConfigError(
                f"{name} gives a dict {'with ' + ', '.join(wrong) if wrong else 'without model'};"
                f" give arguments of audit(): {', '.join(inspect.signature(audit).parameters)}"
            )
        return made
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 2 or not isinstance(parts[0], nn.Module):
        raise ConfigError(
            f"{name} gives {type(made).__name__}; give a model, (model, optimizer), or the"
            " arguments of audit() as a dict"
        )
    return dict(zip(("model", "optimizer"), parts, strict=False))


def _tell(arguments: argparse.Namespace, done: "Audit", console: SafeConsole) -> None:
    facts = done.facts
    shown = [f for f in done if arguments.all or f.severity != "info"]
    parts = [
        f"{compact(facts['params'])} parameters",
        f"{facts['layers'] or '?'} layers × {facts['hidden'] or '?'}",
        facts["embedding"],
        f"positions: {facts['positions']}",
    ]
    if facts["first_loss"] is not None and facts["vocab"]:
        parts.append(f"first loss {facts['first_loss']:.2f}, ln V = {math.log(facts['vocab']):.2f}")
    if facts["optimizer_states"]:
        parts.append(
            "states " + ", ".join(f"{n} {t}" for n, t in facts["optimizer_states"].items())
        )
    console.print(Text(" · ".join(p for p in parts if p)))
    console.print(render_findings(shown, console.width))
    quiet = len(done.findings) - len(shown)
    for note in facts["notes"]:
        console.print(Text(f"· {note}", style="dim"))
    if quiet:
        console.print(Text(f"· {quiet} remark{'s' if quiet > 1 else ''}: --all", style="dim"))
    if arguments.all:
        for t in done.tensors:
            follows = f" = {t.follows}" if t.follows else ""
            console.print(
                Text(f"  {t.name:<48} {t.role:<18} {tuple(t.shape)!s:<16} std {t.std:.5f}{follows}")
            )


def _rank(
    arguments: argparse.Namespace,
    given: dict[str, Any],
    document: dict[str, object],
    console: SafeConsole,
) -> None:
    from dataclasses import asdict

    import torch

    from trimtab.model_checks.anatomy import dissect
    from trimtab.model_checks.gradients import tiny_batch
    from trimtab.model_checks.operations import rank_modules

    vocab = dissect(given["model"]).vocab
    batch = given.get("batch")
    if not arguments.python or (batch is None and vocab is None):
        raise ConfigError(
            "--rank-modules needs --python, and a batch where no token embedding is recognised"
        )
    dtype = torch.float16 if arguments.dtype == "fp16" else torch.bfloat16
    rows = rank_modules(
        given["model"],
        tiny_batch(vocab or 2, torch.device("cpu")) if batch is None else batch,
        loss=given.get("loss"),
        dtype=dtype,
    )
    document["modules"] = [asdict(r) for r in rows]
    for row in rows if arguments.all else rows[:10]:
        console.print(
            Text(
                f"  {row.module:<40} {row.kind:<16} relative error {row.error:.2e}   largest output"
                f" {row.largest_output:.3g}"
            )
        )


def _backend(
    arguments: argparse.Namespace, document: dict[str, object], console: SafeConsole
) -> None:
    from dataclasses import asdict

    from trimtab.model_checks.operations import attention_scores, judge_scores

    scores = attention_scores(device=arguments.backend)
    findings = list(judge_scores(scores))
    document["backend"] = {
        "scores": asdict(scores),
        "overflow": scores.fused_overflows,
        "findings": [asdict(f) for f in findings],
    }
    if not arguments.json:
        console.print(
            Text(
                f"baddbmm with alpha on {scores.device} in {scores.dtype}: overflow"
                f" {'yes' if scores.fused_overflows else 'no'}"
            )
        )
        console.print(render_findings(findings, console.width))


def _coordinates(
    arguments: argparse.Namespace, document: dict[str, object], console: SafeConsole
) -> bool:
    from trimtab.configs.shrink import Twin
    from trimtab.model_checks.coordinates import coordinate_check
    from trimtab.model_checks.twin import TwinModel, make_optimizer

    def twin(width: int) -> tuple[TwinModel, Any]:
        model = TwinModel(Twin(hidden=width, layers=2, mup=arguments.mup))
        return model, make_optimizer(model)

    make = load_function(*arguments.python) if arguments.python else twin
    with users_code(_name_of(arguments)):
        check = coordinate_check(make)
    write_file(arguments.coordinates, check.svg("µP" if arguments.mup else "coordinate check"))
    document["coordinates"] = check.to_json()
    if not arguments.json:
        console.print(Text(check.table()), soft_wrap=True)
        console.print(render_findings(check.findings, console.width))
        console.print(
            Text(f"{'passed' if check.passed else 'failed'}; picture: {arguments.coordinates}")
        )
    return not check.passed
