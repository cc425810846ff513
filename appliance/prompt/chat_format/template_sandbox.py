"""Renders a model's chat template as `transformers` does, with limits. Knows no tokens, no requests.

A chat template comes with the model files: the operator's data, but written by strangers. It runs in
Jinja's immutable sandbox, and in a process of its own (this file as a script) that has little memory
and processor time and is given sentinels, never a user's text. `template_runner` starts that process.

Imports nothing of the package, so that the script starts fast.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_CHARS_MAX = 4 * 1024 * 1024
CPU_SECONDS_MAX = 2
MEMORY_BYTES_MAX = 384 * 1024 * 1024
FILES_MAX = 16
NUMBER_MAX = 10**9  # larger ones tell no more than this one


class TemplateRefusal(Exception):
    """The template itself refused the messages, through `raise_exception`; its own sentence."""


class _GenerationTag(Extension):
    """`{% generation %}`: marks replies for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it as a plain class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: block trimming, loop controls, `tojson` that keeps text."""

    def raise_exception(message: object) -> NoReturn:
        raise TemplateRefusal(str(message))

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        # Constant folding would compute `10 ** 10000000` while the template is compiled.
        optimized=False,
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = now.strftime
    return made


def bounded(pieces: Iterator[str]) -> str:
    """The pieces joined; raises OverflowError past OUTPUT_CHARS_MAX."""
    kept: list[str] = []
    chars = 0
    for piece in pieces:
        chars += len(piece)
        if chars > OUTPUT_CHARS_MAX:
            raise OverflowError(f"it writes more than {OUTPUT_CHARS_MAX} characters")
        kept.append(piece)
    return "".join(kept)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Render the job's cases.

    The answer holds `results`, one per case: {"text"}, {"refusal": the template's sentence} or
    {"error", "line"}; `texts`, the string constants of the template; and `numbers`, the sizes of its
    numeric ones. A template that does not compile gives {"error", "line"} alone.
    """
    made = environment(datetime.fromisoformat(job["now"]))
    try:
        tree = made.parse(job["template"])
        template = made.from_string(job["template"])
    except (TemplateError, RecursionError) as error:
        return _failure(error)
    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    numbers = {abs(n) for n in map(_number, tree.find_all(nodes.Expr)) if n is not None}
    results = []
    for case in job["cases"]:
        values = {**job["variables"], "tools": None, "documents": None, **case}
        try:
            results.append({"text": bounded(template.generate(**values))})
        except TemplateRefusal as refusal:
            results.append({"refusal": str(refusal)})
        # The template is foreign code: whatever it raises is a fact about it, reported with its line.
        except Exception as error:
            results.append(_failure(error))
    return {"results": results, "texts": sorted(texts), "numbers": sorted(numbers)}


def _number(node: nodes.Node) -> int | None:
    """The whole part of an expression of numbers alone, at most NUMBER_MAX in size; else None."""
    if isinstance(node, nodes.Const) and isinstance(node.value, int | float):
        number = node.value
        if isinstance(number, bool) or number != number:
            return None
    elif isinstance(node, nodes.Neg | nodes.Pos):
        inner = _number(node.node)
        if inner is None:
            return None
        number = -inner if isinstance(node, nodes.Neg) else inner
    elif isinstance(node, nodes.Add | nodes.Sub | nodes.Mul):
        left, right = _number(node.left), _number(node.right)
        if left is None or right is None:
            return None
        if isinstance(node, nodes.Mul):
            number = left * right
        else:
            number = left + right if isinstance(node, nodes.Add) else left - right
    else:
        return None
    return int(max(-NUMBER_MAX, min(number, NUMBER_MAX)))


def _failure(error: BaseException) -> dict[str, Any]:
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while line is None and trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return {"error": f"{type(error).__name__}: {error}"[:300], "line": line}


def main() -> None:
    """Read one JSON job from standard input, write one JSON answer, under limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job = json.loads(sys.stdin.buffer.read())
    sys.stdout.write(json.dumps(run(job)))


if __name__ == "__main__":
    main()
