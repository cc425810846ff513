"""The filters and tests of templates, each within the budget: what could make a large value is measured
before it is made.

Never: which of them a template has (`guard`).
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter

from appliance.prompt.templates.budget import ITEM_CHARS, LimitExceeded, current
from appliance.prompt.templates.text_size import text_chars, text_of, weigh

_OF_ONE_TEXT = "capitalize lower string upper"
"""Those that make a text of whatever they are given."""

_OF_WORDS = "title wordcount"
"""Those that take a text apart, word by word."""

_WORDS_CHARS_MAX = 256 * 1024
_THAT_COMPARE = "groupby max min sort unique"
"""Those that compare the items of a list with each other."""

_INDENT_MAX = 200
_DIGITS_MAX = 300
"""Behind the point, or before it, of a number that is rounded."""


def charged(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter within the budget, called by any of its arguments' names."""
    before = _BEFORE.get(name)
    signature = None if before is None else inspect.signature(filter_)

    # Keeps what Jinja notes at the function about arguments that it passes.
    @functools.wraps(filter_)
    def measured(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.tick()
        # What a filter is told besides may be a key that is looked up.
        weigh(*args[1:], *kwargs.values())
        if before is not None and signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = before(*bound.args), {}
        result = filter_(*args, **kwargs)
        budget.made(result)
        return result

    return measured


def ticked(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test of `is`, `select` and `reject`: a step each, as these go through a list by themselves."""

    @functools.wraps(test)
    def one_step(*args: Any, **kwargs: Any) -> Any:
        current().tick()
        weigh(*args)
        return test(*args, **kwargs)

    return one_step


# What is done before a filter, by its name: it takes all arguments in their order, and returns them.


def _before_text(value: object, *rest: Any) -> Any:
    return (text_of(value, current()), *rest)


def _before_words(value: object) -> Any:
    text = text_of(value, current())
    if len(text) > _WORDS_CHARS_MAX:
        raise LimitExceeded(f"it goes through the words of more than {_WORDS_CHARS_MAX} characters")
    return (text,)


def _before_trim(value: object, chars: object) -> Any:
    text = text_of(value, current())
    current().search(text, (chars,))
    return (text, chars)


def _before_dictsort(value: object, *rest: Any) -> Any:
    weigh(value)
    return (value, *rest)


def _before_replace(context: Any, text: object, old: object, new: object, count: Any) -> Any:
    budget = current()
    text, old, new = (text_of(value, budget) for value in (text, old, new))
    budget.make(replaced_chars(text, old, new))
    return (context, text, old, new, count)


def _before_join(context: Any, values: Iterable[Any], d: object, attribute: Any) -> Any:
    budget = current()
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    texts, between = [text_of(value, budget) for value in values], text_of(d, budget)
    budget.make(sum(map(len, texts)) + len(between) * len(texts))
    return (context, texts, between, None)


def _before_indent(text: str, width: int | str, *rest: Any) -> Any:
    if (len(width) if isinstance(width, str) else width) > _INDENT_MAX:
        raise LimitExceeded(f"it indents by more than {_INDENT_MAX} characters")
    current().make(len(text) + _INDENT_MAX * (text.count("\n") + 1))
    return (text, width, *rest)


def _before_round(value: Any, precision: int, method: str) -> Any:
    if abs(precision) > _DIGITS_MAX:
        raise LimitExceeded(f"it rounds to more than {_DIGITS_MAX} digits")
    return (value, precision, method)


def _before_sum(environment: Any, values: Any, attribute: Any, start: object) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError("`sum` adds numbers; write `+` for lists")
    return (environment, values, attribute, start)


def _before_int(value: object, default: object, base: object) -> Any:
    if isinstance(value, str) and len(value) > _DIGITS_MAX:
        raise LimitExceeded(f"it reads a number of more than {_DIGITS_MAX} digits")
    return (value, default, base)


def _before_compared(environment: Any, values: Any, *rest: Any) -> Any:
    if not isinstance(values, Mapping):
        current().make(ITEM_CHARS * len(values) if isinstance(values, str) else 0)
        values = list(values)
    weigh(values)
    return (environment, values, *rest)


def _before_tojson(value: object) -> Any:
    current().make(text_chars(value))
    return (value,)


_BEFORE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_OF_ONE_TEXT.split(), _before_text),
    **dict.fromkeys(_THAT_COMPARE.split(), _before_compared),
    **dict.fromkeys(_OF_WORDS.split(), _before_words),
    "dictsort": _before_dictsort,
    "indent": _before_indent,
    "int": _before_int,
    "join": _before_join,
    "replace": _before_replace,
    "round": _before_round,
    "sum": _before_sum,
    "tojson": _before_tojson,
    "trim": _before_trim,
}


def tojson(value: object) -> str:
    """A value as JSON, no character of it escaped that need not be."""
    return json.dumps(value, ensure_ascii=False)


def replaced_chars(text: str, old: str, new: str) -> int:
    """How long a text is at most, once `new` stands for each `old`."""
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)
