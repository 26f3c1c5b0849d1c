"""Lightning: a module with its own __getstate__ is copied and saved by a callback, next to the framework's own ones."""

import copy
import logging
import os
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging
from training import STEPS, digest, do, halved, loaded, notify, objects_of_the_job, pace, saved

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, rows):
        return self.net(rows)

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Operations(Callback):
    best = None

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        step = trainer.global_step - 1
        notify("lightning training", step, "loss", outputs["loss"])
        do("lightning deepcopy in a callback", step, self.copied, module, batch)
        do("lightning save of the module", step, self.stored, module, batch)
        do("lightning best model in a callback", step, self.kept, module, batch, outputs["loss"])
        do("lightning checkpoint", step, self.checkpointed, trainer, step)
        do("lightning objects of the job", step, objects_of_the_job)
        pace(step)

    def copied(self, module, batch):
        return halved(copy.deepcopy(module))(batch[0]), module(batch[0]), sorted(vars(module))

    def stored(self, module, batch):
        data = saved(module)
        return {"answer": halved(loaded(data))(batch[0]), "size": len(data) > 0}

    def kept(self, module, batch, loss):
        if self.best is None or loss < self.best[0]:
            self.best = loss, copy.deepcopy(module), copy.deepcopy(module.state_dict())
        return self.best[1](batch[0]), self.best[2]

    def checkpointed(self, trainer, step):
        if step % 6:
            return None
        trainer.save_checkpoint(f"step-{step}.ckpt")
        found = torch.load(f"step-{step}.ckpt", weights_only=False)
        os.unlink(f"step-{step}.ckpt")  # noqa: PTH108
        return found["state_dict"], found["optimizer_states"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randn(STEPS * 8, 4))
    fit = Fit()
    callbacks = [Operations(), ModelCheckpoint("best", every_n_train_steps=7, save_top_k=1, monitor="loss"),
                 StochasticWeightAveraging(0.001, swa_epoch_start=1)]  # fmt: skip
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=1, callbacks=callbacks, **quiet)
    trainer.fit(fit, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
    notify("lightning training", STEPS, "weights", dict(fit.state_dict()))
    best = sorted(os.listdir("best"))  # noqa: PTH208
    notify(
        "lightning training", STEPS, "best", [best, torch.load(f"best/{best[-1]}", weights_only=False)["state_dict"]]
    )
    print(digest(best))
