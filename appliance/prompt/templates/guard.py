"""Jinja for prompt templates: an immutable sandbox with a list of what is allowed, and limits.

Owns which filters, methods and functions a template has. Every loop step and call draws on the budget
of the rendering (`budget`); operations that could make a large value are measured before they are done.
Never: what the output means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from appliance.prompt.templates.budget import ITEM_CHARS, NUMBER_BITS_MAX, LimitExceeded, current
from appliance.prompt.templates.filters import charged, replaced_chars, ticked, tojson
from appliance.prompt.templates.text_size import text_of, weigh

_FILTER_NAMES = """
abs capitalize count d default dictsort first float groupby indent int items join last length list lower
map max min reject rejectattr replace reverse round select selectattr sort string sum title trim truncate
unique upper wordcount
"""
_TEXT_METHOD_NAMES = """
capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier
islower isnumeric isprintable isspace istitle isupper join lower lstrip partition removeprefix
removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip
swapcase title upper
"""
_FILTERS = frozenset(_FILTER_NAMES.split())
_TEXT_METHODS = frozenset(_TEXT_METHOD_NAMES.split())
_SEARCHING_NAMES = (
    "count find index lstrip partition rfind rindex rpartition rsplit rstrip split strip"
)
_SEARCHING = frozenset(_SEARCHING_NAMES.split())
"""Of these, those that may compare each character of the text with each of an argument."""

_GLOBALS = frozenset({"range", "dict", "namespace", "joiner"})
_NAME_CHARS_MAX = 64


class Guarded(ImmutableSandboxedEnvironment):
    """The sandbox. Subclasses say how undefined variables and written values are treated."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "%", "//", "/"})

    def __init__(self, *, undefined: type[Undefined] = StrictUndefined, **settings: Any) -> None:
        self.known_names: set[str] = set()
        super().__init__(
            undefined=_quiet(undefined, self.known_names),
            # Constant folding would compute `10 ** 10000000` while the template is compiled.
            optimized=False,
            autoescape=False,
            cache_size=0,
            **settings,
        )
        self.filters = {
            name: charged(name, self.filters[name]) for name in sorted(_FILTERS & set(self.filters))
        }
        self.filters["tojson"] = charged("tojson", tojson)
        tests: dict[str, Any] = self.tests
        self.tests = {name: ticked(test) for name, test in tests.items()}
        self.globals = {name: self.globals[name] for name in _GLOBALS}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for node in source.find_all((nodes.Getattr, nodes.Name, nodes.Const)):
            name = next(
                getattr(node, key) for key in ("attr", "name", "value") if hasattr(node, key)
            )
            if isinstance(name, str):
                self.know((name,))
        return super()._generate(_Measured().visit(source), *args, **kwargs)

    def know(self, names: Iterable[str]) -> None:
        """Names that a template's source holds, so that messages may hold them too."""
        self.known_names.update(name for name in names if len(name) <= _NAME_CHARS_MAX)

    def tick(self) -> None:
        """One step of a loop (the call itself draws on the budget)."""

    def joined(self, *values: object) -> str:
        """`a ~ b`, measured."""
        budget = current()
        return Guarded.concat(text_of(value, budget) for value in values)

    def weighed(self, value: object) -> object:
        """A side of a comparison, or a key: lists are compared, and keys hashed, to their depths."""
        weigh(value)
        return value

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What a macro or block wrote, measured: each piece may be one value, written once more."""
        held = list(pieces)
        current().make(sum(map(len, held)))
        return "".join(held)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would make a number or a value past the limits, before it is made."""
        if operator == "%" and isinstance(left, str):
            raise SecurityError("`%` does not format texts here; write `~`")
        if operator == "-":
            # Between views of mappings it hashes to all depths.
            weigh(left, right)
        elif operator == "**":
            _check_bits(_bits(left) * right if isinstance(right, int) else 0)
        elif operator in ("%", "//", "/"):
            # A number of the template's own may have any length, and dividing takes its square.
            _check_bits(max(_bits(left), _bits(right)))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(_bits(left) + _bits(right))
            else:
                current().make(_size(left) * _size(right))
        elif operator == "+" and not isinstance(left, int | float):
            current().make(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, macro or method, within the budget."""
        budget = current()
        budget.tick()
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
            if __obj.__name__ == "join" and len(args) == 1 and isinstance(args[0], Iterable):
                args = (list(args[0]),)
            texts = args[0] if args and isinstance(args[0], tuple) else args
            budget.search(__obj.__self__, texts if __obj.__name__ in _SEARCHING else ())
            budget.make(_result_chars(__obj, args))
        elif isinstance(__obj, BuiltinMethodType | type) or isinstance(
            getattr(__obj, "__self__", None), LoopContext
        ):
            # It may look its arguments up, or compare them with what it is the method of.
            held = __obj.__self__ if isinstance(__obj, BuiltinMethodType) else None
            weigh(*args, *kwargs.values(), *((held,) if isinstance(held, list | tuple) else ()))
        result = super().call(__context, __obj, *args, **kwargs)
        budget.made(result)
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`: of a mapping its own entry first, whatever methods mappings have."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of texts the listed methods; else what the immutable sandbox allows."""
        if isinstance(obj, str) and attr not in _TEXT_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """No `format`: its widths make large texts, and `~` says the same."""
        if super().wrap_str_format(value) is None:
            return None
        return self.undefined("`format` is not allowed here; write `~`", exc=SecurityError)


class _Measured(NodeTransformer):
    """Makes every loop step a call, and every `~`, comparison and key a measured one."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        step = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", *node.nodes, lineno=node.lineno)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        node.key = _key(node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        self.generic_visit(node)
        node.arg = _key(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _call("weighed", node.expr, lineno=node.lineno)
        for operand in node.ops:
            operand.expr = _call("weighed", operand.expr, lineno=node.lineno)
        return node


def _key(key: nodes.Expr) -> nodes.Expr:
    """Constants and slices are keys that cost nothing."""
    if isinstance(key, nodes.Const | nodes.Slice):
        return key
    return _call("weighed", key, lineno=key.lineno)


def _call(name: str, *arguments: nodes.Expr, lineno: int) -> nodes.Call:
    """A call of the environment's own method."""
    called = nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)
    called.set_lineno(lineno)
    return called


