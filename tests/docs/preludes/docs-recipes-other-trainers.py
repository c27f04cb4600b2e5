# The tiny model and data that the blocks of the page speak of.
import lightning
import torch
from torch.utils.data import DataLoader


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256))


def loss_of(model, batch):
    logits = model(batch[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def training_step(self, batch, batch_idx):
        return loss_of(self.net, batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


net, module = make_net(), Module()
data = torch.randint(0, 256, (256, 17))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
loader = DataLoader(data, batch_size=8)
