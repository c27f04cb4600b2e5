"""Sound inputs, made by code: data in every form, configs in every syntax, one guarded run."""

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.logs.prose import prose
from trimtab.checkpoints.manifest import commit
from trimtab.chronicle.journal import Journal
from trimtab.chronicle.rundir import RunDirectory

__all__ = ["config_seeds", "data_seeds", "make_run"]


def data_seeds(folder: Path) -> dict[str, bytes]:
    """Return small sound files of training data, by name."""
    texts = [t[:300] for t in prose(12, seed=7, mean_words=60)]
    lines = "".join(
        json.dumps({"id": i, "text": t, "meta": {"source": "abc"[i % 3]}}) + "\n"
        for i, t in enumerate(texts)
    ).encode()
    ids = (np.arange(3000) * 7919 % 50_000).astype("<u2")
    seeds = {
        "d.jsonl": lines,
        "d.txt": "\n\n".join(texts).encode(),
        "d.jsonl.gz": gzip.compress(lines),
        "d.jsonl.zst": zstandard.compress(lines),
        "d.jsonl.xz": lzma.compress(lines),
        "d.txt.bz2": bz2.compress(lines),
        "d.tar": _tar(texts),
        "d.tar.gz": gzip.compress(_tar(texts)),
        "flat.npy": _npy(ids),
        "rows.npy": _npy(ids.reshape(30, 100).astype("<i4")),
        "llmc.bin": _llm_c(ids),
        **_megatron(ids),
    }
    return seeds | _tables(folder, texts)


