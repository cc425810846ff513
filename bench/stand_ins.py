"""Stand-ins for what a peer's file imports and a comparison never runs.

A file of a large project cannot be imported alone: at its top stand GPU kernels, servers, metrics.
Inside `borrowed`, the named modules come from the peer's own files, and every other module of the
same package is an empty one whose attributes are placeholder classes. A placeholder that the measured
code really called would return nothing of use, and the comparison's own asserts would fail.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class _Meta(type):
    """Attributes of a placeholder are placeholders, and `A | B` in an annotation stays possible."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(name)

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls


def placeholder(name: str) -> Any:
    """A class of this name that takes any arguments, whose instances have placeholder attributes."""

    def __init__(self: Any, *args: object, **kwargs: object) -> None: ...
    def __getattr__(self: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return placeholder(attribute)

    def __class_getitem__(cls: Any, item: object) -> Any:
        return cls

    body = {
        "__init__": __init__,
        "__getattr__": __getattr__,
        "__class_getitem__": __class_getitem__,
    }
    return _Meta(name, (), body)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = placeholder(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Iterable[str], real: Mapping[str, Path]) -> None:
        self.packages = frozenset(packages)
        self.real = real

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self.packages:
            return None
        if name in self.real:
            return importlib.util.spec_from_file_location(name, self.real[name])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def borrowed(
    packages: Iterable[str],
    real: Mapping[str, Path],
    given: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Callable[[str], Any]]:
    """Import from a peer: `real` modules from their files, the others of `packages` as stand-ins.

    `given` are attributes of stand-ins that the measured code does run: module -> name -> value.
    """
    finder = _Finder(packages, real)
    sys.meta_path.insert(0, finder)
    try:
        for module, attributes in (given or {}).items():
            stand_in = importlib.import_module(module)
            for name, value in attributes.items():
                setattr(stand_in, name, value)
        yield importlib.import_module
    finally:
        sys.meta_path.remove(finder)
