"""Each syntax is read as text.

Nothing runs, nothing grows without bound, errors name line and remedy.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.config_rules.lint import lint
from trimtab.configs import read_config
from trimtab.configs.settings import Settings
from trimtab.errors import ReadError

Read = Callable[..., Settings]

SBATCH = """#!/bin/bash
#SBATCH --nodes=48
#SBATCH --gres=gpu:8                 # number of gpus
set -x -e
GPUS_PER_NODE=8
NHIDDEN=14336
SEQ_LEN=${SEQ_LEN:-2048}
MICRO=2  # was 1
FFN=$(( 4 * NHIDDEN ))
if [ "$DEBUG" = 1 ]; then
    NHIDDEN=64
fi
OPT_ARGS=" \\
    --lr 6e-5 \\
    --lr-warmup-samples 183_105 \\
    "
# a comment between
#    --lr 1 \\
MODEL_ARGS=(
    --num-layers 70 --hidden-size $NHIDDEN   # wide
    --ffn-hidden-size $FFN --num-attention-heads 112
    --seq-length "$SEQ_LEN" --global-batch-size 2048
    --rampup-batch-size 192 16 9_765_625
)
cat <<EOT > ds.json
{"train_micro_batch_size_per_gpu": $MICRO, "fp16": {"loss_scale": 0, "initial_scale_power": 12}}
EOT
CMD="pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 ${MODEL_ARGS[@]} $OPT_ARGS --micro-batch-size $MICRO \\
    --train-samples $TRAIN_SAMPLES --bf16"
