"""The names of what the guard measures and a policy can switch off."""

__all__ = ["PROBES"]

PROBES: tuple[str, ...] = (
    "hidden",
    "batch",
    "gradients",
    "moments",
    "update",
    "blocks",
    "attention",
    "log_z",
    "router",
    "samples",
    "overflow",
)
"""All probes by name: the last hidden state and the batch at every step; gradients by layer, zero
gradients and RMS ratio; Adam's moments; the update and the weights; the blocks' outputs; attention;
the output's log Z; the routers of a mixture of experts; the losses of samples, where the loop
gives them; and, after a loss that is not finite, the module where that begins."""