def _quiet(base: type[Undefined], known: set[str]) -> type[Undefined]:
    """Undefined values whose message names only what the template's source names."""

    class Quiet(base):  # type: ignore[misc, valid-type]
        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            name = self._undefined_name
            if self._undefined_hint or (isinstance(name, str) and name in known):
                return str(super()._undefined_message)
            return "an entry that is not there is used"

    Quiet.__name__ = "undefined"
    return Quiet


def _result_chars(method: BuiltinMethodType, args: tuple[Any, ...]) -> int:
    """How long the result of a text's method may be."""
    text = str(method.__self__)
    # Other than texts these methods refuse.
    texts = [given for given in args[:2] if isinstance(given, str)]
    if method.__name__ == "replace" and len(texts) == 2:
        return replaced_chars(text, *texts)
    if method.__name__ == "join" and args and isinstance(args[0], list):
        items = args[0]
        return sum(len(item) for item in items if isinstance(item, str)) + len(text) * len(items)
    return len(text)


def _bits(value: object) -> int:
    return max(abs(value).bit_length(), 1) if isinstance(value, int) else 1


def _check_bits(bits: int) -> None:
    if bits > NUMBER_BITS_MAX:
        raise LimitExceeded(f"it computes a number of more than {NUMBER_BITS_MAX} bits")


def _size(value: object) -> int:
    if isinstance(value, int):
        return max(value, 0)
    if isinstance(value, str):
        return len(value)
    return ITEM_CHARS * len(value) if isinstance(value, list | tuple) else 1
