"""One line of a log, as the crash classifier sees it: cleaned, and what kind of line it is."""

import re
from typing import Final

__all__ = [
    "clean",
    "exception_name",
    "host_of",
    "is_close",
    "is_finish",
    "is_frame",
    "is_python_warning",
    "is_record_object",
    "is_traceback_start",
    "names_a_failure",
    "nan_progress",
    "progress",
    "rank_of",
    "shape_of",
    "torchrun_rank",
]

MAX_CHARS: Final = 3000
"""Characters kept of one line, two thirds from its beginning: some print a whole trace in one."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

_DIGITS = re.compile(r"\d+")

_LABEL = re.compile(
    r"^\s*(?:"
    r"\d{1,5}:(?=\s)"  # srun --label
    r"|\[(?:default|rank|Rank )\d+\]:"
    r"|\((?:\w+ )?pid=\d+[^)]{0,60}\)"
    r"|[\w.-]{1,60}-\d+:(?=\s)"  # worker-5:
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]*(?:[+-]\d\d:?\d\d|Z)?\]?"
    r"|\[(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\s*\]"
    r"|\[Driver\]"
    r")\s?"
)

_EXCEPTION = re.compile(
    r"(?:^|[\]:)>}|]\s*|\bE\s+|raise )"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Interrupt|Exit))(?::\s|\s*$)"
    r"|(?:^|[\]:)>}|]\s*)(Exception): "
)

_LEVEL_CALM = re.compile(
    r"^(?:\W{0,3}(?:INFO|DEBUG|NOTICE|I\d{4}|V\d{4})\b|[^|\n]{0,80}[\[|\s](?:INFO|DEBUG)\b)"
)

_WARNING = re.compile(r"\b\w*Warning:\s|^\W{0,3}WARN(?:ING)?\b|\[WARN(?:ING)?\]|\bWARN(?:ING)?:")

_PROGRESS = re.compile(
    r"(?:\b(?:iter(?:ation)?|step|epoch|ep|batch|global_step|update)s?\b[^\n]{0,24}?\d"
    r"[^\n]{0,300}?(?:loss|ppl|perplexity|nll|reward|cost)\w*\W{0,4}\s*(?P<a>[+-]?(?:\d|nan|inf))"
    r"|['\"](?:train_|train/)?loss['\"]\s*:\s*(?P<b>[+-]?(?:\d|nan|inf|NaN))"
    r"|\b(?:train[_ /-]?|lm |total )?loss\b\W{0,4}\s*(?P<c>[+-]?(?:\d|nan|inf))"
    r"[^\n]{0,200}\b(?:lr|tok/s|tokens|it/s|ms|grad|norm)\b)",
    re.IGNORECASE,
)

_NAN = re.compile(
    r"(?:loss|norm|nll|ctc)\w*['\"]?\s*(?:[:=|]|\s)\s*(?:[+-]?(?:nan|inf))\b", re.IGNORECASE
)

_FAILURE = re.compile(
    r"^\W{0,3}(?:ERROR|FATAL|CRITICAL|PANIC|FAILURE|FAILED|E\d{4})\b(?! rate)(?!\W*\d*\.?\d+\b)"
    r"|^[^|\n]{0,80}[\[|\s](?:ERROR|FATAL|CRITICAL)(?:\]|[|:] )"
    r"|^(?:[\w./-]{1,60}: ){0,3}(?i:(?:fatal|internal|system|unrecoverable)[ -]error\b"
    r"|(?:error|fatal|panic): (?!\W*\d)|abort(?:ed|ing)\b(?! (?:on|if|when))|killed$|terminated$"
    r"|crashed\b)"
    # A severity as glog writes it, a class with its package, a check that failed, a bare stack.
    r"|^\[?[EF]\d{3,4} \d\d:\d\d|^\[[EF] [\w/.:-]{2,}|^(?:[a-z_]\w*\.){1,6}[A-Z]\w+: "
    r"|\b(?i:(?:check|assertion)\b[^\n]{0,80}\bfailed\b)|\bFAILED\s*$"
    r"|^\s*frame #\d+: |\+0x[0-9a-f]+/0x[0-9a-f]+"
    r"|\bSystemExit(?:: ?(?!0\s*$)\S|\s*$)"
    r"|(?i:\bexit(?:ed|ing|s)?(?: \w+){0,3} (?:with )?(?:exit )?(?:code|status) ?[=:]? ?-?[1-9])"
    r"|(?i:\bcore dumped\b|\bSIG(?:ABRT|SEGV|BUS|ILL|FPE|KILL)\b|\bunhandled exception\b)"
    r"|(?i:\b(?:job|training|run|process|worker|node|task|rank \d+) (?:has |was |is )?"
    r"(?:failed|aborted|crashed|killed|died|lost)\b)"
)

_FINISH = re.compile(
    r"(?:train_runtime|`?Trainer\.fit`? stopped: `max_|training (?:is |has )?(?:been )?"
    r"(?:complete[d]?|finished|done)\b|exiting program (?:after|at) |finished training"
    r"|done training|reached max(?:imum)? (?:steps|iterations|epochs)|Training Complete)",
    re.IGNORECASE,
)

_OWN_FINISH = re.compile(r"train_runtime|Trainer\.fit|exiting program ", re.IGNORECASE)
"""What only a trainer prints, at its own planned end."""

_CLOSE = re.compile(
    r"(?:^|[\]:>|] )\W{0,3}(?:all |training )?(?:done|finished|completed?)\b"
    r"(?!\W{1,3}(?:with|load|read|epoch|step|iter|batch|eval|valid|warm|compil|shard|rank|\d))",
    re.IGNORECASE,
)

_RANKS: Final = tuple(
    re.compile(text)
    for text in (
        r"\[PG ID \d+[^\]]{0,80}\] ?\[?rank ?(\d+)",
        r"\[rank ?(\d{1,6})\]",
        r"\[(?:PG [^\]]{0,80})?Rank (\d{1,6})\]",
        r"\b[Rr]ank[:= ]{1,2}(\d{1,6})\b",
        r"/task:(\d{1,6})",
        r"\bProcess (\d{1,5}) terminated with the following error",
        r"srun: error: [^\n]{0,60}?tasks? (\d{1,6})",
        r"^\S{1,80}:\d+:\d+ \[(\d{1,3})\]",
        r"local_rank[:= ]{1,2}(\d{1,4})",
        r"\[default(\d{1,3})\]",
        r"\bGPU[= ](\d{1,3})(?:;| has a total|\b)",
        r"\bDevice: (\d{1,3})\b",
    )
)

_TORCHRUN_RANK = re.compile(r"(?:rank\s*: (\d+) \(local_rank|local_rank: (\d+) \(pid)")

_HOSTS: Final = tuple(
    re.compile(text)
    for text in (
        r"srun: error: ([\w.-]{1,80}): tasks? ",
        r"\*\*\* (?:JOB|STEP) \S+ ON ([\w.-]{1,80}) ",
        r"[Nn]ode failure on ([\w.-]{1,80})",
        r"Task launch for \S+ failed on node ([\w.-]{1,80})",
        r"\bhost(?:name)?\s*[:=]\s*([\w.-]{2,80})",
        r"\bnode: ([\w.-]{1,80})",
        r"^([\w.-]{1,80}):\d+:\d+ \[\d{1,3}\]",
        r"(?:^|\s)([\w.-]{1,80}) kernel: ",
    )
)


def clean(line: str) -> str:
    """Return the line without colours and control characters, at most `MAX_CHARS` long."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "\r" in line:
        line = line.rstrip("\r").rsplit("\r", 1)[-1]
    if len(line) > MAX_CHARS:
        line = line[: MAX_CHARS * 2 // 3] + " … " + line[-MAX_CHARS // 3 :]
    return line.rstrip()


def unlabelled(line: str) -> str:
    """Return the line without the labels that launchers put before it."""
    for _ in range(6):
        shorter = _LABEL.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line


def exception_name(line: str) -> str | None:
    """Return the name of the exception that the line reports, as Python prints it, or None."""
    if not any(word in line for word in ("Error", "Exception", "Failure", "Interrupt", "Exit")):
        return None
    body = unlabelled(line)
    found = _EXCEPTION.search(body)
    if not found or _LEVEL_CALM.match(body) or is_python_warning(body):
        return None
    return found[1] or found[2]


def is_calm(line: str) -> bool:
    """Return whether the program itself calls the line information."""
    return bool(_LEVEL_CALM.match(line.lstrip()))


def is_python_warning(line: str) -> bool:
    """Return whether the line is a warning by its own words."""
    return bool(_WARNING.search(line[:240]))


def is_traceback_start(line: str) -> bool:
    """Return whether a Python traceback begins here."""
    return "Traceback (most recent call last)" in line


def is_frame(line: str) -> bool:
    """Return whether the line belongs to a stack: Python's, C++'s or the kernel's."""
    body = unlabelled(line)
    return body.startswith(("  ", "\t", "frame #", "~~", "^^", "Call Trace")) or not body


def is_record_object(line: str) -> bool:
    """Return whether the line is a JSON record that is no log message: text may quote anything."""
    body = line.lstrip()
    if not (body.startswith('{"') and body.endswith("}")):
        return False
    return not re.search(r'"(?:level|levelname|severity|lvl|log|stream|message|msg)"\s*:', body)


def shape_of(line: str) -> str:
    """Return the beginning of the line without its numbers: records of one kind share it."""
    return _DIGITS.sub("0", line[:160])


def names_a_failure(line: str) -> bool:
    """Return whether the line says in the words of any program that something ended in failure.

    Words such as `error` stand in many harmless lines; they count as the level or the head of a
    message, and not in a record of training, an information or a warning.
    """
    body = unlabelled(line)
    if progress(line) or is_calm(line) or is_calm(body) or is_python_warning(line):
        return False
    return any(_FAILURE.search(text) for text in (line, body)) and not is_record_object(body)


def progress(line: str) -> bool:
    """Return whether the line is a record of training: a step or a loss with its number."""
    return bool(_PROGRESS.search(line[:1200]))


def nan_progress(line: str) -> bool:
    """Return whether the line is a record of training whose loss or norm is NaN or Inf."""
    return progress(line) and bool(_NAN.search(line[:1200]))


def is_finish(line: str) -> bool:
    """Return whether the line says that training came to its planned end."""
    return bool(_FINISH.search(line[:1200]))


def is_own_finish(line: str) -> bool:
    """Return whether a trainer says so, in words that no script around it uses."""
    return bool(_OWN_FINISH.search(line[:1200]))


def is_close(line: str) -> bool:
    """Return whether the line takes leave as a script does that is through: `done, saved`."""
    return bool(_CLOSE.search(unlabelled(line[:200]))) and not names_a_failure(line)


def rank_of(line: str) -> int | None:
    """Return the rank that the line names, or None."""
    return next((int(found[1]) for r in _RANKS if (found := r.search(line))), None)


def torchrun_rank(line: str) -> int | None:
    """Return the rank that torchrun's summary names as the first to fail, or None."""
    found = _TORCHRUN_RANK.search(line)
    return int(found[1] or found[2]) if found else None


def host_of(line: str) -> str | None:
    """Return the host that the line names, or None."""
    return next((found[1] for r in _HOSTS if (found := r.search(line))), None)
