"""The verdict of a run and what it rests on: decided here, and shown alike by every part.

    ended-badly   the log or the guard tells such an end
    incident      an alarm stands that is neither resolved nor dismissed
    not-judged    there is no alarm, and its absence says too little
    healthy       there is no alarm, and the judge would have raised one

The first that applies is the verdict. `healthy` needs train losses, no step that a guard left
unjudged, and a self-test (`self_test`) that saw enough of the faults that were put into copies of
the run's own rows.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from trimtab.analysis.loss_unit import loss_in_nats
from trimtab.analysis.self_test import BAR, MIN_RECORDS, FaultPower, SelfTest
from trimtab.analysis.standing import StandingLoss, standing_of
from trimtab.analysis.unlogged import unlogged
from trimtab.chronicle.coverage import Coverage
from trimtab.detectors.few_rows import FEWEST_ROWS
from trimtab.detectors.reward_flat import gained
from trimtab.kinds import RunVerdict
from trimtab.masking import masked_text
from trimtab.readers.freetext.unread_validation import HELD_OUT_UNREAD
from trimtab.readers.other_columns import is_seldom
from trimtab.readers.rank_values import is_of_rank
from trimtab.readers.writers import PARTLY
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import OTHER, number, plain, signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME, canonical

__all__ = ["FAIL_ON", "Ending", "RestsOn", "RunJudgement", "judgement_of"]

FAIL_ON = ("warning", "critical", "ended-badly", "not-judged")
"""What `--fail-on` may name. A run that ended badly fails on each of them, an incident on its
severity and below, and on `not-judged`, which alone fails where there is no verdict."""

MAIN_SIGNALS = ("loss", "grad_norm", "val_loss")
"""Signals without which the judge is blind to much of what goes wrong."""
_BLIND = {"loss": "train loss", "grad_norm": "gradient norm", "val_loss": "validation"}
_STANDS_FOR = {"val_loss": "yardstick_loss"}
"""The fixed batches of a guard, which it reads in eval mode, are validation, too."""
_DERIVED = frozenset({"perplexity", "loss_step_std", "clipped", "clip_frequency"})
"""Signals that follow from others, and are judged through them."""
_FEWEST_REWARDS = 48
"""Rewards from which a fall of them would have been told, without a loss."""
_FAR_MADS = 2.0
"""Median deviations of an eighth of the rewards, by which levels lie apart. Ours."""
_OF_TRAINING = ("grad_norm", "lr", "step_time_s", "throughput", "loss_scale", "update_norm")
"""Signals that only a row of training has."""
_FEW_BEHIND, _PART, _LATE, _USUAL = 16, 0.1, 3.0, 0.9
"""Rows of training without a loss behind the last that has one, their share of those that have, and
times the usual distance of two losses, by this quantile: from here on silence says nothing of them.
Ours."""
_NEVER = 0.05
"""A fault seen in a smaller share of places is said to be missed."""
_MOST_NAMED = 5
"""Names that a sentence lists; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run is known to have ended badly."""

    why: str
    """In words, one line."""
    crash_class: str = ""
    """Class of the crash, such as `oom_gpu`; empty where a guard gave the run up."""
    line: str = ""
    """The line of the log that says so."""
    line_number: int | None = None
    """Of that line, among the last lines of the log, from 1."""
    who_must_act: str = ""
    """`transient` (a restart is enough), `node`, `code`, `config`, `data` or `numeric`."""
    do: str = ""
    """What to do about it."""
    rank: int | None = None
    host: str = ""
    sure: bool = True

    def to_json(self) -> dict[str, object]:
        """Return what `inspect --json` holds as `ending`."""
        return {
            "why": self.why,
            "crash_class": self.crash_class or None,
            "line": self.line or None,
            "line_number": self.line_number,
            "who_must_act": self.who_must_act or None,
            "do": self.do or None,
            "rank": self.rank,
            "host": self.host or None,
            "sure": self.sure,
        }


@dataclass(frozen=True, kw_only=True)
class RestsOn:
    """What was there to judge."""

    rows: int
    """Train-loss records."""
    signals: tuple[str, ...]
    """Signals of the log that a detector reads."""


@dataclass(frozen=True, kw_only=True)
class RunJudgement:
    """A verdict with what it rests on, and what could not be judged."""

    verdict: RunVerdict
    why: str = ""
    """Why there is no verdict, or how the run ended; empty for `healthy` and `incident`."""
    rests_on: RestsOn
    signals_not_judged: tuple[str, ...] = ()
    """Signals that were read and that no detector judges; counters and settings left out."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Keys of the log that no signal took, with how often they stand there."""
    not_judged: tuple[str, ...] = ()
    """What could not be judged with these rows and signals, a sentence each."""
    ignored: tuple[str, ...] = ()
    """Those of them on what the log holds and no detector looked at."""
    self_test: SelfTest | None = None
    coverage: Coverage | None = None

    @property
    def power(self) -> str:
        """What the self-test found, in one line; empty without one."""
        test = self.self_test
        if test is None:
            return ""
        # What the word rests on least comes first: a judge that works may still see little here.
        parts = [f"self-test {test.seen}/{test.injected}"]
        missed = [
            f.fault.title + _of_size(f, f.largest, in_nats=self.in_nats)
            for f in test.faults
            if f.fault.required and f.late_only
        ]
        if missed:
            missed = [f"in its first half {' and '.join(missed)} would be missed"]
        if test.doubling is not None and test.doubling < BAR:
            times = math.ceil(100 * (1 - test.doubling))
            missed.append(f"a lasting doubling of the loss would be missed {times} times of 100")
        if missed:
            parts.insert(0, f"but {', '.join(missed)}")
        seen = [
            said
            for name in ("rise", "twice", "spike")
            if (said := _seen(test.of(name), in_nats=self.in_nats))
        ]
        if seen:
            parts.append(f"would see {', '.join(seen)}")
        blind = _lacking(self.logged)
        if blind:
            # Validation that stands there in a form that nobody reads is logged all the same.
            why = "not read, or not logged" if self.held_out_unread else "not logged"
            parts.append(f"blind to {' and '.join(blind)} ({why})")
        return " · ".join(parts)

    logged: frozenset[str] = frozenset()
    """Signals of the log."""
    in_nats: bool = False
    """Whether the loss is known to be a cross-entropy."""
    held_out_unread: bool = False
    """Whether lines that name a loss of held-out data were not read."""

    def to_json(self) -> dict[str, object]:
        """Return what `inspect --json` holds as `judged`."""
        known: dict[str, object] = {"steps": None, "of": None, "not_judged": []}
        return {
            **(known if self.coverage is None else self.coverage.to_json()),
            "rows": self.rests_on.rows,
            "signals": list(self.rests_on.signals),
            "signals_not_judged": list(self.signals_not_judged),
            "keys_not_understood": dict(self.unread),
            "cannot_tell": list(self.not_judged),
            "why": self.why,
            "self_test": None if self.self_test is None else self.self_test.to_json(),
        }


