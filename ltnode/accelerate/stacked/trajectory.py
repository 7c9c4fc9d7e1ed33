"""Outputs of stacked networks at the end-times of a step, and the gradients of all layers.

The field ``k = W3 tanh(W2 tanh(W1 h + w t + b1) + b2) + b3`` is evaluated at states h that are sums of the initial state y and of
earlier stages k. With the product of the last and the first layer, an evaluation has two products instead of three:

    p = tanh(base + w t + g s + W1 W3 sum_j a_j q_j),   q = tanh(W2 p + b2),   k = W3 q + b3,   base = W1 y + b1,   g = W1 b3

where ``a_j`` contain the size of the step, and s is the time since it began. The output at an end-time is a sum over the stages
with weights w_j, ``V y + v + sum_j w_j (V W3 q_j + V b3)``. All products of weights are blocks of one, ``P = A B`` with
``A = [W1; V]`` and ``B = [W3 b3]``.

`ltnode.ode.replay` over the same edges, with autograd, is the reference. Arrays have the axes K (networks), E (evaluations),
B (rows) and that of a layer.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ltnode.accelerate.stacked.parameters import Array, Blocks
from ltnode.accelerate.stacked.time_weights import GridConstants
from ltnode.typing import Float, Tensor


class _Evaluations:
    """An array (K, E, B, h) with an entry for every evaluation of the fields, and views of it that every pass needs.

    Attributes:
        all: The array.
        each: Its entries (K, B, h).
        rows: It with one row per evaluation, (K, E, B h).
        flat: It with all rows of all evaluations, (K, E B, h).
    """

    def __init__(self, networks: int, evaluations: int, batch: int, width: int) -> None:
        self.all = np.zeros((networks, evaluations, batch, width), dtype=np.float32)
        self.each = [self.all[:, e] for e in range(evaluations)]
        self.rows, self.flat = self.all.reshape(networks, evaluations, -1), self.all.reshape(networks, -1, width)


class _Buffers:
    """What a pass keeps for one batch size and grid.

    Attributes:
        p, q: As in the formulas.
        sums: The sums over earlier stages.
        of_p, of_q, of_sums: Gradients: before ``p = tanh(.)``, in q and then before ``q = tanh(.)``, and in the sums.
        terms: What the outputs are sums of, (K, E + 2, C, B): stages, initial state and constant.
        ends: Gradients in base and in ``V y + v``, (K, B, h1 + C).
        start: Initial states.
        carries: What later steps add to the gradient at the end of a step.
    """

    def __init__(self, evaluations: int, weights: Blocks, batch: int) -> None:
        networks, h2, h1 = weights.W2.shape
        shape, rows = (networks, evaluations, batch), weights.A.shape[1]
        self.p, self.of_p, self.slope_p = (_Evaluations(*shape, h1) for _ in range(3))
        self.q, self.of_q, self.slope_q, self.sums, self.of_sums = (_Evaluations(*shape, h2) for _ in range(5))
        self.terms = np.empty((networks, evaluations + 2, rows - h1, batch), dtype=np.float32)
        self.flat_terms = self.terms.reshape(*self.terms.shape[:2], -1)
        self.ends = np.empty((networks, batch, rows), dtype=np.float32)
        self.start = np.empty(0, dtype=np.float32)
        self.ones = np.ones(evaluations * batch, dtype=np.float32)
        self.carries: dict[int, Array] = {}


class Trajectory:
    """Forward and backward pass of stem, solve and head. Inputs have a last column of ones.

    Args:
        weights: The layers.
        gradients: Their gradients, which `backward` overwrites.
        rtol: Relative tolerance of the error norms.
        atol: Absolute tolerance of the error norms.
    """

    def __init__(self, weights: Blocks, gradients: Blocks, rtol: float, atol: float) -> None:
        self.weights, self._gradients = weights, gradients
        self._rtol, self._atol = rtol, atol
        self._h1, self._h2 = weights.w.shape[1], weights.b2.shape[1]
        self._buffers: dict[tuple[int, int], _Buffers] = {}

    def initial_state(self, x: Array) -> Array:
        """Compute the initial states (K, B, n) of all networks for inputs (B, D + 1)."""
        states: Array = x @ _transposed(self.weights.L)
        return states

    def field(self, t: Tensor, h: Float[Tensor, "K B n"]) -> Float[Tensor, "K B n"]:
        """Evaluate the fields of all networks, layer by layer; for the search of a grid."""
        u, h1, h2 = self.weights, self._h1, self._h2
        w, A, a, B, W2, b2 = (torch.from_numpy(block) for block in (u.w, u.A, u.a, u.B, u.W2, u.b2))
        first = torch.tanh(torch.baddbmm((w * t + a[:, :h1]).unsqueeze(1), h, A[:, :h1].mT))
        second = torch.tanh(torch.baddbmm(b2.unsqueeze(1), first, W2.mT))
        return torch.baddbmm(B[:, None, :, h2], second, B[:, :, :h2].mT)

    def forward(self, x: Array, grid: GridConstants, time_weights: Array) -> tuple[Array, list[float]]:
        """Return the outputs at the end-times, and the error norms of the steps.

        Args:
            x: Inputs (B, D + 1).
            grid: The steps.
            time_weights: Weights (S, E + 2) of the end-times; see `GridConstants.weights`.

        Returns:
            Outputs (K, S, C, B), and n norms.
        """
        u, h1, h2 = self.weights, self._h1, self._h2
        key = len(x), grid.evaluations
        if key not in self._buffers:
            self._buffers[key] = _Buffers(grid.evaluations, u, len(x))
        self._x, self._grid, self._time_weights = x, grid, time_weights
        self._space = space = self._buffers[key]
        self._product = u.A @ u.B
        space.start = self.initial_state(x)
        self._evaluate(grid, space)
        terms = space.terms
        np.matmul(self._product[:, None, h1:, :h2], _transposed(space.q.all), out=terms[:, :-2])
        np.matmul(u.A[:, h1:], _transposed(space.start), out=terms[:, -2])
        terms[:, -2] += u.a[:, h1:, None]
        terms[:, -1] = self._product[:, h1:, h2:]
        outputs = time_weights @ space.flat_terms
        return outputs.reshape(len(u.A), -1, *terms.shape[2:]), self._error_norms(grid, space)

    def _evaluate(self, grid: GridConstants, space: _Buffers) -> None:
        """Compute p and q of all evaluations."""
        u, h1, h2 = self.weights, self._h1, self._h2
        inner, second, bias = _transposed(self._product[:, :h1, :h2]), _transposed(u.W2), u.b2[:, None]
        g = self._product[:, :h1, h2]
        base = space.start @ _transposed(u.A[:, :h1])
        base += u.a[:, None, :h1]
        offsets = grid.times[0][:, None, None] * u.w
        offsets += grid.times[1][:, None, None] * g
        for e in range(grid.evaluations):
            p, q = space.p.each[e], space.q.each[e]
            if e == 0:
                np.copyto(p, base)
            else:
                first = (e - 1) // grid.stages * grid.stages
                np.matmul(grid.rows[e - 1], space.q.rows[:, first:e], out=space.sums.rows[:, e])
                np.matmul(space.sums.each[e], inner, out=p)
                np.add(p, base, out=p)
                if e % grid.stages == 0:
                    base = p + grid.lengths[first // grid.stages] * g[:, None]
            np.add(p, offsets[e][:, None], out=p)
            np.tanh(p, out=p)
            np.matmul(p, second, out=q)
            np.add(q, bias, out=q)
            np.tanh(q, out=q)

    def _error_norms(self, grid: GridConstants, space: _Buffers) -> list[float]:
        """Embedded errors relative to the tolerance, root mean square over networks, rows and state; see `ltnode.ode.step`."""
        norms = []
        last, bias = _transposed(self.weights.B[:, :, : self._h2]), self.weights.B[:, None, :, self._h2]
        y, before = space.start, abs(space.start)
        for m, (weights, length) in enumerate(zip(grid.errors, grid.lengths, strict=True)):
            first, end = m * grid.stages, (m + 1) * grid.stages
            ratio = np.matmul(weights, space.q.rows[:, first : end + 1]).reshape(space.q.each[0].shape) @ last
            y = y + space.sums.each[end] @ last
            y += length * bias
            after = abs(y)
            scale = np.maximum(before, after, out=before)
            scale *= self._rtol
            scale += self._atol
            ratio /= scale
            norms.append(math.sqrt(float(np.vdot(ratio, ratio)) / ratio.size))
            before = after
        return norms

    def backward(self, of_outputs: Array) -> None:
        """Write the gradients of all layers, given those in the outputs (K, S, C, B)."""
        u, to, space, grid, h1, h2 = self.weights, self._gradients, self._space, self._grid, self._h1, self._h2
        batch = len(self._x)
        of_terms = (self._time_weights.T @ of_outputs.reshape(*of_outputs.shape[:2], -1)).reshape(space.terms.shape)
        np.matmul(_transposed(of_terms[:, :-2]), self._product[:, None, h1:, :h2], out=space.of_q.all)
        self._backward_stages(grid, space)
        columns = np.matmul(space.ones[:batch], space.of_p.all)
        of_times = grid.times @ columns
        for e, carry in space.carries.items():  # what a later step adds does not depend on the time of this evaluation
            of_times[:, 0] -= grid.times[0, e] * carry.sum(axis=1)
        of_product = np.empty_like(self._product)
        of_product[:, :h1, :h2] = _transposed(space.of_p.flat) @ space.sums.flat
        of_product[:, :h1, h2] = of_times[:, 1]
        of_product[:, h1:, :h2] = (of_terms[:, :-2] @ space.q.all).sum(axis=1)
        of_product[:, h1:, h2] = of_terms[:, -1].sum(axis=2)
        ends = space.ends
        in_first = space.of_p.rows[:, : grid.stages + 1]
        ends[:, :, :h1] = (space.ones[: grid.stages + 1] @ in_first).reshape(*ends.shape[:2], -1)
        ends[:, :, h1:] = _transposed(of_terms[:, -2])
        np.matmul(of_product, _transposed(u.B), out=to.A)
        np.add(to.A, _transposed(ends) @ space.start, out=to.A)
        np.matmul(space.ones[:batch], ends, out=to.a)
        np.matmul(_transposed(u.A), of_product, out=to.B)
        to.w[...] = of_times[:, 0]
        np.matmul(_transposed(space.of_q.flat), space.p.flat, out=to.W2)
        np.matmul(space.ones, space.of_q.flat, out=to.b2)
        np.matmul(_transposed(ends @ u.A), self._x, out=to.L)

    def _backward_stages(self, grid: GridConstants, space: _Buffers) -> None:
        """Compute the gradients before every tanh."""
        for values, slopes in ((space.p, space.slope_p), (space.q, space.slope_q)):
            np.multiply(values.all, values.all, out=slopes.all)
            np.subtract(1.0, slopes.all, out=slopes.all)
        inner, second, last = self._product[:, : self._h1, : self._h2], self.weights.W2, grid.evaluations - 1
        space.carries.clear()
        for e in range(last, -1, -1):
            of_p, of_q, first = space.of_p.each[e], space.of_q.each[e], e // grid.stages * grid.stages
            if e < last:
                later = space.of_sums.rows[:, e + 1 : first + grid.stages + 1]
                of_q += np.matmul(grid.columns[e], later).reshape(of_q.shape)
            of_q *= space.slope_q.each[e]
            np.matmul(of_q, second, out=of_p)
            of_p *= space.slope_p.each[e]
            if e in space.carries:
                of_p += space.carries[e]
            if e:
                np.matmul(of_p, inner, out=space.of_sums.each[e])
            if first and e == first + 1:
                space.carries[first] = space.of_p.all[:, e : e + grid.stages].sum(axis=1)


def _transposed(a: Array) -> Array:
    """The matrices in the last two axes, transposed."""
    return a.swapaxes(-1, -2)
