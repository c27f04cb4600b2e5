"""A run that never learns: from its first row on the loss stays where it began.

A flat loss alone is no fault: a trained model that goes on looks the same. It is one beside a sign
of why nothing is learned, of which there are four:

* the level is ln k, the loss of a guess among k classes: k of two, of a usual number of classes, or
  of a usual vocabulary; a loss above 9 nats is that of a guess whatever k is;
* every gradient norm is exactly 0;
* every learning rate is exactly 0.

The losses are folded into at most 32 blocks, which grow with the log, so the memory is bounded.
Flat means that the last quarter of the blocks lies within noise, and within 3 %, of the first. It
is judged from `min_rows` rows on, from `sure_rows` where the sign is exact, and not before the rate
has stood for as long as it rose, up to `late_rows`; told once, and again if the loss falls after
all. ln k is a rule for losses that have a natural zero, so a record with a negative loss is not
judged by it.

Blind to a run that learns a little and stops: see `plateau`.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, Series, changed, finite_of
from trimtab.signals.robust import difference_sigma, median

__all__ = ["SURELY_A_GUESS", "NeverLearnsDetector", "NeverLearnsState", "classes_guessed"]

_MOST_BLOCKS = 32
_FIRST_BLOCK = 3
_CLASSES = tuple(
    int(n)
    for n in [
        "2",
        "3",
        "4",
        "10",
        "26",
        "27",
        "50",
        "64",
        "80",
        "97",
        "100",
        "101",
        "112",
        "113",
        "114",
        "200",
        "256",
        "257",
        "258",
        "365",
        "512",
        "1000",
        "1001",
        "1024",
        "2048",
        "4096",
        "8192",
    ]
)
"""Usual numbers of classes: pairs, digits, letters, bytes, image sets, primes in arithmetic tasks.
Few among the small ones, where every level would be near one."""
SURELY_A_GUESS = 9.0
"""Above ln 8,103 there are only vocabularies, and no trained model is that bad."""
_LARGEST = 14.0
"""ln of a million: no vocabulary is larger, and what is above is no loss in nats."""
_CHANCE_SHARE = 0.004
"""How near ln k the level must lie, and how well it must be known."""
_FEW_CLASSES, _FEW_SHARE = 2, 0.01
"""A guess between two is so common, and its level so far from the next, that less will do."""
_FEWEST_OUTPUTS = 4
"""Between two or three, sound runs that learn little lie as near. Ours."""
_OUTPUTS_SHARE = (0.97, 1.01)
"""Of ln of the model's own outputs, between which only the sizes of the classes are known. Ours."""
_EXACT_SHARE = 0.0005
"""This near ln k, and known this well, few rows are no coincidence: one level in some hundred is as
near one of the known ones."""
_GUESS_SHARE = 0.05
"""How near the accuracy must lie to exp(-loss), and 1 over it to a whole number. Ours."""
_MOST_GUESSED = 0.55
"""A guess between two is right half of the time."""
_PREFERS = 0.03
"""Over a half, as a share of the pairs, from which something is learned. Ours."""
_PREFERS_SIGMA = 4.0
_CLEAR = (0.75, 1000.0, 64.0)
"""Loss up to which an excerpt is told all the same, that of a guess between two; and the first step of
one, itself and in steps between rows. Ours."""
_FLAT_SHARE = 0.03
_FLAT_SIGMA = 3.0
_LEARNT_SHARE = 0.05


def classes_guessed(level: float, error: float) -> int | None:
    """Return the number of classes k whose guess has this loss, ln k; None where there is none.

    Args:
        level: Loss, nats.
        error: Its standard error; a level that is known worse than to 0.4 % (1 % for two classes)
            is near nothing.

    Example:
        >>> classes_guessed(0.6931, 0.001), classes_guessed(2.5, 0.001)
        (2, None)
    """
    if SURELY_A_GUESS <= level <= _LARGEST:
        return round(math.exp(level))
    near = [
        k
        for k in _CLASSES
        if max(abs(math.log(k) - level), error)
        <= (_FEW_SHARE if k <= _FEW_CLASSES else _CHANCE_SHARE) * level
    ]
    return min(near, key=lambda k: abs(math.log(k) - level)) if near else None