def bad_verdict(ending: Ending | None, *, open_alarm: bool) -> RunVerdict | None:
    """Return the verdict that needs no self-test; None where it rests on one."""
    if ending is not None:
        return "ended-badly"
    return "incident" if open_alarm else None


def judgement_of(
    record: RunRecord,
    *,
    open_alarm: bool,
    ending: Ending | None = None,
    coverage: Coverage | None = None,
    self_test: SelfTest | None = None,
    judged_signals: frozenset[str] = frozenset(),
    level_explained: int | None = None,
) -> RunJudgement:
    """Return the verdict of a run.

    Args:
        record: What it logged, derived signals included.
        open_alarm: Whether an alarm stands that is neither resolved nor dismissed.
        ending: How it ended, where that is known to be bad.
        coverage: Which steps its guard judged; None where no guard wrote it.
        self_test: What faults injected into its rows showed; None: that was not tried.
        judged_signals: Signals that some detector reads.
        level_explained: Row from which a dismissed alarm explains where the loss stands; None: none.
    """
    logged = frozenset(record.columns)
    if canonical(record.keys.get("loss", "loss")) == "val_loss":  # it stands in for the train loss
        logged -= {"loss"}
    in_nats = loss_in_nats(record)
    verdict = bad_verdict(ending, open_alarm=open_alarm)
    why = "" if ending is None else ending.why
    standing = standing_of(record)
    begins = standing
    if standing is not None and standing.from_start and level_explained is not None:
        begins = standing_of(record, until=level_explained)  # what lies behind it is explained
    if verdict is None:
        why = _too_little(record, coverage, self_test, begins, in_nats=in_nats)
        verdict = "not-judged" if why else "healthy"
    silent = tuple(
        sorted(
            name
            for name in logged - judged_signals - _DERIVED
            # Judged by `data_sets`, `layers_apart`, `ranks` and `other_signals`.
            if not (
                name.startswith(("loss/", "val_loss/", "grad_norm/", OTHER)) or is_of_rank(name)
            )
            # Without a judge it is not known what it reads.
            and judged_signals
            and (name not in SIGNAL_BY_NAME or SIGNAL_BY_NAME[name].bad != "none")
        )
    )
    unread = {masked_text(key): count for key, count in record.unread.items()}
    shaped = (n for n in logged if n.startswith(OTHER) and not is_seldom(record.columns[n]))
    by_shape = {masked_text(record.keys.get(n, n)) for n in shaped}
    ignored = _ignored(silent, unread, by_shape)
    if standing is not None and not standing.from_start:
        ignored += (standing.text,)
    ignored += unlogged(record)
    return RunJudgement(
        verdict=verdict,
        why=why,
        rests_on=RestsOn(
            rows=record.num_loss_rows, signals=tuple(sorted(logged & judged_signals - _DERIVED))
        ),
        signals_not_judged=silent,
        unread=unread,
        not_judged=(
            *_cannot_tell(record, coverage, self_test, logged, in_nats=in_nats),
            *ignored,
        ),
        ignored=ignored,
        self_test=self_test,
        coverage=coverage,
        logged=logged,
        in_nats=in_nats,
        held_out_unread=_held_out_unread(record),
    )


