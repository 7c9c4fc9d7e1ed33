"""The paper's networks: parameter counts, order of layers, initial values."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from ltnode import AmortizedGammaTime, LatentTimeODE
from ltnode.errors import InputError
from ltnode.models import build, build_from_spec, images, vectors


def built(name: str, data: str) -> LatentTimeODE:
    model = build(name, data, "paper", seed=0)
    assert isinstance(model, LatentTimeODE)
    return model


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def kinds(module: nn.Module) -> list[str]:
    """Class names of the layers in the order in which they were registered."""
    return [type(m).__name__ for m in module.modules() if not list(m.children())]


# -- counts -------------------------------------------------------------------------------------------------------------------


def test_one_dimensional_blocks_have_the_papers_sizes() -> None:
    """28,600 input block, 41,300 NODE block, 51 output, 2,952 inference network."""
    alt = built("alt-node", "synthetic")
    assert isinstance(alt.end_time, AmortizedGammaTime)
    assert [count(part) for part in (alt.stem, alt.field, alt.head, alt.end_time.encoder)] == [28_600, 41_300, 51, 2_952]


@pytest.mark.parametrize(("name", "total"), [("lt-node", 69_953), ("alt-node", 72_903)])
def test_one_dimensional_totals(name: str, total: int) -> None:
    """The paper's totals, and one more for the learnt noise."""
    model = built(name, "synthetic")
    assert count(model) == total + 1
    assert count(model) - count(model.likelihood) == total


@pytest.mark.parametrize(
    ("name", "grey", "colour"),
    [
        ("node", 208_266, 209_418),
        ("uni-node", 208_266, 209_418),
        ("lt-node", 208_268, 209_420),
        ("alt-node", 340_620, 342_924),
    ],
)
def test_image_totals(name: str, grey: int, colour: int) -> None:
    """0.21M and 0.34M in the paper; exact numbers for one and for three channels."""
    assert [count(built(name, data)) for data in ("mnist", "fashion-mnist")] == [grey, grey]
    assert [count(built(name, data)) for data in ("cifar10", "svhn")] == [colour, colour]


def test_image_blocks_have_the_papers_sizes() -> None:
    """Down-sampling 132,096 / 133,248, field 75,392, head 778, inference network 132,354 / 133,506."""
    for data, stem, encoder in (("mnist", 132_096, 132_354), ("cifar10", 133_248, 133_506)):
        model = built("alt-node", data)
        assert isinstance(model.end_time, AmortizedGammaTime)
        assert [count(p) for p in (model.stem, model.field, model.head, model.end_time.encoder)] == [stem, 75_392, 778, encoder]


# -- layers -------------------------------------------------------------------------------------------------------------------


def test_one_dimensional_layers_stand_in_the_papers_order() -> None:
    """Linear, BatchNorm, ReLU; ReLU before BatchNorm in the second layer of the input block and in the inference network."""
    norm_first, relu_first = ["Linear", "BatchNorm1d", "ReLU"], ["Linear", "ReLU", "BatchNorm1d"]
    assert kinds(vectors.paper_stem()) == norm_first + relu_first + norm_first + norm_first
    assert kinds(vectors.paper_field()) == 4 * norm_first
    assert kinds(vectors.paper_encoder()) == relu_first + relu_first + ["Linear"]


def test_one_dimensional_sizes_and_the_final_relu() -> None:
    """1-50-100-150-50, then [t, h] 51-100-150-100-50 whose last ReLU makes dh/dt >= 0, then 50-1."""
    model = built("alt-node", "synthetic")

    def sizes(module: nn.Module) -> list[tuple[int, int]]:
        return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]

    assert sizes(model.stem) == [(1, 50), (50, 100), (100, 150), (150, 50)]
    assert sizes(model.field) == [(51, 100), (100, 150), (150, 100), (100, 50)]
    assert sizes(model.head) == [(50, 1)]
    assert sizes(model.end_time) == [(1, 50), (50, 50), (50, 2)]
    assert bool((model.field(torch.tensor(0.3), torch.randn(20, 50)) >= 0).all())
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm1d))


def test_image_stem_stands_in_the_papers_order() -> None:
    """conv 3/1/0, GN, ReLU, conv 4/2/1, GN, ReLU, conv 4/2/1; 28 -> 26 -> 13 -> 6 and 32 -> 30 -> 15 -> 7."""
    stem = images.down_sampling(3)
    assert kinds(stem) == ["Conv2d", "GroupNorm", "ReLU", "Conv2d", "GroupNorm", "ReLU", "Conv2d"]
    convolutions = [m for m in stem if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.kernel_size[0], c.stride[0], c.padding[0]) for c in convolutions] == [
        (3, 3, 1, 0),
        (64, 4, 2, 1),
        (64, 4, 2, 1),
    ]
    assert stem(torch.zeros(2, 3, 32, 32)).shape == (2, 64, 7, 7)
    assert images.down_sampling(1)(torch.zeros(2, 1, 28, 28)).shape == (2, 64, 6, 6)


