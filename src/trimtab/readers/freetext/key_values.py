r"""Which numbers of a line of text are values, and what each is a value of.

A line is split into numbers and the text between them. The text in front of a number names it:

    `key: 1`, `key=1`, `key = [1`, `"key": "1"`, `key 1`, `| key | 1 |`

or, at the end of a cell, the text behind it (`260 batches |`). `1/100` is 1 of 100. Numbers without
a name may count the records (`[120/5000]`, `12: ...`).
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from trimtab.readers.by_values import may_be_scaler, may_be_timed
from trimtab.readers.freetext.keys import (
    ETA,
    UNIT_FACTORS,
    Meaning,
    bare_split,
    counts_episodes,
    is_held_out,
    is_method,
    is_part,
    is_whole,
    meaning,
    names_mean,
    score_place,
    without_trailing,
    written_as_rate,
)
from trimtab.readers.held_out_sets import name_of_set
from trimtab.readers.layer_norms import layer_of_tag, layers_of
from trimtab.readers.other_columns import MAX_CANDIDATES, TIME_BESIDE, may_be_measured
from trimtab.readers.stated_settings import STATED_SETTING, may_state_setting
from trimtab.said_by_words import HELD_OUT_SETS, LOSS_FUNCTIONS, is_length
from trimtab.text import OTHER
from trimtab.vocabulary import TIMES, canonical, may_count, normalise, unit_scale

__all__ = [
    "BAR",
    "CLOCK",
    "DECIMAL_COMMA_TOKEN",
    "FIRST_OF_SEVERAL",
    "NAMELESS_SECONDS",
    "NUMBER",
    "PROGRESS_BAR",
    "TIME_COST",
    "TOKEN",
    "Field",
    "fields_of",
    "is_clock",
    "to_number",
]

CLOCK = (
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d?:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?"
    r"|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?(?![\d:])"
    r"|20\d{6}[T-]\d{6}Z?(?![\w.])"
)
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
_COMMA = r"\d+,\d+(?:[eE][-+]?\d+)?(?!\d|[,.]\d)|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_SPECIAL = r"(?:nan|NaN|NAN|inf|Inf|INF|[Ii]nfinity)(?![\w])"
NUMBER = rf"[-+]?(?:{_PLAIN}|{_SPECIAL})"
"""A number with a point; behind it anything may follow."""
# Not behind a letter or point: the 2 of `conv2` and the 5 of `v1.5` are parts of names. Blanks are
# bounded, since padding would be searched again from each of its places.
_TOKEN = r"[ \t]{{0,60}}(?<![A-Za-z0-9_.])({clock}|[-+]?(?:{number}|{special}))"
TOKEN = re.compile(_TOKEN.format(clock=CLOCK, number=_PLAIN, special=_SPECIAL))
"""A number, or a time of day as one token, with the blanks in front."""
DECIMAL_COMMA_TOKEN = re.compile(_TOKEN.format(clock=CLOCK, number=_COMMA, special=_SPECIAL))
"""The same where `2,5` is two and a half."""
_CLOCK_TOKEN = re.compile(rf"(?:{CLOCK})\Z")

_OPENERS = " \t[(\"'{$~"
_SET_ASIDE = re.compile(
    r"([A-Za-z]\w*) ?\(((?:h[eo]ld[-_ ]?out|valid(?:ation)?|val|test|eval|dev)(?: set| data)?)\)\Z",
    re.IGNORECASE,
)
"""`nll (held-out)`: the data behind what is measured on them."""
_DELIMITER = re.compile(r"[|,;{}\t\[\]<>!\"'`]|\s{2,}|\s[-\u2013\u2014]+\s|[:=]|\.\s|\)\s*(?=\S)")
_UNIT = re.compile(r"(%|[A-Za-z]+(?:/[A-Za-z]+)?)(?=$|[^\w])")
_PER_SECOND = re.compile(r"/s(?:ec)?(?!\w)")
_OF_A_STEP = ("s/it", "s/iter", "s/step", "s/batch")
_SECONDS_ALONE = re.compile(r"[ \t]?s(?:ecs?|econds?)?[ \t]*(?:[|,;)]|\Z)")
NAMELESS_SECONDS = "seconds"
"""Key of seconds that nothing names, on a line of an epoch."""
TIME_COST = "time cost"
"""Key of the seconds that an epoch or a step took, of whichever the line is."""
_MEASURE = re.compile(
    r"\s?(?:%|(?:s|secs?|seconds?|[mun\u00b5]s|msecs?|min(?:ute)?s?|h|hrs?|hours?|[kKMGT]?i?B|[kMG]b"
    r"|[A-Za-z]{1,12}(?=/(?:s|sec|second)\b))(?:/[A-Za-z]+)?(?![\w/]))"
)
"""A unit behind a number."""
_WRAPPER = re.compile(
    r"(?<![\w.])(?:\w+\.){0,3}(?:[A-Za-z]{0,20}(?:[Tt]ensor|[Aa]rray)|b?float\d*|Decimal)\([\s\[(]*\Z"
    r"|<(?:tf\.)?\w{0,20}Tensor: [^<>]{0,120}\bnumpy=[\s\[(]*\Z"
)
"""The text around a number that is printed as an object."""
_OF_OBJECT = re.compile(r"\b(?:device=['\"]?\w{1,12}:|shape=[\s(\[]*)\Z")
"""What stands in front of a number that belongs to the object around the one before."""
_SEPARATOR = re.compile(r"(?::=|[:=]|->|[\u2192\u21d2]|(?<=[\"']),)[\s\[(\"'{$~]*\Z")
_NUMBER_IN_KEY = re.compile(r"(?:[ \t]?[A-Za-z]{1,12}){0,2}\)\s*[:=]")
_BRACKET = re.compile(r"[ \t]*\((?:\s*[A-Za-z]{1,12}){0,3}\s*\Z")
"""What a bracket behind the name of a value begins with: `reward (last`, in front of its number."""
_TWO_SPLITS = re.compile(
    r"(?P<front>.*?)\b(?P<first>train\w*)\s*[/,|]\s*"
    r"(?P<second>val\w*|test|eval\w*|dev)\b(?P<rest>.*)"
)
_WORD_VALUE = re.compile(r"[\"']\s*:\s*[\"']([\w ]{1,30})[\"']")
"""What a key in quotes is reported to be: `"type": "test_epoch"`."""
_AT_STEP = re.compile(
    r"(.*?[A-Za-z)])\s+(?:at|in|for|after|on)\s+(?:global"
    r" )?(?:step|iter|iteration|epoch|batch|update)\W{0,3}"
)
"""`Training loss at step 100: 2.5`: the name of the value is in front of the step."""
_AND_STEP = re.compile(r"\W{0,3}(?:and )?(?:step|iter|iteration|batch|update)\W{0,3}")
"""`Loss at epoch 2 and iteration 100 is 2.5`: a second count behind the first."""
_AFTER_COUNT = re.compile(
    r"(.*?[A-Za-z)])(?:\s+[(\[]?(?:at|after|@)|@|\s+[(\[](?:step|iter|iteration|update|epoch))"
    r"(?:\s+(?P<unit>(?:global )?(?:step|iter|iteration|update|epoch)))?\s*[(\[]?",
    re.DOTALL,
)
_COUNT_ENDS = re.compile(
    r"\s?(?P<unit>(?:global )?(?:steps?|iters?|iterations?|updates?|batches|epochs?)?)"
    r"[)\]]?\s*(?P<sign>[:=]|->|is|was|)\s*"
)
"""`held-out nll after 100: 2.68`, `val loss @ 3 epochs = 2.5`: a bare count in front of the value."""
_FRACTION = re.compile(r"[-+]?(?:\d*\.\d.*|\d+e[-+]?\d+|nan|inf|infinity)", re.IGNORECASE)
_ITERATION = re.compile(r"\bat iteration\W*\Z", re.IGNORECASE)
_SIGNS_OF_VALUE = (":", "=", "is", "was")
_UNIT_BEHIND = re.compile(
    r"\s*\((?:[A-Za-z%/ ]{1,12}\d?|[A-Za-z ]{0,30}\d{1,6}[A-Za-z ]{0,12}|\d?[eE][-+]?\d+)\)\Z"
)
"""What belongs to a key in brackets behind it: a unit, `(avg over last 100)`, `(1e-3)`."""
_AT_TOP = re.compile(
    r"[A-Za-z]@\Z|\b(?:recall|precision|ndcg|hits?|accuracy|acc) at\Z", re.IGNORECASE
)
"""`Acc@5: 90.2`, `recall at 5 0.31`: what is counted among the first five."""
_BEHIND_TOP = ("", ":", "=")
_EXPECTED = re.compile(r"\b(?:expected|expects?|predicted|projected|estimated)\b", re.IGNORECASE)
_OF_TIME = re.compile(r"\s?(?:[mun\u00b5]?s|secs?|seconds?|min(?:ute)?s?|h|hrs?|hours?)(?![\w/])")
_OVER_LAST = re.compile(r"\b(?:over|of|for|in) (?:the )?(?:last|past|previous) ?\Z")
_BEHIND_COUNT = re.compile(r"\s?[A-Za-z]{0,14}(?: is)?\s*[:=)]")
"""`loss over the last 50 steps: 2.5`: the 50 belongs to the name."""
_FRACTION_OF_WORD = re.compile(r"[a-z][\w/.\-]{1,30} [-+]?(?:\d*\.\d.*|nan|inf|infinity)", re.I)
"""A number that only a blank parts from its name, such as `box 1.4`: no `rank 3`, no prose."""
_MEMORY_IN_USE = re.compile(r"(?:[a-z]+ ){0,2}(?:mem|memory|ram|rss|vram)\s?[MG]i?B\b")
_MIN_PARTS = 2
_MIN_DIGITS, _SUM_DOUBT = 2, 9
"""Digits behind the point from which a sum is no chance; doubt of a loss that is only a sum."""
_OF_A_TIME = re.compile(
    r"time|sec|forward|backward|fwd|bwd|comm|load|wait|compute|memory|\bmem|gpu|cpu|cost|price|usd|score|reward"
)
"""Words of parts that add up, too, and are none of a loss."""
_OF_A_SET = {"loss": "val_loss", "perplexity": "val_perplexity"}
"""What is measured on either data, and its name on held-out data."""
_COUNTED_BEHIND = (*_OF_A_SET, *_OF_A_SET.values())
_SHARES = ("accuracy", "token_accuracy")
_SCORES = (*_SHARES, "eval_score", "eval_error")
_GAN_PAIR = frozenset({"g", "d"})
_SPEEDS = ("speed", "train speed", "training speed")
"""Names of what a trainer gets through, where a unit says of what."""
_MAX_NAME_LENGTH = 200
_MAX_KEY_LENGTH = 80
_ASIDE = re.compile(r"\([^()]*\)")
_MPI_RANK = re.compile(r"\]<std(?:out|err)>:?")
_CELL = re.compile(r"\|\s*([^|]*[A-Za-z][^|]*?)\s*\|\Z")
_LAST_CELL = re.compile(r"\A([^|]*[A-Za-z])\s*\|\Z")
"""A name and the bar that parts it from the last number of a line: `Step 100: train loss | 2.5`."""
_PATH = re.compile(r"(?:[\"']([\w /.\-]{1,60})[\"']\s*:|\b([A-Za-z]\w{1,40})=)\s*\{|(\})")
_RANK_TAG = re.compile(
    r"(?<![A-Za-z])(?:rank|default|worker|proc|gpu)[ _]?(\d+)(?![\w])", re.IGNORECASE
)
_AFTER = re.compile(r"(%?)\s?((?:[A-Za-z]\.){0,3} ?[A-Za-z][\w /\-]{0,30}?)\s*(?:[|,;)]|\Z)")
"""What names the number in front of it: `260 batches |`, `0.97 C.E. loss,`, `94.8% accuracy`."""
_HALF_OF_DAY = re.compile(r"\s?[AP]\.?M\b\.?", re.IGNORECASE)
"""What stands behind a time of day of twelve hours."""
_ATTACHED = re.compile(r"(epoch|ep|batch|iter|step|\u6b65)(?:e?s)?(?![\w])")
_AFTER_STEPS = frozenset(["batches", "batch", "steps", "iters", "iterations", "updates"])
_TRAIN_WORDS = ("train", "training")
_OF_TRAINING = re.compile(r"\btrain(?:ing)?\b")
_MAX_LEADS = 3
FIRST_OF_SEVERAL = 8
"""Doubt of a reward that is the first of a list: that of one sample of the step."""
BAR = "|bar|"
"""What the drawing of a progress bar is replaced by."""
PROGRESS_BAR = "progress bar"
"""Key of the count behind it."""

FieldKind = Literal["signal", "step", "epoch", "rank", "maybe-step", "lead", "counter", "total"]


@dataclass(frozen=True)
class Field:
    """One number of a line that is worth keeping."""

    kind: FieldKind
    key: str
    """As printed, lower case; numbers without a name are called by their place."""
    name: str
    """Canonical name of a signal, else the key."""
    index: int
    """Which number of the line."""
    factor: float = 1.0
    """What turns it into the unit of the vocabulary."""
    doubt: int = 0


def is_clock(token: str) -> bool:
    """Whether a token is a time, and no number."""
    return _CLOCK_TOKEN.match(token) is not None


def _is_at_top(text: str) -> bool:
    """Whether a text ends with a score and `@`, behind which stands of how many it is."""
    if _AT_TOP.search(text) is None:
        return False
    name = _last_segment(text.rstrip("@"))
    return not may_count(name) and name != "it"


def to_number(text: str) -> float:
    """Return the number that a token spells, NaN for a time of day; `1,234` is 1234."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(text.replace(",", "")) if ":" not in text else float("nan")
    except ValueError:
        return float("nan")


