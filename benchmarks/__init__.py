"""Measures trimtab beside the published rules of others, on labelled and simulated logs.

- `manifest`: labelled logs in a folder, one line each; the format is in docs/formats.md.
- `predictions`: what trimtab, or a peer, says of a record, as lines.
- `matching`, `scoring`: which alarm meets which label; the figures that come of it.
- `detect`, `cross_validate`, `noise`: the measurements behind `trimtab bench`.

No torch. What the guard costs a training step is measured in `benchmarks.guard_cost`.
"""
