"""Train in Lightning: the module optimises by hand, with the step that `ltnode.fit` uses.

pip install lightning
python examples/own_loop_lightning.py
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ltnode


class Regression(lightning.LightningModule):
    """A model of ltnode, its optimiser and its step."""

    def __init__(self, n_data: int) -> None:
        super().__init__()
        self.automatic_optimization = False  # the step makes loss, gradient and update at once
        self.model, self.n_data = ltnode.build("lt-node", "synthetic", seed=0), n_data

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def on_fit_start(self) -> None:
        self.step = ltnode.accelerate(self.model, self.optimizers(), n_data=self.n_data)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("loss", self.step(*batch))

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("rmse", ltnode.metrics.rmse(self.model.predict(x).mean, y))


def main() -> None:
    data = ltnode.data.gap_data(800, seed=0)
    train = TensorDataset(data.train.x, data.train.y)
    test = TensorDataset(data.test.x, data.test.y)
    module = Regression(len(train))
    trainer = lightning.Trainer(
        max_epochs=20,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(train, batch_size=200, shuffle=True), DataLoader(test, batch_size=200))
    module.model.finish_training(data.train.x, data.train.y)
    print(f"test RMSE {ltnode.metrics.rmse(module.model.predict(data.test.x).mean, data.test.y):.3f}")


if __name__ == "__main__":
    main()