def _tar(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i, text in enumerate(texts):
            form = (".txt", ".json", ".jpg")[i % 3]
            raw = json.dumps({"text": text}).encode() if form == ".json" else text.encode()
            info = tarfile.TarInfo(f"shard/{'long' * 30 if i == 4 else ''}{i:04d}{form}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def _npy(array: NDArray[np.integer]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _llm_c(ids: NDArray[np.integer]) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    return header.tobytes() + ids.tobytes()


def _megatron(ids: NDArray[np.integer]) -> dict[str, bytes]:
    sizes = np.array([500, 0, 1500, 1000], "<i4")
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype("<i8") * 2
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    head += len(sizes).to_bytes(8, "little") + (len(sizes) + 1).to_bytes(8, "little")
    docs = np.arange(len(sizes) + 1, dtype="<i8")
    index = head + sizes.tobytes() + starts.tobytes() + docs.tobytes()
    return {"m.idx": index, "m.bin": ids.tobytes()}


def _tables(folder: Path, texts: list[str]) -> dict[str, bytes]:
    """Return Arrow and Parquet files of several layouts; none where pyarrow is missing."""
    try:
        import pyarrow as pa
        from pyarrow import feather, parquet
    except ImportError:
        return {}
    kept = [*texts[:5], None, *texts[5:]]
    columns = {
        "id": list(range(len(kept))),
        "text": kept,
        "source": ["ab"[i % 2] for i in range(len(kept))],
    }
    table = pa.table(columns)
    large = table.set_column(1, "text", table["text"].cast(pa.large_string()))
    made = folder / "tables"
    made.mkdir(exist_ok=True)
    for name, kind in (("f.arrow", pa.ipc.new_file), ("s.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(made / name), "wb") as sink, kind(sink, table.schema) as out:
            out.write_table(table, max_chunksize=5)
    feather.write_feather(large, str(made / "lz4.feather"), compression="lz4")
    feather.write_feather(table, str(made / "zstd.feather"), compression="zstd")
    parquet.write_table(table, made / "snappy.parquet", row_group_size=5)
    parquet.write_table(table, made / "plain.parquet", compression="none", use_dictionary=False)
    parquet.write_table(
        large, made / "zstd.parquet", compression="zstd", data_page_version="2.0", version="2.6"
    )
    parquet.write_table(
        table,
        made / "delta.parquet",
        use_dictionary=False,
        column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY", "source": "DELTA_BYTE_ARRAY"},
    )
    found = {path.name: path.read_bytes() for path in sorted(made.iterdir())}
    shutil.rmtree(made)
    return found


_YAML = """\
defaults: [_self_, {model: small}]
base: &base
  lr: 3.0e-4
  betas: [0.9, 0.95]
model: {hidden_size: 512, num_layers: 8, num_attention_heads: 8, vocab_size: 32000}
optimizer:
  <<: *base
  name: AdamW
  weight_decay: 0.1
  eps: 1e-8
trainer:
  max_steps: 10_000
  precision: bf16-mixed
  gradient_clip_val: 1.0
  warmup: 2000ba
  note: |
    several
    lines
data: !include data.yaml
seq_length: ${model.hidden_size}
global_batch_size: 256
"""
_TOML = """\
title = "run"
[model]
name = "llama3"
flavor = "8B"
n_layers = 32
[optimizer]
name = "AdamW"
lr = 3e-4
betas = [0.9, 0.95]
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1_000
dataset = 'c4'
[[mix]]
weight = 0.5
[[mix]]
weight = 0.25
"""
_SHELL = """\
#!/bin/bash
#SBATCH --nodes=4
LR=3e-4
GBS=$((4 * 64))
ARGS="
  --lr ${LR:-1e-4} --min-lr 3e-5
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16
  --seq-length 2048 --max-position-embeddings 2048
"
if [ "$SIZE" = big ]; then
  ARGS="$ARGS --bf16"
else
  ARGS="$ARGS --fp16 --loss-scale 12"
fi
torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS --global-batch-size $GBS \\
  --micro-batch-size 4 --train-iters 500000 --lr-warmup-iters 2000 \\
  --clip-grad 1.0 --weight-decay 0.1 --adam-beta2 0.95 @more.args
"""
_PYTHON = '''\
"""Config."""
import os
from dataclasses import dataclass

batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
learning_rate = 6e-4
max_iters = 600_000
beta2 = 0.95
weight_decay = 1e-1
dtype = "bfloat16" if os.environ.get("BF16") else "float16"


@dataclass
class GPTConfig:
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 64 * n_head
    dropout: float = 0.0


def config():
    c = dict(lr=learning_rate, optimizer=AdamW(lr=3e-4, betas=(0.9, 0.95)))
    c.update(warmup_steps=2000, model=GPTConfig(n_layer=24))
    return c


parser.add_argument("--grad-clip", type=float, default=1.0)
'''
_INI = """\
[train]
learning_rate = 3e-4 # peak
batch_size = 256
max_steps = 10000
[model]
hidden_size: 512
layers = %LAYERS
LAYERS = 12
train.betas = (0.9, 0.95)
"""


def config_seeds() -> Mapping[str, str]:
    """Return one sound config of each syntax, by the name of its file."""
    trainer = {
        "learning_rate": 3e-4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_steps": 10_000,
        "warmup_ratio": 0.01,
        "bf16": True,
        "max_grad_norm": 1.0,
        "optim": "adamw_torch",
    }
    shape = {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 32_000}
    deepspeed = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
        "zero_optimization": {"stage": 3},
    }
    words = ["--lr", "3e-4", "--num-layers", "24", "--train-iters", "1000", "--bf16"]
    return {
        "c.yaml": _YAML,
        "c.toml": _TOML,
        "c.sh": _SHELL,
        "c.py": _PYTHON,
        "c.ini": _INI,
        "c.gin": _INI.replace("[train]\n", "").replace("[model]\n", ""),
        "c.args": " ".join(words) + "\n" + _SHELL.split('ARGS="')[1].split('"')[0],
        "trainer.json": json.dumps({**trainer, "model": shape}, indent=1),
        "ds.json": json.dumps(deepspeed, indent=1),
        "args.json": json.dumps({"args": words, "config": shape}),
        "c.jsonc": "// a comment\n" + json.dumps({**trainer, **shape}, indent=1),
        "c": _YAML.split("optimizer:")[0],
    }


def make_run(root: Path) -> Path:
    """Write the directory of a guarded run: an incident, a rollback, two attempts, two checkpoints."""
    run = RunDirectory(root)
    journal = Journal(run.journal)
    try:
        for event, attempt, step, data in _EVENTS:
            journal.append(event, attempt=attempt, step=step, **dict(data))
    finally:
        journal.close()
    run.signals.mkdir()
    for attempt, first, last in (("0.0", 1, 60), ("0.1", 41, 90)):
        run.signals_of(attempt).write_text(
            "".join(json.dumps(_row(attempt, s)) + "\n" for s in range(first, last + 1))
        )
    run.settings.write_text(
        '# settings as launched\n[run]\nname = "fuzzed"\nlr = 0.0003\nclip = 1.0\n'
        '[policy]\nmode = "act"\n'
    )
    run.verdict.write_text(json.dumps({"schema": 1, "verdict": "done", "step": 90, "why": ""}))
    for step in (40, 80):
        partial = run.checkpoints / f"step-{step:08d}.partial"
        (partial / "tensors").mkdir(parents=True)
        (partial / "state.json").write_text(json.dumps({"step": step, "parts": {"model": [1, 2]}}))
        (partial / "tensors" / "0.bin").write_bytes(bytes(range(256)) * 4)
        commit(partial, run.checkpoint_of(step), step=step, attempt="0.0" if step < 60 else "0.1")
    return root


def _row(attempt: str, step: int) -> dict[str, object]:
    spike = 4.0 if attempt == "0.0" and step >= 52 else 0.0
    loss = 3.0 + 2.0 / (1 + 0.1 * step) + 0.01 * ((step * 37) % 11) + spike
    return {
        "step": step,
        "loss": round(loss, 4),
        "grad_norm": round(1.0 + 0.1 * ((step * 13) % 7) + spike, 4),
        "lr": 3e-4 * (0.5 if attempt == "0.1" else 1.0),
        "tokens": step * 4096,
        "step_time_s": 0.1,
    }


_CAUSES = [{"id": "bad-data", "confidence": 0.7, "why": "the loss rises at single batches"}]
_EVENTS: tuple[tuple[str, str, int, Mapping[str, object]], ...] = (
    ("start", "0.0", 0, {"settings": {"lr": 3e-4, "clip": 1.0}, "environment": {"host": "h"}}),
    ("attempt", "0.0", 0, {"number": "0.0", "settings": {"lr": "3e-4"}, "why": "start"}),
    ("checkpoint", "0.0", 40, {"path": "checkpoints/step-00000040", "grade": "healthy"}),
    ("finding", "0.0", 52, {"detector": "spike", "signal": "loss", "value": 8.1, "sigma": 22.0}),
    (
        "incident",
        "0.0",
        53,
        {
            "id": "i1",
            "state": "open",
            "kind": "spike",
            "severity": "critical",
            "onset": 52,
            "precursor": 50,
            "headline": "loss rose from 3.3 to 7.3 at step 52",
            "causes": _CAUSES,
        },
    ),
    ("decision", "0.0", 54, {"incident": "i1", "remedy": "skip-data", "why": "bad data is likely"}),
    ("action", "0.0", 54, {"remedy": "skip-data", "values": {"from": 52, "to": 54}, "to_step": 40}),
    (
        "attempt",
        "0.1",
        40,
        {
            "number": "0.1",
            "parent": "0.0",
            "parent_step": 40,
            "why": "skip-data",
            "settings": {"lr": "1.5e-4"},
            "trial": False,
        },
    ),
    (
        "outcome",
        "0.1",
        80,
        {"verdict": "worked", "remedy": "skip-data", "kept_attempt": "0.1", "incident": "i1"},
    ),
    ("incident", "0.1", 80, {"id": "i1", "state": "closed", "kind": "spike", "onset": 52}),
    ("checkpoint", "0.1", 80, {"path": "checkpoints/step-00000080", "grade": "healthy"}),
    ("fault", "0.1", 81, {"where": "record", "error": "OSError: No space left on device"}),
    ("note", "0.1", 82, {"text": "looked at it", "author": "a person"}),
    ("dismiss", "0.1", 83, {"kind": "spike", "severity": "critical", "onset": 52, "why": "known"}),
    ("end", "0.1", 90, {"why": "done", "verdict": "done"}),
)
