"""Matrices of integers of the CPU kernels: against float64, and on input that does not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, silu

from appliance import _core

SHAPES = [
    (outputs, inputs) for outputs in (1, 2, 15, 16, 17, 97) for inputs in (1, 2, 7, 8, 9, 131, 1536)
] + [(5, 8192), (3, 24_576), (960, 576)]

BITS = [8, 12]

ACTIVATIONS = {
    "silu": silu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu_erf": gelu,
}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix_of(
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    bits: int = 8,
    gated: bool = False,
) -> _core.IntMatrix:
    matrix = _core.IntMatrix(*weights.shape, bits=bits, gated=gated)
    for first in range(0, len(weights), 7):
        part = weights[first : first + 7]
        matrix.push_rows(part.data_ptr(), len(part))
    if bias is not None:
        matrix.set_bias(bias.data_ptr())
    return matrix


def dequantised(weights: torch.Tensor, bits: int = 8) -> torch.Tensor:
    """What a matrix of integers stands for, float64."""
    most = 2 ** (bits - 1) - 1
    scales: torch.Tensor = weights.abs().amax(1, keepdim=True) / most
    numbers: torch.Tensor = (weights / scales).nan_to_num(0.0).round().clamp(-most, most)
    exact: torch.Tensor = numbers.double() * scales.double()
    return exact


def product(matrix: _core.IntMatrix, x: torch.Tensor, **norm: Any) -> torch.Tensor:
    out = torch.full((len(x), matrix.outputs), torch.nan)
    matrix.linear(out.data_ptr(), x.data_ptr(), len(x), **norm)
    return out


def assert_near(out: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, bits: int = 8) -> None:
    """An activation is off by half a step at most: its row's largest / most / 2."""
    summed = x.shape[1] if bits == 8 else min(128, x.shape[1])
    most = min(32767, (2**31 - 1) // ((2 ** (bits - 1) - 1) * summed))
    numbers = dequantised(weights, bits)
    exact = x.double() @ numbers.T
    # With 12 bits, sums are added in float32.
    step = x.double().abs().amax(1, keepdim=True) * (0.51 / most + 1e-7)
    room = step * numbers.abs().sum(1) + 1e-6 * exact.abs() + 1e-30
    assert ((out.double() - exact).abs() <= room).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", [1, 2, 6, 7, 13])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_every_shape_equals_the_reference(
    outputs: int, inputs: int, tokens: int, bits: int
) -> None:
    weights, x = random(outputs, inputs, seed=1), random(tokens, inputs, seed=2)
    assert_near(product(matrix_of(weights, bits=bits), x), weights, x, bits)


@pytest.mark.parametrize("bits", BITS)
def test_blocks_of_tokens_equal_the_reference(bits: int) -> None:
    weights, x = random(70, 1537, seed=3), random(300, 1537, seed=4)
    assert_near(product(matrix_of(weights, bits=bits), x), weights, x, bits)


@pytest.mark.parametrize("bits", BITS)
def test_the_largest_numbers_do_not_overflow_a_sum(bits: int) -> None:
    for inputs in (1, 127, 128, 513, 1024, 24_576, 131_072):
        weights = torch.ones(2, inputs)
        x = torch.ones(1, inputs)
        expected = torch.full((1, 2), float(inputs))
        for sign in (1, -1):
            out = product(matrix_of(weights, bits=bits), sign * x)
            torch.testing.assert_close(out, sign * expected, rtol=1e-6, atol=0.0)


def test_outliers_zeros_and_tiny_values_are_as_good_as_their_row_allows() -> None:
    weights, x = random(33, 576, seed=5), random(6, 576, seed=6)
    weights[3] = 0.0
    weights[4, 100] = 1e4
    x[0] = 0.0
    x[1, 7] = 1e5
    x[2] *= 1e-30
    x[3] *= 1e30
    out = product(matrix_of(weights), x)
    assert_near(out, weights, x)
    assert not out[0].any()
    assert not out[:, 3].any()
    x[4] = 1e-42
    assert torch.isfinite(product(matrix_of(weights), x)).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_token_that_is_not_finite_is_nan_alone(value: float) -> None:
    weights, x = random(40, 100, seed=7), random(9, 100, seed=8)
    matrix = matrix_of(weights)
    expected = product(matrix, x)
    x[4, 99] = value
    out = product(matrix, x)
    assert out[4].isnan().all()
    expected[4] = out[4]
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_a_row_of_weights_that_is_not_finite_is_nan_alone() -> None:
    weights, x = random(40, 100, seed=9), random(3, 100, seed=10)
    expected = product(matrix_of(weights), x)
    weights[17, 3] = torch.inf
    out = product(matrix_of(weights), x)
    assert out[:, 17].isnan().all()
    keep = torch.arange(40) != 17
    assert torch.equal(out[:, keep], expected[:, keep])


