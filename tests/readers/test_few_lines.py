"""A line or two with a loss: read where their form says so, refused where they are only words."""

from pathlib import Path

import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.freetext.reader import TextReader
from trimtab.record import RunRecord

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 160, in <module>\n    main()\n'
KERAS = (
    " - 7s - loss: {x} - xent: 0.4575 - mse: 0.0382 - val_loss: {x} - val_xent: 0.4818\n"
    "Current time ....751.347\n"
)
DETECTION = "grad_norm: {g}  loss: {x}  loss_cls: {x}  loss_bbox: {x}  loss_dfl: {x}\n"


def read(tmp_path: Path, text: str) -> RunRecord:
    path = tmp_path / "some log"
    path.write_text(text, encoding="utf-8")
    return read_run(path)


RECORDS = {
    # Forms of mmdetection, nnU-Net, a YOLOv3 in TensorFlow, Keras, YOLO-World, TensorFlow-Slim,
    # OpenAI Baselines and darknet.
    "one line of a detector": (
        "08/03 22:09:24 - mmengine - INFO - Epoch(train)  [1][ 500/2931]  lr: 2.0000e-02  eta:"
        " 0:39:15  time: 0.0578  memory: 2389  loss: nan  loss_rpn_cls: nan  acc: 0.0000\n",
        ["nan"],
    ),
    "a stamp and one pair": (
        "2023-08-09 14:55:25.642011: Epoch 0 \n2023-08-09 14:55:25.642085: Current learning rate:"
        " 0.01 \n2023-08-09 15:17:51.409852: train_loss nan \n"
        "2023-08-09 15:17:51.440985: val_loss nan \n",
        ["nan"],
    ),
    "one line and a traceback": (
        "Epoch: 6, global_step: 900 | loss: total: nan, xy: 3.49, wh: 566.76, conf: nan, class: nan |"
        f" lr: 3e-05\n****\n{TRACE}ArithmeticError: Gradient exploded!\n",
        ["nan"],
    ),
    "a finite loss and a traceback": (
        f"INFO:root:step 1: loss = 12.6485 (3.5 sec/step)\n{TRACE}RuntimeError: LossTensor is inf\n",
        ["12.6485"],
    ),
    "two epochs": (
        f"Epoch 99/100\n{KERAS}Epoch 100/100\n{KERAS}".replace("{x}", "nan"),
        ["nan"] * 2,
    ),
    "no step": (
        "".join(
            DETECTION.format(g=g, x=x) for g, x in ((638.4, 626.2), (635.9, 738.3), ("nan",) * 2)
        ),
        ["626.2", "738.3", "nan"],
    ),
    "a table": (
        "***** Iteration 10 *****\n     pol_surr |       vf_loss |            kl\n"
        "      0.95906 |      1.73e+05 |       0.01685\n"
        "      0.42724 |      1.67e+05 |       1.75743\n",
        ["173000.0", "167000.0"],
    ),
    "several pairs a line": (
        "".join(
            f"(iou: 0.07, obj: 1.00) Region 139, count: {i}, class_loss = {x}, iou_loss = 3.5,"
            f" total_loss = {x + 3.5} \n total_bbox = 923054, rewritten_bbox = 3.99 % \n"
            for i, x in enumerate((182.25, 49152.0, 841.5, 184.0, 840.0))
        ),
        ["185.75", "49155.5", "845.0", "187.5", "843.5"],
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_few_lines_with_the_form_of_a_record_are_read(tmp_path: Path, name: str) -> None:
    text, wanted = RECORDS[name]
    loss = read(tmp_path, text).columns["loss"].logged().tolist()
    assert [str(x) for x in loss] == wanted


SETTINGS = "model: small\nloss: 0.5\nlr: 0.001\nepochs: 10\nloss_weight: 2.0\nwarmup: nan\n"
README = (
    "# A model\n\nIf you see `loss: nan` at epoch 1, lower the rate to lr: 0.001. With the defaults\n"
    "the loss reached 0.25 after 10 epochs, and 0.5 at step 100.\n\n"
    "    python train.py --loss 0.5\n\nIt printed loss: nan in epoch 3 when the batch was 1.\n"
)
SOURCE = (
    "import math\n\ndef train(loss=0.5):\n    step = 1\n    # step 10 loss nan lr 1e-4\n"
    '    """step 10 loss nan lr 1e-4 norm 2.0"""\n    print(f"step {step} loss {loss}")\n'
)
WORDS = {
    "settings": SETTINGS,
    "settings in a line": "loss: 0.5, lr: 0.001\n",
    "a message": f"{TRACE}ValueError: the loss is nan at step 3, expected a number\n",
    "a README": README,
    "source": SOURCE,
    "a call": "check(step=3, loss=nan)\nassert fit(loss=nan, lr=0.1, norm=2.0)\n",
    "a help text": "  --loss 0.5   weight of the loss (default: 1.0)\n  --lr 0.1     rate\n",
    "a network": "64 bytes from 10.0.0.1\n10 packets transmitted, 9 received, 10% packet loss\n"
    * 2,
    "a question": "Why is my loss: nan after epoch 2 of the training with lr 0.1 and batch size 32?\n",
    "a changelog": "- fixed: a loss of nan at step 0 (#12)\n- changed: loss 0.5 is the default\n",
}


@pytest.mark.parametrize("name", WORDS)
def test_few_lines_that_only_speak_of_a_loss_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReadError, match="some log"):
        read(tmp_path, WORDS[name])


def test_sources_with_examples_of_logs_are_none(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for path in sorted((root / "src/trimtab/readers").rglob("*.py")):
        with pytest.raises(ReadError):
            TextReader().read(path)
