"""One small config of each framework in our own words.

Told by its keys, read by its own meanings.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trimtab.configs.frameworks import frameworks
from trimtab.configs.settings import NAMES, Settings

Read = Callable[..., Settings]

# framework, file name, text, settings. Numbers are of published runs where a comment names one.
SAMPLES: list[tuple[str, str, str, Mapping[str, Any]]] = [
    (
        "megatron",  # BLOOM's peak rate, init and batch (bigscience tr11-176B)
        "a.sh",
        (
            "torchrun pretrain_gpt.py --num-layers 70 --hidden-size 14336 --num-attention-heads 112"
            " --seq-length 2048 --micro-batch-size 2 --global-batch-size 2048 --lr 6e-5"
            " --init-method-std 0.0048 --bf16 --embed-layernorm --position-embedding-type alibi"
            " --adam-beta2 0.95 --swiglu --untie-embeddings-and-output-weights --moe-z-loss-coeff"
            " 1e-3 --grad-reduce-in-bf16"
        ),
        {
            "lr": 6e-5,
            "init_std": 0.0048,
            "dtype": "bf16",
            "embed_norm": True,
            "position": "alibi",
            "batch_tokens": 4194304,
            "gated_ffn": True,
            "tied_embeddings": False,
            "ffn": 38208,
            "eps": 1e-8,
            "z_loss": None,
            "router_z_loss": 1e-3,
            "reduce_dtype": "bf16",
        },
    ),
    (
        "megatron-deepspeed",
        "a.sh",
        (
            "deepspeed train.py --deepspeed --zero-stage 1 --num-layers 24 --hidden-size 2048"
            " --num-attention-heads 16 --seq-length 2048 --global-batch-size 512 --lr 2e-4"
            " --lr-warmup-tokens 3000000 --fp16 --loss-scale 12"
        ),
        {
            "warmup_tokens": 3000000,
            "warmup_steps": 3,
            "dtype": "fp16",
            "loss_scale": None,
            "ffn": 8192,
        },
    ),
    (
        "megatron-bridge",
        "a.yaml",
        (
            "train: {train_iters: 200, global_batch_size: 64, micro_batch_size: 1}\nmodel:"
            " {seq_length: 8192}\noptimizer: {lr: 5e-6, min_lr: 0.0, bf16: true, clip_grad:"
            " 1}\nscheduler: {lr_warmup_iters: 0, lr_warmup_fraction: 0.05}\ncheckpoint:"
            " {pretrained_checkpoint: /ckpt/Some-30B-Base}\n"
        ),
        {
            "warmup_steps": 10,
            "min_lr": 0,
            "batch_tokens": 524288,
            "pretrained": True,
            "params": 30e9,
        },
    ),
    (
        "nemo",
        "a.yaml",
        (
            "trainer: {num_nodes: 2, devices: 8, precision: bf16, max_steps: 1000,"
            " gradient_clip_val: 1.0}\nexp_manager: {name: x}\nmodel: {global_batch_size: 256,"
            " encoder_seq_length: 2048, num_layers: 12, hidden_size: 768, num_attention_heads: 12,"
            " activation: fast-swiglu, fp8: false, fp8_hybrid: true, tensor_model_parallel_size: 2,"
            " optim: {lr: 6e-4, betas: [0.9, 0.95], sched: {warmup_steps: 636, min_lr: 6e-5}}}\n"
        ),
        {
            "dtype": "bf16",
            "world_size": 16,
            "data_parallel": 8,
            "gated_ffn": True,
            "warmup_steps": 636,
            "beta2": 0.95,
            "clip": 1.0,
        },
    ),
    (
        "flagscale",
        "a.yaml",
        (
            "system: {tensor_model_parallel_size: 4, precision: {bf16: true}}\nmodel: {num_layers:"
            " 2, hidden_size: 6144, swiglu: true, multiple_of: 4096, hidden_dim_multiplier: 1.3,"
            " seq_length: 4096, global_batch_size: 1024, optimizer: {weight_decay: 0.1,"
            " lr_scheduler: {lr: 1.5e-4, lr_warmup_samples: 1024000}}}\ndata: {tokenizer:"
            " {vocab_size: 100008}}\n"
        ),
        {"ffn_effective": 24576, "warmup_steps": 1000, "vocab": 100008, "beta2": 0.999},
    ),
    (
        "gpt-neox",  # as its 20B.yml writes them
        "a.yml",
        (
            '{"pipe-parallel-size": 4, "model-parallel-size": 2, "num-layers": 44, "hidden-size":'
            ' 6144, "num-attention-heads": 64, "seq-length": 2048,\n"init_method": "small_init",'
            ' "output_layer_init_method": "wang_init", "warmup": 0.01, "lr-decay-iters": 150000,'
            ' "no-weight-tying": true,\n"optimizer": {"type": "Adam", "params": {"lr": 0.97e-4,'
            ' "betas": [0.9, 0.95],}}, "fp16": {"enabled": true, "initial_scale_power": 12,'
            ' "loss_scale": 0},}'
        ),
        {
            "init_std": "small_init",
            "warmup_steps": 1500,
            "lr": 0.97e-4,
            "tied_embeddings": False,
            "ffn": 24576,
            "dtype": "fp16",
            "loss_scale_init": 4096,
            "tensor_parallel": 2,
            "clip": 1.0,
        },
    ),
    (
        "deepspeed",
        "a.json",
        (
            '{"train_batch_size": 4096, "zero_optimization": {"stage": 2}, "optimizer": {"type":'
            ' "Lamb", "params": {"lr": 11e-3}}, "bf16": {"enabled": true},'
            ' "train_micro_batch_size_per_gpu": "auto"}'
        ),
        {
            "batch_samples": 4096,
            "optimizer": "Lamb",
            "dtype": "bf16",
            "micro_batch": None,
            "clip": 0,
        },
    ),
    (
        "olmo",
        "a.yaml",
        (
            "model: {d_model: 4096, n_heads: 32, n_layers: 32, mlp_hidden_size: 22016,"
            " activation_type: swiglu, vocab_size: 50280, embedding_size: 50304, init_fn: mitchell,"
            " block_type: sequential, layer_norm_type: default, max_sequence_length:"
            " 2048}\noptimizer: {learning_rate: 3.0e-4, betas: [0.9, 0.95]}\nscheduler: {t_warmup:"
            " 5000, alpha_f: 0.1}\nglobal_train_batch_size: 2048\nmax_duration: 2e12T\nprecision:"
            " amp_bf16\n"
        ),
        {
            "vocab": 50304,
            "ffn_effective": 11008,
            "init_std": "mitchell",
            "train_tokens": 2e12,
            "train_steps": 476837,
            "min_lr": 3e-5,
            "dtype": "bf16",
        },
    ),
    (
        "olmo-core",
        "a.py",
        (
            "def build(opts):\n    model_config = TransformerConfig.olmo2_32B(vocab_size=v())\n   "
            " train_module_config = TrainModuleConfig(rank_microbatch_size=4 * 4096,"
            " max_sequence_length=4096, optim=SkipStepAdamWConfig(lr=6e-4, betas=(0.9, 0.95)),"
            " scheduler=CosWithWarmup(warmup_steps=2000), z_loss_multiplier=1e-5)\n   "
            " data_loader_config = LoaderConfig(global_batch_size=2048 * 4096)\n    trainer_config"
            " = TrainerConfig(max_duration=Duration.tokens(int(6.5e12))).with_callback('saver',"
            " Saver(save_interval=1000))\n"
        ),
        {
            "params": 32e9,
            "lr": 6e-4,
            "batch_tokens": 8388608,
            "batch_samples": 2048,
            "train_tokens": 6.5e12,
            "z_loss": 1e-5,
            "save_steps": 1000,
        },
    ),
    (
        "llm-foundry",
        "a.yaml",
        (
            "max_seq_len: 2048\nmodel: {name: mpt_causal_lm, d_model: 7168, n_heads: 56, n_layers:"
            " 48, expansion_ratio: 4}\ntrain_loader: {name: text}\noptimizer: {lr:"
            " 1.0e-4}\nalgorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold:"
            " 1.0}}\nglobal_train_batch_size: 2048\nmax_duration: 143100ba\n"
        ),
        {"ffn": 28672, "clip": 1.0, "tied_embeddings": True, "batch_tokens": 4194304},
    ),
    (
        "levanter",
        "a.yaml",
        (
            "model: {type: llama, hidden_dim: 4096, num_layers: 32, seq_len: 4096}\ntrainer: {mp:"
            " 'p=f32,c=bfloat16', train_batch_size: 128, num_train_steps: 800}\noptimizer:"
            " {learning_rate: 5e-6, warmup: 0.03, min_lr_ratio: 0.0}\nz_loss_weight: 5e-6\n"
        ),
        {
            "dtype": "bf16",
            "warmup_steps": 24,
            "min_lr": 0,
            "z_loss": 5e-6,
            "gated_ffn": True,
            "beta2": 0.95,
        },
    ),
    (
        "nanotron",
        "a.yaml",
        (
            "model: {dtype: bfloat16, init_method: {std: 0.0221}, model_config: {hidden_size: 2048,"
            " hidden_act: silu, initializer_range: 0.02, z_loss_enabled: false, z_loss_coefficient:"
            " 1e-5}}\noptimizer: {clip_grad: 1.0, learning_rate_scheduler: {learning_rate: 5e-4,"
            " min_decay_lr: 0, lr_warmup_steps: 2000}, optimizer_factory: {adam_beta2: 0.95, name:"
            " adamW}}\ntokens: {sequence_length: 2048, micro_batch_size: 4,"
            " batch_accumulation_per_replica: 4, train_steps: 10}\nparallelism: {dp: 64, pp_engine:"
            " 1f1b}\nlighteval: {batch_size: 8}\n"
        ),
        {
            "init_std": 0.0221,
            "z_loss": 0,
            "batch_tokens": 2097152,
            "min_lr": 0,
            "optimizer": "adamW",
            "gated_ffn": True,
        },
    ),
    (
        "torchtitan",
        "a.toml",
        (
            "[model]\nname = 'llama4'\nflavor = '17bx128e'\n[optimizer]\nlr = 4e-3\neps ="
            " 1e-15\n[training]\nlocal_batch_size = 1\nseq_len = 8192\nsteps ="
            " 3000\n[parallelism]\ndata_parallel_shard_degree = 32\ndata_parallel_replicate_degree"
            " = 4\n[lr_scheduler]\nwarmup_steps = 600\nmin_lr_factor = 0.1\n"
        ),
        {
            "experts": 128,
            "eps": 1e-15,
            "beta2": 0.95,
            "batch_tokens": 1048576,
            "dtype": "bf16",
            "min_lr": 4e-4,
        },
    ),
    (
        "kempnerforge",
        "a.toml",
        (
            "[model]\ndim = 8192\nn_layers = 80\nn_heads = 64\nn_kv_heads = 8\nffn_hidden_dim ="
            " 28672\nactivation = 'silu'\n[train]\nbatch_size = 2\nseq_len = 4096\ngrad_accum_steps"
            " = 4\ngrad_clip_norm = 1.0\n[optimizer]\nlr = 1.5e-4\nbetas = [0.9,"
            " 0.95]\n[distributed]\ndp_shard = 8\ntp = 4\n"
        ),
        {"kv_heads": 8, "batch_tokens": 262144, "tensor_parallel": 4, "clip": 1.0},
    ),
    (
        "lingua",
        "a.yaml",
        (
            "steps: 60_000\noptim: {lr: 3e-3, warmup: 5000, lr_min_ratio: 0.000001}\ndistributed:"
            " {fsdp_type: full_shard, model_dtype: bf16}\nmodel: {dim: 2048, n_layers: 25, n_heads:"
            " 16}\ndata: {batch_size: 4, seq_len: 4096}\n"
        ),
        {
            "train_steps": 60000,
            "gated_ffn": True,
            "dtype": "bf16",
            "beta2": 0.95,
            "warmup_steps": 5000,
        },
    ),
    (
        "fairseq",
        "a.yaml",
        (
            "common: {fp16: true}\noptimization: {lr: [0.0002], max_update: 1000, clip_norm: 5,"
            " update_freq: [1]}\noptimizer: {_name: adam, adam_betas: '(0.9,0.98)'}\ntask:"
            " {tokens_per_sample: 512}\ndistributed_training: {distributed_world_size: 16}\nmodel:"
            " {loss_scale: 1, transformer: {encoder: {embed_dim: 768, layers: 12, attention_heads:"
            " 12}}}\n"
        ),
        {
            "lr": 2e-4,
            "beta2": 0.98,
            "clip": 5,
            "hidden": 768,
            "loss_scale": None,
            "world_size": 16,
            "optimizer": "adam",
        },
    ),
    (
        "metaseq",
        "a.py",
        (
            "def get_grid(args):\n    grid = []\n    grid +="
            " [hyperparam('--memory-efficient-fp16'), hyperparam('--fp16-init-scale', 4),"
            " hyperparam('--megatron-init-sigma', 0.006),\n        hyperparam('--adam-betas',"
            " f'(0.9, 0.95)'), hyperparam('--clip-norm', 1.0), hyperparam('--lr', size.lr),"
            " hyperparam('--weight-decay', 0.1)]\n    return grid\n"
        ),
        {
            "dtype": "fp16",
            "loss_scale_init": 4,
            "init_std": 0.006,
            "beta2": 0.95,
            "clip": 1.0,
            "lr": None,
        },
    ),
    (
        "internevo",
        "a.py",
        (
            "data = dict(seq_len=2048, micro_num=4, micro_bsz=2,"
            " total_steps=100)\nhybrid_zero_optimizer = dict(clip_grad_norm=1.0)\nadam ="
            " dict(lr=1e-4, adam_beta2_c=0)\n"
        ),
        {"micro_batch": 2, "batch_samples": 8, "clip": 1.0, "gated_ffn": True},
    ),
    (
        "maxtext",
        "a.yml",
        (
            "base_emb_dim: 2048\nbase_num_query_heads: 16\nbase_mlp_dim:"
            " 7168\nbase_num_decoder_layers: 16\nmlp_activations: ['silu',"
            " 'linear']\nlearning_rate: 3.e-5\nsteps: 150_001\nwarmup_steps_fraction:"
            " 0.1\nlearning_rate_final_fraction: 0.1\ndtype: bfloat16\nweight_dtype:"
            " float32\nadam_b2: 0.95\n"
        ),
        {
            "hidden": 2048,
            "gated_ffn": True,
            "warmup_steps": 15000,
            "min_lr": 3e-6,
            "dtype": "bf16",
            "beta2": 0.95,
        },
    ),
    (
        "axolotl",
        "a.yml",
        (
            "base_model: org/Llama-3.1-8B\nsequence_len: 8192\nmicro_batch_size:"
            " 1\ngradient_accumulation_steps: 8\nlearning_rate: 2e-5\nadapter: qlora\nbf16:"
            " auto\nweight_decay: 0.0\n"
        ),
        {
            "batch_tokens": 65536,
            "pretrained": True,
            "adapter": True,
            "params": 8e9,
            "clip": 1.0,
            "weight_decay": 0,
        },
    ),
    (
        "llama-factory",
        "a.yaml",
        (
            "model_name_or_path: org/Qwen2-1.5B\nstage: sft\nfinetuning_type: full\ntemplate:"
            " qwen\ncutoff_len: 2048\nmax_samples: 1000\nlearning_rate: 1.0e-5\nbf16: true\n"
        ),
        {
            "adapter": False,
            "objective": "sft",
            "seq": 2048,
            "params": 1.5e9,
            "train_samples": None,
            "dtype": "bf16",
        },
    ),
    (
        "open-instruct",
        "a.yaml",
        (
            "model_name_or_path: org/Llama-2-70b\nwith_tracking: true\nmax_seq_length:"
            " 8192\nlearning_rate: 1e-5\nwarmup_ratio: 0.03\nbeta: 5\n"
        ),
        {"warmup_ratio": 0.03, "beta1": None, "seq": 8192},
    ),
    (
        "hf-alignment",
        "a.yaml",
        (
            "model_name_or_path: org/zephyr-7b\nper_device_train_batch_size: 8\nlearning_rate:"
            " 5e-7\nbeta: 0.01\ndataset_mixer: {x: 1.0}\nmax_steps: -1\nbf16: true\n"
        ),
        {"lr": 5e-7, "beta1": 0.9, "train_steps": None, "clip": 1.0},
    ),
    (
        "hf-trainer",
        "a.json",
        (
            '{"per_device_train_batch_size": 4, "learning_rate": 3e-05, "max_grad_norm": 0.5,'
            ' "adam_epsilon": 1e-6, "fp16": true, "num_train_epochs": 3.0}'
        ),
        {"clip": 0.5, "eps": 1e-6, "dtype": "fp16", "beta2": 0.999, "epochs": 3},
    ),
    (
        "hf-config",
        "a.json",
        (
            '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,'
            ' "initializer_range": 0.02, "torch_dtype": "bfloat16"}'
        ),
        {"init_std": 0.02, "gated_ffn": True, "dtype": "bf16", "clip": None, "pretrained": None},
    ),
    (
        "litgpt",
        "a.yaml",
        (
            "checkpoint_dir: checkpoints/org/Llama-3-8B\nprecision: bf16-true\ndevices:"
            " 4\nnum_nodes: 1\ntrain: {global_batch_size: 64, micro_batch_size: 4, lr_warmup_steps:"
            " 25, max_seq_length: 512, min_lr: 6e-5, max_norm: }\noptimizer: {class_path:"
            " torch.optim.AdamW, init_args: {lr: 2e-4, betas: [0.9, 0.95]}}\neval: {interval: 25}\n"
        ),
        {"batch_tokens": 32768, "min_lr": 6e-5, "dtype": "bf16", "world_size": 4, "clip": 0},
    ),
    (
        "torchtune",
        "a.yaml",
        (
            "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\ncheckpointer:"
            " {_component_: x, checkpoint_dir: /tmp/m}\ntokenizer: {max_seq_len: 8192}\nbatch_size:"
            " 2\noptimizer: {_component_: torch.optim.AdamW, lr: 2e-5}\nclip_grad_norm:"
            " null\ndtype: bf16\n"
        ),
        {"params": 8e9, "pretrained": True, "seq": 8192, "micro_batch": 2, "clip": 0},
    ),
    (
        "mindformers",
        "a.yaml",
        (
            "model: {model_config: {embedding_size: 14336, num_layers: 70, expand_ratio: 4,"
            " seq_length: 2048, vocab_size: 250880, compute_dtype: float16, param_init_type:"
            " float32}}\ntrain_dataset: {batch_size: 8}\nrunner_config: {batch_size:"
            " 1}\nparallel_config: {data_parallel: 2, micro_batch_num: 48}\nlr_schedule:"
            " {learning_rate: 1e-6, lr_end: 1e-7, total_steps: -1}\n"
        ),
        {
            "hidden": 14336,
            "ffn": 57344,
            "batch_samples": 96,
            "min_lr": 1e-7,
            "dtype": "fp16",
            "train_steps": None,
        },
    ),
    (
        "cerebras",
        "a.yaml",
        (
            "train_input: {max_sequence_length: 2048, batch_size: 264}\neval_input: {batch_size:"
            " 88}\nmodel: {hidden_size: 2048, filter_size: 8192}\noptimizer: {optimizer_type:"
            " AdamW, learning_rate: [{scheduler: Linear, initial_learning_rate: 0.0,"
            " end_learning_rate: 2.0e-4, total_iters: 694}, {scheduler: CosineDecay,"
            " initial_learning_rate: 2.0e-4, end_learning_rate: 2.0e-5, total_iters: 48137}]}\n"
        ),
        {"lr": 2e-4, "min_lr": 2e-5, "warmup_steps": 694, "batch_tokens": 540672, "ffn": 8192},
    ),
    (
        "nanogpt",
        "a.py",
        (
            "batch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\nmax_iters ="
            " 600000\nlr_decay_iters = 600000\n"
        ),
        {"batch_tokens": 491520},
    ),
    (
        "llm.c",
        "a.sh",
        (
            "mpirun -np 8 ./train_gpt2cu -i train.bin -j val.bin -b 32 -t 2048 -d 524288 -c 0.1 -l"
            " 0.0006 -q 0.1 -u 700 -x 572204\n"
        ),
        {
            "lr": 6e-4,
            "min_lr": 6e-5,
            "batch_tokens": 524288,
            "warmup_steps": 700,
            "weight_decay": 0.1,
        },
    ),
    (
        "verl",
        "a.sh",
        (
            "python3 -m verl.trainer.main_ppo data.train_batch_size=1024"
            " actor_rollout_ref.model.path=org/Qwen2-7B actor_rollout_ref.actor.optim.lr=1e-6"
            " actor_rollout_ref.rollout.tensor_model_parallel_size=2 critic.optim.lr=1e-5"
            " trainer.nnodes=1 trainer.n_gpus_per_node=8\n"
        ),
        {
            "lr": 1e-6,
            "batch_samples": 1024,
            "params": 7e9,
            "tensor_parallel": None,
            "world_size": 8,
        },
    ),
    (
        "paxml",
        "a.py",
        (
            "class G(P):\n  MODEL_DIMS = 12288\n  HIDDEN_DIMS = MODEL_DIMS * 4\n "
            " PERCORE_BATCH_SIZE = 2\n  MAX_SEQ_LEN = 2048\n  FPROP_DTYPE = jnp.bfloat16\n "
            " LEARNING_RATE = 6e-5\n"
        ),
        {"hidden": 12288, "ffn": 49152, "micro_batch": 2, "dtype": "bf16"},
    ),
]


@pytest.mark.parametrize(
    ("framework", "name", "text", "settings"), SAMPLES, ids=[sample[0] for sample in SAMPLES]
)
def test_each_framework(
    read: Read, framework: str, name: str, text: str, settings: Mapping[str, Any]
) -> None:
    found = read(name, text)
    assert found.framework == framework
    got = {setting: found.get(setting) for setting in settings}
    assert (
        got == pytest.approx(settings, rel=1e-6)
        if all(isinstance(v, float) for v in settings.values())
        else similar(got, settings)
    )


def similar(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Compare numbers with a tolerance for floating point, all else exactly; say what differs."""
    different = {
        name: (got[name], value)
        for name, value in wanted.items()
        if not (
            got[name] == pytest.approx(value, rel=1e-6)
            if isinstance(value, float) and got[name] is not None
            else got[name] == value
        )
    }
    assert different == {}
    return True


def test_every_framework_has_a_sample_and_a_source() -> None:
    assert {sample[0] for sample in SAMPLES} == {framework.name for framework in frameworks()}
    assert all(framework.source.startswith("https://") for framework in frameworks())


def test_settings_come_in_the_order_of_the_names(read: Read) -> None:
    found = list(read("a.yaml", "lr: 1e-4\nhidden_size: 64\nseed: 1\n"))
    assert found == [name for name in NAMES if name in found]
