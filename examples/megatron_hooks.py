"""The lines that Megatron-LM's own trainer needs: a hook file to import in `pretrain_gpt.py`.

    import megatron_hooks            # before pretrain(...)

Megatron's trainer passes every finished iteration to `training_log`, on all ranks. This wraps it:
trimtab records and judges the iteration, and in `act` ends a run that does not recover, with exit
code 3. The same job script then restarts it (the first launch finds no run, and prints no
arguments):

    RESTART=$(python -m trimtab.integrations.megatron.watch $SAVE/trimtab $SAVE)
    torchrun ... pretrain_gpt.py $ARGS $RESTART

`--no-check-for-nan-in-loss-and-grad` leaves a NaN to trimtab: Megatron ends a run at the first one.
"""

import inspect
import sys

from megatron.training import get_args, training

from trimtab.integrations.megatron import MegatronWatch

own, watch = training.training_log, None


def training_log(*args, **kwargs):
    global watch
    given = inspect.signature(own).bind(*args, **kwargs).arguments
    options = get_args()
    watch = watch or MegatronWatch(f"{options.save}/trimtab", checkpoints=options.save, mode="act")
    losses = given["loss_dict"]
    loss = float(losses["lm loss"]) if "lm loss" in losses else None  # the last stage knows it
    stop = watch.step(
        given["iteration"],
        loss=loss,
        grad_norm=given.get("grad_norm"),
        lr=given["learning_rate"],
        loss_scale=given["loss_scale"],
        skipped=bool(given["skipped_iter"]),
    )
    result = own(*args, **kwargs)
    if stop:
        watch.close()
        sys.exit(watch.exit_code)
    return result


training.training_log = training_log
