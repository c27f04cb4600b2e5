"""Formats of trainers as people know them, each with what a reader should find.

The lines are printed by code of our own after the layout of each trainer, none is copied.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["FORMATS", "NUM", "RECORDS", "Wider"]

NUM = 120
PER_EPOCH = 40
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Wider:
    """One format."""

    text: Callable[[], str]
    axis: str | None
    """None: any."""
    norm: bool = False
    lr: bool = False
    num_val: int | None = 0
    """Validation losses; None: any number."""


def _row(i: int) -> Row:
    loss = round(6 * math.exp(-i / 30) + 2 + 0.05 * math.sin(i * 7), 4)
    return {
        "i": i,
        "e": i // PER_EPOCH,
        "b": i % PER_EPOCH,
        "loss": loss,
        "val": round(6 * math.exp(-i / 30) + 3.3, 4),
        "norm": round(1 + 0.3 * math.sin(i * 5), 4),
        "lr": float(f"{1e-3 * (1 - i / 200):.4e}"),
        "g": round(0.7 + 0.1 * math.sin(i), 4),
    }


RECORDS = [_row(i) for i in range(NUM)]


def _ends(r: Row) -> bool:
    return bool(r["b"] == PER_EPOCH - 1)


def _tf_estimator() -> str:
    return "".join(
        f"INFO:tensorflow:loss = {r['loss']}, step = {r['i'] * 100} ({3.4 + r['g']:.3f} sec)\n"
        + ("INFO:tensorflow:global_step/sec: 29.1\n" if r["i"] else "")
        for r in RECORDS
    )


def _darknet() -> str:
    return "".join(
        f"{r['i'] + 1}: {r['loss']:.6f}, {r['loss']:.6f} avg, {r['lr']:.6f} rate, 3.2 seconds, {64 * (r['i'] + 1)} images\n"
        for r in RECORDS
    )


def _mindspore() -> str:
    return "".join(
        f"epoch: {r['e'] + 1} step: {r['b'] + 1}, loss is {r['loss']}\n" for r in RECORDS
    )


def _ignite() -> str:
    return "".join(
        f"Epoch[{r['e'] + 1}] Iteration[{r['b'] + 1}/40] Loss: {r['loss']:.4f}\n"
        + (
            f"Validation Results - Epoch: {r['e'] + 1}  Avg accuracy: 0.9 Avg loss: {r['val']}\n"
            if _ends(r)
            else ""
        )
        for r in RECORDS
    )


def _fastai() -> str:
    return "epoch     train_loss  valid_loss  accuracy  time    \n" + "".join(
        f"{r['i']}         {r['loss']:.6f}    {r['val']:.6f}    0.951000  00:12     \n"
        for r in RECORDS
    )


def _detr() -> str:
    return "".join(
        f"Epoch: [{r['e']}]  [{r['b']:3d}/40]  eta: 0:01:02  lr: {r['lr']:.6f}  class_error: 93.5  loss: {r['loss']:.4f} ({r['loss'] + 0.2:.4f})  loss_ce: 0.7 (0.8)  time: 0.5  data: 0.01  max mem: 999\n"
        + (
            f"Averaged stats: lr: 0.0001  class_error: 9.5  loss: 3.3 (4.4)\nTest:  [ 0/9]  eta: 0:00:03  class_error: 9  loss: {r['val']} ({r['val']})\n"
            if _ends(r)
            else ""
        )
        for r in RECORDS
    )


def _mae_logtxt() -> str:
    return "".join(
        json.dumps({"train_lr": r["lr"], "train_loss": r["loss"], "epoch": r["i"]}) + "\n"
        for r in RECORDS
    )


def _detr_logtxt() -> str:
    return "".join(
        json.dumps(
            {
                "train_lr": r["lr"],
                "train_class_error": 9.1,
                "train_loss": r["loss"],
                "train_loss_ce": 0.3,
                "test_loss": r["val"],
                "test_loss_ce": 0.4,
                "epoch": r["i"],
                "n_parameters": 41302368,
            }
        )
        + "\n"
        for r in RECORDS
    )


def _keras_bar() -> str:
    return "".join(
        (f"Epoch {r['e'] + 1}/3\n" if r["b"] == 0 else "")
        + f"\r{r['b'] + 1:2d}/40 [{'=' * (r['b'] // 2)}>{'.' * 5}] - ETA: 1s - loss: {r['loss']:.4f} - accuracy: 0.9000"
        + ("\n" if _ends(r) else "")
        for r in RECORDS
    )


def _keras_fit2() -> str:
    return "".join(
        f"Epoch {r['i'] + 1}/120\n120/120 - 3s - loss: {r['loss']} - accuracy: 0.91 - val_loss: {r['val']} - val_accuracy: 0.9 - 3s/epoch - 25ms/step\n"
        for r in RECORDS
    )


def _marian() -> str:
    return "".join(
        f"[2024-01-01 10:00:00] Ep. {r['e'] + 1} : Up. {(r['i'] + 1) * 100} : Sen. 1,234,567 : Cost {r['loss']:.8f} * 1,234,567 @ 2,345 after {r['i'] * 99999 + 9} : Time 12.34s : 23456.78 words/s : gNorm {r['norm']} : L.r. {r['lr']:.4e}\n"
        for r in RECORDS
    )


def _sockeye() -> str:
    return "".join(
        f"[2024-01-01:10:00:00:INFO:sockeye.training:fit] Epoch[{r['e']}] Batch [{(r['i'] + 1) * 50}]\tSpeed: 1234.56 samples/sec 23456 tokens/sec 0.9 updates/sec\tppl={math.exp(min(r['loss'], 20)):.4f} cross-entropy={r['loss']}\n"
        for r in RECORDS
    )


def _joeynmt() -> str:
    return "".join(
        f"2024-01-01 10:00:00,123 - INFO - joeynmt.training - Epoch   {r['e'] + 1}, Step: {(r['i'] + 1) * 100:8d}, Batch Loss: {r['loss']:12.6f}, Batch Acc: 0.012, Tokens per Sec:    12345, Lr: {r['lr']:.6f}\n"
        for r in RECORDS
    )


def _opennmt_py() -> str:
    return "".join(
        f"[2024-01-01 10:00:00,000 INFO] Step {(r['i'] + 1) * 50}/ 100000; acc:   7.1; ppl: {math.exp(min(r['loss'], 20)):6.1f}; xent: {r['loss']:.4f}; lr: {r['lr']:.5f}; sents:   12345; bsz: 3000/2900/50; 12345/12345 tok/s;    123 sec;\n"
        for r in RECORDS
    )


def _espnet1() -> str:
    return json.dumps(
        [
            {
                "main/loss": r["loss"],
                "epoch": r["e"] + 1,
                "iteration": (r["i"] + 1) * 100,
                "elapsed_time": 9.9 * r["i"],
                **({"validation/main/loss": r["val"]} if _ends(r) else {}),
            }
            for r in RECORDS
        ],
        indent=1,
    )


def _chainer() -> str:
    return "epoch       iteration   main/loss   elapsed_time\n" + "".join(
        f"{r['e']:<10d}  {(r['i'] + 1) * 10:<10d}  {r['loss']:<10.5g}  {r['i'] * 3.21:<10.5g}\n"
        for r in RECORDS
    )


def _sb3() -> str:
    return "".join(
        f"---------------------------------------\n| rollout/                |             |\n|    ep_len_mean          | 21.5        |\n|    ep_rew_mean          | {20 + r['i']}        |\n| time/                   |             |\n|    fps                  | 1234        |\n|    total_timesteps      | {(r['i'] + 1) * 2048}        |\n| train/                  |             |\n|    approx_kl            | 0.008       |\n|    clip_fraction        | 0.09        |\n|    entropy_loss         | -0.68       |\n|    learning_rate        | 0.0003      |\n|    loss                 | {r['loss']}        |\n|    n_updates            | {10 * r['i']}          |\n|    policy_gradient_loss | -0.01       |\n|    value_loss           | 50.1        |\n---------------------------------------\n"
        for r in RECORDS
    )


def _rllib_json() -> str:
    return "".join(
        json.dumps(
            {
                "training_iteration": r["i"] + 1,
                "timesteps_total": 4000 * (r["i"] + 1),
                "episode_reward_mean": 20.0,
                "info": {
                    "learner": {
                        "default_policy": {
                            "learner_stats": {
                                "total_loss": r["loss"],
                                "policy_loss": -0.02,
                                "vf_loss": 8.1,
                                "kl": 0.01,
                                "entropy": 0.6,
                                "cur_lr": 5e-5,
                            }
                        }
                    }
                },
            }
        )
        + "\n"
        for r in RECORDS
    )


def _trl_grpo() -> str:
    return "".join(
        str(
            {
                "loss": r["loss"],
                "grad_norm": r["norm"],
                "learning_rate": r["lr"],
                "num_tokens": 1000.0 * r["i"],
                "completions/mean_length": 88.0,
                "rewards/f/mean": 0.3,
                "reward": 0.5,
                "reward_std": 0.1,
                "kl": 0.001,
                "epoch": round(r["i"] * 0.013, 3),
            }
        )
        + "\n"
        for r in RECORDS
    )


def _verl_console() -> str:
    return "".join(
        f"(TaskRunner pid=123) step:{r['i'] + 1} - global_seqlen/min:100 - actor/entropy:0.3 - actor/kl_loss:0.001 - actor/pg_loss:{r['loss']} - actor/grad_norm:{r['norm']} - actor/lr:{r['lr']} - critic/rewards/mean:0.4 - response_length/mean:200.1\n"
        for r in RECORDS
    )


def _axolotl() -> str:
    return "".join(
        f"\r{r['i']}%|█▎        | {r['i'] + 1}/120 [00:33<22:10, 11.3s/it]{{'loss': {r['loss']}, 'grad_norm': {r['norm']}, 'learning_rate': {r['lr']}, 'memory/max_mem_active(gib)': 20.1, 'epoch': {r['i'] * 0.013:.3f}}}\n"
        for r in RECORDS
    )


def _litgpt() -> str:
    return "".join(
        f"Epoch {r['e'] + 1} | iter {r['i'] + 1} step {r['i'] + 1} | loss train: {r['loss']:.3f}, val: n/a | iter time: 345.67 ms (step)\n"
        for r in RECORDS
    )


def _llamafactory_jsonl() -> str:
    return "".join(
        json.dumps(
            {
                "current_steps": (r["i"] + 1) * 10,
                "total_steps": 1200,
                "loss": r["loss"],
                "lr": r["lr"],
                "epoch": r["i"] * 0.01,
                "percentage": r["i"] / 1.2,
                "elapsed_time": "0:00:12",
                "remaining_time": "0:22:12",
            }
        )
        + "\n"
        for r in RECORDS
    )


def _t5x() -> str:
    return "".join(
        f"I0101 10:00:00.123456 140 trainer.py:123] [{(r['i'] + 1) * 100}] train/loss={r['loss']}, train/accuracy=0.5, train/learning_rate={r['lr']}\n"
        for r in RECORDS
    )


def _maxtext() -> str:
    return "".join(
        f"completed step: {r['i']}, seconds: 1.234, TFLOP/s/device: 123.4, Tokens/s/device: 1234.5, total_weights: 65536, loss: {r['loss']}\n"
        for r in RECORDS
    )


def _levanter_tqdm() -> str:
    return "".join(
        f"train:  {r['i']}%|█         | {r['i'] + 1}/120 [00:10<01:00,  1.2s/it, loss={r['loss']}]\r"
        for r in RECORDS
    )


def _diffusers_tqdm() -> str:
    return "".join(
        f"Steps:  {r['i']}%|▏         | {r['i'] + 1}/120 [00:10<02:00,  1.2it/s, lr={r['lr']}, step_loss={r['loss']}]\r"
        for r in RECORDS
    )


def _kohya() -> str:
    return "".join(
        f"steps:  {r['i']}%|▏         | {r['i'] + 1}/120 [00:10<02:00,  1.2s/it, avr_loss={r['loss']}]\r"
        for r in RECORDS
    )


def _rsl_rl() -> str:
    return "".join(
        f"################################################################################\n                      \033[1m Learning iteration {r['i']}/120 \033[0m                       \n\n                       Computation: 12345 steps/s (collection: 0.5s, learning 0.1s)\n               Value function loss: {r['g']}\n                    Surrogate loss: {r['loss']}\n             Mean action noise std: 0.9\n                       Mean reward: 10.1\n--------------------------------------------------------------------------------\n                   Total timesteps: {98304 * (r['i'] + 1)}\n                    Iteration time: 0.6s\n"
        for r in RECORDS
    )


def _stanford_nlp() -> str:
    return "".join(
        f"2024-01-01 10:00:00 INFO: Finished STEP {(r['i'] + 1) * 20}/1000, loss = {r['loss']:.6f} (0.123 sec/batch), lr: {r['lr']:.6f}\n"
        for r in RECORDS
    )


def _allennlp() -> str:
    return "".join(
        json.dumps(
            {
                "epoch": r["i"],
                "training_loss": r["loss"],
                "training_accuracy": 0.9,
                "validation_loss": r["val"],
                "best_validation_loss": 3.1,
            }
        )
        + "\n"
        for r in RECORDS
    )


def _pytorch_mnist() -> str:
    return "".join(
        f"Train Epoch: {r['e'] + 1} [{r['b'] * 64}/2560 ({r['b'] * 100 // 40}%)]\tLoss: {r['loss']:.6f}\n"
        + (
            f"\nTest set: Average loss: {r['val']:.4f}, Accuracy: 9/10 (90%)\n\n"
            if _ends(r)
            else ""
        )
        for r in RECORDS
    )


def _imagenet() -> str:
    return "".join(
        f"Epoch: [{r['e']}][{r['b']:3d}/40]\tTime  0.5 ( 0.6)\tData  0.01 ( 0.02)\tLoss {r['loss']:.4e} ({r['loss'] + 0.1:.4e})\tAcc@1   1.0 (  0.5)\tAcc@5   5.0 (  4.0)\n"
        for r in RECORDS
    )


def _alphapose_tqdm() -> str:
    return "".join(
        f"\rTrain-{r['e']} epoch: {r['b']}%|##| {r['b'] + 1}/40 [00:01<00:09,  3.9it/s] loss: {r['loss']:.8f} | acc: 0.1"
        for r in RECORDS
    )


def _ultralytics_csv() -> str:
    return (
        "                  epoch,         train/box_loss,         train/cls_loss,         train/dfl_loss,   metrics/precision(B),           val/box_loss,           val/cls_loss,                 lr/pg0\n"
        + "".join(
            f"{r['i'] + 1:23d},{r['loss']:23.5f},{r['g']:23.5f},{r['g']:23.5f},{0.5:23.5f},{r['val']:23.5f},{r['g']:23.5f},{r['lr']:23.6f}\n"
            for r in RECORDS
        )
    )


def _mmdet_json() -> str:
    return (
        json.dumps({"env_info": "sys", "seed": 0})
        + "\n"
        + "".join(
            json.dumps(
                {
                    "mode": "train",
                    "epoch": r["e"] + 1,
                    "iter": (r["b"] + 1) * 50,
                    "lr": r["lr"],
                    "memory": 999,
                    "data_time": 0.01,
                    "loss_cls": 0.3,
                    "loss_bbox": 0.4,
                    "loss": r["loss"],
                    "grad_norm": r["norm"],
                    "time": 0.4,
                }
            )
            + "\n"
            for r in RECORDS
        )
    )


def _mmengine_json() -> str:
    return "".join(
        json.dumps(
            {
                "lr": r["lr"],
                "data_time": 0.01,
                "loss": r["loss"],
                "time": 0.4,
                "epoch": r["e"] + 1,
                "iter": (r["i"] + 1) * 50,
                "memory": 9999,
                "step": (r["i"] + 1) * 50,
            }
        )
        + "\n"
        for r in RECORDS
    )


def _detectron2_json() -> str:
    return "".join(
        json.dumps(
            {
                "data_time": 0.01,
                "eta_seconds": 99.0,
                "iteration": 20 * r["i"] + 19,
                "loss_box_reg": 0.3,
                "loss_cls": 0.4,
                "lr": r["lr"],
                "rank_data_time": 0.01,
                "time": 0.5,
                "total_loss": r["loss"],
            }
        )
        + "\n"
        for r in RECORDS
    )


def _paddleocr() -> str:
    return "".join(
        f"[2024/01/01 10:00:00] ppocr INFO: epoch: [{r['e'] + 1}/3], global_step: {(r['i'] + 1) * 10}, lr: {r['lr']:.6f}, acc: 0.000000, norm_edit_dis: 0.0, loss: {r['loss']:.6f}, avg_reader_cost: 0.1 s, avg_batch_cost: 0.5 s, avg_samples: 256.0, ips: 500.1 samples/s, eta: 1:00:00\n"
        for r in RECORDS
    )


def _paddleseg() -> str:
    return "".join(
        f"2024-01-01 10:00:00 [INFO]\t[TRAIN] epoch: {r['e'] + 1}, iter: {(r['i'] + 1) * 10}/1200, loss: {r['loss']:.4f}, lr: {r['lr']:.6f}, batch_cost: 0.5, reader_cost: 0.1, ips: 8.1 samples/sec | ETA 00:10:00\n"
        for r in RECORDS
    )


def _nemo_tqdm() -> str:
    return "".join(
        f"Epoch {r['e']}: :  {r['b']}%|█  | {r['b'] + 1}/40 [00:10<01:00, v_num=0, reduced_train_loss={r['loss']}, global_step={r['i']}.0, consumed_samples={8 * r['i']}.0, train_step_timing in s=1.23]\r"
        for r in RECORDS
    )


def _nemo2() -> str:
    return "".join(
        f"Training epoch {r['e']}, iteration {r['i']}/119 | lr: {r['lr']:.4g} | global_batch_size: 8 | global_step: {r['i']} | reduced_train_loss: {r['loss']} | train_step_timing in s: 1.23 | consumed_samples: {8 * (r['i'] + 1)}\n"
        for r in RECORDS
    )


def _torchtitan_new() -> str:
    return "".join(
        f"[rank0]:[titan] 2024-01-01 10:00:00,000 - root - INFO - step: {r['i'] + 1:2}  loss: {r['loss']:7.4f}  grad_norm: {r['norm']:7.4f}  memory: 40.1GiB(50.2%)  tps: 7,123  tflops: 412.1  mfu: 41.66%\n"
        for r in RECORDS
    )


def _prime_rl() -> str:
    return "".join(
        f"10:00:00 SUCCESS Step {r['i']} | Time: 12.34s | Loss: {r['loss']:.4f} | Entropy: 0.33 | Mismatch KL: 0.0012 | Grad. Norm: {r['norm']:.4f} | LR: {r['lr']:.2e} | Throughput: 12345 tokens/s | MFU: 20.1%\n"
        for r in RECORDS
    )


def _colossal() -> str:
    return "".join(
        f"Epoch {r['e']}:  {r['b']}%|▏| {r['b'] + 1}/40 [00:10<02:00, loss={r['loss']}, lr={r['lr']}]\r"
        for r in RECORDS
    )


def _nanochat() -> str:
    return "".join(
        f"step {r['i']:05d}/00120 ({r['i'] / 1.2:.2f}%) | loss: {r['loss']:.6f} | grad norm: {r['norm']:.4f} | lrm: 1.00 | dt: 123.45ms | tok/sec: 123,456 | mfu: 45.67 | total time: 1.23m\n"
        for r in RECORDS
    )


def _modded_nanogpt() -> str:
    return (
        'import torch\nprint(f"step:{step} train_loss:{loss}")\n'
        + "=" * 50
        + "\n"
        + "".join(
            f"step:{r['i']}/120 train_loss:{r['loss']:.4f} train_time:{r['i'] * 90}ms step_avg:90.12ms\n"
            + (
                f"step:{r['i']}/120 val_loss:{r['val']} train_time:{r['i'] * 90}ms step_avg:90.1ms\n"
                if r["i"] % 10 == 0
                else ""
            )
            for r in RECORDS
        )
    )


def _haiku() -> str:
    return "".join(
        f"I0101 10:00:00 train.py:99] {{'step': {r['i'] * 100}, 'loss': {r['loss']}, 'steps_per_sec': 10.1}}\n"
        for r in RECORDS
    )


def _jax_array() -> str:
    return "".join(
        f"step: {r['i']}, loss: Array({r['loss']}, dtype=float32), grad_norm: Array({r['norm']}, dtype=float32)\n"
        for r in RECORDS
    )


def _mace() -> str:
    return "".join(
        f"2024-01-01 10:00:00.123 INFO: Epoch {r['i']}: head: default, loss={r['loss']:8.6f}, RMSE_E_per_atom=    1.23 meV, RMSE_F=   12.34 meV / A\n"
        for r in RECORDS
    )


def _nequip_csv() -> str:
    return (
        "epoch,wall,LR,training_loss_f,training_loss_e,training_loss,training_f_mae,validation_loss_f,validation_loss\n"
        + "".join(
            f"{r['i']},{r['i'] * 3.3},{r['lr']},0.5,0.5,{r['loss']},0.1,0.6,{r['val']}\n"
            for r in RECORDS
        )
    )


def _whisper_ft() -> str:
    return "Step,Training Loss,Validation Loss,Wer\n" + "".join(
        f"{(r['i'] + 1) * 25},{r['loss']},{r['val']},12.3\n" for r in RECORDS
    )


def _unsloth_md() -> str:
    return "| Step | Training Loss |\n|------|---------------|\n" + "".join(
        f"| {(r['i'] + 1) * 10} | {r['loss']:.6f} |\n" for r in RECORDS
    )


def _lightning_csv() -> str:
    return "epoch,step,train_loss_step,train_loss_epoch,val_loss\n" + "".join(
        f"{r['e']},{r['i'] * 10 + 9},{r['loss']},,\n"
        + (
            f"{r['e']},{r['i'] * 10 + 9},,{r['loss']},\n{r['e']},{r['i'] * 10 + 9},,,{r['val']}\n"
            if _ends(r)
            else ""
        )
        for r in RECORDS
    )


def _loguru() -> str:
    return "".join(
        f"2024-01-01 10:00:00.123 | INFO     | __main__:train:88 - epoch={r['e']} iter={r['i']} loss={r['loss']} lr={r['lr']:.3e} gn={r['norm']}\n"
        for r in RECORDS
    )


def _structlog() -> str:
    return "".join(
        f"2024-01-01T10:00:00Z [info     ] train_step                     loss={r['loss']} lr={r['lr']} step={r['i']} tokens={r['i'] * 1024}\n"
        for r in RECORDS
    )


def _accelerate_py() -> str:
    return "".join(
        f"01/01/2024 10:00:00 - INFO - __main__ -   Step: {r['i']}, Loss: tensor({r['loss']}, device='cuda:0', grad_fn=<NllLossBackward0>)\n"
        for r in RECORDS
    )


def _rank_lines() -> str:
    return "".join(
        f"[rank{k}] step={r['i']} loss={r['loss'] + 0.1 * k:.4f}\n"
        for r in RECORDS
        for k in range(2)
    )


def _sb_train_log() -> str:
    return "".join(
        f"epoch: {r['i'] + 1}, lr: {r['lr']:.2e} - train loss: {r['loss']:.2e} - valid loss: {r['val']:.2e}, valid PER: 12.1\n"
        for r in RECORDS
    )


def _pinn() -> str:
    return "".join(
        f"It: {r['i'] * 10}, Loss: {r['loss']:.3e}, Loss_u: 1.2e-02, Loss_f: 3.4e-02, Time: 0.12\n"
        for r in RECORDS
    )


def _adam_tf1() -> str:
    return "".join(
        f"Iter {r['i'] * 1280}, Minibatch Loss= {r['loss']:.6f}, Training Accuracy= 0.54\n"
        for r in RECORDS
    )


def _epoch_words() -> str:
    return "".join(
        f"Epoch {r['i'] + 1:02} | Time: 0m 12s\n\tTrain Loss: {r['loss']:.3f} | Train PPL: {math.exp(r['loss']):7.3f}\n\t Val. Loss: {r['val']:.3f} |  Val. PPL: {math.exp(r['val']):7.3f}\n"
        for r in RECORDS
    )


def _epoch_arrow() -> str:
    return "".join(
        f"[{r['i'] + 1}/120] train: loss {r['loss']:.4f} acc 0.91 || val: loss {r['val']:.4f} acc 0.90 || lr {r['lr']:.2e}\n"
        for r in RECORDS
    )


def _gan_keras() -> str:
    return "".join(
        f"{r['i']} [D loss: {r['g']}, acc.: 56.25%] [G loss: {r['loss']}]\n" for r in RECORDS
    )


def _wgan() -> str:
    return "".join(
        f"[{r['e']}/3][{r['b']}/40][{r['i']}] Loss_D: {-r['g']} Loss_G: {r['loss']} Loss_D_real: 0.1 Loss_D_fake 0.2\n"
        for r in RECORDS
    )


def _json_nested() -> str:
    return "".join(
        json.dumps(
            {
                "ts": "2024-01-01T10:00:00",
                "level": "INFO",
                "msg": "step",
                "data": {
                    "global_step": r["i"],
                    "metrics": {
                        "train": {"loss": r["loss"], "grad_norm": r["norm"]},
                        "optim": {"lr": r["lr"]},
                    },
                },
            }
        )
        + "\n"
        for r in RECORDS
    )


def _py_tuple() -> str:
    return "".join(f"('step', {r['i']}, 'loss', {r['loss']})\n" for r in RECORDS)


def _yaml_stream() -> str:
    return "".join(
        f"- step: {r['i']}\n  loss: {r['loss']}\n  grad_norm: {r['norm']}\n  lr: {r['lr']}\n"
        for r in RECORDS
    )


def _big_ints() -> str:
    return "".join(
        f"[{1_000_000 + r['i'] * 1000:,} / 300,000,000] loss={r['loss']} lr={r['lr']} tokens={r['i'] * 4_194_304:,}\n"
        for r in RECORDS
    )


FORMATS: dict[str, Wider] = {
    "tf_estimator": Wider(text=_tf_estimator, axis="step"),
    "darknet": Wider(text=_darknet, axis="step"),
    "mindspore": Wider(text=_mindspore, axis="epoch"),
    "ignite": Wider(text=_ignite, axis="epoch", num_val=3),
    "fastai": Wider(text=_fastai, axis=None, num_val=120),
    "detr": Wider(text=_detr, axis="epoch", num_val=None),
    "mae_logtxt": Wider(text=_mae_logtxt, axis="epoch", num_val=None),
    "detr_logtxt": Wider(text=_detr_logtxt, axis="epoch", num_val=120),
    "keras_bar": Wider(text=_keras_bar, axis="epoch"),
    "keras_fit2": Wider(text=_keras_fit2, axis="epoch", num_val=120),
    "marian": Wider(text=_marian, axis="step", norm=True, lr=True),
    "sockeye": Wider(text=_sockeye, axis="step"),
    "joeynmt": Wider(text=_joeynmt, axis="step", lr=True),
    "opennmt_py": Wider(text=_opennmt_py, axis="step", lr=True),
    "espnet1": Wider(text=_espnet1, axis="step", num_val=3),
    "chainer": Wider(text=_chainer, axis="step"),
    "sb3": Wider(text=_sb3, axis="step"),
    "rllib_json": Wider(text=_rllib_json, axis="step"),
    "trl_grpo": Wider(text=_trl_grpo, axis="epoch", norm=True, lr=True),
    "verl_console": Wider(text=_verl_console, axis="step", norm=True, lr=True),
    "axolotl": Wider(text=_axolotl, axis="step", norm=True, lr=True),
    "litgpt": Wider(text=_litgpt, axis="step"),
    "llamafactory_jsonl": Wider(text=_llamafactory_jsonl, axis="step", lr=True),
    "t5x": Wider(text=_t5x, axis="step", lr=True),
    "maxtext": Wider(text=_maxtext, axis="step"),
    "levanter_tqdm": Wider(text=_levanter_tqdm, axis="step"),
    "diffusers_tqdm": Wider(text=_diffusers_tqdm, axis="step", lr=True),
    "kohya": Wider(text=_kohya, axis="step"),
    "rsl_rl": Wider(text=_rsl_rl, axis=None),
    "stanford_nlp": Wider(text=_stanford_nlp, axis="step", lr=True),
    "allennlp": Wider(text=_allennlp, axis="epoch", num_val=120),
    "pytorch_mnist": Wider(text=_pytorch_mnist, axis="epoch", num_val=3),
    "imagenet": Wider(text=_imagenet, axis="epoch"),
    "alphapose_tqdm": Wider(text=_alphapose_tqdm, axis="epoch"),
    "ultralytics_csv": Wider(text=_ultralytics_csv, axis="epoch", lr=True, num_val=None),
    "mmdet_json": Wider(text=_mmdet_json, axis="epoch", norm=True, lr=True),
    "mmengine_json": Wider(text=_mmengine_json, axis="step", lr=True),
    "detectron2_json": Wider(text=_detectron2_json, axis="step", lr=True),
    "paddleocr": Wider(text=_paddleocr, axis="step", lr=True),
    "paddleseg": Wider(text=_paddleseg, axis="step", lr=True),
    "nemo_tqdm": Wider(text=_nemo_tqdm, axis="step"),
    "nemo2": Wider(text=_nemo2, axis="step", lr=True),
    "torchtitan_new": Wider(text=_torchtitan_new, axis="step", norm=True),
    "prime_rl": Wider(text=_prime_rl, axis="step", norm=True, lr=True),
    "colossal": Wider(text=_colossal, axis="epoch", lr=True),
    "nanochat": Wider(text=_nanochat, axis="step", norm=True),
    "modded_nanogpt": Wider(text=_modded_nanogpt, axis="step", num_val=12),
    "haiku": Wider(text=_haiku, axis="step"),
    "jax_array": Wider(text=_jax_array, axis="step", norm=True),
    "mace": Wider(text=_mace, axis="epoch", num_val=None),
    "nequip_csv": Wider(text=_nequip_csv, axis="epoch", num_val=120),
    "whisper_ft": Wider(text=_whisper_ft, axis="step", num_val=120),
    "unsloth_md": Wider(text=_unsloth_md, axis="step"),
    "lightning_csv": Wider(text=_lightning_csv, axis="step", num_val=3),
    "loguru": Wider(text=_loguru, axis="step", lr=True),
    "structlog": Wider(text=_structlog, axis="step", lr=True),
    "accelerate_py": Wider(text=_accelerate_py, axis="step"),
    "rank_lines": Wider(text=_rank_lines, axis="step"),
    "sb_train_log": Wider(text=_sb_train_log, axis="epoch", lr=True, num_val=120),
    "pinn": Wider(text=_pinn, axis="step"),
    "adam_tf1": Wider(text=_adam_tf1, axis="step"),
    "epoch_words": Wider(text=_epoch_words, axis="epoch", num_val=120),
    "epoch_arrow": Wider(text=_epoch_arrow, axis=None, lr=True, num_val=120),
    "gan_keras": Wider(text=_gan_keras, axis="step"),
    "wgan": Wider(text=_wgan, axis=None),
    "json_nested": Wider(text=_json_nested, axis="step", norm=True, lr=True),
    "py_tuple": Wider(text=_py_tuple, axis="step"),
    "yaml_stream": Wider(text=_yaml_stream, axis="step", norm=True, lr=True),
    "big_ints": Wider(text=_big_ints, axis="step", lr=True),
}