def fields_of(
    literals: list[str],
    numbers: list[str],
    extra: dict[str, Meaning | None],
    unread: dict[str, int] | None = None,
) -> tuple[Field, ...]:
    """Return the fields of a line.

    Args:
        literals: Text in front of, between and behind the numbers: one more than numbers.
        numbers: The tokens.
        extra: Meanings of keys in this format, before the general ones; None: of no use.
        unread: Takes the keys that nobody knows, with the number of the line that each names.
    """
    parse = _LineParse(literals, numbers, extra)
    fields = parse.fields()
    if unread is not None:
        unread.update(parse.unread)
    return fields


class _LineParse:
    def __init__(
        self, literals: list[str], numbers: list[str], extra: dict[str, Meaning | None]
    ) -> None:
        self.literals = literals
        self.numbers = numbers
        self.extra = extra
        self.path: list[str] = []
        self.result: list[Field] = []
        self.unread: dict[str, int] = {}
        self.letters: dict[str, int] = {}
        """Numbers of the line behind one letter that means something beside another."""
        self.seconds: list[int] = []
        """Numbers of seconds that nothing names."""
        self.carried = -1, ""
        """Which number has the key of the count in front of it, and the key."""
        self.num_leads = 0
        self.held_out = False
        self.num_searched = 0
        key, heads = _last_segment(literals[0]), literals[0].lower()
        self.heading = heads[: heads.rfind(key)] if key else heads
        """What the line begins with, before its first key: the data that it is about."""
        bars = (i for i, text in enumerate(literals) if "|" in text)
        self.first_bar = next(bars, len(literals))

    def fields(self) -> tuple[Field, ...]:
        # Only in front of the first number: a rank further on is a value like any other.
        timed = bool(self.numbers) and is_clock(self.numbers[0])
        rank = _RANK_TAG.search("".join(self.literals[: 1 + timed]))
        if rank is not None:
            self.result.append(Field("rank", "rank", rank[1], -1))
        for i, token in enumerate(self.numbers):
            left = self._left(i)
            self._follow_path(self.literals[i])
            # A time of day is one token, so that its hours are not taken for a step.
            if is_clock(token):
                continue
            if "=" in left and _OF_OBJECT.search(left):
                continue
            # Open MPI tags lines with [job,rank]<stdout>: the second number is the rank.
            if i == 1 and _MPI_RANK.match(self.literals[2]):
                self._add(Field("rank", "rank", "rank", 1))
                continue
            if self._is_total(left, i):
                self._add(Field("total", f"of {self.result[-1].key}", "total", i))
                continue
            if (count := self._count_in_front(left, i)) is not None:
                self._add(count)
                continue
            if self._is_of_name(left, i):
                continue
            key, explicit = self._key(left, i)
            if not explicit and self._is_count_of_value(key, i):
                self.carried = i + 1, key
                key = ""
            field = self._field(key, i) if key else None
            if field is None:
                field = self._attached(i)
            of_bar = self.literals[i + 1].lstrip(" ").startswith("%")
            if (
                field is None
                and i + 1 == len(self.numbers)
                and (of_cell := _LAST_CELL.search(left))
            ):
                found = self._field(_last_segment(of_cell[1]), i)
                field = found if found is not None and found.kind == "signal" else None
            if field is None and key and may_count(key) and not of_bar:
                field = Field("maybe-step", normalise(key), "count", i, 1.0, 2)
            if field is None and not explicit:
                field = self._behind(i)
            if field is None and (not explicit or key.endswith(_TRAIN_WORDS)):
                field = self._unnamed(left, i)
            if self.literals[i + 1].startswith(f"%{BAR}") and (
                field is None or field.name in ("eval_score", "eval_error")
            ):
                continue  # how far a bar is drawn, behind whatever it is called
            if field is not None:
                self._add(field)
            elif explicit and key in _GAN_PAIR:
                self.letters.setdefault(key, i)
            elif not key and _SECONDS_ALONE.match(self.literals[i + 1]):
                self.seconds.append(i)
            elif len(key) > 1 and (
                explicit
                or _MEMORY_IN_USE.match(f"{key}{self.literals[i + 1]}")
                or _FRACTION_OF_WORD.fullmatch(f"{key} {token}")
                or may_state_setting(key)
                or may_be_scaler(key)
                or layer_of_tag(key)
            ):
                name = normalise("/".join((*self.path, key)))[:_MAX_KEY_LENGTH]
                self.unread.setdefault(name, i)
        self._take_means()
        self._take_total()
        self._take_pair()
        self._take_score()
        self._take_evaluation()
        self._take_sets()
        self._take_layers()
        self._take_settings()
        self._take_time()
        self._take_spread()
        self._take_seconds()
        self._take_others()
        return tuple(self.result)

    def _take_means(self) -> None:
        """Read of `Loss: 5.48 (5.53)` of held-out data the mean in brackets, not the last batch."""
        for k, f in enumerate(self.result):
            i = f.index + 1
            if f.name not in ("val_loss", "eval_score") or not 0 < i < len(self.numbers):
                continue
            begins = self.held_out and self.literals[i].strip() == "("
            if begins and self.literals[i + 1].lstrip().startswith(")"):
                self.result[k] = replace(f, index=i)

    def _take_pair(self) -> None:
        """Read `D: 0.1 | G: 0.2` as the losses of two nets, where no other loss is named."""
        if self.letters.keys() >= _GAN_PAIR and not any(f.name == "loss" for f in self.result):
            for key, doubt in (("g", 10), ("d", 13)):
                self._add(Field("signal", key, "loss", self.letters[key], 1.0, doubt))

    def _take_score(self) -> None:
        """Read `score` beside an episode as its return, where no reward is named.

        A length beside one is the episode's own.
        """
        has_loss = any(f.name == "loss" for f in self.result)
        counted = (f.key for f in self.result if f.kind in ("step", "maybe-step", "epoch"))
        counts = counts_episodes(counted, has_loss=has_loss)
        if not counts:
            return
        lengths = [k for k in self.unread if is_length(k)]
        if lengths and not any(f.name == "episode_length" for f in self.result):
            length = max(lengths, key=names_mean)
            self._add(Field("signal", length, "episode_length", self.unread.pop(length), 1.0, 2))
        if any(f.name == "reward" for f in self.result):
            return
        scores = {k: place for k in self.unread if (place := score_place(k)) is not None}
        score = min(scores, key=lambda k: scores[k], default=None)
        if score is not None:
            self._add(Field("signal", score, "reward", self.unread.pop(score), 1.0, 2))

    def _take_evaluation(self) -> None:
        """Read `AUC: 0.71 - logloss: 0.49`, on a line that counts nothing, as of held-out data."""
        names = {f.name for f in self.result if f.kind == "signal"}
        counts = any(f.kind in ("step", "maybe-step", "epoch", "lead") for f in self.result)
        if counts or "eval_score" not in names or "val_loss" in names:
            return
        self.result = [
            replace(f, name="val_loss", key=f"held-out {f.key}")
            if f.name == "loss" and f.key in LOSS_FUNCTIONS
            else f
            for f in self.result
        ]

    def _take_sets(self) -> None:
        """Read `eval @ 1000: en 5.59  de 5.91` as what may be the losses of several held-out sets."""
        if any(f.kind == "signal" for f in self.result):
            return
        found = {
            key: name
            for key, i in self.unread.items()
            if re.search(r"\.|nan|inf", self.numbers[i], re.IGNORECASE)
            and (name := name_of_set(key))
        }
        if len(found) < _MIN_PARTS or len(found) < len(self.unread):
            return
        if self._in_held_out(min(self.unread[key] for key in found)):
            for key, name in found.items():
                self._add(Field("signal", key, name, self.unread.pop(key), 1.0, 12))

    def _take_layers(self) -> None:
        """Read gradient norms by layer, two or more of them beside each other."""
        wholes = [f.key for f in self.result if f.name == "grad_norm"]
        for name, key in layers_of((*wholes, *self.unread)).items():
            if key in self.unread:
                self._add(Field("signal", key, name, self.unread.pop(key), 1.0, 2))
            else:  # `fc1 grad norm` alone may be that of the whole
                self.result = [replace(f, name=name) if f.key == key else f for f in self.result]

    def _take_settings(self) -> None:
        """Read keys beside a signal that may be settings as such; their values tell which are."""
        if any(f.kind == "signal" for f in self.result):
            for key in [k for k in self.unread if may_state_setting(k)]:
                self._add(Field("signal", key, STATED_SETTING, self.unread.pop(key), 1.0, 9))

    def _take_time(self) -> None:
        """Read `time` beside `data time` as that of a step."""
        if TIME_BESIDE.keys() <= {*self.unread, *(f.key for f in self.result)}:
            for key in (k for k, is_step in TIME_BESIDE.items() if is_step):
                self._add(Field("signal", key, "step_time_s", self.unread.pop(key), 1.0, 4))

    def _take_spread(self) -> None:
        """Read `std` beside the loss of a self-supervised method as that of its representations."""
        if "std" in self.unread and any(f.name == "loss" and is_method(f.key) for f in self.result):
            self._add(Field("signal", "std", "embedding_std", self.unread.pop("std"), 1.0, 3))

    def _take_seconds(self) -> None:
        """Read seconds without a name as those of the epoch that the line counts, and no step."""
        kinds = {f.kind for f in self.result}
        names = {f.name for f in self.result}
        timed = not names.isdisjoint(("step_time_s", "throughput"))
        of_epoch = "epoch" in kinds and kinds.isdisjoint(("step", "maybe-step", "counter"))
        if len(self.seconds) == 1 and "loss" in names and of_epoch and not timed:
            only = self.seconds[0]
            self._add(Field("signal", NAMELESS_SECONDS, "step_time_s", only, 1.0, 8))

    def _take_others(self) -> None:
        """Read keys beside a loss that nobody knows as numbers of their own."""
        if any(f.kind == "signal" and f.name == "loss" for f in self.result):
            for key in [k for k in self.unread if may_be_measured(k) or may_be_timed(k)][
                :MAX_CANDIDATES
            ]:
                i = self.unread.pop(key)
                factor = self._seconds_in(key, i) if may_be_timed(key) else 1.0
                self._add(Field("signal", key, OTHER + key, i, factor, 9))

    def _seconds_in(self, key: str, i: int) -> float:
        """Return how many seconds the unit of a time is."""
        unit = _UNIT.match(self.literals[i + 1].lstrip(" "))
        return _factor(Meaning("signal", TIMES[0]), key, unit[1] if unit is not None else "")

    def _take_total(self) -> None:
        """Read `total` beside at least two parts of a loss as the loss, where no other is named.

        What is called by other names is a part where all add up to it, and are no times.
        """
        whole = next((k for k in self.unread if is_whole(k)), None)
        if whole is None or any(f.name == "loss" for f in self.result):
            return
        known = [f.key for f in self.result if f.kind == "signal" and is_part(f.key)]
        named = sum(map(is_part, self.unread)) + len(known) >= _MIN_PARTS
        if named or self._adds_up(whole):
            name = "val_loss" if self._in_held_out(self.unread[whole]) else "loss"
            doubt = 3 if named else _SUM_DOUBT
            self._add(Field("signal", whole, name, self.unread.pop(whole), 1.0, doubt))
            # `Val total` beside it, unless the whole line is of held-out data.
            for key in [k for k in self.unread if name == "loss" and _is_total_of_set(k)][:1]:
                self._add(Field("signal", key, "val_loss", self.unread.pop(key), 1.0, doubt))

    def _adds_up(self, whole: str) -> bool:
        """Whether the fractions beside a total that nobody knows add up to it, to the last digit."""
        places = {k: i for k, i in self.unread.items() if "." in self.numbers[i]}
        if whole not in places or any(_OF_A_TIME.search(k) for k in places):
            return False
        if any(_MEASURE.match(self.literals[i + 1]) for i in places.values()):
            return False
        values = {k: to_number(self.numbers[i]) for k, i in places.items()}
        digits = min(len(self.numbers[i].partition(".")[2]) for i in places.values())
        total = values.pop(whole)
        off = abs(total - sum(values.values()))
        return (
            len(values) >= _MIN_PARTS
            and digits >= _MIN_DIGITS
            and off < len(places) * 10.0**-digits
        )

    def _key(self, left: str, i: int) -> tuple[str, bool]:
        """Return the key of a number, with the number that may be part of it: `lr (group 0)=1`."""
        if i == self.carried[0]:
            return self.carried[1], True
        at_top = i and left.strip() in _BEHIND_TOP and _is_at_top(self.literals[i - 1])
        if i > 1 and self._ends_range(i - 1):
            first, last = (to_number(self.numbers[k]) for k in (i - 2, i - 1))
            return f"{_last_segment(self.literals[i - 2])}{first:g}:{last:g}", True
        if at_top and self._with_number(i)[-1:].isdigit():
            return _last_segment(self._with_number(i).replace(" at ", "@")), True
        if i and (at_top or _NUMBER_IN_KEY.match(left)):
            left = self._with_number(i) + left
        elif i and left.strip() in _SIGNS_OF_VALUE and (named := self._named_in_front(i)):
            key = _last_segment(_ASIDE.sub("", named[1]))
            # DeepLearning4j calls the loss of a batch so, and no agent counts iterations.
            return "loss" if key == "score" and _ITERATION.search(
                self.literals[i - 1]
            ) else key, True
        elif i and _OVER_LAST.search(self.literals[i - 1]) and _BEHIND_COUNT.match(left):
            left = self._with_number(i) + left
        elif i > 1 and left.strip() in ("/", ",", "|"):
            left = self.literals[i - 1]
            both = _TWO_SPLITS.fullmatch(_key_of(left, first=i == 1)[0])
            return (both["front"] + both["second"] + both["rest"], True) if both else ("", False)
        key, explicit = _key_of(left, first=i <= self.first_bar)
        both = _TWO_SPLITS.fullmatch(key)
        return (both["front"] + both["first"] + both["rest"], explicit) if both else (key, explicit)

    def _with_number(self, i: int) -> str:
        """Return the text in front of the number before, and that number, as they stand."""
        text = self.literals[i - 1]
        return f"{text}{' ' if text[-1:].isalpha() else ''}{self.numbers[i - 1].strip()}"

    def _named_in_front(self, i: int) -> re.Match[str] | None:
        """Return the name of a value in front of the count, or the two counts, before it."""
        first = i - 2 if i > 1 and _AND_STEP.fullmatch(self.literals[i - 1]) else i - 1
        return _AT_STEP.fullmatch(self.literals[first][-_MAX_NAME_LENGTH:])

    def _count_in_front(self, left: str, i: int) -> Field | None:
        """Return the count of `held-out nll after 100: 2.68`, whose value takes the name before it."""
        if i + 1 >= len(self.numbers) or not self.numbers[i].isdecimal():
            return None
        ends = _COUNT_ENDS.fullmatch(self.literals[i + 1])
        named = _AFTER_COUNT.fullmatch(left[-_MAX_NAME_LENGTH:]) if ends is not None else None
        if ends is None or named is None:
            return None
        counted = ends["unit"] or named["unit"]
        # `after 3 epochs 3.45`, without a sign between the two: of nobody's expectation, and no time.
        if not ends["sign"] and (
            not _FRACTION.fullmatch(self.numbers[i + 1].strip())
            or _EXPECTED.search(named[1])
            or _OF_TIME.match(self.literals[i + 2])
        ):
            return None
        name = _last_segment(named[1])
        found, _ = self._meaning(name, i + 1)
        # `recall at 5: 0.3` is one of other numbers.
        names = (*_COUNTED_BEHIND, *_SCORES) if counted else _COUNTED_BEHIND
        if found is None or found.name not in names:
            return None
        # What is expected of training stands beside what it does.
        if not ends["sign"] and found.name == "loss" and not self._in_held_out(i + 1):
            return None
        self.carried = i + 1, name
        of_epochs = "epoch" in f"{ends['unit']}{named['unit'] or ''}" or left.endswith("epoch")
        return Field(*(("epoch",) * 3 if of_epochs else ("step",) * 3), i, 1.0, 2)

    def _is_of_name(self, left: str, i: int) -> bool:
        """Whether a number says over how many a value is: `reward (100 ep): 5`, `over last 10: 5`."""
        right = self.literals[i + 1]
        if i + 1 == len(self.numbers):
            return False
        if _is_at_top(left) or self._ends_range(i):
            return right.strip() in _BEHIND_TOP
        if not right.rstrip().endswith((":", "=")):
            return False
        if _OVER_LAST.search(left):
            return _BEHIND_COUNT.match(right) is not None
        bracket = _BRACKET.search(left)
        if bracket is None or not _NUMBER_IN_KEY.match(right):
            return False
        # `Step (100): 2.5` is the count itself.
        name = _last_segment(left[: bracket.start()])
        found = meaning(name)
        return bool(name) and not may_count(name) and (found is None or found.kind == "signal")

    def _ends_range(self, i: int) -> bool:
        """Whether a number is the upper of two thresholds: the .95 of `mAP@.5:.95 0.44`."""
        if not i or self.literals[i] != ":" or not _is_at_top(self.literals[i - 1]):
            return False
        return 0 < to_number(self.numbers[i - 1]) < to_number(self.numbers[i]) <= 1

    def _is_count_of_value(self, key: str, i: int) -> bool:
        """Whether a whole number between a loss and its value counts it: `Train loss 12 2.51`."""
        if not key or i + 1 >= len(self.numbers) or not self.numbers[i].isdecimal():
            return False
        if self.literals[i + 1].strip() not in ("", ":"):
            return False
        if not re.search(r"[.eE]|nan|inf", self.numbers[i + 1], re.IGNORECASE):
            return False
        found, _ = self._meaning(key, i)
        return found is not None and found.name in ("loss", "val_loss")

    def _add(self, field: Field) -> None:
        # The first of a key: `loss: 2.5 (2.7)` and tables of means repeat it behind.
        if any(f.key == field.key and f.kind == field.kind for f in self.result):
            return
        self.result.append(field)

    def _left(self, i: int) -> str:
        """Return the text in front of a number without the unit of the one before."""
        left = self.literals[i]
        if i and (half := _HALF_OF_DAY.match(left)) and is_clock(self.numbers[i - 1]):
            return left[half.end() :]
        if i and (unit := _UNIT.match(left) or _PER_SECOND.match(left)) is not None:
            left = left[unit.end() :]
        return left

    def _follow_path(self, text: str) -> None:
        for match in _PATH.finditer(text):
            if match[1] or match[2]:
                self.path.append(match[1] or match[2])
            elif self.path:
                self.path.pop()

    def _is_total(self, left: str, i: int) -> bool:
        if not self.result or self.result[-1].index != i - 1:
            return False
        return left.strip() in ("/", "of") and self.result[-1].kind in (
            "step",
            "maybe-step",
            "epoch",
            "lead",
            "counter",
        )

    def _field(self, key: str, i: int) -> Field | None:
        found, full = self._meaning(key, i)
        unit = _UNIT.match(self.literals[i + 1].lstrip(" "))
        suffix = unit[1] if unit is not None else ""
        attached = not self.literals[i + 1].startswith(" ")
        # `batch: 10.15ms` is how long one takes.
        if (
            suffix
            and attached
            and (found is None or found.kind in ("step", "maybe-step", "counter"))
        ):
            timed = canonical(f"{key} ({suffix})")
            if timed in TIMES:
                return Field("signal", full, str(timed), i, unit_scale(f"{key} ({suffix})"), 1)
        if found is None and self._is_speed(key, suffix, i):
            found = Meaning("signal", "throughput", 2)
        if found is None:
            return None
        # `epoch 12%` is how much of it is done.
        if found.kind in ("step", "epoch") and self.literals[i + 1].lstrip(" ").startswith("%"):
            return None
        factor = _factor(found, key, suffix if attached or found.name in TIMES else "")
        name = found.name
        # A line may hold both: `Validation: train loss 2.4, loss 2.5`.
        if name in _OF_A_SET and "train" not in full and self._in_held_out(i):
            name = _OF_A_SET[name]
        elif name in _SHARES and "train" not in full and self._is_held_out_share(name):
            name = "eval_score"
        elif name in ("eval_score", "eval_error") and self._of_training(full, i):
            return None
        shown = full if name == found.name else f"held-out {full}"
        of_list = name == "reward" and self._begins_list(i)
        return Field(
            found.kind, shown, name, i, factor, FIRST_OF_SEVERAL if of_list else found.doubt
        )

    def _is_speed(self, key: str, unit: str, i: int) -> bool:
        """Whether a number is how fast the training goes: `Speed: 525.50 samples/sec`."""
        named = normalise(key) in _SPEEDS and canonical(unit) == "throughput"
        return named and not self._in_held_out(i)

    def _begins_list(self, i: int) -> bool:
        """Whether a number is the first of several in brackets."""
        several = i + 1 < len(self.numbers) and self.literals[i + 1].strip() == ","
        return several and self.literals[i].rstrip().endswith("[")

    def _meaning(self, key: str, i: int) -> tuple[Meaning | None, str]:
        full = normalise("/".join((*self.path, key)))
        for text in (full, normalise(key)):
            if text in self.extra:
                return self.extra[text], text
        found = meaning(full)
        if found is None and self.path:
            found = meaning(key)
        if found is None and self.path:
            around = meaning(self.path[-1])
            # Keys that begin with a number are groups of parameters, of which the first is the model.
            of_layer = not key[:1].isdigit() and layer_of_tag(full) is not None
            if around is not None and around.name in ("grad_norm", "lr") and not of_layer:
                return around, normalise(self.path[-1])
        # `train 2.5` is a loss, `train 3` may be a count.
        if found is None and re.search(r"[.eE]|nan|inf", self.numbers[i]):
            found = bare_split(key)
        if found is None and normalise(key) == ETA and written_as_rate(self.numbers[i]):
            found = Meaning("signal", "lr", 3)
        if found is None:
            if normalise(key) == TIME_COST:
                return Meaning("signal", "step_time_s", 5), full
            unit = canonical(f"{key} (ms)")
            if unit == "step_time_s" and normalise(key) != "step":
                found = Meaning("signal", unit)
        return found, full

    def _in_held_out(self, i: int) -> bool:
        """Whether the line says that it is about validation, before this number."""
        # Each piece once per line, however many losses the line has.
        for text in self.literals[self.num_searched : i + 1]:
            words = (w.replace("_", " ") for w in _WORD_VALUE.findall(text))
            self.held_out = self.held_out or is_held_out(text) or any(map(is_held_out, words))
        self.num_searched = i + 1
        return self.held_out

    def _is_held_out_share(self, name: str) -> bool:
        """Whether a share of right answers stands under held-out data, or again behind its loss."""
        if name == "accuracy" and is_held_out(self.heading):
            return True
        again = any(f.name == name for f in self.result)
        tested = any(f.name == "val_loss" for f in self.result)
        # What the line says of its loss holds for the shares behind that.
        if name == "accuracy" and self.held_out and tested:
            return not any(f.name in ("loss", "eval_score") for f in self.result)
        return again and tested and not any(f.name == "eval_score" for f in self.result)

    def _of_training(self, key: str, i: int) -> bool:
        """Whether a score is of training data: the line says so, and no other set since."""
        says = _OF_TRAINING.search(self.heading) is not None
        return says and not is_held_out(key) and not self._in_held_out(i)

    def _attached(self, i: int) -> Field | None:
        """Read `3epoch` and `100batch`."""
        match = _ATTACHED.match(self.literals[i + 1])
        if match is None:
            return None
        if match[1] in ("epoch", "ep"):
            return Field("epoch", "epoch", "epoch", i, 1.0, 1)
        return Field("step", match[1], "batches", i, 1.0, 2)

    def _behind(self, i: int) -> Field | None:
        """Read `260 batches |`, `2.3 avg loss,`, `712 ms |` and `(6308 img/s)`."""
        right = self.literals[i + 1]
        if _PER_SECOND.match(right):
            return Field("signal", "per second", "throughput", i, 1.0, 2)
        last = i + 1 == len(self.numbers)
        match = _AFTER.match(right)
        if match is None or (not last and match.end() == len(right) and right[-1:] not in "|,;)"):
            return None
        if match[1]:
            return self._share_behind(match[2], i)
        key = normalise(match[2])
        if key in ("ms", "msec"):
            return Field("signal", "ms", "step_time_s", i, 1e-3, 1)
        if key in _OF_A_STEP and self.literals[i].endswith("("):
            return Field("signal", key, "step_time_s", i, 1.0, 2)
        if key in _AFTER_STEPS:
            return Field("step", key, "batches", i, 1.0, 2)
        found, full = self._meaning(match[2], i)
        if found is None or found.kind != "signal" or len(key) < 3:
            return None
        return Field("signal", full, found.name, i, 1.0, found.doubt + 1)

    def _share_behind(self, key: str, i: int) -> Field | None:
        """Read `94.8% accuracy`: of what else a number is a hundredth says nothing of a run."""
        field = self._field(key, i)
        if field is None or field.name not in (*_SHARES, "eval_score", "eval_error"):
            return None
        return replace(field, doubt=field.doubt + 1)

    def _unnamed(self, left: str, i: int) -> Field | None:
        """Keep a whole number that may count the records."""
        # Longer ones are time stamps, seeds and ids.
        if not self.numbers[i].replace(",", "").isdecimal() or len(self.numbers[i]) > 12:
            return None
        following = self.literals[i + 1]
        # `19s 76ms/step`, `5 min`, `80%`: how long or how much, and never where.
        if _MEASURE.match(following):
            return None
        if following.strip() in ("/", "of") and i + 1 < len(self.numbers):
            num = sum(f.kind == "counter" for f in self.result)
            if num >= _MAX_LEADS:
                return None
            key = f"counter {num + 1}" if num else "counter"
            if left.endswith(BAR):
                key = PROGRESS_BAR
            return Field("counter", key, "counter", i, 1.0, 3)
        seen = any(f.name in ("loss", "val_loss") for f in self.result)
        # What counts a record is printed in front of its loss.
        if seen or self.num_leads >= _MAX_LEADS or left.rstrip()[-1:] == "/":
            return None
        self.num_leads += 1
        key = f"number {self.num_leads} of the line"
        if i == 0 and not left.strip() and re.match(r":\s", following + " "):
            key = "label in front of the line"
        return Field("lead", key, "lead", i, 1.0, 4)