def _too_little(
    record: RunRecord,
    coverage: Coverage | None,
    test: SelfTest | None,
    standing: StandingLoss | None,
    *,
    in_nats: bool,
) -> str:
    """Return why the absence of alarms says too little; empty where it says enough."""
    if not record.num_rows:
        return "the log holds no rows"
    if not record.num_loss_rows:
        reward = record.columns.get("reward")
        if reward is not None and len(reward.finite_rows(slice(None))) >= _FEWEST_REWARDS:
            rewards = reward.values[reward.finite_rows(slice(None))]
            risen = "" if gained(rewards) else "; it has not risen from where it began either"
            return (
                "no train loss is logged; the reward was judged by itself and has not fallen for"
                f" good below what it had reached{risen}"
            )
        unread = "; if one of the keys is it: --columns loss=KEY" if record.unread else ""
        return f"no train loss is logged{unread}"
    if record.num_loss_rows < FEWEST_ROWS:
        return f"{record.num_loss_rows} train losses, fewer than {FEWEST_ROWS}"
    where = _zero_throughout(record)
    if where is not None:
        return (
            f"the loss is exactly 0 in every row{where}: it is not logged, or nothing is computed"
        )
    if coverage is not None and not coverage.whole:
        return coverage.text()
    if partly := next((n for n in record.notes if n.startswith(PARTLY)), ""):
        return partly
    if ends := _loss_ends(record):
        return ends
    if test is None:
        return "no self-test was made"
    if test.failing:
        return "; ".join(_missed(f, in_nats=in_nats) for f in test.failing)
    if not test.passed:
        return "no fault could be injected to test the judge"
    return standing.text if standing is not None and standing.from_start else _unrisen(record)


