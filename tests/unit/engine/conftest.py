"""The tiny model that engine tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.model.decoder import Decoder, load_model
from tests.model_fixtures import tiny_model, write_directory


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights and a context of 256 tokens."""
    return write_directory(tmp_path_factory.mktemp("tiny"), tiny_model())


@pytest.fixture(scope="session")
def decoder(model_directory: Path) -> Decoder:
    """The tiny model, loaded."""
    return load_model(model_directory, "cpu", 1)
