"""Megatron-LM and what is built on it, and DeepSpeed."""

from trimtab.preflight.reading.frameworks.base import Framework

__all__ = ["MEGATRON"]

# fmt: off
ARGUMENTS = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
DEFAULTS = {
    "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "clip": 1.0, "init_std": 0.02, "dropout": 0.1,
    "attention_dropout": 0.1, "pad_vocab_to": 128, "tensor_parallel": 1, "pipeline_parallel": 1,
    "tied_embeddings": True, "gated_ffn": False, "warmup_steps": 0,
}
LM_DEFAULTS = {**DEFAULTS, "zero_stage": 0}
KEYS = {
    "numexperts": "experts", "moezlosscoeff": "router_z_loss", "lrwarmupfraction": "warmup_ratio", "rampupbatchsize": "ramp",
    "lossscale": "loss_scale", "optimizer": "optimizer", "load": "ignored", "save": "save_to", "numtokens": "ignored",
}

MEGATRON: tuple[Framework, ...] = (
    Framework(
        name="flagscale",
        marks=("system.tensormodelparallelsize model.numlayers", "system.precision", "experiment.task experiment.exptype", "system.checkpoint model.optimizer"),
        keys={**KEYS, "model.optimizer.weightdecay": "weight_decay", "model.optimizer.lrscheduler.lr": "lr", "hiddendimmultiplier": "ffn_multiplier"},
        defaults={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        ffn_rule="llama",
        source="https://github.com/FlagOpen/FlagScale",
    ),
    Framework(
        name="megatron-bridge",
        marks=("train.trainiters scheduler", "train.trainiters optimizer", "=megatronbridgetraining", "checkpoint.pretrainedcheckpoint train.globalbatchsize"),
        keys={"checkpoint.pretrainedcheckpoint": "base_model", "scheduler.lrwarmupfraction": "warmup_ratio", "train.globalbatchsize": "batch_global"},
        source="https://github.com/NVIDIA-NeMo/Megatron-Bridge",
    ),
    Framework(
        name="nemo",
        marks=("expmanager trainer", "model.encoderseqlength trainer", "model.megatronampo2", "model.mcoregpt", "trainer.maxsteps model.optim.sched.name"),
        keys={
            "trainer.gradientclipval": "clip", "trainer.precision": "precision", "trainer.numnodes": "nodes", "trainer.devices": "devices",
            "model.encoderseqlength": "seq", "model.shareembeddingsandoutputweights": "tied", "model.optim.name": "optimizer",
            "model.encoder.hiddensize": "hidden", "model.encoder.numlayers": "layers", "model.encoder.numattentionheads": "heads",
            "model.encoder.ffnhiddensize": "ffn", "model.encoder.activation": "activation", "trainer.valcheckinterval": "eval_steps",
            "trainer.accumulategradbatches": "ignored", "model.numquerygroups": "kv_heads", "model.fp8": "fp8",
        },
        ignore=("fp8hybrid", "fp8e4m3", "fp8format"),
        source="https://docs.nvidia.com/nemo-framework/",
    ),
    Framework(
        name="gpt-neox",
        marks=("pipeparallelsize", "gptjresidual", "noweighttying", "attentionconfig numattentionheads", "outputlayerparallelism",
               "trainmicrobatchsizepergpu numattentionheads !deepspeedjson", "makevocabsizedivisibleby posemb",
               "trainmicrobatchsizepergpu lrdecayiters !deepspeedjson", "optimizer.params.lr lrdecaystyle !deepspeedjson"),
        keys={"warmup": "warmup_ratio", "modelparallelsize": "tensor_parallel", "noweighttying": "untied", "initmethod": "init_scheme",
              "checkpointfactor": "save_steps", "saveinterval": "save_steps", "optimizer.type": "optimizer", "vocabsize": "vocab"},
        ignore=("outputlayerinitmethod", "trainbatchsizes"),
        defaults={"init_std": 0.02, "clip": 1.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "pad_vocab_to": 128, "gated_ffn": False},
        ffn_rule="neox",
        source="https://github.com/EleutherAI/gpt-neox/blob/main/configs/neox_arguments.md",
    ),
    Framework(
        name="megatron-deepspeed",
        marks=("deepspeed numlayers", "zerostage numlayers", "deepspeedconfig numlayers", "deepspeedjson numlayers", "deepspeed numattentionheads", "deepspeed hiddensize microbatchsize"),
        keys=KEYS,
        defaults=DEFAULTS,
        ffn_rule="megatron",
        source=ARGUMENTS,
    ),
    Framework(
        name="megatron",
        marks=("numlayers hiddensize numattentionheads lrdecaystyle", "numattentionheads microbatchsize hiddensize !model !basemodel", "tensormodelparallelsize numattentionheads !model",
               "initmethodstd hiddensize adambeta1", "tensormodelparallelsize microbatchsize lr !model !modelnameorpath"),
        keys=KEYS,
        defaults=LM_DEFAULTS,
        ffn_rule="megatron",
        source=ARGUMENTS,
    ),
    Framework(
        name="megatron",  # a short command line: its options are Megatron's words, or its program is Megatron's
        marks=("numlayers hiddensize numattentionheads !model !modelnameorpath !modelarch", "numlayers hiddensize microbatchsize !model !modelnameorpath",
               "numlayers numattentionheads microbatchsize !model !modelnameorpath",
               "=pretraingptpy numlayers", "=pretraingptpy hiddensize", "=pretraingptpy microbatchsize", "=pretraingptpy lr"),
        syntax="args",
        keys=KEYS,
        defaults=LM_DEFAULTS,
        ffn_rule="megatron",
        source=ARGUMENTS,
    ),
    Framework(
        name="deepspeed",
        marks=("zerooptimization !modelnameorpath !basemodel !model", "trainmicrobatchsizepergpu !modelnameorpath !model", "fp16.enabled optimizer.params.lr", "bf16.enabled optimizer.params.lr"),
        keys={"trainbatchsize": "batch_global", "scheduler.params.warmupnumsteps": "warmup_steps", "scheduler.params.warmupmaxlr": "scheduler_lr",
              "scheduler.params.warmupminlr": "ignored", "optimizer.type": "optimizer", "scheduler.type": "schedule"},
        defaults={"clip": 0},
        source="https://www.deepspeed.ai/docs/config-json/",
    ),
)