def test_image_norms_have_32_groups() -> None:
    """GroupNorm(32, 64) everywhere; if 32 does not divide the channels, the largest number of groups that does."""
    norms = [m for m in built("alt-node", "cifar10").modules() if isinstance(m, nn.GroupNorm)]
    assert {(m.num_groups, m.num_channels, m.eps) for m in norms} == {(32, 64, 1e-5)}
    assert [images.norm(width).num_groups for width in (8, 32, 64, 66, 68, 67)] == [8, 32, 32, 22, 17, 1]


def test_image_field_is_the_papers() -> None:
    """GN, ReLU, conv[t, .], GN, ReLU, conv[t, .], GN: written out with concatenated planes; 1e-5 in float32."""
    field = images.ConvField(64)
    images.init_paper_(field)
    h, t = torch.randn(3, 64, 6, 6), torch.tensor(1.3)
    plane = t.expand(3, 1, 6, 6)
    out = field.conv1.conv(torch.cat([plane, torch.relu(field.norm1(h))], dim=1))
    out = field.conv2.conv(torch.cat([plane, torch.relu(field.norm2(out))], dim=1))
    torch.testing.assert_close(field(t, h), field.norm3(out), rtol=1e-5, atol=1e-5)


def test_image_head_and_inference_network_are_the_papers() -> None:
    """Head: GN, ReLU, average pool, flatten, linear. Inference network: a separate down-sampling block and such a head."""
    head = ["GroupNorm", "ReLU", "AdaptiveAvgPool2d", "Flatten", "Linear"]
    assert kinds(images.classifier()) == head
    assert kinds(images.encoder(3)) == kinds(images.down_sampling(3)) + head
    model = built("alt-node", "cifar10")
    shared = {id(p) for p in model.stem.parameters()} & {id(p) for p in model.end_time.parameters()}
    assert not shared


# -- initial values -----------------------------------------------------------------------------------------------------------


def assert_normal(weight: torch.Tensor, std: float) -> None:
    """Mean 0 and standard deviation std, both within 5 standard errors of a normal sample of that size."""
    n = weight.numel()
    assert abs(float(weight.mean())) < 5 * std / math.sqrt(n)
    assert float(weight.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * n))


def test_one_dimensional_weights_are_normal_with_std_a_tenth() -> None:
    """Linear weights N(0, 0.1^2), biases 0."""
    for module in built("alt-node", "synthetic").modules():
        if isinstance(module, nn.Linear):
            assert_normal(module.weight.detach(), 0.1)
            assert not module.bias.any()


def test_image_weights_are_kaiming_fan_out() -> None:
    """Convolutions N(0, 2 / (k^2 out)), linear N(0, 1e-6), biases 0, norms (1, 0)."""
    for module in built("alt-node", "cifar10").modules():
        if isinstance(module, nn.Conv2d):
            assert_normal(module.weight.detach(), math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2)))
            assert module.bias is not None
            assert not module.bias.any()
        elif isinstance(module, nn.Linear):
            assert_normal(module.weight.detach(), 1e-3)
            assert not module.bias.any()
        elif isinstance(module, nn.GroupNorm):
            assert bool((module.weight == 1).all())
            assert not module.bias.any()


def test_inference_network_starts_near_gamma_one_one() -> None:
    """Initial alpha and beta of every image within 0.99 .. 1.01, as with the paper's code."""
    model = built("alt-node", "cifar10")
    assert isinstance(model.end_time, AmortizedGammaTime)
    raw = model.end_time.encoder(torch.randn(4, 3, 32, 32)).exp()
    torch.testing.assert_close(raw, torch.ones_like(raw), rtol=0, atol=0.01)
    lt = built("lt-node", "cifar10")
    assert lt.end_time.alpha.item() == lt.end_time.beta.item() == 1.0


# -- changes of the end-time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("node", {"t": 0.25}, {"window": (0.0, 0.25)}),
        ("uni-node", {"high": 2.0}, {"window": (0.0, 2.0)}),
        ("lt-node", {"prior": [1.0, 0.01], "truncate": True}, {"window": (0.0, 3.0), "truncate": True}),
        ("alt-node", {"window": [0.0, 1.0]}, {"window": (0.0, 1.0), "truncate": False}),
        ("lt-node-mixture", {"components": 2}, {"window": (0.0, 3.0)}),
        ("steer", {"spread": 0.2}, {}),
    ],
)
def test_an_end_time_changed_by_a_mapping_can_be_built_again(name: str, change: dict, expected: dict) -> None:
    """The change reaches the end-time, and the specification of the model gives the same end-time after JSON."""
    model = build(name, "synthetic", "paper", seed=0, end_time=change)
    again = build_from_spec(json.loads(json.dumps(model.spec)))
    for made in (model, again):
        assert {key: getattr(made.end_time, key) for key in expected} == expected
    assert repr(again.end_time) == repr(model.end_time)
    if "prior" in change:
        assert torch.equal(again.end_time.prior, torch.tensor(change["prior"]))


@pytest.mark.no_typecheck
def test_an_unknown_change_of_the_end_time_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="option of the end-time of lt-node 'priors'.*prior"):
        build("lt-node", "synthetic", end_time={"priors": (1.0, 1.0)})
