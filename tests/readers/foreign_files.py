"""Tables, JSON and notebooks of trackers and trainers, each made whole."""

import json
from collections.abc import Callable

from tests.readers.foreign import NUM, RECORDS, Foreign, Record

__all__ = ["FILES"]

ENDS = [r for r in RECORDS if r.ends_epoch]


def rows(row: Callable[[Record], dict[str, object]]) -> str:
    return json.dumps([row(r) for r in RECORDS])


def lines(row: Callable[[Record], dict[str, object]], **val: object) -> str:
    """Return JSON lines, with a validation row at the end of each epoch."""
    text = ""
    for r in RECORDS:
        text += json.dumps(row(r)) + "\n"
        if val and r.ends_epoch:
            found = {
                k: getattr(r, v[1:]) if isinstance(v, str) and v[:1] == "." else v
                for k, v in val.items()
            }
            text += json.dumps(found) + "\n"
    return text


def series(get: Callable[[Record], float]) -> list[float]:
    return [get(r) for r in RECORDS]


def notebook(*outputs: dict[str, object]) -> str:
    code = {
        "cell_type": "code",
        "source": ["loss = 3.0\n", "step = 1"],
        "execution_count": 1,
        "metadata": {},
    }
    cells = [{**code, "outputs": [o]} for o in outputs]
    return json.dumps(
        {
            "cells": [{"cell_type": "markdown", "source": ["# loss"]}, *cells],
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
        },
        indent=1,
    )


def html_table(names: tuple[str, ...], row: Callable[[Record], tuple[object, ...]]) -> str:
    head = "".join(f"<th>{n}</th>\n" for n in names)
    body = "".join(
        "<tr>\n" + "".join(f"<td>{c}</td>\n" for c in row(r)) + "</tr>\n" for r in RECORDS
    )
    return (
        '<div><progress value="80" max="80"></progress> [80/80 10:00, Epoch 1/1]</div>\n<table'
        ' border="1" class="dataframe">\n<thead>\n<tr style="text-align:'
        f' left;">\n{head}</tr>\n</thead>\n<tbody>\n{body}</tbody>\n</table><p>'
    )


def whole(text: Callable[[], str], name: str = "log", **said: object) -> Foreign:
    return Foreign(line=lambda r: "", whole=text, file=name, **said)  # type: ignore[arg-type]


def table(
    header: str, line: Callable[[Record], str], name: str = "log.csv", **said: object
) -> Foreign:
    return whole(lambda: header + "\n" + "".join(line(r) + "\n" for r in RECORDS), name, **said)