srun bash -c "torchrun --nproc_per_node $GPUS_PER_NODE $CMD" 2>&1 | tee -a log.txt
"""


def test_launch_script_with_variables_arrays_arithmetic_and_heredoc(read: Read) -> None:
    settings = read("run.slurm", SBATCH)
    assert settings.framework == "megatron-deepspeed"
    assert settings.get("hidden") == 14336  # the branch does not overrule the plain assignment
    assert settings.get("ffn") == 57344
    assert settings.get("seq") == 2048
    assert settings.get("lr") == 6e-5
    assert settings.get("warmup_samples") == 183105
    assert settings.get("batch_start_samples") == 192
    assert settings.get("dtype") == "bf16"
    assert settings.get("world_size") == 48 * 8
    assert settings.get("data_parallel") == 8
    assert settings.get("loss_scale_init") == 2**12
    assert settings.get("train_samples") is None  # $TRAIN_SAMPLES is the caller's
    assert settings.values["heads"].line == 21


def test_what_the_caller_sets_gets_no_default(read: Read) -> None:
    given = read(
        "a.sh",
        "train.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
        " --train-iters 9 --adam-beta2 0.9",
    )
    assert (given.get("clip"), given.values["clip"].origin) == (1.0, "default")
    left_open = read(
        "b.sh",
        "train.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
        " --train-iters 9 --clip-grad $CLIP --lr-warmup-tokens $W",
    )
    assert left_open.get("clip") is None
    assert left_open.get("warmup_steps") is None


def test_flag_before_a_redirection_or_more_arguments_stays_a_flag(read: Read) -> None:
    settings = read("a.sh", 'python train.py --lr 1e-4 --bf16 "$@" > log.txt 2>&1\n')
    assert settings.get("dtype") == "bf16"


def test_omegaconf_references_and_resolvers(read: Read) -> None:
    settings = read(
        "nemo.yaml",
        "trainer: {max_steps: 1000, precision: bf16, gradient_clip_val: 1.0}\nexp_manager: {name:"
        " x}\nmodel:\n  encoder_seq_length: 2048\n  hidden_size: 768\n  ffn_hidden_size:"
        " ${multiply:4, ${.hidden_size}}\n  num_layers: ${training.model.depth}\n  depth: 12\n "
        " global_batch_size: ${oc.env:GBS,256}\n  optim: {lr: '${model.peak}', sched:"
        " {warmup_steps: 10}}\n  peak: 6e-4\n  seed: ${SECRET}\n",
    )
    assert settings.framework == "nemo"
    assert settings.get("ffn") == 3072
    assert settings.get("layers") == 12
    assert settings.get("lr") == 6e-4
    assert settings.get("batch_tokens") == 256 * 2048
    assert settings.get("seed") is None


def test_environment_of_this_machine_is_never_read(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAK_LR", "0.5")
    assert read("a.yaml", "lr: ${oc.env:PEAK_LR}\nseed: 1\n").get("lr") is None
    assert read("a.sh", "train.py --lr $PEAK_LR --seed 1\n").get("lr") is None
    assert (
        read("a.py", "import os\nlr = float(os.environ['PEAK_LR'])\nseed = 1\n").get("lr") is None
    )
    assert (
        read("b.py", "import os\nlr = float(os.environ.get('PEAK_LR', '2e-4'))\n").get("lr") == 2e-4
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "import os\nos.mkdir({dir!r})\nlr = 1e-4\n"),
        ("a.sh", "mkdir {dir}\nX=$(mkdir {dir})\nY=`mkdir {dir}`\ntrain.py --lr 1e-4 --x $X\n"),
        ("a.yaml", "x: !!python/object/apply:os.mkdir [{dir!r}]\nlr: 1e-4\n"),
    ],
)
def test_nothing_in_a_config_is_run(read: Read, tmp_path: Path, name: str, text: str) -> None:
    made = tmp_path / "made"
    assert read(name, text.format(dir=str(made))).get("lr") == 1e-4
    assert not made.exists()


def test_python_config_is_read_by_its_syntax(read: Read) -> None:
    settings = read(
        "config.py",
        "H = 4096\nRATIO = 8 / 3\nmodel = dict(hidden_size=H, num_layers=32, mlp_ratio=RATIO,"
        " dtype='torch.bfloat16')\ndata = dict(seq_len=2048, micro_bsz=2, micro_num=4,"
        " total_steps=2**10)\nadam = dict(lr=1e-4, adam_beta2=0.95)\nlr_scheduler ="
        " dict(warmup_ratio=0.25, eta_min=adam['lr'] / 10, total_steps=data['total_steps'])\nlr ="
        " compute(model)\n",
    )
    assert settings.framework == "internevo"
    assert settings.get("hidden") == 4096
    assert settings.get("train_steps") == 1024
    assert settings.get("warmup_steps") == 256
    assert settings.get("min_lr") == pytest.approx(1e-5)
    assert settings.values["lr"].line == 5


def test_python_file_with_several_configs(tmp_path: Path) -> None:
    path = tmp_path / "registry.py"
    path.write_text(
        "def small():\n    return Config(optimizer=Adam(lr=8e-4),"
        " training=Training(local_batch_size=8, seq_len=2048, steps=10))\ndef large():\n    return"
        " Config(model_spec=model_registry('405B'), optimizer=Adam(lr=8e-5),\n       "
        " lr_scheduler=Sched(warmup_steps=600), training=Training(local_batch_size=2, seq_len=8192,"
        " steps=3000))\n"
    )
    small, large = read_config(path)
    assert (small.get("lr"), large.get("lr")) == (8e-4, 8e-5)
    assert large.get("params") == 405e9
    assert large.note[0] == "settings of the function large"


def test_json_with_comments_trailing_commas_and_nan(read: Read) -> None:
    settings = read(
        "ds.json",
        '{"optimizer": {"params": {"lr": 3e-4, "eps": NaN,}}, // peak\n "train_batch_size": 64, /*'
        " all */ }",
    )
    assert settings.get("lr") == 3e-4
    assert settings.get("eps") != settings.get("eps")  # NaN is a value, not an absence
    assert settings.get("batch_samples") == 64


def test_stored_arguments_and_settings(read: Read) -> None:
    arguments = read(
        "a.json",
        '{"framework": "megatron", "model": "x/y", "args": ["--num-layers", "4", "--hidden-size",'
        ' 64, "--global-batch-size", "${G:-8}", "--lr", "$LR"]}',
    )
    assert arguments.framework == "megatron"
    assert (arguments.get("layers"), arguments.get("hidden"), arguments.get("batch_samples")) == (
        4,
        64,
        8,
    )
    assert arguments.get("lr") is None
    assert arguments.get("pretrained") is None
    stored = read(
        "b.json",
        '{"note": "facts", "config": {"sequence_length": 4096, "optim": {"type": "AdamW", "lr":'
        ' 4e-4, "betas": [0.9, 0.95]}}}',
    )
    assert (stored.get("seq"), stored.get("lr"), stored.get("beta2")) == (4096, 4e-4, 0.95)


def test_toml_ini_and_gin(read: Read) -> None:
    toml = read(
        "t.toml", "[model]\nflavor = '8B'\n[optimizer]\nlr = 3e-4\n[training]\nsteps = 100\n"
    )
    assert (toml.framework, toml.get("params"), toml.values["lr"].line) == ("torchtitan", 8e9, 4)
    ini = read("t.ini", "[train]\nlearning_rate = 3e-4  ; peak\nbatch_size: 32\n")
    assert (ini.get("lr"), ini.get("batch_samples")) == (3e-4, 32)
    gin = read(
        "t.gin",
        "TRAIN_STEPS = 1000\nnetwork.T5Config:\n  emb_dim = 4096\n  mlp_activations = ('gelu',"
        " 'linear')\nutils.Trainer.num_steps = %TRAIN_STEPS\n",
    )
    assert (gin.get("hidden"), gin.get("train_steps"), gin.get("gated_ffn")) == (4096, 1000, True)


def test_yaml_anchors_merge_keys_tags_and_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "base: &base {weight_decay: 0.1, clip_grad: 1.0}\noptimizer:\n  <<: *base\n  lr: 3E-4\n "
        " clip_grad: 0.5\ndata: !include x.yaml\n---\noptimizer: {lr: 1e-4, weight_decay: 0.0,"
        " betas: [0.9, 0.99]}\n"
    )
    first, second = read_config(path)
    assert (first.get("lr"), first.get("weight_decay"), first.get("clip")) == (3e-4, 0.1, 0.5)
    assert (second.get("lr"), second.get("beta2")) == (1e-4, 0.99)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "model: {a: 1 b: [}\n", "line 1"),
        ("a.yml", "x: 1\n\ty: 2\n", "line 2"),
        ("a.json", '{"lr": 1e-4\n "x": 2}', "line 2"),
        ("a.json", "[1, 2]", "object"),
        ("a.toml", "lr = \n", "line 1"),
        ("a.py", "lr = (\n", "line 1"),
        ("a.sh", "echo hello\n", "no command with options"),
        ("a.yaml", "", "empty"),
        ("a.yaml", "colour: blue\n", "no setting"),
        ("a.json", "\0\1", "binary"),
        ("a.json", "[" * 100_000, "nested"),
        ("a.yaml", "[" * 200_000 + "]" * 200_000, "nested"),
        ("a.yaml", "- " * 200_000 + "x", "nested"),
        ("a.toml", "x = " + "[" * 20_000 + "]" * 20_000, "nested"),
        ("a.py", "x = " + "-" * 100_000 + "1", "nested|not valid"),
        ("a.py", "x = " + "+".join(["1"] * 100_000), "nested|not valid|no setting"),
    ],
)
def test_unreadable_files_say_where_and_what(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ReadError, match=says) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cannot be read"):
        read_config(tmp_path / "absent.yaml")
    huge = tmp_path / "huge.yaml"
    huge.write_text("x: 1\n" * 2_000_000)
    with pytest.raises(ReadError, match="is it the data"):
        read_config(huge)


def test_aliases_do_not_grow_without_bound(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(ReadError, match="aliases"):
        read_config(path)


def test_arithmetic_does_not_grow_without_bound(read: Read) -> None:
    assert read("a.py", "lr = 1e-4\nseed = 9 ** 9 ** 9 ** 9\n").get("seed") is None
    assert (
        read("a.sh", "S=$(( 9 ** 9 ** 9 ** 9 ))\ntrain.py --lr 1e-4 --seed $S\n").get("seed")
        is None
    )


def test_directory_gives_its_configs(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("optimizer: {lr: 1e-4, weight_decay: 0.1, eps: 1e-8}\n")
    (tmp_path / "a.json").write_text('{"lr": 2e-4, "hidden_size": 64, "seed": 1}')
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "notes.txt").write_text("--lr 3")
    assert [settings.get("lr") for settings in read_config(tmp_path)] == [2e-4, 1e-4]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReadError, match="no training config"):
        read_config(tmp_path / "empty")


def test_branches_are_followed_where_the_script_itself_decides(read: Read) -> None:
    settings = read(
        "switch.sh",
        'SIZE=${1:-13b}\nFP8=1\nARGS=()\nif [[ ${SIZE} == "7b" ]]; then\n  HIDDEN=4096;'
        " LR=3e-4\nelif [ $SIZE = 13b ]; then\n  HIDDEN=5120\n  LR=2e-4\nelse\n  HIDDEN=1\nfi\nif ["
        " $ASKED = yes ]; then\n  WD=0.1\nelse\n  WD=0.01\nfi\ncase $MODE in\n  long) SEQ=8192"
        ' ;;\nesac\nif [[ -n "$FP8" ]]; then ARGS+=("--fp8-format hybrid"); fi\npython train.py'
        " --hidden-size ${HIDDEN} --lr $LR --weight-decay $WD --seq-length $SEQ ${ARGS[@]}"
        " --seed 3\n",
        (),
    )
    assert settings.get("hidden") == 5120
    assert settings.get("lr") == 2e-4
    assert settings.get("weight_decay") is None  # the caller's answer decides
    assert settings.get("dtype") == "fp8"
    assert settings.get("seed") == 3


def test_defaults_of_an_entry_point_count_where_the_module_is_silent(read: Read) -> None:
    settings = read(
        "train.py",
        "LEARNING_RATE = 3e-4\ndef helper(weight_decay=5):\n    pass\ndef main(n_nodes=2,"
        " devices=4, per_device_batch_size=7, gradient_accumulation_steps=4, *, learning_rate=1.0,"
        " seq_len=128):\n    pass\n",
    )
    assert settings.get("lr") == 3e-4
    assert settings.get("weight_decay") is None
    assert settings.get("batch_tokens") == 2 * 4 * 7 * 4 * 128


def test_chained_calls_branches_and_lengths_in_python(read: Read) -> None:
    settings = read(
        "a.py",
        "SEQ = 4096\ndef build(opts):\n    seq_len = opts.seq_len or SEQ\n    c = Config()\n   "
        " c.lr = 1e-5\n    c.seq_len = seq_len\n    c.max_duration ="
        " Duration.tokens(int(1.048576e9))\n    c.batch_size = 256\n    if opts.debug:\n       "
        " c.batch_size = 2\n    c.trainer = Trainer(max_grad_norm=0.5).with_callback('saver',"
        " Saver(save_interval=1000))\n    return c\n",
    )
    assert (settings.get("lr"), settings.get("seq"), settings.get("batch_samples")) == (
        1e-5,
        4096,
        256,
    )
    assert settings.get("train_steps") == 1000
    assert (settings.get("clip"), settings.get("save_steps")) == (0.5, 1000)


def test_two_assignments_in_one_line(read: Read) -> None:
    settings = read(
        "a.sh",
        "ROUND=2\nif   [[ ${ROUND} == 1 ]]; then ITERS=100    SAVE=10\nelif [[ ${ROUND} == 2 ]];"
        " then ITERS=1000   SAVE=18\nelse echo bad\nfi\nGPUS=${GPUS:-8}\nACC=$((128 / 4 /"
        " GPUS))\nA=1 B=2 torchrun train.py --train-iters $ITERS --save-interval $SAVE"
        " --gradient_accumulation_steps ${ACC} --per_device_train_batch_size 4 --learning_rate"
        " 1e-4\n",
        (),
    )
    assert (settings.get("train_steps"), settings.get("save_steps")) == (1000, 18)
    assert settings.get("batch_samples") == 4 * 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "X=$(expr $X + 1)\nY=$((Y + 1))\ntrain.py --lr 1e-4 --steps $X --n $Y\n"),
        ("b.sh", 'Z="a b=c d"\nQ="x y\ntrain.py --lr 1e-4\n'),
        (
            "a.yaml",
            (
                "lr: 1e-4\nhidden_size: .nan\nseq_len: .inf\ntrain_tokens: .nan\nwarmup_tokens:"
                " nan\nbatch_size: nan\nnum_layers: 1e400\n"
            ),
        ),
        ("a.py", "lr = 1e-4\nseed = int(1e999)\nsteps = round(1e999)\n"),
        (
            "b.yaml",
            (
                "optimizer: {learning_rate: [{initial_learning_rate: 0, end_learning_rate: 1e-4,"
                " steps: 1e999}]}\n"
            ),
        ),
    ],
)
def test_odd_values_never_break_the_reading(read: Read, name: str, text: str) -> None:
    assert read(name, text, ()).get("lr") == 1e-4


def test_weights_turned_to_half_are_seen_in_a_script(read: Read) -> None:
    text = (
        "LR = 6e-3\nmodel = GPT(hidden_size=512, num_layers=4).cuda().half()\nopt ="
        " AdamW(model.parameters(), lr=LR, weight_decay=0.1)\n"
    )
    run = read("train.py", text)
    assert run.get("dtype") == "fp16-pure"
    assert any(f.rule == "L27" and f.severity == "error" for f in lint(run))
    assert run.values["lr"].key == "LR", "the knob, not the call that takes it"
    images = text.replace(".cuda().half()", ".cuda()") + "x = batch.half()\n"
    assert read("images.py", images).get("dtype") is None


def test_config_overrides_of_transformers_give_the_shape(read: Read) -> None:
    run = read(
        "run.sh",
        'python run_clm.py --model_type gpt2 --config_overrides "n_embd=8192,n_head=64,n_layer=48"'
        " --learning_rate 5e-4 --fp16 --per_device_train_batch_size 8 --num_train_epochs 1"
        " --output_dir out\n",
    )
    assert [run.get(n) for n in ("hidden", "heads", "layers", "lr")] == [8192, 64, 48, 5e-4]
