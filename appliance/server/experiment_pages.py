"""The operator's pages of experiments, as the last check drew them. Owns them; never draws one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class ExperimentPages:
    """Pages by the name in their address; none after a start, until somebody looks."""

    def __init__(self) -> None:
        self._pages: Mapping[str, bytes] = MappingProxyType({})

    def replace(self, pages: Mapping[str, str]) -> None:
        """Show these and no others from now on."""
        self._pages = MappingProxyType({name: text.encode() for name, text in pages.items()})

    def get(self, name: str) -> bytes | None:
        """A whole HTML document."""
        return self._pages.get(name)
