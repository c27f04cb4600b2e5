"""Trainers whose text is recognized by name, and their keys that have another meaning there.

All are read by the same mechanism as text of unknown trainers; a name avoids the guess and its
note.
"""

from trimtab.readers.freetext.keys import Meaning
from trimtab.readers.freetext.reader import TextReader

__all__ = ["TEXT_FORMATS"]

_LOSS = Meaning("signal", "loss")
_VALIDATION = Meaning("signal", "val_loss")
_STEP = Meaning("step", "step")

TEXT_FORMATS: tuple[TextReader, ...] = (
    TextReader(
        name="fairseq",
        looks_for="fairseq or metaseq lines (`train_inner | ... num_updates=100`)",
        pattern=rb"train_inner[^\n]{1,400}?num_updates",
        # `update` is the epoch with its fraction; nll_loss is `loss` without label smoothing.
        keys={"update": None, "nll loss": Meaning("signal", "loss", 4), "wall": None},
    ),
    TextReader(
        name="torchtitan",
        looks_for="torchtitan lines (`step: 10  loss: 2.5  grad_norm: ...  tps: ...`)",
        pattern=rb"step:\s*[\d,]+\s[^\n]{0,40}?loss:\s[^\n]{1,200}?tps:\s",
    ),
    TextReader(
        name="deepspeed-chat",
        looks_for="DeepSpeed-Chat lines (`epoch: 0|step: 1|ppo_ep: 1|act_loss: ...`)",
        pattern=rb"\|ppo_ep:\s*\d+\|act_loss:",
        # The actor is the model that is kept; the critic's loss lies on another scale.
        keys={
            "act loss": _LOSS,
            "cri loss": Meaning("signal", "value_loss"),
            "unsuper loss": None,
        },
    ),
    TextReader(
        name="llm.c",
        looks_for="llm.c lines (`step 1/100 | loss 4.3 | norm ...`, `s:1 trl:4.3`)",
        pattern=rb"step\s+\d+/\d+ \| (?:train )?loss\s|\bs:\d+ trl:",
        keys={"trl": _LOSS, "tel": _VALIDATION, "s": _STEP, "eval": None},
    ),
    TextReader(
        name="nanogpt",
        looks_for="lines of nanoGPT and its kin (`iter 0: loss 10.9`, `step:1/100 train_loss:...`)",
        pattern=(
            rb"\biter \d+: loss |\bstep:\d+/\d+ (?:\[[^\]\n]*\] )?train_loss:"
            rb"|\bstep\s+\d+(?:/\d+)? (?:\(\S+%\) )?\| loss: "
        ),
    ),
    TextReader(
        name="olmo",
        looks_for="OLMo lines (`[step=1/100]`, then `train/CrossEntropyLoss=...`)",
        pattern=rb"\[step=\d[^\n]*\r?\n(?:[^\n]*\n){0,20}?\s+train/CrossEntropyLoss=",
    ),
    TextReader(
        name="maxtext",
        looks_for="MaxText lines (`completed step: 5, seconds: 0.4, ..., loss: 12.3`)",
        pattern=rb"completed step:\s*\d+, seconds:",
        keys={"seconds": Meaning("signal", "step_time_s")},
    ),
    TextReader(
        name="transformer-xl",
        looks_for="Transformer-XL lines (`| epoch 1 step 200 | 200 batches | lr ... | loss ...`)",
        pattern=rb"\| epoch\s+\d+ step\s+\d+ \|\s+\d+ batches \|",
    ),
    TextReader(
        name="timm",
        looks_for="timm lines (`Train: 0 [  50/1251 (  4%)]  Loss: 6.9`)",
        pattern=rb"Train: \d+ \[\s*\d+/\d+ \(\s*\d+%\)\]\s+Loss:",
        keys={
            "time": Meaning("signal", "step_time_s"),
            "data": Meaning("signal", "data_time_s"),
        },
    ),
    TextReader(
        name="darknet",
        looks_for="darknet lines (`100: 2.5, 2.6 avg, 0.001 rate, 3.2 seconds, 6400 images`)",
        pattern=rb"(?<!\d)\d{1,12}: [\d.]{1,24}, [\d.]{1,24} avg(?: loss)?, [\d.]{1,24} rate,",
        keys={"avg": _LOSS, "avg loss": _LOSS, "rate": Meaning("signal", "lr")},
    ),
    TextReader(
        name="stable-baselines3",
        looks_for="stable-baselines3 tables (`| total_timesteps | 2048 |`)",
        pattern=rb"\|\s+total_timesteps\s+\|\s*\d",
        keys={
            "value loss": Meaning("signal", "value_loss"),
            "policy gradient loss": Meaning("signal", "policy_loss"),
            "entropy loss": Meaning("signal", "policy_entropy"),
            "n updates": None,
            "iterations": None,
        },
    ),
    TextReader(
        name="step-dict",
        looks_for="a step, then a dict (`Step 10: {'loss': 2.5}`)",
        pattern=(
            rb"(?i)\n[^\n{]*?\b(?:step|iteration|iter)s?\W{1,3}\d[^\n{]{0,80}"
            rb"\{\s*['\"][^\n]{0,400}?loss['\"]:"
        ),
        # Above `hf-stdout` (0.9), which would read the dict and lose the step in front of it.
        sureness=0.905,
    ),
    TextReader(
        name="deepspeed",
        looks_for="DeepSpeed lines (`step=10, skipped=0, lr=[...], mom=[...]`)",
        pattern=rb"\bstep=\d+, skipped=\d+, lr=\[",
        # DeepSpeed's own lines have no loss: the trainer that calls it prints one, and goes first.
        sureness=0.5,
    ),
)
