# The tiny model, data and schedule that the blocks of the page speak of.
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler, scaler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0), None
loader = DataLoader(torch.randint(0, 256, (256, 17)), batch_size=4)


def loss_of(batch):
    logits = model(batch[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
