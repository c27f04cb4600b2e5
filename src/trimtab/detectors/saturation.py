"""Attention that saturates: its weights fall onto single keys while its logits grow.

Once the softmax of a layer has become a choice of one key it passes no gradient on, and the loss
climbs tens to hundreds of steps later, or stays where it is for good. A ceiling on the logits does
not carry from one model to another; what is judged is the run's own course:

    e[t] = median of the last 4 readings of the entropy of the layer where it is lowest
    top  = highest e so far: what this run had when its attention was still even
    mark   the reading from which on e lay below top / 2, another for top / 4, top / 8, ...

Found, when three signals agree since a mark: e has fallen far below the mark's height, the largest
logit has at least doubled, and the norm of the last hidden state has come down, as the model takes
back what it no longer knows. How far is a matter of how long it took: e to a quarter of the mark's
height and the norm by three tenths within 128 steps, or e to half of it and the norm by half within
256. Reported once; it closes when e is back above 3/8 of the top, or after 64 readings as a lasting
state, from which on nothing is reported before it has come back.

The onset is that mark, unless e stayed four times as long between it and the next as the rest of
the fall took, and the norm stayed too: layers that learn to attend to few keys may stay at a third
of the top for as long as the run is sound, and a rate that is raised then must not be dated back to
when they began.

The first two do not suffice: layers of sound runs learn to attend to few keys too, at 128 channels
and a rate of 1e-2 within 150 steps. Blind to a fall that takes longer; to attention that begins
saturated; to models without a norm before the output layer, whose last hidden state grows instead;
and where attention cannot be read. Chosen on lab runs of two widths, seeds 0 to 2, sound ones at
rates of 3e-3 and 1e-2, saturating ones at 0.1 and 0.3 and at a rate that rises with every step.

References:
    Zhai et al. (2023), Stabilizing Transformer training by preventing attention entropy collapse,
    arXiv:2303.06296. Wortsman et al. (2023), arXiv:2309.14322: growth of attention logits.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, RowPlace, changed

__all__ = ["SaturationDetector", "SaturationState"]


@dataclass(frozen=True)
class SaturationState:
    """The last readings, the height that the entropy came from, and the fall under way."""

    entropies: tuple[float, ...] = ()
    """The last readings, nats, oldest first."""
    logits: tuple[float, ...] = ()
    """The same of the largest logit."""
    hidden: tuple[float, ...] = ()
    """The same of the norm of the last hidden state."""
    rows: tuple[float, ...] = ()
    """Their rows."""
    steps: tuple[float, ...] = ()
    top: float = 0.0
    mark_rows: tuple[float, ...] = ()
    """First reading of the stretch below a half, a quarter, ... of the top; empty: it is above.
    """
    mark_steps: tuple[float, ...] = ()
    mark_logits: tuple[float, ...] = ()
    mark_hidden: tuple[float, ...] = ()
    onset_row: int = -1
    """Of what is reported; -1: nothing was."""
    onset: float = 0.0
    logit_before: float = 0.0
    """Largest logit at the onset."""
    stage: int = 0
    """0: nothing reported; 1: reported, open; 2: accepted as lasting."""
    lowest: float = math.inf
    lowest_row: int = 0
    lowest_step: float = 0.0
    age: int = 0
    """Readings since it was reported."""


@dataclass(frozen=True, kw_only=True)
class SaturationDetector:
    """See the module."""

    name: str = "saturation"
    signals: tuple[str, ...] = ("attention_entropy", "attention_logit_max", "activation_norm")
    num_readings: int = 4
    onset_share: float = 1 / 2
    told: tuple[tuple[float, float, float], ...] = ((1 / 8, 0.7, 128.0), (1 / 4, 0.5, 256.0))
    """(share of twice the mark's height, share of the norm of the last hidden state at the mark,
    steps since it): both at or below theirs within so many. Sound runs keep 0.79 of the norm."""
    back_share: float = 3 / 8
    num_marks: int = 5
    lingering: float = 4.0
    """Steps between two marks, over those since the second, from which the first is no onset."""
    logit_growth: float = 2.0
    stayed_share: float = 0.7
    """Of the norm at a mark, above which it stayed where it was."""
    accept_readings: int = 64

    def start(self) -> SaturationState:
        """Return the state before any row."""
        return SaturationState()

    def update(
        self, state: SaturationState, row: Row
    ) -> tuple[SaturationState, tuple[Finding, ...]]:
        """Judge one row; one without all three, or with one that is not finite, changes nothing."""
        entropy, logit, hidden = row.values.tolist()
        if not math.isfinite(entropy + logit + hidden):
            return state, ()
        n = self.num_readings
        s = changed(
            state,
            entropies=(*state.entropies, entropy)[-n:],
            logits=(*state.logits, logit)[-n:],
            hidden=(*state.hidden, hidden)[-n:],
            rows=(*state.rows, float(row.index))[-n:],
            steps=(*state.steps, row.step)[-n:],
        )
        if len(s.entropies) < n:
            return s, ()
        level, here = _middle(s.entropies), RowPlace(row.index, row.step)
        if s.stage == 1:
            return self._follow(s, level, here)
        # The top counts from the first readings on, so attention that begins saturated is not seen.
        s = self._mark(changed(s, top=max(s.top, level)), level)
        if not s.mark_rows:
            return changed(s, stage=0), ()
        return self._judge(s, level, here)

    def _mark(self, s: SaturationState, level: float) -> SaturationState:
        """Forget the marks that the level has come back above, and set those that it fell below."""
        heights = [self.onset_share ** (k + 1) * s.top for k in range(self.num_marks)]
        depth = sum(level < height for height in heights)
        # Marks are of falls in order: the one for top / 4 cannot stand without the one for top / 2.
        kept = min(len(s.mark_rows), depth)
        # the median follows by two readings: the first of them that was as low already
        first = [next(k for k, e in enumerate(s.entropies) if e < h) for h in heights[kept:depth]]
        new = depth - kept
        return changed(
            s,
            mark_rows=s.mark_rows[:kept] + tuple(s.rows[k] for k in first),
            mark_steps=s.mark_steps[:kept] + tuple(s.steps[k] for k in first),
            mark_logits=s.mark_logits[:kept] + (_middle(s.logits),) * new,
            mark_hidden=s.mark_hidden[:kept] + (_middle(s.hidden),) * new,
        )

    def _judge(
        self, s: SaturationState, level: float, row: RowPlace
    ) -> tuple[SaturationState, tuple[Finding, ...]]:
        if s.stage == 2:
            return s, ()
        marks = range(len(s.mark_rows))
        # The earliest mark that qualifies: the guard goes back to before the onset, and too early
        # costs steps, too late keeps the damage.
        at = next((k for k in marks if self._agree(s, k, level, row)), None)
        if at is None:
            return s, ()
        while at + 1 in marks and self._lingered(s, at, row):
            at += 1
        s = changed(
            s,
            stage=1,
            age=0,
            lowest=level,
            lowest_row=row.index,
            lowest_step=row.step,
            onset_row=int(s.mark_rows[at]),
            onset=s.mark_steps[at],
            logit_before=s.mark_logits[at],
        )
        return s, (self._finding(s, row, "open"),)

    def _agree(self, s: SaturationState, mark: int, level: float, row: RowPlace) -> bool:
        """Whether all three signals went far enough since a mark that is not too old."""
        since, height = row.step - s.mark_steps[mark], self.onset_share**mark * s.top
        kept = _middle(s.hidden) / s.mark_hidden[mark] if s.mark_hidden[mark] > 0 else math.inf
        grown = _middle(s.logits) >= self.logit_growth * s.mark_logits[mark]
        return grown and any(
            level <= share * height and kept <= most and since <= within
            for share, most, within in self.told
        )

    def _lingered(self, s: SaturationState, mark: int, row: RowPlace) -> bool:
        """Whether entropy and norm stayed above the next mark, before the reported fall."""
        since, rest = s.mark_steps[mark + 1] - s.mark_steps[mark], row.step - s.mark_steps[mark + 1]
        stayed = s.mark_hidden[mark + 1] > self.stayed_share * s.mark_hidden[mark]
        return stayed and since > self.lingering * rest

    def _follow(
        self, s: SaturationState, level: float, row: RowPlace
    ) -> tuple[SaturationState, tuple[Finding, ...]]:
        s = changed(s, age=s.age + 1)
        if level < s.lowest:
            s = changed(s, lowest=level, lowest_row=row.index, lowest_step=row.step)
        if level >= self.back_share * s.top:
            return changed(s, stage=2), (self._finding(s, row, "back"),)
        if s.age >= self.accept_readings:
            return changed(s, stage=2), (self._finding(s, row, "lasting"),)
        return s, ()

    def _finding(self, s: SaturationState, row: RowPlace, how: str) -> Finding:
        ended = how == "back"
        share = s.lowest / s.top
        return Finding(
            detector=self.name,
            kind="shift",
            signal="attention_entropy",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.lowest_row,
            peak=s.lowest_step,
            end_row=row.index if ended else None,
            end=row.step if ended else None,
            value=s.lowest,
            expected=s.top,
            score=min(-10.0 * math.log2(max(share, 1e-6)), 99.0),
            direction="down",
            closed=how != "open",
            text=(
                f"attention saturates: entropy {s.top:.3g} → {s.lowest:.3g} nats, largest logit "
                f"{s.logit_before:.3g} → {_middle(s.logits):.3g}"
            )
            + {"open": "", "back": ", back", "lasting": ", lasting"}[how],
        )


def _middle(values: tuple[float, ...]) -> float:
    """Return the median; of an even number the mean of both in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
