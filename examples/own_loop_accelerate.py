"""Train with Hugging Face Accelerate: it places model and data, and the step of `ltnode.fit` makes the updates.

pip install accelerate
python examples/own_loop_accelerate.py        # or: accelerate launch examples/own_loop_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import ltnode


def main() -> None:
    accelerator = Accelerator(cpu=True)
    data = ltnode.data.gap_data(800, seed=0)
    loader = DataLoader(TensorDataset(data.train.x, data.train.y), batch_size=200, shuffle=True)
    model = ltnode.build("lt-node", "synthetic", seed=0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    inner = accelerator.unwrap_model(model)
    # With several processes the step combines their gradients itself, so the wrapper around the model stays unused.
    step = ltnode.accelerate(inner, optimizer, n_data=data.n_train)
    accelerator.register_for_checkpointing(step)
    for epoch in range(20):
        for x, y in loader:
            loss = step(x, y)
        if epoch % 5 == 4:
            accelerator.print(f"epoch {epoch + 1:2d}: loss {loss:.3f}")
    inner.finish_training(data.train.x, data.train.y)
    rmse = ltnode.metrics.rmse(inner.predict(data.test.x).mean, data.test.y)
    accelerator.print(f"test RMSE {rmse:.3f} after {step.steps} steps")


if __name__ == "__main__":
    main()
