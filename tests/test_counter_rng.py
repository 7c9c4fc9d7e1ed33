"""Counter-based random numbers: all implementations give the same bits."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ltnode.counter_rng import CounterGenerator, hash_counters, hash_indices, to_unit

CPU = torch.device("cpu")
words = st.integers(0, 2**63 - 1)


@given(seed=words, step=words, n=st.integers(1, 64))
def test_few_numbers_in_python_equal_the_tensor_arithmetic(seed: int, step: int, n: int):
    """The fast path for a few numbers on the CPU gives the same hash, bit for bit."""
    generator = CounterGenerator(seed, step)
    for call in (1, 2):
        expected = to_unit(hash_indices(hash_counters(seed, step, call), torch.arange(n)))
        assert torch.equal(generator.uniform((n,), CPU), expected)


@given(seed=words, step=words, n=st.integers(1, 5), batch=st.integers(1, 5))
def test_keys_on_the_device_replace_seed_and_step(seed: int, step: int, n: int, batch: int):
    """Keys on the device, as in a captured graph, give the same bits for vectors and matrices in every call."""
    indices = torch.arange(batch) * 7 + 3
    keys = CounterGenerator.keys_of(seed, step, 2)
    by_numbers, by_keys = CounterGenerator(seed, step, indices), CounterGenerator(0, 0, indices, keys)
    for shape in ((n, batch), (n,)):
        assert torch.equal(by_numbers.uniform(shape, CPU), by_keys.uniform(shape, CPU))


@given(seed=words, order=st.permutations(range(6)))
def test_a_column_depends_on_its_index_alone(seed: int, order: list[int]):
    """The numbers of an example do not depend on order and size of the batch; all lie in [0, 1)."""
    whole = CounterGenerator(seed, 5, torch.arange(6)).uniform((4, 6), CPU)
    part = CounterGenerator(seed, 5, torch.tensor(order[:3])).uniform((4, 3), CPU)
    assert torch.equal(part, whole[:, order[:3]])
    assert bool(((whole >= 0) & (whole < 1)).all())
