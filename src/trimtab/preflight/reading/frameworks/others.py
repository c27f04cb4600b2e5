"""More frameworks whose keys the common names do not tell, or tell wrongly."""

from trimtab.preflight.reading.frameworks.base import Framework

__all__ = ["OTHERS"]

# fmt: off
OTHERS: tuple[Framework, ...] = (
    Framework(
        name="torchtune",
        marks=("checkpointer.component", "optimizer.component model.component"),
        keys={"batchsize": "micro_batch", "checkpointer.checkpointdir": "base_model", "model.component": "model_name", "tokenizer.maxseqlen": "seq",
              "optimizer.component": "optimizer", "lrscheduler.component": "schedule", "clipgradnorm": "clip", "dtype": "precision", "model.lorarank": "adapter",
              "maxstepsperepoch": "ignored"},
        source="https://pytorch.org/torchtune/",
    ),
    Framework(
        name="mindformers",
        marks=("runnerconfig parallelconfig", "runnerconfig lrschedule", "runnerwrapper optimizer"),
        keys={"runnerconfig.batchsize": "micro_batch", "parallelconfig.dataparallel": "data_parallel", "parallelconfig.modelparallel": "tensor_parallel",
              "parallelconfig.pipelinestage": "pipeline_parallel", "parallelconfig.microbatchnum": "micro_num", "model.modelconfig.embeddingsize": "hidden",
              "runnerwrapper.scalesense.lossscalevalue": "loss_scale_init", "optimizer.type": "optimizer", "lrschedule.type": "schedule", "lrschedule.lrend": "min_lr",
              "model.modelconfig.computedtype": "precision", "runnerwrapper.maxgradnorm": "clip"},
        ignore=("paraminittype", "evaldataset", "evaldatasettask", "processor"),
        source="https://www.mindspore.cn/mindformers/docs/en/master/feature/configuration.html",
    ),
    Framework(
        name="cerebras",
        marks=("trainer.init.model", "runconfig traininput", "traininput optimizer"),
        keys={"trainer.fit.traindataloader.batchsize": "batch_global", "traininput.batchsize": "batch_global", "trainer.init.model.filtersize": "ffn",
              "model.initializer.std": "init_std", "trainer.init.model.initializer.std": "init_std", "trainer.init.model.name": "model_name"},
        batch_unit="global",
        source="https://docs.cerebras.net/",
    ),
    Framework(
        name="paxml",
        marks=("modeldims hiddendims", "percorebatchsize modeldims"),
        keys={"modeldims": "hidden", "hiddendims": "ffn", "percorebatchsize": "micro_batch", "fpropdtype": "precision", "clipgradientnormtovalue": "clip"},
        source="https://github.com/google/paxml",
    ),
    Framework(
        name="nanogpt",
        marks=("blocksize maxiters batchsize", "blocksize gradientaccumulationsteps lrdecayiters", "nlayer nembd maxiters learningrate"),
        syntax="python",
        batch_unit="shared",  # train.py divides gradient_accumulation_steps by the number of processes
        source="https://github.com/karpathy/nanoGPT/blob/master/train.py",
    ),
    Framework(
        name="llm.c",
        marks=("i j l u x !lr !learningrate", "d l u x !lr !learningrate !model"),
        syntax="args",
        keys={"b": "micro_batch", "t": "seq", "d": "batch_tokens", "l": "lr", "q": "min_lr_ratio", "u": "warmup_steps", "x": "train_steps", "c": "weight_decay",
              "n": "save_steps", "v": "eval_steps"},
        source="https://github.com/karpathy/llm.c/blob/master/train_gpt2.cu",
    ),
    Framework(
        name="verl",
        marks=("actorrolloutref.actor", "actorrolloutref"),
        keys={"data.trainbatchsize": "batch_global", "actorrolloutref.actor.optim.lr": "lr", "actorrolloutref.model.path": "base_model",
              "actorrolloutref.actor.optim.lrwarmupsteps": "warmup_steps", "actorrolloutref.actor.optim.lrwarmupstepsratio": "warmup_ratio",
              "actorrolloutref.actor.gradclip": "clip", "trainer.totalepochs": "epochs", "trainer.savefreq": "save_steps",
              "actorrolloutref.actor.optim.weightdecay": "weight_decay"},
        ignore=("critic", "ref", "rollout", "rewardmodel"),
        batch_unit="global",
        source="https://verl.readthedocs.io/en/latest/examples/config.html",
    ),
    Framework(
        name="metaseq",
        marks=("decoderembeddim tokenspersample", "megatroninitsigma", "fullmegatroninit", "decoderattentionheads clipnorm"),
        keys={"memoryefficientfp16": "fp16", "warmupupdates": "warmup_steps", "totalnumupdate": "decay_steps", "fp16initscale": "loss_scale_init",
              "batchsize": "micro_batch", "megatroninitsigma": "init_std", "thresholdlossscale": "loss_scale_min", "tokenspersample": "seq"},
        source="https://github.com/facebookresearch/metaseq/blob/main/metaseq/dataclass/configs.py",
    ),
)
