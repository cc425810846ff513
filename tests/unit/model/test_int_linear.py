"""Matrices of integers as `Linear`: put together from parts, and against float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity, linear

from appliance.model.int_linear import Bits, IntLinear, IntTable, int_gate
from appliance.model.linear import PlainGate
from appliance.model.norm import LayerNorm, RmsNorm
from appliance.model.shape import Activation
from appliance.model.stack import Stack


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stack(*parts: torch.Tensor) -> Stack:
    return Stack(list(parts), (parts[0].shape[-1],), torch.device("cpu"))


@pytest.mark.parametrize(("bits", "least"), [(8, 0.9995), (12, 0.999999)])
def test_parts_and_one_whole_are_the_same_matrix_and_near_float32(bits: Bits, least: float) -> None:
    weights, bias, x = random(50, 640, seed=1), random(50, seed=2), random(9, 640, seed=3)
    whole = IntLinear(stack(weights), bias, bits=bits)
    parts = IntLinear(stack(weights[:1], weights[1:31], weights[31:]), bias, bits=bits)
    assert torch.equal(whole(x), parts(x))
    near = cosine_similarity(whole(x).double(), linear(x, weights, bias).double())
    assert near.min() > least
    # Outputs are padded to 64.
    assert whole.nbytes < 64 / 50 * bits / 8 * weights.numel() + 1024


def test_it_adds_to_a_residual_in_place() -> None:
    layer = IntLinear(stack(random(20, 30, seed=4)), bits=8)
    residual, x = random(3, 20, seed=5), random(3, 30, seed=6)
    expected = residual + layer(x)
    layer.add_to(residual, x)
    torch.testing.assert_close(residual, expected)


def test_inputs_that_are_a_view_are_read_as_they_are_seen() -> None:
    layer = IntLinear(stack(random(20, 30, seed=7)), bits=8)
    wide = random(5, 70, seed=8)
    assert torch.equal(layer(wide[:, 10:40]), layer(wide[:, 10:40].clone()))
    with pytest.raises(AssertionError):
        layer.add_to(random(5, 40, seed=9)[:, :20], wide[:, 10:40])


def test_a_norm_and_a_gate_are_those_of_torch() -> None:
    weights, bias, x = random(40, 30, seed=10), random(40, seed=17), random(6, 30, seed=12)
    norms = (
        RmsNorm(random(30, seed=11), 1e-5),
        LayerNorm(random(30, seed=11), random(30, seed=16), 1e-5),
    )
    layer = IntLinear(stack(weights), bias, bits=8)
    for norm in norms:
        torch.testing.assert_close(layer.normed(x, norm), layer(norm(x)), rtol=1e-3, atol=2e-3)
    for activation in Activation:
        gate = int_gate(stack(weights), bias, activation, bits=8)
        plain = PlainGate(layer, activation)
        torch.testing.assert_close(gate(x), plain(x), rtol=1e-3, atol=2e-2)
        for norm in norms:
            expected = plain.normed(x, norm)
            torch.testing.assert_close(gate.normed(x, norm), expected, rtol=1e-3, atol=2e-2)


def test_a_table_has_rows_and_is_a_head() -> None:
    weights = random(50, 16, seed=13)
    table = IntTable(stack(weights), bits=8)
    ids = torch.tensor([49, 0, 0, 17])
    rows = table.rows(ids)
    torch.testing.assert_close(rows, weights[ids], rtol=0.0, atol=0.02)
    torch.testing.assert_close(table(rows), linear(rows, weights), rtol=0.02, atol=0.1)
    with pytest.raises(ValueError, match="token id 50"):
        table.rows(torch.tensor([50]))
