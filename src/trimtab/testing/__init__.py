"""Simulated runs with planted faults, log generators and the detector contract.

- `contract`: the checks that every detector must pass; yours can run them too.
- `curves`: loss and grad-norm curves with faults at known steps.
- `event_logs`, `wandb_logs`: write TensorBoard event files and W&B's offline log.
- `megatron_logs`: prints a record as Megatron text, with any of its traps.
- `tr8_104b`: a few published lines of a real run that diverged, re-typed as numbers.
"""
