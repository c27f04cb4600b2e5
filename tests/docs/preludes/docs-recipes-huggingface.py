# The tiny model, data and arguments that the blocks of the page speak of.
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=256,
        n_positions=32,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
)
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 256, (64, 32))]
args = TrainingArguments("out", max_steps=6, logging_steps=1, report_to="none", use_cpu=True)
