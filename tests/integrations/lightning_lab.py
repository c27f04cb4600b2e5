"""A tiny GPT on real text as a LightningModule, with faults to plant; small enough for seconds."""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from tests.guard.small_lab import BATCH, SOUND, STEPS
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario, learning_rate
from trimtab.lab.text import Text
from trimtab.lab.train import build, evaluate
from trimtab.plan.policy import Policy
