"""The int8 matrix over torch's integer product against exact arithmetic on the same numbers."""

from __future__ import annotations

import pytest
import torch

from appliance.model.int8_mm import TorchInt8Linear, quantise_rows


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("tokens", [1, 16, 17, 40])
def test_a_product_is_that_of_the_quantised_numbers_and_near_the_float_one(tokens: int) -> None:
    weight, bias, x = random(24, 64), random(24), random(tokens, 64)
    linear = TorchInt8Linear(weight, bias)
    numbers, scales = quantise_rows(x)
    exact = (numbers.double() * scales[:, None]) @ (
        linear.weight.double() * linear.scales[:, None]
    ).T
    torch.testing.assert_close(linear(x).double(), exact + bias, atol=1e-4, rtol=1e-5)
    assert (linear(x) - (x @ weight.T + bias)).abs().max() < 0.4
    residual = random(tokens, 24)
    expected = residual + linear(x)
    linear.add_to(residual, x)
    torch.testing.assert_close(residual, expected)


def test_every_value_is_within_half_a_scale_and_a_row_of_zeros_stays_zero() -> None:
    rows = torch.cat([random(5, 32), torch.zeros(1, 32)])
    numbers, scales = quantise_rows(rows)
    assert ((numbers * scales[:, None] - rows).abs() <= scales[:, None] / 2 + 1e-7).all()
    assert scales[5] == 0
    assert not numbers[5].any()