def _loss_ends(record: RunRecord) -> str:
    """Say from which row on a training goes on without its loss; empty where it does not.

    Rows of a last evaluation are none of training.
    """
    trained = np.zeros(record.num_rows, dtype=np.bool_)
    for name, column in record.columns.items():
        if name in _OF_TRAINING:
            trained |= column.present
    logged = np.flatnonzero(record.columns["loss"].present)
    last = int(logged[-1])
    behind = int(trained[last + 1 :].sum())
    # A loss may be logged each 50th row.
    usual = float(np.quantile(np.diff(logged), _USUAL)) if len(logged) > 1 else 1.0
    if behind < max(_FEW_BEHIND, _PART * len(logged), _LATE * usual):
        return ""
    return (
        f"no loss is logged in the last {number(behind)} rows, behind step"
        f" {number(record.step[last])}: what the run does there is not judged by it"
    )


def _unrisen(record: RunRecord) -> str:
    """Return what a reward that stands where it began leaves open; empty where it has risen.

    The loss of an agent says nothing of what it has learned.
    """
    column = record.columns.get("reward")
    if column is None:
        return ""
    begun = max((i for i, a in enumerate(record.attempts) if a.parent is None), default=0)
    rewards = column.values[column.finite_rows(slice(record.rows_of(begun).start, None))]
    if len(rewards) < _FEWEST_REWARDS or np.ptp(rewards) == 0:
        return ""
    first, last = (
        median(part) for part in (rewards[: len(rewards) // 4], rewards[-(len(rewards) // 4) :])
    )
    size = float(np.abs(rewards).max()) or 1.0  # by the largest, so that nothing overflows
    parts = np.array_split(rewards / size, 8)
    levels = [median(part) for part in parts]
    best = levels[1 + int(np.argmax(levels[1:-2]))]
    noise = max(median(np.abs(part - median(part))) for part in parts[1:-2])
    rose, lost = best - first / size, best - levels[-1]
    if lost > 2 * _FAR_MADS * noise and rose > _FAR_MADS * noise:
        return (
            f"the reward had come from {number(first)} to {number(size * best)} and lies at"
            f" {number(size * levels[-1])} in the last {len(parts[-1])} of {len(rewards)} rows: it sinks, or"
            " swings"
        )
    if gained(rewards):
        return ""
    return (
        f"the reward stands where it began ({number(first)} → {number(last)} in {len(rewards)} rows):"
        " learned before, or not at all, the log does not say"
    )


def _zero_throughout(record: RunRecord) -> str | None:
    """Return where no row has another loss than 0, and no reward is what is trained on."""
    column = record.columns["loss"]
    if "reward" in record.columns:
        return None
    if not column.logged().any():
        return ""
    last = record.rows_of(len(record.attempts) - 1)
    values = column.values[last][column.present[last]]
    return " of the newest attempt" if len(values) >= FEWEST_ROWS and not values.any() else None


def _missed(f: FaultPower, *, in_nats: bool) -> str:
    """Return how the judge failed on one fault, in a clause."""
    title = f.fault.title + _of_size(f, f.largest, in_nats=in_nats)
    if f.share_large < BAR and not f.late_only:
        return f"{title} {_how_often(f.share_large)}"
    noticed, warm = f.late_noticed if f.late_only else f.noticed
    return f"while the run goes on, {title} would be noticed {noticed} times of {warm}"


def _seen(f: FaultPower | None, *, in_nats: bool) -> str:
    """Return the smallest size that would be seen, in a clause; empty where none is known."""
    if f is not None and f.fault.name == "twice":
        return f"{f.fault.title}, in {_percent(f.share_large)} of places"
    if f is None or f.size is None:
        return ""
    if f.fault.name == "rise":
        within = f" within {f.within_rows} rows" if f.within_rows else ""
        # At once: a slow rise of that size may stay unseen.
        return f"a step of +{_amount(f.size, in_nats=in_nats)}{within} ({_percent(f.share)})"
    return f"{f.fault.title} of {number(f.size, digits=2)}"


def _how_often(share: float) -> str:
    if share < _NEVER:
        return "would not be seen"
    return f"would be missed in {math.ceil(100 * (1 - share) - 1e-9)} of 100 places of this log"


def _percent(share: float) -> str:
    return f"{math.floor(100 * share + 1e-9)} %"


def _of_size(f: FaultPower, size: float, *, in_nats: bool) -> str:
    if f.fault.shape in ("nan", "halving", "twice"):
        return ""
    if SIGNAL_BY_NAME[f.fault.signal].scale == "log":
        return f" of {number(size, digits=2)} times its level"
    return f" of {_amount(size, in_nats=in_nats)}"


def _amount(size: float, *, in_nats: bool) -> str:
    return number(size, digits=2) + (" nats" if in_nats else "")


def _cannot_tell(
    record: RunRecord,
    coverage: Coverage | None,
    test: SelfTest | None,
    logged: frozenset[str],
    *,
    in_nats: bool,
) -> tuple[str, ...]:
    """Return what could not be judged with these rows and signals, a sentence each."""
    said: list[str] = []
    if coverage is not None and not coverage.whole:
        said.append(coverage.text())
    # That there is none at all is said below.
    if 0 < record.num_loss_rows < MIN_RECORDS:
        few = (
            "too few to judge" if record.num_loss_rows < FEWEST_ROWS else "small faults are unseen"
        )
        said.append(f"{number(record.num_loss_rows)} train losses: {few}")
    for f in test.faults if test is not None else ():
        if not f.fault.num_graded or f.fault.signal not in ("loss", "grad_norm"):
            continue
        rows = f"{number(record.num_loss_rows)} rows"
        if f.smallest is None:
            size = _of_size(f, f.largest, in_nats=in_nats)
            # The share of the reason for no verdict: one block, one number.
            late = f"; in its second half in {_percent(1 - f.share_late)}" if f.late_only else ""
            said.append(f"{rows}: {f.fault.title}{size} {_how_often(f.share_large)}{late}")
        elif f.fault.name in ("rise", "drift", "spike"):
            kind = (
                f.fault.title.split(" ", 1)[1].replace("rise", "rises").replace("spike", "spikes")
            )
            said.append(
                f"{rows}: {kind} under {_amount(f.size or 0.0, in_nats=in_nats)} may go unseen:"
                " fewer than 95 % of them are told from noise"
            )
    unread = _held_out_unread(record)
    said += [
        f"no {name} is {'read' if unread and name.startswith(_BLIND['val_loss']) else 'logged'}"
        for name in _lacking(logged)
    ]
    return tuple(said)


def _held_out_unread(record: RunRecord) -> bool:
    """Whether lines that name a loss of held-out data stand there in a form that is not read."""
    return any(HELD_OUT_UNREAD in note for note in record.notes)


def _lacking(logged: frozenset[str]) -> list[str]:
    """Return the main signals that are not logged; beside a held-out score its loss alone lacks."""
    lacking = [s for s in MAIN_SIGNALS if not logged & {s, _STANDS_FOR.get(s, s)}]
    scored = bool(logged & {"eval_score", "eval_error"})
    return [_BLIND[s] + " loss" * (scored and s == "val_loss") for s in lacking]


def _ignored(
    silent: tuple[str, ...], unread: Mapping[str, int], by_shape: Collection[str]
) -> tuple[str, ...]:
    """Return what the log holds and no detector looked at, or by its shape alone, a sentence each."""
    said: list[str] = []
    if silent:
        said.append(f"read but not judged: {_names([signal_label(s) for s in silent])}")
    for what, kept in (
        ("not understood, judged by their shape alone", True),
        ("not understood", False),
    ):
        keys = [f"{plain(k, limit=40)!r}" for k in unread if (k in by_shape) == kept]
        if keys:
            said.append(f"keys {what}: {_names(keys)}")
    return tuple(said)


def _names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
