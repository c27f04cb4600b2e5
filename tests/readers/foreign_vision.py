"""Trainers of images, games and tables, and the programs of older days, line by line."""

from tests.readers.foreign import PER_EPOCH, Foreign, bar, held_out

__all__ = ["OTHERS"]

RULE = "-" * 30

OTHERS: dict[str, Foreign] = {
    "openclip": Foreign(
        line=lambda r: (
            f"2023-05-01,10:00:00 | INFO | Train Epoch: {r.e} [{640 * r.b:>6d}/12800"
            f" ({5 * r.b:.0f}%)] Data (t): 0.123 Batch (t): 1.234, 833.1/s, 104.1/s/gpu LR:"
            f" {r.lr:.6f} Logit Scale: 14.286 Contrastive_loss: {r.loss} ({r.loss + 0.1:.4f}) Loss:"
            f" {r.loss} ({r.loss + 0.1:.4f})"
        ),
        axis="epoch",
        lr=True,
    ),
    "metric logger": Foreign(
        line=lambda r: (
            f"Epoch: [{r.e}/100]  [{10 * r.b:4d}/200]  eta: 1:00:00  loss: {r.loss}"
            f" ({r.loss + 0.1:.4f})  lr: {r.lr:.6f} ({r.lr:.6f})  wd: 0.0400 (0.0400)  time:"
            " 0.512345  data: 0.101  max mem: 10012"
            + held_out(
                r,
                f"Averaged stats: loss: {r.loss} (3.1234)  lr: {r.lr:.6f} (0.000500)  wd: 0.0400"
                " (0.0400)",
            )
            + held_out(
                r,
                f"Test:  [ 0/50]  eta: 0:01:00  loss: {r.val} ({r.val})  acc1: 10.1 (10.1)  time:"
                " 1.1  data: 0.9  max mem: 10012",
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "swin": Foreign(
        line=lambda r: (
            "[2021-05-01 10:00:00 swin_tiny](main.py 231): INFO Train:"
            f" [{r.e}/300][{10 * r.b}/200]\teta 1:00:00 lr {r.lr:.6f}\t time 0.5123 (0.6123)\tloss"
            f" {r.loss} ({r.loss + 0.1:.4f})\tgrad_norm {r.norm} (1.3123)\tmem 10012MB"
            + held_out(
                r,
                "[2021-05-01 10:00:00 swin_tiny](main.py 273): INFO Test: [0/98]\tTime 2.123"
                f" (2.123)\tLoss {r.val} ({r.val})\tAcc@1 10.1 (10.1)\tMem 10012MB",
            )
        ),
        axis="epoch",
        lr=True,
        norm=True,
        num_val=4,
    ),
    "imagenet example": Foreign(
        line=lambda r: (
            f"Epoch: [{r.e}][{10 * r.b:4d}/200]\tTime  0.512 ( 0.612)\tData  0.101 ( 0.123)\tLoss"
            f" {r.loss:.4e} ({r.loss + 0.1:.4e})\tAcc@1   0.10 (  0.11)\tAcc@5   0.50 (  0.51)"
            + held_out(
                r,
                f"Test: [  0/196]\tTime  2.123 ( 2.123)\tLoss {r.val:.4e} ({r.val:.4e})\tAcc@1 "
                " 10.10 ( 10.10)\n *   Acc@1 10.1 Acc@5 20.2",
            )
        ),
        axis="epoch",
        num_val=4,
    ),
    "mnist example": Foreign(
        line=lambda r: (
            f"Train Epoch: {r.e + 1} [{64 * r.b}/1280 ({5 * r.b:.0f}%)]\tLoss: {r.loss}"
            + held_out(r, f"\nTest set: Average loss: {r.val}, Accuracy: 9830/10000 (98%)\n")
        ),
        axis="epoch",
        num_val=4,
    ),
    "yolox": Foreign(
        line=lambda r: (
            "2021-05-01 10:00:00.123 | INFO     | yolox.core.trainer:after_iter:256 - epoch:"
            f" {r.e + 1}/80, iter: {20 * r.b + 20}/400, mem: 5000Mb, iter_time: 0.512s, data_time:"
            f" 0.010s, total_loss: {r.loss}, iou_loss: 3.1, l1_loss: 0.0, conf_loss: 7.1, cls_loss:"
            f" 1.1, lr: {r.lr:.3e}, size: 800, ETA: 1:00:00"
        ),
        axis="epoch",
        lr=True,
    ),
    "gluon": Foreign(
        line=lambda r: (
            f"[Epoch {r.e}][Batch {99 + 100 * r.b}], LR: {r.lr:.2E}, Speed: 10.123 samples/sec,"
            f" ObjLoss={r.loss}, BoxCenterLoss=1.1, BoxScaleLoss=2.1"
        ),
        axis="epoch",
        lr=True,
    ),
    "chainer report": Foreign(
        head="epoch       main/loss   validation/main/loss  main/accuracy  elapsed_time\n",
        line=lambda r: (
            f"{r.i + 1:<10d}  {r.loss:<10g}  {r.val:<20g}  0.9123         {10 * r.i + 3.12:<12g}"
        ),
        axis="epoch",
        num_val=80,
    ),
    "cntk": Foreign(
        line=lambda r: (
            f" Epoch[ {r.e + 1} of 4]-Minibatch[ {100 * r.b + 1:4d}-{100 * r.b + 100:4d},"
            f" {5 * r.b:.2f}%]: CrossEntropyWithSoftmax = {r.loss} * 640; EvalErrorPrediction ="
            " 0.91 * 640; time = 0.12s; samplesPerSecond = 5123.1"
        ),
        axis="epoch",
    ),
    "torch7 logger": Foreign(
        head="train loss\ttest loss\t\n",
        line=lambda r: f" {r.loss:.4e}\t {r.val:.4e}\t",
        axis="row",
        num_val=80,
    ),
    "lightgbm": Foreign(
        line=lambda r: (
            f"[{r.i + 1}]\ttraining's binary_logloss: {r.loss}\tvalid_1's binary_logloss: {r.val}"
        ),
        first=1,
        num_val=80,
    ),
    "xgboost": Foreign(
        line=lambda r: f"[{r.i}]\ttrain-logloss:{r.loss}\teval-logloss:{r.val}", num_val=80
    ),
    "xgboost rmse": Foreign(
        line=lambda r: f"[{r.i}]\ttrain-rmse:{r.loss}\tvalidation-rmse:{r.val}", num_val=80
    ),
    "catboost": Foreign(
        line=lambda r: (
            f"{r.i}:\tlearn: {r.loss}\ttest: {r.val}\tbest: {r.val} ({r.i})\ttotal:"
            " 101ms\tremaining: 1.01s"
        ),
        num_val=80,
    ),
    "sagemaker": Foreign(
        line=lambda r: (
            f"[05/01/2020 10:00:00 INFO 140234] Epoch[{r.e}] Batch[{5 * r.b}]"
            f" avg_epoch_loss={r.loss}"
        ),
        axis="epoch",
    ),
    "quality metric": Foreign(
        line=lambda r: (
            f"[05/01/2020 10:00:00 INFO 140234] #quality_metric: host=algo-1, epoch={r.i}, train"
            f" loss <loss>={r.loss}"
        ),
        axis="epoch",
    ),
    "yolov5": Foreign(
        line=lambda r: (
            (
                "\n      Epoch    GPU_mem   box_loss   obj_loss   cls_loss  Instances       Size\n"
                if r.b == 0
                else ""
            )
            + f"     {r.e + 0:>3d}/99      3.51G    {r.loss:.4f}    0.05123    0.02123        100  "
            f"      640: {bar(r.b + 1, 20)} [00:01<00:10, 9.1it/s]"
        ),
        end="\r",
        axis="epoch",
        num_val=None,
    ),
    "nnunet v2": Foreign(
        line=lambda r: (
            f"2023-05-01 10:00:00.123456: \n2023-05-01 10:00:00.123456: Epoch {r.i} \n2023-05-01"
            f" 10:00:00.123456: Current learning rate: {r.lr} \n2023-05-01 10:00:00.123456:"
            f" train_loss {r.loss} \n2023-05-01 10:00:00.123456: val_loss {r.val} \n2023-05-01"
            " 10:00:00.123456: Pseudo dice [0.9, 0.8] \n2023-05-01 10:00:00.123456: Epoch time:"
            " 100.12 s"
        ),
        axis="epoch",
        lr=True,
        num_val=80,
    ),
    "nnunet v1": Foreign(
        line=lambda r: (
            f"\nepoch:  {r.i}\n2021-05-01 10:00:00.123456: train loss : {r.loss}\n2021-05-01"
            f" 10:00:00.123456: validation loss: {r.val}\n2021-05-01 10:00:00.123456: lr:"
            f" {r.lr}\n2021-05-01 10:00:00.123456: This epoch took 100.123456 s"
        ),
        axis="epoch",
        lr=True,
        num_val=80,
    ),
    "keras 3": Foreign(
        line=lambda r: (
            (f"Epoch {r.e + 1}/4\n" if r.b == 0 else "") + f"\x1b[1m{100 * r.b + 100}/2000\x1b[0m"
            " \x1b[32m\u2501\u2501\u2501\x1b[0m\x1b[37m\u2501\u2501\x1b[0m \x1b[1m4s\x1b[0m"
            f" 2ms/step - accuracy: 0.9123 - loss: {r.loss}"
            + (f" - val_accuracy: 0.9 - val_loss: {r.val}\n" if r.ends_epoch else "")
        ),
        end="\r",
        axis="epoch",
        num_val=4,
    ),
    "keras backspaces": Foreign(
        line=lambda r: (
            (f"Epoch {r.e + 1}/4\n" if r.b == 0 else "")
            + f"\x08\x08\x08\x08\x08\x08{100 * r.b + 100:4d}/2000 [==>...........] - ETA: 10s -"
            f" loss: {r.loss} - acc: 0.9123"
            + (f" - val_loss: {r.val} - val_acc: 0.9\n" if r.ends_epoch else "")
        ),
        end="",
        axis="epoch",
        num_val=4,
    ),
    "mmengine": Foreign(
        line=lambda r: (
            "2023/05/01 10:00:00 - mmengine - INFO - Epoch(train) "
            f" [{r.e + 1}][{50 * r.b + 50:4d}/1000]  lr: {r.lr:.4e}  eta: 1:00:00  time: 0.5123 "
            f" data_time: 0.1012  memory: 3012  grad_norm: {r.norm}  loss: {r.loss}  loss_cls: 1.1 "
            " loss_bbox: 0.5"
            + held_out(
                r,
                f"2023/05/01 10:00:00 - mmengine - INFO - Epoch(val) [{r.e + 1}][10/10]   "
                " coco/bbox_mAP: 0.3120  data_time: 0.1  time: 0.2",
            )
        ),
        axis="epoch",
        norm=True,
        lr=True,
    ),
    "mmengine iter": Foreign(
        line=lambda r: (
            f"2023/05/01 10:00:00 - mmengine - INFO - Iter(train) [{50 * r.i + 50:5d}/80000]  lr:"
            f" {r.lr:.4e}  eta: 1:00:00  time: 0.5123  data_time: 0.1012  memory: 3012  loss:"
            f" {r.loss}  decode.loss_ce: 1.1  decode.acc_seg: 50.1"
        ),
        first=50,
        gap=50,
        lr=True,
    ),
    "hrnet": Foreign(
        line=lambda r: (
            f"2021-05-01 10:00:00,123 Epoch: [{r.e}/4] Iter:[{10 * r.b}/200], Time: 0.51, lr:"
            f" [{r.lr}], Loss: {r.loss}, Acc:0.912345"
        ),
        axis="epoch",
        lr=True,
    ),
    "kohya": Foreign(
        line=lambda r: f"steps:  {bar(r.i + 1, 1000)} [00:10<01:30,  1.01s/it, avr_loss={r.loss}]",
        end="\r",
        first=1,
    ),
    "diffusers": Foreign(
        line=lambda r: (
            f"Steps:  {bar(r.i + 1, 1000)} [00:10<01:30,  1.01s/it, lr={r.lr}, step_loss={r.loss}]"
        ),
        end="\r",
        first=1,
        lr=True,
    ),
    "lucidrains bar": Foreign(
        line=lambda r: f"loss: {r.loss:.4f}:   {bar(r.i + 1, 100000)} [00:10<9:30:10,  1.01it/s]",
        end="\r",
        first=1,
    ),
    "splatting": Foreign(
        line=lambda r: (
            f"Training progress:   {bar(10 * r.i + 10, 30000)} [00:10<10:30, 45.01it/s,"
            f" Loss={r.loss:.7f}]"
        ),
        end="\r",
        first=10,
        gap=10,
    ),
    "nerf": Foreign(
        line=lambda r: f"[TRAIN] Iter: {100 * r.i + 100} Loss: {r.loss}  PSNR: 20.123456",
        first=100,
        gap=100,
    ),
    "improved diffusion": Foreign(
        line=lambda r: (
            f"{RULE}\n| grad_norm     | {r.norm:<8} |\n| loss          | {r.loss:<8} |\n| loss_q0  "
            "     | 0.913    |\n| loss_q1       | 0.123    |\n| mse           | 0.123    |\n|"
            f" samples       | {640.0 * r.i:.3g} |\n| step          | {10 * r.i}      |\n{RULE}"
        ),
        gap=10,
        norm=True,
    ),
    "rsl rl": Foreign(
        line=lambda r: (
            f"{'#' * 40}\n                       Learning iteration {r.i}/1500                     "
            "  \n\n                       Computation: 50123 steps/s (collection: 1.1s, learning"
            " 0.2s)\n               Value function loss: 0.1012\n                    Surrogate"
            f" loss: {r.loss}\n             Mean action noise std: 0.98\n                      "
            f" Mean reward: 12.1\n{RULE}\n                   Total timesteps: {98304 * (r.i + 1)}\n"
            "                    Iteration time: 1.91s\n                        Total time:"
            " 123.4s\n"
        ),
        axis="step",
        num_val=0,
        first=98304,
        gap=98304,
    ),
    "spinning up": Foreign(
        line=lambda r: (
            f"{RULE}\n|             Epoch |               {r.i} |\n|      AverageEpRet |           "
            f" 20.1 |\n|            LossPi |          {r.loss} |\n|             LossV |            "
            f" 123 |\n|      TotalEnvInteracts |      {4000 * r.i + 4000} |\n{RULE}"
        ),
        axis="epoch",
    ),
    "summary lines": Foreign(
        line=lambda r: (
            f"Epoch {r.e + 1} | Batch {r.b + 1}/{PER_EPOCH} | Loss: {r.loss} | LR: {r.lr:.2e}"
            + held_out(
                r,
                f"Epoch {r.e + 1} completed | Average train loss: 3.1234 | Val loss: {r.val} |"
                " Time: 12.1s",
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "percent and eta": Foreign(
        line=lambda r: (
            f"[{r.i / 80:6.2%}] epoch {r.e + 1}/4 step {r.i + 1}/80 loss={r.loss} lr={r.lr:.2e}"
            f" eta=0:10:{r.b:02d} 12.1K tok/s"
        ),
        first=1,
        lr=True,
    ),
    "logfmt": Foreign(
        line=lambda r: (
            f'time="2024-05-01T10:00:00Z" level=info msg="train step" epoch={r.e} step={r.i}'
            f" loss={r.loss} lr={r.lr} grad_norm={r.norm} dur=120ms"
        ),
        lr=True,
        norm=True,
    ),
    "yaml stream": Foreign(line=lambda r: f"---\nstep: {r.i}\nloss: {r.loss}\nlr: {r.lr}", lr=True),
    "yaml list": Foreign(
        line=lambda r: f"- step: {r.i}\n  loss: {r.loss}\n  grad_norm: {r.norm}\n  val_loss: null",
        norm=True,
    ),
    "rich handler": Foreign(
        line=lambda r: (
            f"[10:00:{r.b:02d}] INFO     step {r.i:,} loss {r.loss} lr {r.lr}                      "
            "                 train.py:142"
        ),
        lr=True,
    ),
    "journal": Foreign(
        line=lambda r: f"May 01 10:00:{r.b:02d} node1 python[12345]: step {r.i} loss {r.loss}"
    ),
    "docker": Foreign(
        line=lambda r: (
            f'{{"log":"step {r.i} loss {r.loss} grad_norm'
            f' {r.norm}\\n","stream":"stdout","time":"2024-05-01T10:00:00.123456789Z"}}'
        ),
        norm=True,
    ),
    "actions": Foreign(
        line=lambda r: f"2024-05-01T10:00:{r.b:02d}.1234567Z step {r.i}, loss {r.loss}"
    ),
    "mpirun": Foreign(
        line=lambda r: "\n".join(
            f"[1,{k}]<stdout>:step {r.i} loss {r.loss + k:.4f}" for k in (1, 0)
        )
    ),
    "ray": Foreign(
        line=lambda r: (
            f"\x1b[36m(RayTrainWorker pid=1234, ip=10.0.0.1)\x1b[0m step={r.i} loss={r.loss}"
            f" lr={r.lr}"
        ),
        lr=True,
    ),
    "tensors": Foreign(
        line=lambda r: (
            f"epoch {r.e} step {r.i} loss tensor({r.loss}, device='cuda:0', dtype=torch.float32,"
            f" grad_fn=<MeanBackward0>) gnorm tensor({r.norm})"
        ),
        norm=True,
    ),
    "numpy scalars": Foreign(
        line=lambda r: (
            f"{{'step': {r.i}, 'train_loss': np.float64({r.loss}), 'val_loss': np.float64({r.val}),"
            f" 'lr': {r.lr}}}"
        ),
        lr=True,
        num_val=80,
    ),
    "ordered dict": Foreign(
        line=lambda r: (
            f"OrderedDict([('step', {r.i}), ('loss', {r.loss}), ('grad_norm', {r.norm}), ('lr',"
            f" {r.lr})])"
        ),
        norm=True,
        lr=True,
    ),
    "namespace": Foreign(
        line=lambda r: (
            f"TrainState(step={r.i}, metrics=Metrics(loss={r.loss}, grad_norm={r.norm}))"
        ),
        norm=True,
    ),
    "chinese": Foreign(
        line=lambda r: (
            f"\u7b2c{r.i + 1}\u6b65\uff0closs\uff1a{r.loss}\uff0c\u5b66\u4e60\u7387\uff1a{r.lr}"
        ),
        first=1,
    ),
    "arrow": Foreign(
        line=lambda r: (
            f"epoch {r.e} \u2502 step {r.i} \u2502 loss {r.loss} \u2502 \u2207 {r.norm} \u2502 lr"
            f" {r.lr}"
        ),
        lr=True,
    ),
    "arrow from to": Foreign(
        line=lambda r: f"step {r.i}: train_loss \u2192 {r.loss} | val_loss \u2192 {r.val}",
        num_val=80,
    ),
    "at sign": Foreign(line=lambda r: f"loss={r.loss} @ step {r.i}"),
    "hash": Foreign(line=lambda r: f"#{r.i + 1} loss: {r.loss} lr: {r.lr}", first=1, lr=True),
    "iteration of": Foreign(
        line=lambda r: (
            f"Iteration {r.i + 1} of 80: training loss = {r.loss}; validation loss = {r.val}"
        ),
        first=1,
        num_val=80,
    ),
    "train slash val": Foreign(
        line=lambda r: f"Epoch {r.i + 1:03d}: train/val loss {r.loss}/{r.val}",
        axis="epoch",
        num_val=None,
    ),
    "two phases": Foreign(
        line=lambda r: (
            f"Epoch {r.i}/79\n----------\ntrain Loss: {r.loss} Acc: 0.9123\nval Loss: {r.val} Acc:"
            " 0.8123\n"
        ),
        axis="epoch",
        num_val=80,
    ),
    "phase in brackets": Foreign(
        line=lambda r: (
            f"[{r.i + 1}/80][TRAIN] Loss: {r.loss} Acc: 0.9\n[{r.i + 1}/80][VALID] Loss: {r.val}"
            " Acc: 0.8"
        ),
        axis="step",
        first=1,
        num_val=80,
    ),
    "phase on a line": Foreign(
        line=lambda r: (
            f"Epoch {r.i + 1}\n  Training:\n    loss: {r.loss}\n    acc: 0.9\n  Validation:\n   "
            f" loss: {r.val}\n    acc: 0.8"
        ),
        axis="epoch",
        num_val=80,
    ),
    "torch tutorial": Foreign(
        line=lambda r: (
            f"loss: {r.loss:>7f}  [{64 * r.b:>5d}/ 1280]"
            + (
                f"\nTest Error: \n Accuracy: 50.1%, Avg loss: {r.val:>8f} \n\nEpoch"
                f" {r.e + 2}\n-----------------"
                if r.ends_epoch
                else ""
            )
        ),
        head="Epoch 1\n-----------------\n",
        axis="epoch",
        num_val=4,
    ),
    "seq2seq tutorial": Foreign(
        line=lambda r: (
            f"{r.i // 60}m {r.i % 60}s (- 9m {r.i % 60}s) ({1000 * r.i + 1000} {r.i // 8 + 1}%)"
            f" {r.loss}"
        ),
        axis="step",
        first=1000,
        gap=1000,
    ),
    "julia": Foreign(line=lambda r: f"[ Info: Epoch {r.i + 1}: loss = {r.loss}f0", axis="epoch"),
    "pix2pix": Foreign(
        line=lambda r: (
            f"(epoch: {r.e + 1}, iters: {100 * r.b + 100}, time: 0.512, data: 0.201) G_GAN: 0.5"
            f" G_L1: 10.1 loss_G: {r.loss} D_real: 0.4 D_fake: 0.6"
        ),
        axis="epoch",
    ),
    "dcgan": Foreign(
        line=lambda r: (
            f"[{r.e}/4][{r.b}/20]\tLoss_D: {r.loss}\tLoss_G: 4.123\tD(x): 0.9\tD(G(z)): 0.1 / 0.02"
        ),
        axis="epoch",
    ),
    "epoch decimals": Foreign(
        line=lambda r: f"epoch {r.i / 10:.1f} | train loss {r.loss} | ppl {12.1}", axis="epoch"
    ),
    "hydra": Foreign(
        line=lambda r: (
            f"[2024-05-01 10:00:00,123][__main__][INFO] - [Epoch {r.e}] [Step {r.i}] Train | loss:"
            f" {r.loss} | lr: {r.lr}"
        ),
        lr=True,
    ),
    "k8s json": Foreign(
        line=lambda r: (
            f'2024-05-01T10:00:00.123456789Z stdout F {{"step": {r.i}, "loss": {r.loss},'
            ' "val_loss": null}'
        )
    ),
}
