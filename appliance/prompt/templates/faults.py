"""Where in a template something is wrong, and how it is said. Never quotes the value of a variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

from jinja2.exceptions import (
    SecurityError,
    TemplateNotFound,
    TemplateSyntaxError,
    UndefinedError,
)
from jinja2.exceptions import TemplateError as JinjaError

from appliance.errors import TemplateError
from appliance.prompt.templates.budget import LimitExceeded

# What these say is about types, limits and names that the template holds; others may quote a value.
_SAFE = (LimitExceeded, SecurityError, UndefinedError, TemplateSyntaxError, TypeError)

# What others mean, as they may quote a value.
_WORDS: dict[type[Exception], str] = {
    OverflowError: "a number is too large",
    ZeroDivisionError: "it divides by zero",
    LookupError: "a list or mapping has nothing at the place that is asked for",
    AttributeError: "a value has not what is asked of it",
    ValueError: "a value is none that can be used here",
    ArithmeticError: "it cannot be computed",
}
_FAILED = "its code fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a template file, and the part it belongs to. `of` is what the file is, if no template;
    `lines` are those of the file that a piece of code which begins here stands on, line by line, where
    they do not follow each other."""

    file: str
    line: int
    part: str | None = None
    of: str = "template"
    lines: tuple[int, ...] = ()

    def at(self, line: int) -> Place:
        """The place of a line of the code, counted from 1."""
        found = self.line + line - 1
        if self.lines:
            found = self.lines[min(line, len(self.lines)) - 1]
        return replace(self, line=found, lines=())

    def fault(self, sentence: str) -> TemplateError:
        """The error that says what is wrong here."""
        return TemplateError(self.said(f"{self.of} error: {sentence}"))

    def said(self, sentence: str) -> str:
        """What there is to say of this place, wrong or not."""
        part = "" if self.part is None else f", part `{self.part}`"
        return f"{self.file}, line {self.line}{part}: {sentence}"


@contextmanager
def said_of(place: Place, *, names: str = "") -> Iterator[None]:
    """Within it, whatever the template's code raises becomes a TemplateError with file, line and part.

    `place.line` is where the code begins. `names` are the variables it uses, for failures that say
    none themselves.
    """
    try:
        yield
    except TemplateError:
        raise
    # Python's own compiler refuses what Jinja made of blocks in blocks.
    except (RecursionError, SyntaxError) as error:
        raise place.fault("it calls itself without end, or is nested too deeply") from error
    except TemplateNotFound as error:
        raise place.fault(f"it includes {error.name!r}, which is not there") from error
    # The template is foreign code: whatever it raises is a fact about it.
    except Exception as error:
        raise _located(place, error).fault(_sentence(error, names)) from None


def _sentence(error: Exception, names: str) -> str:
    if isinstance(error, _SAFE):
        message = error.message if isinstance(error, JinjaError) else str(error)
        said = " ".join(str(message).split())[:300]
    else:
        said = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), _FAILED)
    if names and not isinstance(error, UndefinedError | TemplateSyntaxError):
        said += f" (it uses {names})"
    return said


def _located(place: Place, error: Exception) -> Place:
    """The place with the line of the code that failed; in an included file, that file."""
    if isinstance(error, TemplateSyntaxError):
        if error.name and not error.name.startswith("<"):
            return Place(file=error.name, line=error.lineno, part=place.part)
        return place.at(error.lineno)
    found = place
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        # The environment compiles under the name of the file, with a mark that no path has.
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(CODE_MARK):
            origin = name.removeprefix(CODE_MARK)
            found = place.at(trace.tb_lineno)
            if origin:
                found = Place(file=origin, line=trace.tb_lineno, part=place.part)
        trace = trace.tb_next
    return found


CODE_MARK = "<template>"
"""What file names of compiled template code begin with; the included file's name follows."""
