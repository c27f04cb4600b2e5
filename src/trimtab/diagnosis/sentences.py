"""Sentences that several causes share; `{f}` is the features of the incident."""

PROBE_CLEAN = "none of {f.probe.num_batches} upcoming batches stands out under the healthy state"
PROBE_FOUND = (
    "{f.probe.num_outliers} of {f.probe.num_batches} upcoming batches stand out under the healthy "
    "state: loss up to {f.probe.worst_loss:.3g}, median {f.probe.median_loss:.3g}"
)
CUT_HELD = (
    "a branch at {f.cut_held.cut_text} held (loss {f.cut_held.loss:.3g}, expected"
    " {f.cut_held.expected_loss:.3g})"
)
CUTS_FAILED = "no branch at a lower learning rate held"
SKIP_HELD = (
    "leaving the suspect data out held (loss {f.skip_alone.loss:.3g}, expected"
    " {f.skip_alone.expected_loss:.3g})"
)
SKIP_FAILED = (
    "leaving the suspect data out did not hold (loss {f.skip_alone.loss:.3g}, expected"
    " {f.skip_alone.expected_loss:.3g})"
)
CONTROL_HELD = "the same steps again, unchanged, went well: it does not reproduce"
CONTROL_FAILED = "the same steps again, unchanged, failed again: it reproduces"
FP32_HELD = "the same steps in fp32 went well"
FP32_FAILED = "the same steps failed in fp32, too: it is not fp16"
PUT_BACK_HELD = "the same steps with the setting put back went well"
PUT_BACK_FAILED = "the same steps failed with the setting put back, too"
BATCH_NONFINITE = (
    "the batch itself held NaN or Inf before its step, in {f.batch_nonfinite:.0f} of its values"
)
BATCH_SCALE = "the batches are of another scale than those before"
OLDER_HELD = "the same data went well from an older state"
OLDER_FAILED = "the same data failed from an older state, too"
CLIPPED = "{f.clip_text}"
SOONER = (
    "recurs {f.recurrence.sooner_by:.0f} steps earlier than in attempt"
    " {f.recurrence.previous.attempt}"
)
OTHER_DATA = (
    "attempt {f.recurrence.previous.attempt} failed too, on other data ({f.recurrence.data_change})"
)
JUMPED = (
    "the learning rate in force rose {f.lr_jump:.3g} x at {f.axis} {f.lr_jump_step:.0f}"
    " ({f.lr_before_jump:.3g} before), {f.lr_jump_rows} rows before the onset"
)
NEAR = "the onset lies at {f.warm_up_ratio:.2f} x the end of warm-up (in {f.warm_up_unit})"
SHORT = "the loss came back within {f.num_rows} rows"
LED = "the grad norm stood out {f.gnorm_lead_rows} rows before the loss"
FLAT_TOP = (
    "the loss stood at one height between sharp edges, as other data does;"
    " a spike of the optimizer decays"
)
