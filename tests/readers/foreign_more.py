"""A third lot of formats, again printed before any of them was tried."""

import json
from collections.abc import Callable

from tests.readers.foreign import NUM, RECORDS, Foreign, bar, held_out

__all__ = ["MORE"]


def whole(fn: Callable[[], str], name: str = "log", **said: object) -> Foreign:
    return Foreign(line=lambda r: "", whole=fn, file=name, **said)  # type: ignore[arg-type]


MORE: dict[str, Foreign] = {
    "tevatron": Foreign(
        line=lambda r: (
            f"[INFO|trainer.py:1234] 2024-05-01 10:00:00,123 >> {{'loss': {r.loss},"
            f" 'learning_rate': {r.lr}, 'epoch': {r.i / 100:.2f}}}"
        ),
        axis="epoch",
        lr=True,
    ),
    "nanoGPT win": Foreign(
        line=lambda r: (
            f"iter {r.i}: loss {r.loss:.4f}, time 512.12ms, mfu 30.12%"
            + held_out(r, f"step {r.i}: train loss 9.1, val loss {r.val}\nsaving checkpoint to out")
        ),
        num_val=4,
    ),
    "gpt-fast ft": Foreign(
        line=lambda r: (
            f"Step {r.i:05d} | Loss: {r.loss} | Grad norm: {r.norm} | LR: {r.lr:.2e} | Tok/s:"
            " 12,345 | ETA 1h 2m"
        ),
        norm=True,
        lr=True,
    ),
    "cosmos": Foreign(
        line=lambda r: (
            f"[05-01 10:00:00|INFO|cosmos/trainer.py:123:training_step] {r.i + 1} : iter_speed 1.23"
            f" seconds per iteration | Loss: {r.loss}"
        ),
        first=1,
    ),
    "opensora": Foreign(
        line=lambda r: (
            f"Epoch 0:  {bar(r.i + 1, 500)} [00:10<01:30,  1.0s/it, loss={r.loss},"
            f" global_grad_norm={r.norm}, step={r.i}, global_step={r.i}, lr={r.lr}]"
        ),
        end="\r",
        norm=True,
        lr=True,
    ),
    "evo": Foreign(
        line=lambda r: (
            f"2024-05-01 10:00:00 | INFO | step={r.i} | train/loss={r.loss} | train/ppl=12.1 |"
            f" optim/lr={r.lr} | optim/grad_norm={r.norm}"
        ),
        norm=True,
        lr=True,
    ),
    "esm": Foreign(
        line=lambda r: f"Epoch {r.e + 1}/4 [{r.b + 1}/20]: loss={r.loss}; ppl=12.1; lr={r.lr}",
        axis="epoch",
        lr=True,
    ),
    "pyg": Foreign(
        line=lambda r: (
            f"Epoch: {r.i:>3} | Loss: {r.loss:.4f} | Train: 90.12% | Val: 80.12% | Test: 79.12%"
        ),
        axis="epoch",
        num_val=None,
    ),
    "tts": Foreign(
        line=lambda r: (
            (
                "\n\x1b[4m\x1b[1m > EPOCH: " + str(r.e) + "/1000\x1b[0m\n --> /out/run\n"
                if r.b == 0
                else ""
            )
            + f"\x1b[1m   --> STEP: {r.b}/20 -- GLOBAL_STEP: {25 * r.i}\x1b[0m\n     | > loss:"
            f" {r.loss}  ({r.loss + 0.1:.4f})\n     | > grad_norm: {r.norm}  (1.5)\n     | >"
            f" current_lr: {r.lr} \n     | > step_time: 0.5123  (0.6)\n"
        ),
        gap=25,
        norm=True,
        lr=True,
    ),
    "espnet2": Foreign(
        line=lambda r: (
            "[node] 2024-05-01 10:00:00,123 (trainer:779) INFO:"
            f" {r.e + 1}epoch:train:{100 * r.b + 1}-{100 * r.b + 100}batch: iter_time=1.1e-04,"
            f" forward_time=0.101, loss_ctc=90.1, loss={r.loss}, acc=0.5, backward_time=0.2,"
            f" grad_norm={r.norm}, clip=100.000, loss_scale=1.000, optim_step_time=0.03,"
            f" optim0_lr0={r.lr}, train_time=1.2"
        ),
        axis="epoch",
        norm=True,
    ),
    "detr stdout": Foreign(
        line=lambda r: (
            f"Epoch: [{r.e}]  [{10 * r.b:4d}/200]  eta: 0:10:00  lr: {r.lr:.6f}  class_error: 50.12"
            f"  loss: {r.loss} ({r.loss + 0.1:.4f})  loss_ce: 1.1 (1.2)  loss_bbox: 0.5 (0.5) "
            " time: 0.5123  data: 0.0123  max mem: 5123"
        ),
        axis="epoch",
        lr=True,
    ),
    "sam2": Foreign(
        line=lambda r: (
            "INFO 2024-05-01 10:00:00,123 train_utils.py: 271: Train Epoch:"
            f" [{r.e}][{10 * r.b:3d}/200] | Batch Time: 0.51 (0.61) | Data Time: 0.01 (0.02) | Mem"
            " (GB): 50.00 (50.00/50.00) | Time Elapsed: 00d 00h 10m | Losses/train_all_loss:"
            f" {r.loss:.4e} ({r.loss + 0.1:.4e})"
        ),
        axis="epoch",
    ),
    "monai": Foreign(
        line=lambda r: (
            ("----------\nepoch " + str(r.e + 1) + "/4\n" if r.b == 0 else "")
            + f"{r.b + 1}/20, train_loss: {r.loss}"
            + held_out(r, f"epoch {r.e + 1} average loss: 3.1234\nsaved new best metric model")
        ),
        axis="epoch",
    ),
    "deeplab": Foreign(line=lambda r: f"Epoch {r.e}, Itrs {r.i + 1}/30000, Loss={r.loss}", first=1),
    "tianshou": Foreign(
        line=lambda r: (
            f"Epoch #{r.i + 1}: 10001it [00:10, 950.1it/s, env_step={10000 * (r.i + 1)},"
            f" gradient_step={1000 * r.i}, len=200, loss={r.loss}, n/ep=10, rew=150.0]"
        ),
        axis="step",
        first=0,
        gap=1000,
    ),
    "sb3 table": Foreign(
        line=lambda r: (
            "-----------------------------------------\n| rollout/                |            "
            " |\n|    ep_rew_mean          | 20.1        |\n| time/                   |           "
            "  |\n|    fps                  | 812         |\n|    total_timesteps      |"
            f" {2048 * (r.i + 1)} |\n| train/                  |             |\n|    approx_kl     "
            f"       | 0.0081      |\n|    loss                 | {r.loss}    |\n|    value_loss   "
            "        | 40.1        |\n-----------------------------------------"
        ),
        first=2048,
        gap=2048,
    ),
    "jax mnist": Foreign(
        line=lambda r: (
            f"epoch:{r.i + 1:3d}, train_loss: {r.loss}, train_accuracy: 90.12, test_loss: {r.val},"
            " test_accuracy: 89.12"
        ),
        axis="epoch",
        num_val=NUM,
    ),
    "flax nnx": Foreign(
        line=lambda r: (
            f"[train] step: {200 * r.i}, loss: {r.loss}, accuracy: 90.12"
            + held_out(r, f"[test] step: {200 * r.i}, loss: {r.val}, accuracy: 89.1")
        ),
        gap=200,
        num_val=4,
    ),
    "keras custom": Foreign(
        line=lambda r: (
            f"Training loss (for one batch) at step {100 * r.i}: {r.loss}\nSeen so far:"
            f" {6400 * r.i} samples"
        ),
        gap=100,
    ),
    "mxnet epoch": Foreign(
        line=lambda r: (
            f"INFO:root:Epoch[{r.i}] Train-cross-entropy={r.loss}\nINFO:root:Epoch[{r.i}] Time"
            f" cost=10.1\nINFO:root:Epoch[{r.i}] Validation-cross-entropy={r.val}"
        ),
        axis="epoch",
        num_val=NUM,
    ),
    "caffe": Foreign(
        line=lambda r: (
            f"I0501 10:00:00.123456  1234 solver.cpp:218] Iteration {20 * r.i} (8.1 iter/s, 2.4s/20"
            f" iters), loss = {r.loss}\nI0501 10:00:00.123456  1234 solver.cpp:237]     Train net"
            f" output #0: loss = {r.loss} (* 1 = {r.loss} loss)\nI0501 10:00:00.123456  1234"
            f" sgd_solver.cpp:105] Iteration {20 * r.i}, lr = {r.lr}"
        ),
        gap=20,
        lr=True,
    ),
    "whisper ft md": Foreign(
        line=lambda r: (
            (
                "| Training Loss | Epoch | Step | Validation Loss | Wer |\n|:-:|:-:|:-:|:-:|:-:|\n"
                if r.i == 0
                else ""
            )
            + f"| {r.loss} | {r.i / 10:.2f} | {500 * (r.i + 1)} | {r.val} | 20.1 |"
        ),
        first=500,
        gap=500,
        num_val=NUM,
    ),
    "rst table": Foreign(
        line=lambda r: (
            (
                "=====  ======  ======\nepoch  loss    val\n=====  ======  ======\n"
                if r.i == 0
                else ""
            )
            + f"{r.i:<5d}  {r.loss:<6}  {r.val:<6}"
        ),
        axis="epoch",
        num_val=None,
    ),
    "org table": Foreign(
        line=lambda r: (
            ("| epoch | loss |\n|-------+------|\n" if r.i == 0 else "") + f"| {r.i} | {r.loss} |"
        ),
        axis="epoch",
    ),
    "tsv in log": Foreign(
        line=lambda r: (
            ("# run 1\nstep\ttrain_loss\tlr\n" if r.i == 0 else "") + f"{r.i}\t{r.loss}\t{r.lr}"
        ),
        lr=True,
    ),
    "aim csv": whole(
        lambda: (
            "run.hash,metric.name,metric.context,step,epoch,value\n"
            + "".join(f"abc,loss,\"{{'subset': 'train'}}\",{r.i},{r.e},{r.loss}\n" for r in RECORDS)
        ),
        "aim.csv",
    ),
    "mlflow csv": whole(
        lambda: (
            "Run,metric,step,timestamp,value\n"
            + "".join(f"a,train/loss,{r.i},1700000000,{r.loss}\n" for r in RECORDS)
            + "".join(f"a,val/loss,{r.i},1700000000,{r.val}\n" for r in RECORDS if r.ends_epoch)
        ),
        num_val=4,
    ),
    "wandb history": whole(
        lambda: "".join(
            json.dumps(
                {
                    "_step": r.i,
                    "_runtime": r.i * 1.1,
                    "_timestamp": 1.7e9,
                    "loss/train": r.loss,
                    "optim/grad_norm": r.norm,
                    "gradients/x": {"_type": "histogram", "values": [1, 2]},
                }
            )
            + "\n"
            for r in RECORDS
        ),
        norm=True,
    ),
    "guild": whole(
        lambda: json.dumps(
            {
                "runs": [
                    {
                        "id": "a",
                        "scalars": [{"tag": "loss", "step": r.i, "value": r.loss} for r in RECORDS],
                    }
                ]
            }
        )
    ),
    "vertex": whole(
        lambda: "".join(
            json.dumps(
                {
                    "insertId": "x",
                    "jsonPayload": {
                        "message": f"step {r.i} loss {r.loss} lr {r.lr}",
                        "attrs": {"tag": "workerpool0-0"},
                    },
                    "timestamp": "2024-05-01T10:00:00Z",
                }
            )
            + "\n"
            for r in RECORDS
        ),
        lr=True,
    ),
    "trainer state list": whole(
        lambda: json.dumps(
            {
                "best_metric": None,
                "global_step": NUM,
                "log_history": [
                    {
                        "epoch": r.i / 10,
                        "loss": r.loss,
                        "grad_norm": r.norm,
                        "learning_rate": r.lr,
                        "step": r.i + 1,
                    }
                    for r in RECORDS
                ]
                + [{"epoch": 8, "train_loss": 3.3, "train_runtime": 100.1, "step": NUM}],
            }
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "history obj": whole(
        lambda: json.dumps(
            {
                "history": {
                    "epoch": [r.i for r in RECORDS],
                    "loss": [r.loss for r in RECORDS],
                    "val_loss": [r.val for r in RECORDS],
                    "lr": [r.lr for r in RECORDS],
                },
                "model": "x",
            }
        ),
        axis="epoch",
        lr=True,
        num_val=NUM,
    ),
    "js object": whole(
        lambda: (
            "var data = [\n"
            + "".join(f"  {{step: {r.i}, loss: {r.loss}}},\n" for r in RECORDS)
            + "];\n"
        ),
        "data.js",
    ),
    "yaml doc": whole(
        lambda: (
            "train:\n"
            + "".join(
                f"  - epoch: {r.i}\n    loss: {r.loss}\n    val_loss: {r.val}\n" for r in RECORDS
            )
        ),
        "h.yaml",
        axis="epoch",
        num_val=NUM,
    ),
    "semicolon": whole(
        lambda: (
            "Step;Loss;LR\n"
            + "".join(
                f"{r.i};{str(r.loss).replace('.', ',')};{str(r.lr).replace('.', ',')}\n"
                for r in RECORDS
            )
        ),
        lr=True,
    ),
    "quoted csv": whole(
        lambda: (
            '"step","train loss","val loss"\n'
            + "".join(f'"{r.i}","{r.loss}","{r.val}"\n' for r in RECORDS)
        ),
        num_val=NUM,
    ),
    "csv units": whole(
        lambda: (
            "step,loss,lr,tokens/s,elapsed\n"
            + "".join(f"{r.i},{r.loss},{r.lr},12.1K,0:10:{r.b:02d}\n" for r in RECORDS)
        ),
        lr=True,
    ),
    "csv two headers": whole(
        lambda: (
            "# torch 2.1\n#"
            " lr=0.1\nglobal_step,epoch,train_loss_step,train_loss_epoch,val_loss,lr-AdamW\n"
            + "".join(
                f"{r.i},{r.e},{r.loss},,,{r.lr}\n"
                + (f"{r.i},{r.e},,3.3,{r.val},\n" if r.ends_epoch else "")
                for r in RECORDS
            )
        ),
        lr=True,
        num_val=4,
    ),
    "epoch dirs": whole(
        lambda: "".join(
            f"=== Epoch {r.i} ===\nTrain:\n  Loss: {r.loss}\n  Accuracy: 0.5\nVal:\n  Loss:"
            f" {r.val}\n  Accuracy: 0.4\n\n"
            for r in RECORDS
        ),
        axis="epoch",
        num_val=NUM,
    ),
}
