"""Eight published log lines of BigScience's first 104B run, re-typed as numbers.

Two attempts, the second resumed from step 6210 of the first with another seed, both diverged near
the end of the warm-up of the learning rate. The figures are facts of the public chronicle
(bigscience-workshop/bigscience, train/tr8-104B-wide/chronicles.md); the form and the words around
them are ours. The grad norms are as printed: multiplied by the fp16 loss scale.
"""

from dataclasses import replace

from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing import megatron_logs
from trimtab.testing.megatron_logs import MegatronStyle

__all__ = ["ATTEMPTS", "LINES", "SOURCE", "VALIDATION", "as_markdown", "as_record", "print_log"]

SOURCE = "bigscience-workshop/bigscience, train/tr8-104B-wide/chronicles.md"
TOTAL_STEPS = 159576
LR = 6e-5
BATCH_SIZE = 96

ATTEMPTS: tuple[tuple[str, str | None, int | None, int, int], ...] = (
    ("1.0", None, None, 42, 64),
    ("2.0", "1.0", 6210, 43, 64),
)
"""(attempt, parent, parent_step, seed, nodes)."""

LINES: tuple[tuple[str, int, int, float, float, float, float], ...] = (
    ("1.0", 7000, 260912, 18706.1, 6.444662, 2048.0, 98258.265),
    ("1.0", 7010, 261872, 19904.0, 11.42026, 2048.0, 219645.978),
    ("1.0", 7220, 282032, 18333.4, 7.155109, 2048.0, 16921.991),
    ("2.0", 6900, 251312, 18495.6, 6.365808, 4096.0, 95313.572),
    ("2.0", 6910, 252272, 18802.1, 6.598378, 4096.0, 84678.880),
    ("2.0", 6920, 253232, 18641.0, 7.314456, 4096.0, 122716.232),
    ("2.0", 6930, 254192, 18564.1, 9.121927, 4096.0, 283384.130),
    ("2.0", 6940, 255152, 18549.7, 10.23865, 4096.0, 42359.376),
)
"""(attempt, step, samples consumed, milliseconds per step, loss, loss scale, printed grad norm)."""

VALIDATION: tuple[int, float, float] = (7000, 7.174200, 1305.315)
"""(step, validation loss, perplexity)."""

_STYLE = MegatronStyle(total_steps=TOTAL_STEPS, elide_after=frozenset({7010.0}))
_QUIET = replace(_STYLE, announce_restarts=False)


def as_record() -> RunRecord:
    """Return the lines as a record in trimtab's units: true grad norm, seconds."""
    builder = RecordBuilder(SOURCE, "tr8-104b")
    for number, parent, parent_step, seed, nodes in ATTEMPTS:
        builder.start_attempt(
            number=number,
            parent=parent,
            parent_step=parent_step,
            settings={"nodes": str(nodes), "seed": str(seed)},
        )
        for attempt, step, samples, time_ms, loss, scale, norm in LINES:
            if attempt != number:
                continue
            builder.add(step, _values(samples, time_ms, loss, scale, norm))
            if (attempt, step) == ("1.0", VALIDATION[0]):
                builder.add(step, {"val_loss": VALIDATION[1], "perplexity": VALIDATION[2]})
    return builder.build()


def _values(
    samples: int, time_ms: float, loss: float, scale: float, norm: float
) -> dict[str, float]:
    return {
        "samples_seen": samples,
        "step_time_s": time_ms / 1e3,
        "lr": LR,
        "batch_size": BATCH_SIZE,
        "loss": loss,
        "loss_scale": scale,
        "grad_norm": norm / scale,
        "num_zeros": 0.0,
        "skipped": 0.0,
        "nonfinite": 0.0,
    }


def print_log() -> str:
    """Return the lines as Megatron-DeepSpeed printed them, unit traps and elision included."""
    return megatron_logs.print_log(as_record(), _STYLE)


def as_markdown() -> str:
    """Return a chronicle in our words, with the lines as excerpts in it."""
    lines = megatron_logs.print_log(as_record(), _QUIET).splitlines()
    cut = next(i for i, line in enumerate(lines) if " 6900/" in line)
    first, second = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    return f"""# A 104B run, in excerpts

Figures: {SOURCE}. Words: ours.

# Try 1

- Nodes: `64`
- Seed: `42`
- Started from iteration 0

Between two log lines the loss nearly doubled, then settled above where it had been:

```
{first}
```

It did not come down again. What was done:
- roll back to the checkpoint `global_step6210`
- take seed `43`, which shuffles the data anew

# Try 2

- Nodes: `64`
- Seed: `43` (from the start)
- Restarted from `global_step6210`

The same again, and sooner:

```
{second}
```

# Try 3

Not quoted here.
"""