@dataclass(frozen=True)
class NeverLearnsState:
    """The losses so far in blocks, and what was seen of norm and rate."""

    blocks: NDArray[np.float64]
    """float64 [< 32], means or medians of `size` rows each."""
    size: int = _FIRST_BLOCK
    waiting: tuple[float, ...] = ()
    num_rows: int = 0
    """Finite losses."""
    first_row: int = -1
    first_step: float = 0.0
    negative: bool = False
    moved: bool = False
    """A gradient norm above 0 was seen."""
    num_norms: int = 0
    rate: float = 0.0
    """Highest learning rate, to a per cent."""
    num_rates: int = 0
    rate_rows: int = 0
    """Rates since the last new high."""
    hits: tuple[float, ...] = ()
    """The first accuracies, as shares, as many as `sure_rows`."""
    last_hits: tuple[float, ...] = ()
    """The newest ones, as many."""
    preferred: tuple[float, ...] = ()
    """The newest shares of pairs in which the better answer is preferred, as many."""
    outputs: float = 0.0
    """Of the model's last layer, as last logged; 0: not."""
    told: int = 0
    """0: nothing; 1: told; 2: over, or too late to say."""
    level: float = 0.0
    why: str = ""
    told_row: int = 0


@dataclass(frozen=True, kw_only=True)
class NeverLearnsDetector:
    """See the module."""

    name: str = "never-learns"
    signals: tuple[str, ...] = (
        "loss",
        "grad_norm",
        "lr",
        "accuracy",
        "preference_accuracy",
        "num_outputs",
    )
    min_rows: int = 48
    sure_rows: int = 16
    """Enough where every gradient norm or rate is 0, or the level is that of a guess to 0.05 %:
    no learning looks like that. Ours."""
    unknown_rows: int = 192
    """For a loss above 9 nats of a rate that is not logged: it may be warmed up. Ours."""
    outputs_rows: int = 192
    """For a loss that is about ln of the model's outputs, if none of the known ones. Ours."""
    late_rows: int = 1000
    """Rows from which a rate that still rises is no excuse. Ours."""
    last_rows: int = 4096
    """A loss that moved before is no longer watched from here on. Ours."""

    def start(self) -> NeverLearnsState:
        """Return the state before any row."""
        return NeverLearnsState(np.zeros(0))

    def update_rows(
        self, state: NeverLearnsState, rows: Rows
    ) -> tuple[NeverLearnsState, tuple[Finding, ...]]:
        """Judge many rows as `update` does, block by block; once settled, rows cost nothing."""
        found: list[Finding] = []
        if state.told == 2:
            return state, ()
        series = [finite_of(i, rows) for i in range(len(self.signals))]
        losses, sizes = series[0].index, [len(s.index) for s in series]
        at = [0] * len(series)
        while state.told < 2 and at != sizes:
            full = at[0] + state.size - len(state.waiting)
            ends = sizes
            if full <= len(losses):
                ends = [bisect_right(s.index, losses[full - 1]) for s in series]
            parts = (s.part(a, b) for s, a, b in zip(series, at, ends, strict=True))
            state, told = self._take(state, *parts)
            found += told
            at = ends
        return state, tuple(found)

    def update(
        self, state: NeverLearnsState, row: Row
    ) -> tuple[NeverLearnsState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave what they concern as it is."""
        if state.told == 2:
            return state, ()
        return self._take(state, *(finite_of(i, row) for i in range(len(self.signals))))

    def _take(
        self,
        s: NeverLearnsState,
        losses: Series,
        norms: Series,
        rates: Series,
        right: Series,
        preferred: Series,
        outputs: Series,
    ) -> tuple[NeverLearnsState, tuple[Finding, ...]]:
        """Judge rows of which no loss but the last may fill a block."""
        highest, since = s.rate, s.rate_rows
        for rate in rates.value:
            # Up by less than a per cent in all is the flat top of a schedule; by less in each row, a
            # long warm-up.
            rose = rate > 1.01 * highest
            highest, since = (rate, 0) if rose else (highest, since + 1)
        begins = s.first_row < 0 and len(losses.value) > 0
        hits = [float(share) for share in right.value]
        s = changed(
            s,
            num_norms=s.num_norms + len(norms.value),
            moved=s.moved or any(norms.value),
            rate=highest,
            num_rates=s.num_rates + len(rates.value),
            rate_rows=since,
            hits=(*s.hits, *hits)[: self.sure_rows],
            last_hits=(*s.last_hits, *hits)[-self.sure_rows :],
            preferred=(*s.preferred, *map(float, preferred.value))[-self.sure_rows :],
            outputs=float(outputs.value[-1]) if outputs.value else s.outputs,
            num_rows=s.num_rows + len(losses.value),
            waiting=(*s.waiting, *losses.value),
            negative=s.negative or any(loss < 0 for loss in losses.value),
            first_row=losses.index[0] if begins else s.first_row,
            first_step=losses.step[0] if begins else s.first_step,
        )
        if len(s.waiting) < s.size:
            return s, ()
        row = losses.place(-1)
        blocks = np.append(s.blocks, median(np.array(s.waiting)))
        s = changed(s, blocks=blocks, waiting=())
        if len(blocks) == _MOST_BLOCKS:
            s = changed(s, blocks=blocks.reshape(-1, 2).mean(axis=1), size=2 * s.size)
        if s.told:
            return self._follow(s, row)
        if s.num_rows < self.sure_rows:
            return s, ()
        if s.num_rows > self.last_rows:
            return changed(s, told=2), ()
        return self._judge(s, row)

    def _judge(
        self, s: NeverLearnsState, row: RowPlace
    ) -> tuple[NeverLearnsState, tuple[Finding, ...]]:
        flat, fell, level, error = _flatness(s.blocks)
        if not flat:
            # Weights as initialized are often worse than a guess: to come down to one is no
            # learning.
            came_down, _, level, error = _flatness(s.blocks[len(s.blocks) // 4 or 1 :])
            flat = came_down and (_is_exact(level, error) or _is_of_outputs(s, level))
        if not flat:
            over = fell and s.num_rows >= self.min_rows and not _is_no_better(s)
            return (changed(s, told=2) if over else s), ()
        why = self._why(s, level, error)
        if why == "chance" and _is_excerpt(s, row) and _CLEAR[0] < level < SURELY_A_GUESS:
            why = ""  # a trained model may lie there by chance
        if not why:
            return s, ()
        s = changed(s, told=1, level=level, why=why, told_row=row.index)
        return s, self._findings(s, row, over=False)

    def _why(self, s: NeverLearnsState, level: float, error: float) -> str:
        if s.num_norms >= self.sure_rows and not s.moved:
            return "gradient"
        if s.num_rates >= self.sure_rows and s.rate == 0:
            return "rate"
        # What a warm-up holds back needs as long again to show.
        ramp = max(s.num_rates - s.rate_rows, 8)
        rises = s.num_rates > 0 and s.rate_rows < ramp and s.num_rows < self.late_rows
        if s.negative or rises or self._prefers(s):
            return ""
        if self._guesses(s, level):
            return "chance"
        if classes_guessed(level, error) is None:
            known = s.num_rows >= self.outputs_rows and _is_of_outputs(s, level)
            return "chance" if known else ""
        enough = self.min_rows
        if level >= SURELY_A_GUESS and not s.num_rates:
            enough = self.unknown_rows
        return "chance" if _is_exact(level, error) or s.num_rows >= enough else ""

    def _guesses(self, s: NeverLearnsState, level: float) -> bool:
        """Whether the accuracy is that of a guess, at first and of late."""
        if len(s.hits) < self.sure_rows or not 0 < level < SURELY_A_GUESS:
            return False
        return all(_is_guess(np.array(hits), level) for hits in (s.hits, s.last_hits))

    def _prefers(self, s: NeverLearnsState) -> bool:
        """Whether the better answer is preferred more often than by chance: the loss leaves ln 2 late."""
        shares = np.array(s.preferred)
        if len(shares) < self.sure_rows:
            return False
        over, error = float(shares.mean()) - 0.5, float(shares.std()) / math.sqrt(len(shares))
        return over > max(_PREFERS, _PREFERS_SIGMA * error)

    def _follow(
        self, s: NeverLearnsState, row: RowPlace
    ) -> tuple[NeverLearnsState, tuple[Finding, ...]]:
        """Tell once more when the loss falls after all."""
        fallen = s.level - median(s.blocks[-2:]) >= _LEARNT_SHARE * abs(s.level)
        if not fallen and not (s.why == "chance" and self._prefers(s)):
            return s, ()
        return changed(s, told=2), self._findings(s, row, over=True)

    def _findings(self, s: NeverLearnsState, row: RowPlace, *, over: bool) -> tuple[Finding, ...]:
        """Return the finding, and the same as a plateau: a loss that never falls stands still."""
        found = self._finding(s, row, over=over)
        # What is over was no trouble, but it did stand still, unless it goes on so and is learned.
        learned = over and self._prefers(s)
        flat = replace(
            found,
            detector=f"{self.name}-flat",
            kind="plateau",
            severity="info" if learned else "warning",
        )
        return found, flat

    def _finding(self, s: NeverLearnsState, row: RowPlace, *, over: bool) -> Finding:
        known = classes_guessed(s.level, 0.0)
        because = {
            "gradient": "every gradient norm is 0",
            "rate": "every learning rate is 0",
            "chance": f"as a guess among {known or round(math.exp(s.level))} classes has it",
        }[s.why]
        if s.why == "chance" and s.level >= SURELY_A_GUESS:
            because = "as high as that of an untrained model"
        elif s.why == "chance" and self._guesses(s, s.level):
            classes = round(math.exp(s.level))
            because = (
                f"and an accuracy of {np.mean(s.last_hits):.3g}: a guess among {classes} classes"
            )
        elif s.why == "chance" and not known and _is_of_outputs(s, s.level):
            because = f"as a guess among the model's {s.outputs:g} outputs has it, {math.log(s.outputs):.4g}"
        falls = "the better answer is preferred" if self._prefers(s) else "it falls"
        return Finding(
            detector=f"{self.name}-{s.why}",
            kind="never-learns",
            signal="loss",
            severity="info" if over else "warning",  # it has learned after all
            row=row.index,
            step=row.step,
            onset_row=s.first_row,
            onset=s.first_step,
            peak_row=s.first_row,
            peak=s.first_step,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=s.level,
            expected=s.level,
            score=min(99.0, 6.0 * s.num_rows / self.min_rows),
            closed=True,
            text=(
                f"loss {s.level:.4g} since the first row, {because}"
                + (f"; {falls} from {row.step:g} on" if over else "")
            ),
        )


def _is_guess(hits: NDArray[np.float64], level: float) -> bool:
    """Whether accuracies, in shares or in per cent, stay at exp(-level) = 1 / k for a whole k."""
    share = float(np.mean(hits))
    guess = math.exp(-level)
    for scale in (1.0, 100.0):
        mean = share / scale
        if not 0 < mean <= _MOST_GUESSED:
            continue
        near = abs(mean - guess) <= _GUESS_SHARE * guess
        whole = abs(1 / guess - round(1 / guess)) <= _GUESS_SHARE / guess
        if near and whole:
            return True
    return False


def _is_of_outputs(s: NeverLearnsState, level: float) -> bool:
    """Whether a level is about that of a guess among the outputs that the model has."""
    if not _FEWEST_OUTPUTS <= s.outputs < math.exp(SURELY_A_GUESS):
        return False
    low, high = _OUTPUTS_SHARE
    return low <= level / math.log(s.outputs) <= high


def _is_no_better(s: NeverLearnsState) -> bool:
    """Whether the newest losses are no better than a guess among the model's outputs."""
    known = _FEWEST_OUTPUTS <= s.outputs < math.exp(SURELY_A_GUESS)
    return known and median(s.blocks[-2:]) >= (1 - _LEARNT_SHARE) * math.log(s.outputs)


def _is_exact(level: float, error: float) -> bool:
    """Whether a level is that of a guess so nearly that few rows are enough."""
    # Above `SURELY_A_GUESS` every level is that of a guess, so none of them is exact.
    guessed = classes_guessed(level, error) if level < SURELY_A_GUESS else None
    return (
        guessed is not None and max(abs(math.log(guessed) - level), error) <= _EXACT_SHARE * level
    )


def _is_excerpt(s: NeverLearnsState, row: RowPlace) -> bool:
    """Whether the rows are taken out of the middle of a run, whose start would show what it learned."""
    spacing = (row.step - s.first_step) / max(s.num_rows - 1, 1)
    # Places less than 1 apart are parts of epochs, of which few make a run.
    first = _CLEAR[1] if spacing >= 1 else 1.0
    return s.first_step >= max(first, _CLEAR[2] * spacing)


def _flatness(blocks: NDArray[np.float64]) -> tuple[bool, bool, float, float]:
    """Return whether blocks are flat, whether they have fallen, their level, its standard error."""
    level = median(blocks)
    quarter = max(len(blocks) // 4, 1)
    noise = difference_sigma(np.diff(blocks))
    error = noise / math.sqrt(len(blocks))
    last = median(blocks[-quarter:])
    moved = abs(median(blocks[:quarter]) - last)
    # Medians of a quarter have 1.25 times the error of a mean.
    within = _FLAT_SIGMA * 1.25 * noise * math.sqrt(2 / quarter)
    most = _FLAT_SHARE * abs(level)
    # The first block by itself: a steep fall is over before a quarter of the rows is.
    fall = float(blocks[0]) - last
    fell = fall > max(_FLAT_SIGMA * 1.5 * noise, _FLAT_SHARE / 2 * abs(level))
    flat = not fell and moved <= min(max(within, 1e-3 * abs(level)), most)
    return flat, fell, level, error
