"""Frameworks that start from given weights, most of them on transformers' Trainer.

And transformers' own files.
"""

from trimtab.configs.frameworks.base import Framework

__all__ = ["FINETUNING"]
TRAINER = (
    "https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments"
)
TRAINER_DEFAULTS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "clip": 1.0}
TRAINER_KEYS = {
    "maxsteps": "train_steps",
    "optim": "optimizer",
    "lrschedulertype": "schedule",
    "modelnameorpath": "base_model",
    "torchdtype": "precision",
    "gradientaccumulationsteps": "grad_accum",
    "beta": "pref_beta",
    "loraalpha": "ignored",
}

FINETUNING: tuple[Framework, ...] = (
    Framework(
        name="axolotl",
        marks=(
            "basemodel sequencelen",
            "basemodel microbatchsize",
            "basemodel numepochs",
            "basemodel datasets",
        ),
        keys={
            "basemodel": "base_model",
            "microbatchsize": "micro_batch",
            "sequencelen": "seq",
            "lrscheduler": "schedule",
            "adapter": "adapter",
            "reinitweights": "reinit",
        },
        defaults=TRAINER_DEFAULTS,
        source="https://docs.axolotl.ai/docs/config-reference.html",
    ),
    Framework(
        name="llama-factory",
        marks=(
            "finetuningtype modelnameorpath",
            "cutofflen modelnameorpath",
            "finetuningtype template",
        ),
        keys={**TRAINER_KEYS, "cutofflen": "seq", "finetuningtype": "adapter", "stage": "stage"},
        ignore=("maxsamples",),
        defaults=TRAINER_DEFAULTS,
        source="https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html",
    ),
    Framework(
        name="open-instruct",
        marks=(
            "modelnameorpath withtracking",
            "datasetmixer checkpointingsteps",
            "datasetmixerlist modelnameorpath",
        ),
        keys={**TRAINER_KEYS, "usemuon": "ignored", "uselora": "adapter"},
        ignore=("datasetmixer", "datasetmixerlist"),
        source="https://github.com/allenai/open-instruct",
    ),
    Framework(
        name="hf-alignment",
        marks=(
            "modelnameorpath datasetmixture",
            "modelnameorpath chattemplate perdevicetrainbatchsize",
            "modelnameorpath datasetmixer",
        ),
        keys={**TRAINER_KEYS, "maxseqlength": "seq", "maxlength": "seq", "usepeft": "adapter"},
        ignore=("maxpromptlength", "datasetmixture", "datasetmixer"),
        defaults=TRAINER_DEFAULTS,
        source="https://github.com/huggingface/alignment-handbook",
    ),
    Framework(
        name="hf-trainer",
        marks=(
            "perdevicetrainbatchsize",
            "numtrainepochs learningrate",
            "lrschedulertype learningrate outputdir",
        ),
        keys={**TRAINER_KEYS, "maxseqlength": "seq"},
        defaults=TRAINER_DEFAULTS,
        source=TRAINER,
    ),
    Framework(
        name="litgpt",
        marks=(
            "checkpointdir train.globalbatchsize",
            "train.maxseqlength train.microbatchsize",
            "train.lrwarmupsteps train.microbatchsize",
        ),
        keys={
            "train.minlr": "min_lr",
            "train.maxnorm": "clip",
            "train.maxsteps": "train_steps",
            "train.globalbatchsize": "batch_global",
            "checkpointdir": "base_model",
            "initialcheckpointdir": "base_model",
            "train.maxseqlength": "seq",
            "optimizer.classpath": "optimizer",
            "train.maxtokens": "train_tokens",
            "train.epochs": "epochs",
            "optimizer.initargs.lr": "lr",
            "optimizer.initargs.betas": "betas",
            "modelconfig.blocksize": "seq",
        },
        defaults={"clip": 0},
        batch_unit="global",
        source="https://github.com/Lightning-AI/litgpt/tree/main/config_hub",
    ),
    Framework(
        name="hf-config",
        marks=(
            "architectures !learningrate !optimizer",
            "modeltype hiddensize !lr !learningrate",
            "modeltype vocabsize !lr !learningrate !optimizer",
            "transformersversion !learningrate",
        ),
        keys={
            "modeltype": "model_name",
            "numexperts": "experts",
            "intermediatesize": "ffn",
            "hiddensize": "hidden",
            "torchdtype": "precision",
            "dtype": "precision",
        },
        source="https://huggingface.co/docs/transformers/main_classes/configuration",
    ),
)
