"""A pass over compiled backward graphs: the weight gradients of all stages of a step as one product.

A Runge-Kutta step applies the same layers in every stage, so that the gradient of a weight is a sum of equal products,

    dW = A_1 B_1 + ... + A_n B_n = [A_1 ... A_n] [B_1; ...; B_n],

which is one product over the joined inner dimension; likewise for biases, ``sum(G_1) + ... + sum(G_n) = sum([G_1; ...; G_n])``,
and for convolutions, whose weight gradient is a sum over examples. One large product takes about as long as one of the small
ones, and adds in float32 inside what would otherwise be rounded to the precision of the layers n times.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
FxNode = Any
"""A `torch.fx.Node`, whose arguments may be anything."""
_FEWEST = 3
"""Number of products from which joining them pays."""
_UNARY = (
    torch.ops.prims.convert_element_type.default,
    aten.permute.default,
    aten.view.default,
    aten.reshape.default,
    aten.squeeze.dims,
)


class _Term(NamedTuple):
    """A term of a sum: an operation, and what is applied to its result, outermost first."""

    base: FxNode
    applied: tuple[tuple[Any, tuple[Any, ...]], ...]


@cache
def joined_products_pass() -> Any:
    """Return `join_products` in the form in which the compiler takes passes; importing the compiler takes seconds."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class JoinedProducts(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            join_products(graph)

        def uuid(self) -> Any:
            """Identify this version of the pass in caches of compiled code."""
            return get_hash_for_files((__file__,))

    return JoinedProducts()


def join_products(graph: Graph) -> None:
    """Replace sums of at least three products, reductions or weight gradients of convolutions by one of joined operands."""
    for node in list(graph.nodes):
        if node.target is aten.add.Tensor and not any(_continues(user, node) for user in node.users):
            _join(graph, node)
    graph.eliminate_dead_code()


def _continues(user: FxNode, node: FxNode) -> bool:
    """Whether a user of a partial sum only adds to it."""
    return user.target is aten.add.Tensor and len(node.users) == 1 and len(user.args) == 2


def _join(graph: Graph, root: FxNode) -> None:
    by_kind: dict[Any, list[tuple[FxNode, _Term]]] = {}
    others: list[FxNode] = []
    for leaf in _leaves(root, root):
        term = _term(leaf)
        kind = None if term is None else _kind(term)
        if term is None or kind is None:
            others.append(leaf)
        else:
            by_kind.setdefault(kind, []).append((leaf, term))
    joined: list[FxNode] = []
    with graph.inserting_before(root):
        for (target, *_), found in by_kind.items():
            if len(found) < _FEWEST:
                others += [leaf for leaf, _ in found]
                continue
            terms = [term for _, term in found]
            node = _JOIN[target](graph, [term.base for term in terms])
            for operation, rest in reversed(terms[0].applied):
                node = _call(graph, operation, node, *rest)
            joined.append(node)
        if not joined:
            return
        total = joined[0]
        for node in (*joined[1:], *others):
            total = _call(graph, aten.add.Tensor, total, node)
    root.replace_all_uses_with(total)


def _leaves(node: FxNode, root: FxNode) -> list[FxNode]:
    """Terms of a sum that nobody else uses a part of."""
    is_sum = node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs
    if not is_sum or (node is not root and len(node.users) > 1):
        return [node]
    left, right = node.args
    if not isinstance(left, Node) or not isinstance(right, Node) or _shape(left) != _shape(right):
        return [node]
    return [*_leaves(left, root), *_leaves(right, root)]


def _term(leaf: FxNode) -> _Term | None:
    """Look through casts and changes of shape to the operation that computes a term."""
    applied: list[tuple[Any, tuple[Any, ...]]] = []
    node = leaf
    while node.target in _UNARY and len(node.users) == 1 and isinstance(node.args[0], Node) and not node.kwargs:
        applied.append((node.target, tuple(node.args[1:])))
        node = node.args[0]
    return _Term(node, tuple(applied)) if len(node.users) == 1 else None


def _kind(term: _Term) -> Any:
    """What must be equal in terms that can be joined; None for operations that cannot."""
    base = term.base
    if base.target is aten.mm.default:
        return aten.mm.default, _shape(base), _dtype(base), str(term.applied)
    if base.target is aten.sum.dim_IntList and 0 in base.args[1]:
        shape = tuple(_shape(base.args[0]))[1:]
        return aten.sum.dim_IntList, shape, _dtype(base.args[0]), str(base.args[1:]), str(base.kwargs), str(term.applied)
    if base.target is operator.getitem and base.args[1] == 1:
        convolution = base.args[0]
        if convolution.target is aten.convolution_backward.default and not convolution.args[7] and not convolution.args[10][2]:
            shapes = tuple(tuple(_shape(x)[1:]) for x in convolution.args[:2])
            return operator.getitem, shapes, convolution.args[2], str(convolution.args[3:]), str(term.applied)
    return None


def _joined_mm(graph: Graph, bases: Sequence[FxNode]) -> FxNode:
    left = _call(graph, aten.cat.default, [base.args[0] for base in bases], 1)
    right = _call(graph, aten.cat.default, [base.args[1] for base in bases], 0)
    return _call(graph, aten.mm.default, left, right)


def _joined_sum(graph: Graph, bases: Sequence[FxNode]) -> FxNode:
    joined = _call(graph, aten.cat.default, [base.args[0] for base in bases], 0)
    return _call(graph, aten.sum.dim_IntList, joined, *bases[0].args[1:], **bases[0].kwargs)


def _joined_convolution(graph: Graph, bases: Sequence[FxNode]) -> FxNode:
    convolutions = [base.args[0] for base in bases]
    gradient, inputs = (_call(graph, aten.cat.default, [c.args[k] for c in convolutions], 0) for k in (0, 1))
    rest = list(convolutions[0].args[2:-1])
    both = _call(graph, aten.convolution_backward.default, gradient, inputs, *rest, [False, True, False])
    for convolution in convolutions:  # these keep the gradient of their input
        convolution.args = (*convolution.args[:-1], [convolution.args[-1][0], False, False])
        convolution.meta["val"] = (convolution.meta["val"][0], None, None)
    return _call(graph, operator.getitem, both, 1)


_JOIN: dict[Any, Callable[[Graph, Sequence[FxNode]], FxNode]] = {
    aten.mm.default: _joined_mm,
    aten.sum.dim_IntList: _joined_sum,
    operator.getitem: _joined_convolution,
}


def _call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> FxNode:
    """Insert an operation with the shape that it returns, which later passes need."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    example = next(v for v in _flat(values) if isinstance(v, torch.Tensor))
    with example.fake_mode if hasattr(example, "fake_mode") else torch.no_grad():
        node.meta["val"] = target(*values[0], **values[1])
    return node


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        return [leaf for value in values.values() for leaf in _flat(value)]
    return [leaf for value in values for leaf in _flat(value)] if isinstance(values, list | tuple) else [values]


def _shape(node: Any) -> torch.Size:
    return node.meta["val"].shape


def _dtype(node: Any) -> torch.dtype:
    return node.meta["val"].dtype
