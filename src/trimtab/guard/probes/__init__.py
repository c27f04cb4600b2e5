"""What is measured at a step, from the objects that train: never from a config.

One file per place: `gradients`, `moments` (the optimizer's), `activations`, `attention`, `output`
(the last layer), `batch` (before the step), `host`. `suite` runs them: cheap signals every step,
the others every so many steps, which the record shows as missing values in between. Sharded tensors
are measured where they lie, see `trimtab.guard.distributed.sharding`.
"""
