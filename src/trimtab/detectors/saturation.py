"""Attention that saturates: its weights fall onto single keys while its logits grow.

Once the softmax of a layer has become a choice of one key it passes no gradient on, and the loss
climbs tens to hundreds of steps later, or stays where it is for good. A ceiling on the logits does
not carry from one model to another; what is judged is the run's own course:

    e[t] = median of the last 4 readings of the entropy of the layer where it is lowest
    top  = highest e so far: what this run had when its attention was still even
    fall   since the reading that first lay below top / 2, which is the onset

Found, when three signals agree: e stands far below the top, the largest logit has at least doubled
since the onset, and the norm of the last hidden state has come down, as the model takes back what it
no longer knows. How far is a matter of how long it took: to top / 8 and by three tenths no more than
128 steps after the onset, or to top / 4 and by half no more than 256 after it. Told once; it closes
when e is back above 3/8 of the top, or after 64 readings as a lasting state, from which on nothing is
said before it has come back.

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

from trimtab.detectors.contract import Finding, Place, Row, changed

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
    """Where they stand."""
    steps: tuple[float, ...] = ()
    top: float = 0.0
    onset_row: int = -1
    """First reading below half of the top; -1: it stands above."""
    onset: float = 0.0
    logit_before: float = 0.0
    """Largest logit at the onset."""
    hidden_before: float = 0.0
    stage: int = 0
    """0: nothing told; 1: told, open; 2: accepted as lasting."""
    lowest: float = math.inf
    lowest_row: int = 0
    lowest_step: float = 0.0
    age: int = 0
    """Readings since it was told."""


@dataclass(frozen=True, kw_only=True)
class SaturationDetector:
    """See the module."""

    name: str = "saturation"
    signals: tuple[str, ...] = ("attention_entropy", "attention_logit_max", "activation_norm")
    num_readings: int = 4
    onset_share: float = 1 / 2
    told: tuple[tuple[float, float, float], ...] = ((1 / 8, 0.7, 128.0), (1 / 4, 0.5, 256.0))
    """(share of the top, share of the norm of the last hidden state at the onset, steps since the onset):
    both at or below theirs within so many. Sound runs keep 0.79 of the norm."""
    back_share: float = 3 / 8
    logit_growth: float = 2.0
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
        level, here = _middle(s.entropies), Place(row.index, row.step)
        if s.stage == 1:
            return self._follow(s, level, here)
        top = max(s.top, level)
        if level >= self.onset_share * top:
            return changed(s, top=top, onset_row=-1, stage=0), ()
        if s.onset_row < 0:
            # the median follows by two readings: the first of them that was as low already
            first = next(k for k, e in enumerate(s.entropies) if e < self.onset_share * top)
            s = changed(
                s, top=top, onset_row=int(s.rows[first]), onset=s.steps[first],
                logit_before=_middle(s.logits), hidden_before=_middle(s.hidden),
            )  # fmt: skip
        return self._judge(s, level, here)

    def _judge(
        self, s: SaturationState, level: float, row: Place
    ) -> tuple[SaturationState, tuple[Finding, ...]]:
        grown = _middle(s.logits) >= self.logit_growth * s.logit_before
        if s.stage == 2 or not grown:
            return s, ()
        hidden, since = _middle(s.hidden), row.step - s.onset
        if not any(
            level <= share * s.top and hidden <= kept * s.hidden_before and since <= within
            for share, kept, within in self.told
        ):
            return s, ()
        s = changed(s, stage=1, age=0, lowest=level, lowest_row=row.index, lowest_step=row.step)
        return s, (self._finding(s, row, "open"),)

    def _follow(
        self, s: SaturationState, level: float, row: Place
    ) -> tuple[SaturationState, tuple[Finding, ...]]:
        s = changed(s, age=s.age + 1)
        if level < s.lowest:
            s = changed(s, lowest=level, lowest_row=row.index, lowest_step=row.step)
        if level >= self.back_share * s.top:
            return changed(s, stage=2), (self._finding(s, row, "back"),)
        if s.age >= self.accept_readings:
            return changed(s, stage=2), (self._finding(s, row, "lasting"),)
        return s, ()

    def _finding(self, s: SaturationState, row: Place, how: str) -> Finding:
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
            text=f"attention saturates: entropy {s.top:.3g} → {s.lowest:.3g} nats, largest logit "
            f"{s.logit_before:.3g} → {_middle(s.logits):.3g}"
            + {"open": "", "back": ", back", "lasting": ", lasting"}[how],
        )


def _middle(values: tuple[float, ...]) -> float:
    """Return the median; of an even number the mean of both in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