@pytest.mark.parametrize("bits", BITS)
def test_a_token_gives_the_same_bits_alone_and_in_any_batch(bits: int) -> None:
    matrix = matrix_of(random(100, 577, seed=11), random(100, seed=12), bits=bits)
    x = random(600, 577, seed=13)
    whole = product(matrix, x)
    for first, end in [(0, 1), (5, 6), (17, 24), (100, 599)]:
        assert torch.equal(product(matrix, x[first:end]), whole[first:end])


@pytest.fixture
def _default_threads() -> Iterator[None]:
    yield
    _core.set_kernel_threads(len(os.sched_getaffinity(0)))


@pytest.mark.usefixtures("_default_threads")
def test_the_number_of_threads_does_not_change_a_bit() -> None:
    matrix, x = matrix_of(random(3000, 576, seed=14)), random(200, 576, seed=15)
    results = []
    for threads in (1, 2, 5):
        _core.set_kernel_threads(threads)
        results += [product(matrix, x), product(matrix, x[:1])]
    assert all(torch.equal(result, results[0]) for result in results[::2])
    assert all(torch.equal(result, results[1]) for result in results[1::2])


def test_a_bias_and_a_residual_are_added() -> None:
    weights, bias, x = random(19, 50, seed=16), random(19, seed=17), random(4, 50, seed=18)
    plain = product(matrix_of(weights), x)
    matrix = matrix_of(weights, bias)
    torch.testing.assert_close(product(matrix, x), plain + bias)
    residual = random(4, 19, seed=19)
    expected = residual + product(matrix, x)
    matrix.add_linear(residual.data_ptr(), x.data_ptr(), 4)
    torch.testing.assert_close(residual, expected)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("half", [1, 7, 8, 9, 40])
