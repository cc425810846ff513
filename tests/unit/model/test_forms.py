"""Forms of weights other than float32: their arithmetic, and how far a whole model is from float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from appliance.model.decoder import Decoder, load_model
from appliance.model.int8_mm import TorchInt8Linear
from appliance.model.kv_cache import kv_type, quantise
from appliance.model.linear import Bfloat16Linear, Bfloat16Table, Linear
from appliance.model.stack import Stack
from appliance.model.weight_form import GPU_FORMS, WeightDtype
from tests.model_fixtures import write_tiny_llama
from tests.unit.model.steps import Piece, step


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check_adds_in_place(linear: Linear, x: torch.Tensor, outputs: int) -> None:
    residual = random(len(x), outputs)
    expected = residual + linear(x)
    linear.add_to(residual, x)
    torch.testing.assert_close(residual, expected)


@pytest.mark.parametrize("sides", [(24, 64), (21, 50)])
@pytest.mark.parametrize("tokens", [1, 16, 17, 40])
def test_an_int8_product_is_exact_in_the_quantised_numbers_and_near_the_float_one(
    tokens: int, sides: tuple[int, int]
) -> None:
    weight, bias, x = random(*sides), random(sides[0]), random(tokens, sides[1])
    linear = TorchInt8Linear(weight, bias)
    (numbers, scales), (columns, column_scales) = quantise(x), quantise(weight)
    exact = (numbers.double() * scales[:, None]) @ (columns.double() * column_scales[:, None]).T
    torch.testing.assert_close(linear(x).double(), exact + bias, atol=1e-4, rtol=1e-5)
    assert (linear(x) - (x @ weight.T + bias)).abs().max() < 0.4
    check_adds_in_place(linear, x, sides[0])


def test_a_bfloat16_product_is_that_of_rounded_inputs_and_weights() -> None:
    weight, bias, x = random(24, 64), random(24), random(5, 64)
    linear = Bfloat16Linear(weight, bias)
    exact = x.bfloat16().double() @ weight.bfloat16().double().T + bias
    torch.testing.assert_close(linear(x).double(), exact, atol=1e-2, rtol=1e-2)
    check_adds_in_place(linear, x, 24)
    ids = torch.tensor([3, 0, 3])
    assert torch.equal(Bfloat16Table(weight).rows(ids), weight[ids].bfloat16().float())


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.15), ("int8", 0.25)])
def test_a_model_in_another_form_is_near_the_float_one(
    tmp_path: Path, dtype: WeightDtype, limit: float
) -> None:
    directory = write_tiny_llama(tmp_path)
    batch = step([Piece(token_ids=range(5, 25), start=0, pages=[1, 0])], page_size=16)

    def logits(decoder: Decoder) -> torch.Tensor:
        return decoder.forward(batch, decoder.new_cache(2, 16))

    plain = logits(load_model(directory, "cpu", 1))
    other = logits(load_model(directory, "cpu", 1, weight_dtype=dtype))
    assert 0 < (other - plain).abs().max() / plain.std() < limit


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_products_on_a_gpu_have_the_right_shape_and_type(dtype: WeightDtype, tokens: int) -> None:
    form = GPU_FORMS[dtype]
    with FakeTensorMode():
        weight, bias = torch.empty(20, 64, device="cuda"), torch.empty(20, device="cuda")
        x = torch.empty(tokens, 64, device="cuda")
        ids = torch.empty(tokens, dtype=torch.int64, device="cuda")
        stack = Stack([weight], (64,), weight.device)
        y, rows = form.make_linear(stack, bias)(x), form.make_table(stack).rows(ids)
    assert (y.shape, y.dtype, y.device.type) == ((tokens, 20), torch.float32, "cuda")
    assert (rows.shape, rows.dtype) == ((tokens, 64), torch.float32)


def test_keys_and_values_are_by_default_what_each_device_is_fast_with() -> None:
    assert kv_type("auto", on_gpu=False) == torch.float16
    assert kv_type("auto", on_gpu=True) == torch.bfloat16
    assert kv_type("int8", on_gpu=True) == torch.int8
