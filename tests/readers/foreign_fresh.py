"""A second lot of formats, printed before any of them was tried."""

import json

from tests.readers.foreign import NUM, RECORDS, Foreign, Record, bar, held_out

__all__ = ["FRESH"]

STAMP = "2024-05-01 10:00:00"


def box(r: Record) -> str:
    return (
        "\u256d\u2500\u2500\u2500\u2500\u2500\u2500\u252c\u2500\u2500\u2500\u256e\n\u2502 Step"
        f" \u2502 {r.i} \u2502\n\u2502 Loss \u2502 {r.loss} \u2502\n\u2502 LR   \u2502 {r.lr}"
        " \u2502\n\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2534\u2500\u2500\u2500\u256f"
    )


FRESH: dict[str, Foreign] = {
    "maxdiffusion": Foreign(
        line=lambda r: (
            f"completed step: {r.i}, seconds: 1.912, TFLOP/s/device: 50.1, loss: {r.loss}"
        )
    ),
    "minimind": Foreign(
        line=lambda r: (
            f"Epoch:[1/1]({100 * r.i}/19930), loss: {r.loss:.6f}, logits_loss: {r.loss:.4f},"
            f" aux_loss: 0.0000, learning_rate: {r.lr:.8f}, epoch_time: 61.1min"
        ),
        gap=100,
        axis="step",
        lr=True,
    ),
    "tinystories llama2.c": Foreign(
        line=lambda r: (
            (f"step {100 * r.i}: train loss 9.1234, val loss {r.val}\n" if r.b == 0 else "")
            + f"{100 * r.i} | loss {r.loss:.4f} | lr {r.lr:e} | 120.11ms | mfu 12.34%"
        ),
        gap=100,
        lr=True,
        num_val=4,
    ),
    "rlhf reward": Foreign(line=lambda r: f"Epoch 1/1, step {r.i + 1} with loss {r.loss}", first=1),
    "deepspeed example": Foreign(
        line=lambda r: f"Epoch: {r.e}, Step: {r.i}, Rank: 0, loss = {r.loss}"
    ),
    "deepspeed rank zero": Foreign(
        line=lambda r: (
            f"[{STAMP},123] [INFO] [fp16_optimizer.py:100:step] rank=0 time (ms) | fwd: 10.11 |"
            f" bwd: 20.12\nstep: {r.i} loss: {r.loss} iter time (s): 0.512 samples/sec: 12.123"
        )
    ),
    "megatron swift": Foreign(
        line=lambda r: (
            f"{{'loss': {r.loss}, 'grad_norm': {r.norm}, 'learning_rate': {r.lr}, 'iteration':"
            f" '{r.i + 1}/80', 'consumed_samples': {8 * r.i}, 'memory(GiB)': 60.1, 'elapsed_time':"
            " '1m 2s', 'train_speed(s/it)': 1.2}"
        ),
        first=1,
        lr=True,
        norm=True,
    ),
    "swift bar": Foreign(
        line=lambda r: (
            f"{{'loss': {r.loss}, 'token_acc': 0.61, 'grad_norm': {r.norm}, 'learning_rate':"
            f" {r.lr}, 'memory(GiB)': 10.1, 'train_speed(iter/s)': 0.12, 'epoch': {r.i / 100:.2f},"
            f" 'global_step/max_steps': '{r.i + 1}/80', 'percentage': '{r.i}.00%'}}\nTrain: "
            f" {bar(r.i + 1, 80)} [01:00<01:00,  1.1s/it]"
        ),
        first=1,
        lr=True,
        norm=True,
    ),
    "xtuner": Foreign(
        line=lambda r: (
            f"05/01 10:00:00 - mmengine - INFO - Iter(train) [{10 * r.i + 10:4d}/1000]  lr:"
            f" {r.lr:.4e}  eta: 1:00:00  time: 1.1234  data_time: 0.0123  memory: 12012  loss:"
            f" {r.loss}  tflops: 50.1  tokens_per_sec: 100.1"
        ),
        first=10,
        gap=10,
        lr=True,
    ),
    "xtuner v1": Foreign(
        line=lambda r: (
            f"[XTuner][{STAMP}][INFO] [Train] (Epoch 1) Step {r.i + 1}/1000  lr: {r.lr:.6f}  loss:"
            f" {r.loss:.3f}  loss(reduced): {r.loss}  grad_norm: {r.norm}  if_nan_skip: 0 "
            " max_memory: 50.1GB  text_tokens: 30000.0  tgs: 2012  time: 1.2s  eta: 1:00:00"
        ),
        first=1,
        lr=True,
        norm=True,
    ),
    "areal": Foreign(
        line=lambda r: (
            f"20240501-10:00:00.123 StatsLogger INFO: Epoch 1/10 Step {r.i + 1}/100 Train step"
            f" {r.i + 1}/1000 done.\n20240501-10:00:00.124 StatsLogger INFO: Stats (1/1):\n\u2502"
            f" ppo_actor/loss/avg \u2502 {r.loss} \u2502\n\u2502 ppo_actor/grad_norm \u2502"
            f" {r.norm} \u2502\n\u2502 ppo_actor/lr \u2502 {r.lr} \u2502"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "slime": Foreign(
        line=lambda r: (
            f"[{STAMP}] log_utils.py:12 - step {r.i}: {{'train/loss': {r.loss}, 'train/pg_loss':"
            f" 0.1, 'train/entropy_loss': 0.3, 'train/grad_norm': {r.norm}, 'train/lr-pg_0':"
            f" {r.lr}, 'train/step': {r.i}}}"
        ),
        norm=True,
        lr=True,
    ),
    "prime-rl": Foreign(
        line=lambda r: (
            f"\x1b[32m10:00:00\x1b[0m | \x1b[1mSUCCESS\x1b[0m | Step {r.i} | Time: 1.23s | Loss:"
            f" {r.loss} | Entropy: 0.1234 | Mismatch KL: 0.0001 | Grad. Norm: {r.norm} | LR:"
            f" {r.lr:.2e} | Throughput: 12123 tokens/s | MFU: 30.1% | Peak Mem.: 50.1 GiB"
        ),
        norm=True,
        lr=True,
    ),
    "nemo-rl": Foreign(
        line=lambda r: (
            f"========================= Step {r.i + 1}/1000 =========================\n\u25b6"
            f" Computing logprobs...\n\n\U0001f4ca Training Results:\n  \u2022 Loss: {r.loss}\n "
            " \u2022 Avg Reward: 0.1234\n  \u2022 Mean Generation Length: 512.0000\n\n\u23f1\ufe0f"
            "  Timing:\n  \u2022 Total step time: 12.34s\n  \u2022 policy_training: 5.12s (41.1%)"
        ),
        first=1,
    ),
    "torchtitan metrics json": Foreign(
        line=lambda r: "",
        whole=lambda: "".join(
            json.dumps(
                {
                    "step": r.i,
                    "loss_metrics/global_avg_loss": r.loss,
                    "loss_metrics/global_max_loss": r.loss + 1,
                    "grad_norm": r.norm,
                    "lr": r.lr,
                }
            )
            + "\n"
            for r in RECORDS
        ),
        norm=True,
        lr=True,
    ),
    "fms-fsdp": Foreign(
        line=lambda r: (
            f"step: {100 * r.i + 100}\nloss: {r.loss}\nLR: {r.lr}\ntokens seen:"
            f" {100000 * r.i}\ngradient norm: {r.norm}\nreserved memory: 50000000\ncurrent step"
            " time: 1.234\noverall step time: 1.234\ncurrent token per gpu per sec: 4123"
        ),
        first=100,
        gap=100,
        norm=True,
        lr=True,
    ),
    "lingua": Foreign(
        line=lambda r: (
            f"0: INFO    24-05-01 10:00:00.123456 - 0:01:02 - step: {10 * r.i}  acc: 0  loss:"
            f" {r.loss:>7}  grad: {r.norm}  flops: 3.12e+14  wps: 1.23e+04  iter:  0.512  data: "
            f" 0.01  lr: {r.lr:.2e}  mem: 50%  pow: 600 W"
        ),
        gap=10,
        lr=True,
        norm=True,
    ),
    "meta lingua json": Foreign(
        line=lambda r: "",
        whole=lambda: "".join(
            json.dumps(
                {
                    "global_step": r.i,
                    "acc_step": 0,
                    "speed/wps": 1e4,
                    "optim/grad_norm": r.norm,
                    "optim/lr": r.lr,
                    "loss/out": r.loss,
                    "memory/max": 0.5,
                }
            )
            + "\n"
            for r in RECORDS
        ),
        norm=True,
        lr=True,
    ),
    "dinov2": Foreign(
        line=lambda r: (
            f"I20240501 10:00:00 1234 dinov2 helpers.py:102] Training  [{10 * r.i:6d}/125000]  eta:"
            f" 1 day, 1:00:00  lr: {r.lr:.4f} ({r.lr:.4f})  wd: 0.0400 (0.0400)  mom: 0.9920"
            f" (0.9920)  current_batch_size: 64.0000 (64.0000)  total_loss: {r.loss}"
            f" ({r.loss + 0.1:.4f})  dino_local_crops_loss: 9.1 (9.2)  koleo_loss: 1.1 (1.1)  time:"
            " 0.5 data: 0.1 max mem: 10012"
        ),
        gap=10,
    ),
    "vissl": Foreign(
        line=lambda r: (
            f"INFO {STAMP},123 log_hooks.py: 77: Rank: 0; [ep: {r.e}] iter: {5 * r.i}; lr:"
            f" {r.lr:.5f}; loss: {r.loss}; btime(ms): 512; eta: 1:00:00; peak_mem(M): 10012;"
        ),
        gap=5,
        lr=True,
    ),
    "slowfast": Foreign(
        line=lambda r: (
            '[05/01 10:00:00][INFO] logging.py:  99: json_stats: {"_type": "train_iter_ssl",'
            f' "dt": 0.51, "dt_data": 0.01, "epoch": "{r.e + 1}/4", "eta": "1:00:00", "gpu_mem":'
            f' "10.12G", "grad_norm": {r.norm}, "iter": "{10 * r.b + 10}/200", "loss": {r.loss},'
            f' "lr": {r.lr}}}'
        ),
        axis="epoch",
        norm=True,
        lr=True,
    ),
    "pycls": Foreign(
        line=lambda r: (
            f'[logging.py: 68]: json_stats: {{"_type": "train_iter", "epoch": "{r.e + 1}/4", "eta":'
            f' "00:10:00", "iter": "{10 * r.b + 10}/200", "loss": {r.loss}, "lr": {r.lr}, "mem":'
            ' 5123, "min_top1_err": 0, "time_avg": 0.5123, "top1_err": 80.1}'
            + held_out(
                r,
                f'[logging.py: 68]: json_stats: {{"_type": "test_epoch", "epoch": "{r.e + 1}/4",'
                f' "loss": {r.val}, "min_top1_err": 60.1, "top1_err": 70.1}}',
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "basicsr": Foreign(
        line=lambda r: (
            f"{STAMP},123 INFO: [EDSR..][epoch: {r.e:2d}, iter: {100 * r.i + 100:7,d},"
            f" lr:({r.lr:.3e},)] [eta: 1 day, 1:00:00, time (data): 0.512 (0.012)] l_pix:"
            f" {r.loss:.4e} "
        ),
        first=100,
        gap=100,
        lr=True,
    ),
    "stylegan3": Foreign(
        line=lambda r: (
            f"tick {r.i:<5d} kimg {4.0 * r.i:<8.1f} time 10m 01s       sec/tick 100.1   sec/kimg"
            " 25.12   maintenance 1.1    cpumem 5.12   gpumem 10.12  reserved 11.12  augment 0.000"
            f" loss {r.loss}"
        ),
        gap=1,
    ),
    "paddledetection": Foreign(
        line=lambda r: (
            f"[05/01 10:00:00] ppdet.engine INFO: Epoch: [{r.e}] [{10 * r.b:4d}/200] learning_rate:"
            f" {r.lr:.6f} loss: {r.loss} loss_xy: 1.1 loss_wh: 2.1 eta: 1:00:00 batch_cost: 0.51"
            " data_cost: 0.01 ips: 12.1 images/s"
        ),
        axis="epoch",
        lr=True,
    ),
    "mindspore": Foreign(
        line=lambda r: f"epoch: {r.e + 1} step: {r.b + 1}, loss is {r.loss}", axis="epoch"
    ),
    "mindyolo": Foreign(
        line=lambda r: (
            f"{STAMP},123 [INFO] Epoch {r.e + 1}/4, Step {10 * r.b + 10}/200, imgsize (640, 640),"
            f" loss: {r.loss}, lbox: 0.1, lobj: 0.2, lcls: 0.3, cur_lr: {r.lr}"
        ),
        axis="epoch",
        lr=True,
    ),
    "oneflow libai": Foreign(
        line=lambda r: (
            f"[05/01 10:00:00 lb.utils.events]:  eta: 1:00:00  iteration: {20 * r.i + 19}/1000 "
            f" consumed_samples: {320 * r.i}  total_loss: {r.loss}  time: 0.1234 s/iter  data_time:"
            f" 0.0012 s/iter total_throughput: 123.12 samples/s lr: {r.lr:.2e}"
        ),
        first=19,
        gap=20,
        lr=True,
    ),
    "tensor2tensor": Foreign(
        line=lambda r: (
            f"INFO:tensorflow:loss = {r.loss}, step = {100 * r.i + 1} (12.345"
            " sec)\nINFO:tensorflow:global_step/sec: 8.1"
        ),
        first=1,
        gap=100,
    ),
    "tf1 print": Foreign(line=lambda r: f"Step {100 * r.i}: loss = {r.loss} (0.012 sec)", gap=100),
    "tf object detection": Foreign(
        line=lambda r: (
            f"INFO:tensorflow:Step {100 * r.i + 100} per-step time 0.512s loss={r.loss}\nI0501"
            f" 10:00:00.123456 140234 model_lib_v2.py:705] Step {100 * r.i + 100} per-step time"
            f" 0.512s loss={r.loss}"
        ),
        first=100,
        gap=100,
    ),
    "tf model garden": Foreign(
        line=lambda r: (
            f"I0501 10:00:00.123456 140234 controller.py:457] train | step: {1000 * r.i + 1000:6d}"
            f" | steps/sec:    8.1 | output: {{'learning_rate': {r.lr}, 'training_loss': {r.loss}}}"
        ),
        first=1000,
        gap=1000,
        lr=True,
    ),
    "cube graphnet": Foreign(
        line=lambda r: (
            f"Epoch: {r.i:03d}, Train Loss: {r.loss}, Val Loss: {r.val}, Test Acc: 0.8123"
        ),
        axis="epoch",
        num_val=NUM,
    ),
    "gcn": Foreign(
        line=lambda r: (
            f"Epoch: {r.i + 1:04d} loss_train: {r.loss} acc_train: 0.2 loss_val: {r.val} acc_val:"
            " 0.3 time: 0.0123s"
        ),
        axis="epoch",
        num_val=NUM,
    ),
    "gpytorch": Foreign(
        line=lambda r: f"Iter {r.i + 1}/80 - Loss: {r.loss}   lengthscale: 0.693   noise: 0.693",
        first=1,
    ),
    "deepxde": Foreign(
        head=(
            "Training model...\n\nStep      Train loss              Test loss               Test"
            " metric\n"
        ),
        line=lambda r: (
            f"{1000 * r.i:<9d} [{r.loss:.4e}]              [{r.val:.4e}]              []  "
        ),
        gap=1000,
        num_val=NUM,
    ),
    "sklearn mlp": Foreign(line=lambda r: f"Iteration {r.i + 1}, loss = {r.loss}", first=1),
    "sklearn gbm": Foreign(
        head="      Iter       Train Loss   Remaining Time \n",
        line=lambda r: f"{r.i + 1:10d} {r.loss:16.4f} {'1.23m':>16s}",
        first=1,
    ),
    "h2o": Foreign(
        line=lambda r: (
            f"{STAMP} duration=1.2 sec epochs={r.i / 10:.3f} iterations={r.i} samples={100 * r.i}"
            f" training_rmse={r.loss} validation_rmse={r.val}"
        ),
        num_val=NUM,
    ),
    "prodigy pct": Foreign(
        line=lambda r: f"Training: {r.i + 1}% done, step {10 * r.i}, loss {r.loss}, {r.lr} lr",
        gap=10,
    ),
    "mamba chess": Foreign(
        line=lambda r: (
            f"iter {r.i}: loss {r.loss}, tokens {131072 * r.i / 1e6:.2f}M, time {512.1:.2f}ms, lr"
            f" {r.lr:.6f}, norm {r.norm}"
        ),
        lr=True,
        norm=True,
    ),
    "rich panel": Foreign(line=box, lr=True),
    "csv inside text": Foreign(
        head="Loading data ...\nUsing cuda:0\nstep,loss,lr\n",
        line=lambda r: f"{r.i},{r.loss},{r.lr}",
        lr=True,
    ),
    "windows": Foreign(line=lambda r: f"[{r.i + 1}] loss: {r.loss}\r", first=1),
    "cifar tutorial": Foreign(
        line=lambda r: f"[{r.e + 1}, {2000 * r.b + 2000:5d}] loss: {r.loss}", axis="epoch"
    ),
    "kuangliu": Foreign(
        line=lambda r: (
            f" [=====>......]  Step: 12ms | Tot: 1s20ms | Loss: {r.loss} | Acc: 40.123% (512/1280)"
            f" {r.b + 1}/20"
        ),
        end="\r",
        axis="epoch",
        num_val=None,
    ),
    "batch of": Foreign(
        line=lambda r: f"Epoch {r.e + 1}, Batch {r.b + 1} of 20, Loss {r.loss}, Elapsed 0:10:12",
        axis="epoch",
    ),
    "worker logs": Foreign(
        line=lambda r: (
            f"worker-0 | {STAMP} | step={r.i} train_loss={r.loss} tokens/s=1.2e5 grad.norm={r.norm}"
        ),
        norm=True,
    ),
    "val first": Foreign(
        line=lambda r: f"epoch={r.i} val_loss={r.val} train_loss={r.loss}",
        axis="epoch",
        num_val=NUM,
    ),
    "mean in brackets": Foreign(
        line=lambda r: f"it {r.i} loss {r.loss} [avg {r.loss + 0.1:.4f}] lr {r.lr}", lr=True
    ),
    "plus minus": Foreign(line=lambda r: f"step {r.i}: loss {r.loss} \u00b1 0.12, acc 40.1 %"),
    "nats per token": Foreign(
        line=lambda r: f"step {r.i} train/loss {r.loss} nats/token, 1.2 bits/byte"
    ),
    "upper case": Foreign(
        line=lambda r: f"STEP {r.i} TRAIN_LOSS {r.loss} VAL_LOSS {r.val} LEARNING_RATE {r.lr}",
        lr=True,
        num_val=NUM,
    ),
    "camel case": Foreign(
        line=lambda r: (
            f"globalStep: {r.i}, trainLoss: {r.loss}, learningRate: {r.lr}, gradNorm: {r.norm}"
        ),
        lr=True,
        norm=True,
    ),
    "camel json": Foreign(
        line=lambda r: "",
        whole=lambda: json.dumps(
            [
                {"globalStep": r.i, "trainLoss": r.loss, "valLoss": r.val, "learningRate": r.lr}
                for r in RECORDS
            ]
        ),
        lr=True,
        num_val=NUM,
    ),
    "camel csv": Foreign(
        line=lambda r: "",
        whole=lambda: (
            "Step,TrainLoss,ValLoss,LearningRate\n"
            + "".join(f"{r.i},{r.loss},{r.val},{r.lr}\n" for r in RECORDS)
        ),
        lr=True,
        num_val=NUM,
    ),
    "epoch csv of batches": Foreign(
        line=lambda r: "",
        whole=lambda: "epoch,batch,loss\n" + "".join(f"{r.e},{r.b},{r.loss}\n" for r in RECORDS),
        axis="epoch",
    ),
    "xml": Foreign(
        line=lambda r: f'<record step="{r.i}" loss="{r.loss}" lr="{r.lr}"/>',
        head="<log>\n",
        foot="</log>\n",
        lr=True,
    ),
    "toml": Foreign(
        line=lambda r: f"[[record]]\nstep = {r.i}\nloss = {r.loss}\nlr = {r.lr}\n", lr=True
    ),
    "german": Foreign(line=lambda r: f"Schritt {r.i}: Verlust (loss) = {r.loss}"),
}