def test_a_gated_matrix_gates_and_is_a_plain_one_too(half: int, activation: Any) -> None:
    weights, bias = random(2 * half, 30, seed=20), random(2 * half, seed=21)
    x = 3 * random(11, 30, seed=22)
    matrix = matrix_of(weights, bias, gated=True)
    both = product(matrix, x)
    assert torch.equal(both, product(matrix_of(weights, bias), x))
    out = torch.full((11, half), torch.nan)
    matrix.gate(out.data_ptr(), x.data_ptr(), 11, activation=activation)
    gate, up = both.double().chunk(2, 1)
    torch.testing.assert_close(
        out.double(), ACTIVATIONS[activation](gate) * up, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_an_activation_is_right_from_tiny_to_huge_values(activation: Any) -> None:
    matrix = matrix_of(torch.ones(2, 1), gated=True)
    size = torch.logspace(-20, 15, 500)
    x = torch.cat([size, -size, torch.linspace(-15, 15, 2001)]).unsqueeze(1)
    out = torch.empty(len(x), 1)
    matrix.gate(out.data_ptr(), x.data_ptr(), len(x), activation=activation)
    value = product(matrix, x)[:, :1].double()
    torch.testing.assert_close(
        (out / value).nan_to_num().double(),
        ACTIVATIONS[activation](value).nan_to_num(),
        rtol=1e-5,
        atol=1e-6,
    )


def norm_of(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + epsilon) * weight.double()


@pytest.mark.parametrize("hidden", [1, 15, 16, 577])
def test_a_norm_is_right_alone_in_place_and_in_front_of_a_product(hidden: int) -> None:
    x, weight = 5 * random(7, hidden, seed=23), random(hidden, seed=24)
    expected = norm_of(x, weight, 1e-5)
    weights = random(20, hidden, seed=25)
    out = product(matrix_of(weights), x, norm=(weight.data_ptr(), 1e-5))
    assert_near(out, weights, expected.float())
    _core.rms_norm(
        x.data_ptr(), x.data_ptr(), weight.data_ptr(), tokens=7, hidden=hidden, epsilon=1e-5
    )
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_rows_are_those_of_the_matrix_in_any_layout(bits: int) -> None:
    weights = random(42, 33, seed=26)
    ids = torch.tensor([41, 0, 7, 7, 20, 21])
    for gated in (False, True):
        out = torch.empty(6, 33)
        matrix = matrix_of(weights, bits=bits, gated=gated)
        matrix.rows(out.data_ptr(), ids.data_ptr(), 6)
        torch.testing.assert_close(out.double(), dequantised(weights, bits)[ids])


@pytest.mark.parametrize("pairs", [1, 5, 8])
def test_a_rotation_is_a_complex_product_and_leaves_the_rest(pairs: int) -> None:
    x, angles = random(5, 3 * 16 + 9, seed=27), random(50, pairs, seed=28)
    table, positions = torch.polar(torch.ones_like(angles), angles), torch.tensor([0, 49, 3, 3, 7])
    before = x.clone()
    _core.rotate(
        x.data_ptr(),
        positions.data_ptr(),
        table.data_ptr(),
        tokens=5,
        heads=3,
        head_dim=16,
        stride=57,
        rows=50,
        pairs=pairs,
    )
    heads = before[:, :48].reshape(5, 3, 16)
    turned = torch.view_as_complex(heads[..., : 2 * pairs].reshape(5, 3, pairs, 2).contiguous())
    turned = torch.view_as_real(turned * table[positions][:, None]).flatten(2)
    expected = torch.cat([turned, heads[..., 2 * pairs :]], 2).flatten(1)
    torch.testing.assert_close(x[:, :48], expected)
    assert torch.equal(x[:, 48:], before[:, 48:])


def test_no_tokens_do_nothing() -> None:
    matrix = matrix_of(random(4, 4, seed=29))
    matrix.linear(0, 0, 0)
    matrix.rows(0, 0, 0)


def test_sizes_that_do_not_fit_raise_value_error() -> None:
    for outputs, inputs in [(0, 1), (1, 0), (1, 2**17 + 1), (2**24 + 1, 1), (-1, 1), (2**70, 1)]:
        with pytest.raises(ValueError, match=r"."):
            _core.IntMatrix(outputs, inputs)
    for bits in (0, 4, 16, -8):
        with pytest.raises(ValueError, match=f"8 or 12, not {bits}"):
            _core.IntMatrix(4, 4, bits=bits)
    with pytest.raises(ValueError, match="even"):
        _core.IntMatrix(3, 4, gated=True)


def test_a_matrix_with_rows_missing_or_too_many_is_refused() -> None:
    weights, x = random(3, 4, seed=30), random(1, 4, seed=31)
    matrix = _core.IntMatrix(5, 4)
    matrix.push_rows(weights.data_ptr(), 3)
    out = torch.zeros(1, 5)
    with pytest.raises(ValueError, match="3 of 5 rows"):
        matrix.linear(out.data_ptr(), x.data_ptr(), 1)
    with pytest.raises(ValueError, match="6 of 5 rows"):
        matrix.push_rows(weights.data_ptr(), 3)
    with pytest.raises(ValueError, match="rows"):
        matrix.push_rows(weights.data_ptr(), 2**63)
    assert not out.any()


@pytest.mark.parametrize("address", [0, 2])
def test_addresses_of_no_tensor_and_ids_out_of_range_raise_value_error(address: int) -> None:
    matrix, x = matrix_of(random(4, 4, seed=32), gated=True), torch.zeros(4, 4)
    good = x.data_ptr()
    for out, values in [(address, good), (good, address)]:
        with pytest.raises(ValueError, match="address"):
            matrix.linear(out, values, 1)
        with pytest.raises(ValueError, match="address"):
            matrix.add_linear(out, values, 1)
        with pytest.raises(ValueError, match="address"):
            matrix.gate(out, values, 1, activation="silu")
        with pytest.raises(ValueError, match="address"):
            matrix.rows(out, values, 1)
    with pytest.raises(ValueError, match="address"):
        matrix.linear(good, good, 1, norm=(address, 1e-5))
    with pytest.raises(ValueError, match="epsilon"):
        matrix.linear(good, good, 1, norm=(good, -1.0))
    with pytest.raises(ValueError, match="memory"):
        matrix.linear(good, good, 2**62)
    with pytest.raises(ValueError, match="gated"):
        matrix_of(x).gate(good, good, 1, activation="silu")
    with pytest.raises(ValueError, match="relu"):
        matrix.gate(good, good, 1, activation="relu")  # type: ignore[arg-type]
    for wrong in (-1, 4):
        ids = torch.tensor([0, wrong])
        out_rows = torch.zeros(2, 4)
        with pytest.raises(ValueError, match=f"token id {wrong}"):
            matrix.rows(out_rows.data_ptr(), ids.data_ptr(), 2)
        with pytest.raises(ValueError, match=f"position {wrong}"):
            _core.rotate(
                good,
                ids.data_ptr(),
                good,
                tokens=2,
                heads=1,
                head_dim=4,
                stride=4,
                rows=4,
                pairs=1,
            )
