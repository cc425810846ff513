"""Which form of the weights a setting means, and what it costs in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from appliance.errors import ModelError
from appliance.model.weight_form import CPU_FORMS, GPU_FORMS, choose_form
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


def test_auto_is_twelve_bits_on_a_cpu_and_bfloat16_on_a_gpu() -> None:
    assert choose_form("auto", CPU) is choose_form("int12", CPU)
    assert choose_form("auto", GPU) is choose_form("bfloat16", GPU)


def test_what_a_device_lacks_is_refused_by_the_name_of_the_setting() -> None:
    with pytest.raises(
        ModelError, match=r"weights in int12 are for the CPU: use engine\.weight_dtype"
    ):
        choose_form("int12", GPU)


def test_every_form_has_a_name_of_its_own() -> None:
    forms = {id(form): form.name for form in (*CPU_FORMS.values(), *GPU_FORMS.values())}
    assert len(forms) == 5
    assert len(set(forms.values())) == 5
    assert choose_form("int8", CPU) is not choose_form("int8", GPU)


def test_loading_takes_the_memory_of_the_form_and_little_beside_it(tmp_path: Path) -> None:
    model = tiny_model(hidden_size=512, intermediate_size=2048, num_hidden_layers=3)
    write_directory(tmp_path, model)
    numbers = sum(tensor.numel() for tensor in model.tensors.values())

    def peak_bytes(weight_dtype: str) -> int:
        command = [sys.executable, "-c", LOAD, str(tmp_path), weight_dtype]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)

    beside = 30 << 20
    assert peak_bytes("float32") < 4 * numbers + beside
    assert peak_bytes("int12") < 1.6 * numbers + beside
    assert peak_bytes("int8") < 1.1 * numbers + beside
