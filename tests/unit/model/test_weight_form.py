"""Which form of the weights a setting means, and what it costs in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from appliance.errors import ModelError
from appliance.model.weight_form import choose_form
from tests.model_fixtures import tiny_model, write_directory

LOAD = """
import re, sys
from pathlib import Path
from appliance.model.decoder import load_model
def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = kib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
model = load_model(Path(sys.argv[1]), "cpu", 1, weight_dtype=sys.argv[2])
print(1024 * (kib("VmHWM") - before))
"""


CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_auto_is_twelve_bits_on_a_cpu_and_float32_elsewhere() -> None:
    assert choose_form("auto", CPU) is choose_form("int12", CPU)
    assert choose_form("auto", GPU) is choose_form("float32", GPU)


@pytest.mark.parametrize("weight_dtype", ["int12", "int8"])
def test_integers_on_a_gpu_are_refused_by_the_name_of_the_setting(weight_dtype: Any) -> None:
    assert choose_form(weight_dtype, CPU).name == weight_dtype
    with pytest.raises(ModelError, match=r"use engine\.weight_dtype auto or float32"):
        choose_form(weight_dtype, GPU)


def test_loading_takes_the_memory_of_the_form_and_little_beside_it(tmp_path: Path) -> None:
    model = tiny_model(hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    write_directory(tmp_path, model)
    numbers = sum(tensor.numel() for tensor in model.tensors.values())

    def peak_bytes(weight_dtype: str) -> int:
        command = [sys.executable, "-c", LOAD, str(tmp_path), weight_dtype]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    beside = 30 << 20
    assert peak_bytes("float32") < 4 * numbers + beside
    assert peak_bytes("int12") < 1.6 * numbers + beside
    assert peak_bytes("int8") < 1.1 * numbers + beside
