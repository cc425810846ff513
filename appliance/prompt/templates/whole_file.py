"""Jinja over a whole file, whose output is then parsed: every value it writes is a stand-in.

Owns the environment of compatibility mode and the loader of files beside the template. Never: YAML.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, TemplateNotFound, TemplateSyntaxError, nodes
from jinja2.runtime import Context, StrictUndefined, Undefined
from jinja2.utils import pass_context

from appliance.prompt.templates.faults import CODE_MARK
from appliance.prompt.templates.guard import Guarded
from appliance.prompt.templates.placeholders import Written
from appliance.prompt.templates.placeholders import current as current_placeholders
from appliance.prompt.templates.source import inside, read_file

SPACE_MARKER = "<|space|>"
"""Stands for a space that is not stripped; in the template's source alone, never in a value."""


class FalsyUndefined(StrictUndefined):
    """A variable that is not there: false in a condition, an error where it is written or used."""

    __slots__ = ()

    def __bool__(self) -> bool:  # type: ignore[override]
        return False


@pass_context
def _stand_in(context: Context, value: object) -> object:
    """What is written for a value. Takes the context so that nothing is written while compiling."""
    if isinstance(value, Written | Undefined):
        return value
    return current_placeholders().put(value)


class WholeFile(Guarded):
    """The environment: what macros and blocks write is structure, every value is a stand-in.

    `space` stands for the space markers of the source; no value can contain it, as it is drawn.
    """

    def __init__(self, folder: Path | None) -> None:
        self.space = f"\ue002{secrets.randbelow(10**24):024}\ue001"
        loader = None if folder is None else _Beside(folder)
        super().__init__(undefined=FalsyUndefined, finalize=_stand_in, loader=loader)

    @staticmethod
    def concat(pieces: Iterable[str]) -> Written:
        """What a macro or block wrote."""
        return Written(Guarded.concat(pieces))

    def preprocess(self, source: str, name: str | None = None, filename: str | None = None) -> str:
        """The source with its space markers made such that no stripping takes them for white space."""
        return super().preprocess(str(source), name, filename).replace(SPACE_MARKER, self.space)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for block in source.find_all(nodes.FilterBlock):
            # Its output goes past the stand-ins: what a filter adds to the text would be structure.
            raise TemplateSyntaxError(
                "write `{{ value | filter }}`, not a filter block", block.lineno
            )
        return super()._generate(source, *args, **kwargs)


class _Beside(BaseLoader):
    """Files of the template's folder and below it, whatever links are there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        """The text of a file; raises TemplateNotFound for one outside of the folder."""
        path = inside(self._folder, template)
        if path is None or not path.is_file():
            raise TemplateNotFound(template)
        return read_file(path), CODE_MARK + template, None
