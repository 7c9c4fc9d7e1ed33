"""Every latent-time model passes the contract of `models.contract_suite`."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from ltnode.models import InputSpec, LatentTimeODE, Model
from ltnode.models.contract import evaluating
from models.contract_suite import ModelContract

VECTORS = InputSpec((2,), "classification", 3)
IMAGES = InputSpec((1, 10, 10), "classification", 3)


class LatentTimeContract(ModelContract):
    """The contract, and how to make the error check of the prediction grid fail."""

    def roughen(self, model: Model) -> bool:
        """Double the field's weights, use the coarsest prediction grid, and set the tolerance so that half of the inputs fail."""
        assert isinstance(model, LatentTimeODE)
        for module in model.field.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.GroupNorm):
                module.weight.data.mul_(2.0)
        model.grid = model.grid[[0, -1]]
        x = self.inputs(8).to(next(model.parameters()))
        with torch.no_grad(), evaluating(model):
            first_pass = model.solve(model.initial_state(x), model.prediction_times(x), "stored").error_norms
        norms = first_pass.max(dim=0).values.sort().values
        tolerance = 1e-2 * float((norms[3] * norms[4]).sqrt())  # norms are errors in units of the tolerance, 1e-2
        model.solver = replace(model.solver, rtol=tolerance, atol=tolerance)
        stats = model.predict(x).stats
        assert stats is not None
        assert stats.n_refreshed > 0
        return True


class TestNode(LatentTimeContract):
    name, random_draws = "node", False


class TestNodePaper(LatentTimeContract):
    name, preset, random_draws = "node", "paper", False


class TestUniNode(LatentTimeContract):
    name = "uni-node"


class TestUniNodePaper(LatentTimeContract):
    name, preset = "uni-node", "paper"


class TestLTNode(LatentTimeContract):
    name = "lt-node"


class TestLTNodePaper(LatentTimeContract):
    name, preset = "lt-node", "paper"


class TestALTNode(LatentTimeContract):
    name = "alt-node"


class TestALTNodePaper(LatentTimeContract):
    name, preset = "alt-node", "paper"


class TestMixture(LatentTimeContract):
    name = "lt-node-mixture"


class TestLTNodeVectors(LatentTimeContract):
    name, data = "lt-node", VECTORS
    options: ClassVar = {"width": 12, "augment": 2, "objective": {"kl_weight": "elbo"}, "solver": {"rtol": 1e-3}}


class TestALTNodeVectors(LatentTimeContract):
    name, data = "alt-node", VECTORS


class TestLTNodeImagesPaper(LatentTimeContract):
    name, data, preset = "lt-node", IMAGES, "paper"
    options: ClassVar = {"width": 8}


class TestALTNodeImages(LatentTimeContract):
    name, data = "alt-node", IMAGES
    options: ClassVar = {"width": 8, "augment": 1}