FILES: dict[str, Foreign] = {
    "ultralytics csv": table(
        "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),"
        "val/box_loss,val/cls_loss,lr/pg0,lr/pg1",
        lambda r: f"{r.i + 1},{12.1 * r.i},{r.loss},1.1,1.2,0.5,{r.val},1.3,{r.lr},{r.lr}",
        axis="epoch",
        lr=True,
        num_val=None,
    ),
    "yolov5 csv": table(
        "               epoch,      train/box_loss,      train/obj_loss,        val/box_loss,      "
        "         x/lr0",
        lambda r: f"{r.i:20d},{r.loss:20.5f},{0.1:20.5f},{r.val:20.5f},{r.lr:20.5f}",
        axis="epoch",
        num_val=None,
    ),
    "fastai csv": table(
        "epoch,train_loss,valid_loss,accuracy,time",
        lambda r: f"{r.i},{r.loss},{r.val},0.8,00:{r.b:02d}",
        axis="epoch",
        num_val=NUM,
    ),
    "keras csv": table(
        "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss",
        lambda r: f"{r.i},0.8,{r.lr},{r.loss},0.7,{r.val}",
        axis="epoch",
        num_val=NUM,
        lr=True,
    ),
    "tensorboard csv": table(
        "Wall time,Step,Value",
        lambda r: f"{1.7e9 + r.i},{10 * r.i},{r.loss}",
        "run-a-tag-train_loss.csv",
        gap=10,
    ),
    "tensorboard json": whole(
        lambda: json.dumps([[1.7e9 + r.i, 10 * r.i, r.loss] for r in RECORDS]),
        "run-a-tag-loss.json",
        gap=10,
    ),
    "all scalars": whole(
        lambda: json.dumps(
            {
                f"runs/a/{k}": [[1.7e9 + r.i, r.i, getattr(r, v)] for r in RECORDS]
                for k, v in (("train/loss", "loss"), ("valid/loss", "val"), ("lr", "lr"))
            }
        ),
        "all_scalars.json",
        lr=True,
        num_val=NUM,
    ),
    "neptune csv": table(
        ",step,value,timestamp",
        lambda r: f"{r.i},{float(r.i)},{r.loss},2024-05-01 10:00:{r.b:02d}.123",
        "train_loss.csv",
    ),
    "comet json": whole(
        lambda: json.dumps(
            [
                {
                    "metricName": k,
                    "metricValue": str(getattr(r, v)),
                    "step": r.i,
                    "epoch": r.e,
                    "timestamp": 1700000000000,
                }
                for r in RECORDS
                for k, v in (("loss", "loss"), ("grad_norm", "norm"), ("val_loss", "val"))
                if v != "val" or r.ends_epoch
            ]
        ),
        norm=True,
        num_val=4,
    ),
    "clearml json": whole(
        lambda: json.dumps(
            [
                {"name": k, "x": series(lambda r: r.i), "y": [getattr(r, v) for r in RECORDS]}
                for k, v in (("train_loss", "loss"), ("lr", "lr"))
            ]
        ),
        lr=True,
    ),
    "sacred": whole(
        lambda: json.dumps(
            {
                k: {
                    "steps": series(lambda r: r.i),
                    "timestamps": ["2024-05-01T10:00:00"] * NUM,
                    "values": [getattr(r, v) for r in RECORDS],
                }
                for k, v in (("training.loss", "loss"), ("lr", "lr"))
            }
        ),
        "metrics.json",
        lr=True,
    ),
    "dvclive": table("step\tloss", lambda r: f"{r.i}\t{r.loss}", "loss.tsv"),
    "mlflow json": whole(
        lambda: json.dumps(
            {
                "metrics": [
                    {
                        "key": "train_loss",
                        "value": r.loss,
                        "timestamp": 1700000000000 + r.i,
                        "step": r.i,
                    }
                    for r in RECORDS
                ]
            }
        )
    ),
    "long csv": whole(
        lambda: (
            "run,step,metric,value\n"
            + "".join(
                f"a,{r.i},train_loss,{r.loss}\na,{r.i},learning_rate,{r.lr}\n" for r in RECORDS
            )
        ),
        lr=True,
    ),
    "split csv": whole(
        lambda: (
            "epoch,split,loss,lr\n"
            + "".join(f"{r.i},train,{r.loss},{r.lr}\n{r.i},val,{r.val},{r.lr}\n" for r in RECORDS)
        ),
        axis="epoch",
        num_val=NUM,
    ),
    "split jsonl": whole(
        lambda: lines(
            lambda r: {"split": "train", "step": r.i, "loss": r.loss, "lr": r.lr},
            split="validation",
            step=".i",
            loss=".val",
        ),
        num_val=4,
        lr=True,
    ),
    "mmcv json": whole(
        lambda: (
            json.dumps({"env_info": "sys.platform: linux", "seed": 0})
            + "\n"
            + lines(
                lambda r: {
                    "mode": "train",
                    "epoch": r.e + 1,
                    "iter": 50 * r.b + 50,
                    "lr": r.lr,
                    "memory": 3000,
                    "loss_cls": 1.1,
                    "loss": r.loss,
                    "grad_norm": r.norm,
                    "time": 0.5,
                },
                mode="val",
                epoch=".e",
                iter=10,
                lr=0.1,
                loss=".val",
            )
        ),
        axis="epoch",
        norm=True,
        num_val=4,
    ),
    "mmengine json": whole(
        lambda: lines(
            lambda r: {
                "lr": r.lr,
                "data_time": 0.1,
                "loss": r.loss,
                "loss_cls": 1.1,
                "epoch": r.e + 1,
                "iter": 50 * r.i + 50,
                "step": 50 * r.i + 50,
            },
            **{"accuracy/top1": 0.5, "step": 1},
        ),
        first=50,
        gap=50,
        lr=True,
    ),
    "mae log": whole(
        lambda: lines(lambda r: {"train_lr": r.lr, "train_loss": r.loss, "epoch": r.i}),
        "log.txt",
        axis="epoch",
        lr=True,
    ),
    "detr log": whole(
        lambda: lines(
            lambda r: {
                "train_lr": r.lr,
                "train_class_error": 50.1,
                "train_loss": r.loss,
                "train_loss_ce": 1.1,
                "test_loss": r.val,
                "test_loss_ce": 2.1,
                "test_coco_eval_bbox": [0.1, 0.2],
                "epoch": r.i,
                "n_parameters": 41302368,
            }
        ),
        "log.txt",
        axis="epoch",
        lr=True,
        num_val=NUM,
    ),
    "chainer json": whole(
        lambda: rows(
            lambda r: {
                "main/loss": r.loss,
                "main/accuracy": 0.5,
                "validation/main/loss": r.val,
                "epoch": r.e,
                "iteration": 100 * r.i,
                "elapsed_time": 1.1,
            }
        ),
        gap=100,
        num_val=NUM,
    ),
    "stylegan stats": whole(
        lambda: lines(
            lambda r: {
                "Progress/tick": {"num": 1, "mean": r.i, "std": 0.0},
                "Loss/scores/fake": {"num": 100, "mean": -0.1, "std": 0.1},
                "Loss/G/loss": {"num": 100, "mean": r.loss, "std": 0.2},
                "Loss/D/loss": {"num": 100, "mean": 0.9, "std": 0.3},
                "timestamp": 1.7e9 + r.i,
            }
        ),
        axis="row",
        num_val=None,
    ),
    "biggan": whole(
        lambda: lines(lambda r: {"itr": 100 * r.i, "D_loss_real": 0.5, "G_loss": r.loss}),
        gap=100,
        num_val=None,
    ),
    "big vision": whole(
        lambda: lines(
            lambda r: {
                "step": 50 * r.i,
                "training_loss": r.loss,
                "l2_grads": r.norm,
                "l2_params": 100.1,
                "uptime": 12.1,
            }
        ),
        gap=50,
    ),
    "rllib result": whole(
        lambda: lines(
            lambda r: {
                "episode_reward_mean": 10.1,
                "training_iteration": r.i + 1,
                "timesteps_total": 4000 * r.i,
                "info": {
                    "learner": {
                        "default_policy": {
                            "learner_stats": {
                                "cur_lr": r.lr,
                                "total_loss": r.loss,
                                "policy_loss": -0.1,
                                "vf_loss": 9.1,
                                "kl": 0.01,
                            }
                        }
                    }
                },
                "config": {"lr": 0.1, "gamma": 0.99},
            }
        ),
        first=1,
        num_val=None,
    ),
    "step lists": whole(
        lambda: json.dumps(
            {
                "train_step_loss": series(lambda r: r.loss),
                "train_step_perplexity": series(lambda r: 9.1),
                "val_epoch_loss": [r.val for r in ENDS],
            }
        ),
        axis="row",
        num_val=None,
    ),
    "nested columns": whole(
        lambda: json.dumps(
            {
                "config": {"lr": 0.1},
                "train": {"loss": series(lambda r: r.loss), "acc": series(lambda r: 0.5)},
                "val": {"loss": series(lambda r: r.val)},
            }
        ),
        axis="row",
        num_val=NUM,
    ),
    "loss lists": whole(
        lambda: json.dumps(
            {"train_losses": series(lambda r: r.loss), "val_losses": [r.val for r in ENDS]},
            indent=2,
        ),
        axis="row",
        num_val=None,
    ),
    "pairs": whole(
        lambda: json.dumps(
            {"loss": [[r.i, r.loss] for r in RECORDS], "lr": [[r.i, r.lr] for r in RECORDS]}
        ),
        lr=True,
    ),
    "rows by key": whole(
        lambda: json.dumps(
            {str(r.i + 1): {"train_loss": r.loss, "val_loss": r.val, "lr": r.lr} for r in RECORDS}
        ),
        first=1,
        lr=True,
        num_val=NUM,
    ),
    "pandas columns": whole(
        lambda: json.dumps(
            {
                "step": {str(r.i): 5 * r.i for r in RECORDS},
                "loss": {str(r.i): r.loss for r in RECORDS},
            }
        ),
        gap=5,
    ),
    "pandas split": whole(
        lambda: json.dumps(
            {
                "columns": ["step", "loss"],
                "index": series(lambda r: r.i),
                "data": [[5 * r.i, r.loss] for r in RECORDS],
            }
        ),
        gap=5,
    ),
    "wandb export": table(
        '"Step","a - train/loss","a - train/loss__MIN","a - train/loss__MAX"',
        lambda r: f'"{r.i}","{r.loss}","{r.loss}","{r.loss}"',
    ),
    "wandb json": whole(
        lambda: rows(
            lambda r: {
                "_step": r.i,
                "train/loss": r.loss,
                "_timestamp": 1.7e9,
                "train/global_step": 10 * r.i,
            }
        ),
        gap=10,
    ),
    "printed frame": table(
        "      step    loss       lr",
        lambda r: f"{r.i:<5d} {5 * r.i:4d}  {r.loss}  {r.lr}",
        "out.txt",
        gap=5,
        lr=True,
    ),
    "spaces": table(
        "step loss grad_norm lr",
        lambda r: f"{r.i} {r.loss} {r.norm} {r.lr}",
        "out.txt",
        norm=True,
        lr=True,
    ),
    "trailing comma": table("step,loss,lr,", lambda r: f"{r.i},{r.loss},{r.lr},", lr=True),
    "catboost tsv": table("iter\tLogloss", lambda r: f"{r.i}\t{r.loss}", "learn_error.tsv"),
    "openai csv": table(
        "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy",
        lambda r: (
            f"{r.i + 1},{r.loss},0.5,{r.val if r.ends_epoch else ''},{0.5 if r.ends_epoch else ''}"
        ),
        first=1,
        num_val=4,
    ),
    "openai events": whole(
        lambda: json.dumps(
            {
                "object": "list",
                "data": [
                    {
                        "object": "fine_tuning.job.event",
                        "type": "metrics",
                        "message": f"Step {r.i + 1}/80: training loss={r.loss}",
                        "data": {"step": r.i + 1, "train_loss": r.loss},
                    }
                    for r in RECORDS
                ],
            }
        ),
        first=1,
    ),
    "wrapped jsonl": whole(
        lambda: lines(
            lambda r: {
                "event": "train_step",
                "ts": "2024-05-01T10:00:00Z",
                "data": {"step": r.i, "loss": r.loss, "optimizer": {"lr": r.lr}},
            }
        ),
        lr=True,
    ),
    "typed jsonl": whole(
        lambda: (
            json.dumps({"type": "config", "lr": 0.1})
            + "\n"
            + lines(
                lambda r: {"type": "train", "step": r.i, "loss": r.loss},
                type="eval",
                step=".i",
                loss=".val",
            )
        ),
        num_val=4,
    ),
    "jsonl with commas": whole(
        lambda: lines(lambda r: {"step": r.i, "loss": r.loss}).replace("}\n", "},\n")
    ),
    "json stream": whole(
        lambda: "".join(
            json.dumps({"step": r.i, "loss": r.loss, "lr": r.lr}, indent=4) + "\n" for r in RECORDS
        ),
        lr=True,
    ),
    "notebook": whole(
        lambda: notebook(
            {
                "output_type": "stream",
                "name": "stdout",
                "text": [f"step {r.i}: train loss {r.loss}, val loss {r.val}\n" for r in RECORDS],
            }
        ),
        "a.ipynb",
        num_val=NUM,
    ),
    "notebook table": whole(
        lambda: notebook(
            {
                "output_type": "display_data",
                "data": {
                    "text/html": (
                        html_table(
                            ("Step", "Training Loss", "Validation Loss"),
                            lambda r: (r.i + 1, r.loss, r.val),
                        ).splitlines(keepends=True)
                    ),
                    "text/plain": ["<IPython.core.display.HTML object>"],
                },
                "metadata": {},
            }
        ),
        "a.ipynb",
        first=1,
        num_val=NUM,
    ),
    "html table": whole(
        lambda: (
            f"<html><body>{html_table(('Step', 'Training Loss'), lambda r: (r.i + 1, r.loss))}</body></html>"
        ),
        "a.html",
        first=1,
    ),
    "batches of epochs": whole(
        lambda: json.dumps(
            {
                "epochs": [
                    {
                        "epoch": r.i + 1,
                        "train": {"loss": r.loss, "lr": r.lr},
                        "valid": {"loss": r.val},
                    }
                    for r in RECORDS
                ]
            }
        ),
        axis="epoch",
        lr=True,
        num_val=NUM,
    ),
}
