"""`trimtab smoke --batches FILE`: the first batches as the model sees them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from trimtab.cli.output import SafeConsole, print_json
from trimtab.errors import ConfigError, MissingExtraError
from trimtab.text import plain

__all__ = ["look"]

_MAX_LINES = 4096
_MAX_LINE_BYTES = 64 * 2**20


def look(path: str, tokenizer: str | None, *, as_json: bool) -> int:
    """Print what the batches train on; 1 where nothing, or the prompt, is trained.

    Raises:
        ConfigError: The file or the tokenizer cannot be read.
    """
    from trimtab.model_checks.batches import look_at_batches

    known = None if tokenizer is None else _tokenizer(tokenizer)
    try:
        report = look_at_batches(_lines(Path(path)), tokenizer=known, num_batches=_MAX_LINES)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}; each line needs input_ids as a list") from error
    if report.rows == 0:
        raise ConfigError(f"{path}: holds no batch; write one JSON object a line with input_ids")
    if as_json:
        print_json({"schema": 1, "path": path, **report.to_json(), "passed": report.passed})
        return int(not report.passed)
    console = SafeConsole(highlight=False)
    verdict = "passed" if report.passed else "FAILED"
    console.print(
        Text(
            f"{verdict}: {report.labels_share:.1%} of {report.tokens} tokens in {report.rows} rows"
            " count for the loss"
        )
    )
    for finding in report.findings:
        sign = {"error": "✗", "warning": "!"}.get(finding.severity, "·")
        console.print(Text(f"{sign} {finding.message}\n  {finding.instead}"))
    for role, share in report.by_role.items():
        console.print(Text(f"· {role}: {share:.0%} of its labels count"))
    for left in report.not_checked:
        console.print(Text(f"· {left}{'' if known else ' (--tokenizer NAME)'}"))
    what = "first row" if known else "ids of the first row"
    console.print(Text(f"· {what}, what is trained in 《》: {plain(report.sample)}"))
    return int(not report.passed)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b"")):
                if number >= _MAX_LINES:
                    return
                if len(line) > _MAX_LINE_BYTES:
                    raise ConfigError(f"{path}:{number + 1}: longer than 64 MiB; cut the batch")
                if line.strip():
                    yield _object(path, number + 1, line)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: no JSON object ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}:{number}: expected an object with input_ids")
    return found


def _tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("--tokenizer", "hf") from error
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name!r} cannot be loaded as a tokenizer ({str(error)[:120]}); give the folder that"
            " holds tokenizer.json"
        ) from error
