"""Train in a loop of one's own with the step that `ltnode.fit` uses: schedule, evaluation and checkpoints stay in your hands.

python examples/own_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import ltnode


def main() -> None:
    data = ltnode.data.gap_data(800, seed=0)
    x, y = data.train.x, data.train.y
    x_test, y_test = data.test.x, data.test.y
    model = ltnode.build("lt-node", "synthetic", seed=0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    step = ltnode.accelerate(model, optimizer, n_data=len(x))
    generator = torch.Generator().manual_seed(0)
    for epoch in range(20):
        for batch in torch.randperm(len(x), generator=generator).split(200):
            loss = step(x[batch], y[batch])
        schedule.step()
        if epoch % 5 == 4:
            model.eval()
            with torch.no_grad():
                held_out = model.loss(x_test, y_test, n_data=len(x))  # does not touch the training grid
            model.train()
            print(f"epoch {epoch + 1:2d}: loss {loss:.3f}, held out {held_out:.3f}, {model.solve_stats}")

    # The state of the model contains the training grid, so a loaded training continues where this one stopped.
    path = Path(tempfile.mkdtemp()) / "own-loop.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()}, path)
    model.finish_training(x, y)  # fits the prediction grid and the noise
    p = model.predict(x_test)
    print(f"test RMSE {ltnode.metrics.rmse(p.mean, y_test):.3f} after {step.steps} steps; the training is in {path.name}")


if __name__ == "__main__":
    main()