def _is_total_of_set(key: str) -> bool:
    held_out, _, what = normalise(key).replace("/", " ").partition(" ")
    return held_out in HELD_OUT_SETS and is_whole(what)


def _key_of(left: str, *, first: bool) -> tuple[str, bool]:
    """Return the key in front of a number ("" for none), and whether a sign separates them."""
    text = _WRAPPER.sub("", left.rstrip()).replace("'s ", " ")
    separator = _SEPARATOR.search(text)
    cell = _CELL.search(text) if first and not text.endswith(BAR) else None
    if separator is not None:
        text = text[: separator.start()]
    elif cell is not None:
        text = cell[1]
    else:
        text = text.rstrip(_OPENERS)
    key = _last_segment(text)
    explicit = bool(key) and (separator is not None or cell is not None)
    if not explicit and len(key) <= _MAX_KEY_LENGTH:
        key = without_trailing(key)
    return (key, explicit) if explicit or len(key.split()) <= 4 else ("", False)


def _last_segment(text: str) -> str:
    """Return the words of a key: what follows the last delimiter, brackets in the key kept."""
    text = text.rstrip(" \t\"'`*>")
    suffix = ""
    text = _SET_ASIDE.sub(r"\2 \1", text)
    unit = _UNIT_BEHIND.search(text[-_MAX_KEY_LENGTH:])
    if unit is not None:
        text, suffix = text[: -len(unit[0])], unit[0]
    end = 0
    for match in _DELIMITER.finditer(text):
        end = match.end()
    segment = text[end:].rpartition("(")[2].strip(" \t\"'`*#>:=-.~/")
    # `Box(P  R  mAP50  mAP50-95):` opens its bracket in another cell.
    segment = segment if "(" in segment else segment.rstrip(")]")
    return (segment + suffix if segment else "").lower()


def _factor(found: Meaning, key: str, suffix: str) -> float:
    factor = UNIT_FACTORS.get(suffix, 1.0)
    if found.name in TIMES:
        return unit_scale(key) * factor if factor != 1.0 or suffix else unit_scale(key)
    # `12K` of a loss or a norm is no thousandfold: the letter is a unit of another kind there.
    # `1.01k` is one, of a printer that shortens what is above a thousand.
    counts = found.kind == "step" or found.name in ("tokens_seen", "samples_seen")
    if suffix == "k" and found.kind == "signal":
        return factor
    return factor if counts and factor >= 1e3 and suffix != "h" else 1.0
