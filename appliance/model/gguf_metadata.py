"""The metadata fields of a GGUF file's architecture. Never: what they mean, tensors' data."""

from __future__ import annotations

from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.fields import shown
from appliance.model.gguf_reader import Gguf


class Metadata:
    """The fields of a file's architecture, without its prefix. Methods raise ModelError."""

    def __init__(self, gguf: Gguf, architecture: str) -> None:
        self.gguf = gguf
        self._architecture = architecture

    def need(self, name: str) -> Any:
        """A value that must be there; its type is checked when the config is parsed."""
        value = self.get(name)
        if value is None:
            key = f"{self._architecture}.{name}"
            raise ModelError(f"{self.gguf.path}: metadata field {key} is missing")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """One value for the whole model; a float32 as its shortest decimal, for
        9.999999747378752e-06 was stored for 1e-05."""
        value = self.by_layer(name, default)
        if isinstance(value, np.ndarray | list):
            raise ModelError(
                f"{self.gguf.path}: {self._architecture}.{name} is a list, which is not supported"
            )
        if not isinstance(value, float):
            return value
        with np.errstate(over="ignore"):
            return float(str(np.float32(value)))

    def by_layer(self, name: str, default: Any = None) -> Any:
        """A value as it is stored: one, or a list."""
        return self.gguf.metadata.get(f"{self._architecture}.{name}", default)

    def refuse(self, *names: str) -> None:
        """None of these is set: each would change the arithmetic and is not implemented."""
        for name in names:
            if self.get(name):
                raise ModelError(
                    f"{self.gguf.path}: {self._architecture}.{name} {shown(self.get(name))} is not "
                    "supported"
                )

    def has_tensor(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self.gguf.tensors
