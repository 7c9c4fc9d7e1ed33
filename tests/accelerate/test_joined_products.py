"""The pass that joins the weight gradients of all stages of a step, on backward graphs that torch.compile writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from ltnode.accelerate.joined_products import join_products

aten: Any = torch.ops.aten
USES = 5
SUMS = (aten.mm.default, aten.sum.dim_IntList, aten.convolution_backward.default)


class Counted(CustomGraphPass):
    """The pass, which counts products and sums of backward graphs before and after."""

    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []

    def __call__(self, graph: Graph) -> None:
        before = self._count(graph)
        join_products(graph)
        graph.lint()
        self.counts.append((before, self._count(graph)))

    def uuid(self) -> Any:
        return None  # compiled code from a cache would not call the pass

    @staticmethod
    def _count(graph: Graph) -> int:
        return sum(node.target in SUMS for node in graph.nodes)


def layers(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    if kind == "convolution":
        return nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1)), (5, 8, 6, 6)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), {"vectors": (5, 8), "sequences": (5, 7, 8)}[kind]


@pytest.mark.slow  # compiles C++
@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize(("kind", "joined"), [("vectors", 4), ("sequences", 4), ("convolution", 2)])
def test_gradients_are_the_same_with_fewer_products(kind: str, joined: int, in_bf16: bool):
    """Gradients of layers that are used five times agree to 1e-5, or to the rounding of bfloat16 (2^-7 of the largest).

    The gradients of every weight and bias, ``joined`` in all, are one operation instead of five.
    """
    net, shape = layers(kind)
    x, counted = torch.randn(shape), Counted()

    def loss(h: Tensor) -> Tensor:
        for _ in range(USES):
            h = h + 0.3 * net(h).float()
        return h.square().sum()

    compiled = torch.compile(loss, dynamic=False, fullgraph=True, options={"post_grad_custom_pre_pass": counted})
    parameters = list(net.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        expected = torch.autograd.grad(loss(x), parameters)
        got = torch.autograd.grad(compiled(x), parameters)
    for a, b in zip(expected, got, strict=True):
        assert float((a - b).abs().max()) <= (2**-7 if in_bf16 else 1e-5) * float(a.abs().max())
    before, after = counted.counts[-1]
    assert before - after == joined * (USES - 1)


def test_sums_of_other_things_stay_as_they_are():
    """Two products, products of different shapes, and sums that someone else uses are not joined."""
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    a.meta["val"] = b.meta["val"] = torch.empty(4, 4)

    def call(target: Any, *args: Any) -> Any:
        node = graph.call_function(target, args)
        node.meta["val"] = torch.empty(4, 4)
        return node

    products = [call(aten.mm.default, a, b) for _ in range(4)]
    two = call(aten.add.Tensor, products[0], products[1])
    shared = call(aten.add.Tensor, products[2], products[3])
    graph.output((two, shared, call(aten.neg.default, shared)))
    join_products(graph)
    assert sum(node.target is aten.mm.default for node in graph.nodes) == 4
