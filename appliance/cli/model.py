"""`appliance model inspect | eval`: what a model is and needs, and how close a smaller form of it is.

Libraries that take long to load are imported where they are used, for every command reads this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import InvalidRequest, ModelError

if TYPE_CHECKING:
    from appliance.model.config import ModelConfig
    from appliance.model.evaluate import Agreement
    from appliance.model.footprint import Footprint, KvForm

EVAL_TOKENS_DEFAULT = 4096
TEXT_BYTES_MAX = 8 * 2**20
"""The tokenizer's limit for one text."""

UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def add_model(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put `model` and its actions into the command line."""
    model = commands.add_parser(
        "model", help="what a model needs, and how close a smaller form of it is to float32"
    )
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="its shape, and how many chats fit into this box")
    inspect.add_argument(
        "--data-dir",
        type=Path,
        default=Path(),
        help="a folder of the disk that counts (default: .)",
    )
    evaluate = actions.add_parser("eval", help="perplexity and agreement with float32 on a text")
    evaluate.add_argument("--text", type=Path, required=True, help="a text file in UTF-8")
    evaluate.add_argument(
        "--tokens",
        type=_tokens,
        default=EVAL_TOKENS_DEFAULT,
        help=f"how many of the text's tokens (default: {EVAL_TOKENS_DEFAULT})",
    )
    evaluate.add_argument(
        "--weights",
        choices=("float32", "bfloat16", "int12", "int8"),
        default="int12",
        help="numbers of the matrices (default: int12, as a CPU gets them)",
    )
    evaluate.add_argument(
        "--kv",
        choices=("float32", "float16", "int8"),
        default="float16",
        help="keys and values (default: float16, as a CPU gets them)",
    )
    for action in (inspect, evaluate):
        action.add_argument("path", type=Path, help="a model directory or a .gguf file")
        action.add_argument("--json", action="store_true", help="print JSON")


def run_model(options: argparse.Namespace) -> int:
    """Run one action; returns the exit code. Raises ModelError and InvalidRequest."""
    if options.action == "inspect":
        _inspect(options.path, options.data_dir, as_json=options.json)
    else:
        _evaluate(options)
    return 0


def _tokens(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 2")
    return int(text)


def _inspect(path: Path, folder: Path, *, as_json: bool) -> None:
    from appliance.engine.box import free_bytes, weight_bits
    from appliance.model.files import read_shape
    from appliance.model.footprint import footprint, weight_bytes

    config = read_shape(path)
    bits = weight_bits()
    tiers = free_bytes(folder, weights_bytes=weight_bytes(config, bits))
    sizes = footprint(config, tiers, weight_bits=bits)
    if as_json:
        print(json.dumps({"shape": _shape(config), **asdict(sizes)}, indent=1))
    else:
        _print_inspection(path, config, sizes)


def _shape(config: ModelConfig) -> dict[str, object]:
    return {
        "family": config.family,
        "layers": config.layers,
        "kv_layers": config.kv_layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate": config.intermediate,
        "vocab_size": config.vocab_size,
        "context_tokens": config.context_tokens,
        "windows": sorted({layer.window for layer in config.per_layer if layer.window is not None}),
    }


def _print_inspection(path: Path, config: ModelConfig, sizes: Footprint) -> None:
    from appliance.cli.terminal import console

    windows = [layer.window for layer in config.per_layer if layer.window is not None]
    local = f", {len(windows)} of them with a window" if windows else ""
    lines = [
        f"{path}: {config.family}, {config.layers} layers{local}, {config.hidden} wide, "
        f"{config.heads} query and {config.kv_heads} K/V heads of {config.head_dim}, "
        f"vocabulary {config.vocab_size:,}, context {config.context_tokens:,} tokens",
        f"{sizes.parameters:,} parameters, {_size(sizes.weight_bytes)} in float32, "
        f"{_size(sizes.loaded_bytes)} as an engine here keeps them",
        "free for keys and values, weights taken off: "
        + ", ".join(f"{tier} {_size(free)}" for tier, free in sizes.tiers.items()),
        f"a chat: {sizes.chat_messages} messages, kept as {sizes.chat_tokens:,} tokens",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    _print_forms("Keys and values of this model", sizes.own, sizes.tiers)
    _print_forms("The same model with other K/V heads, in float32", sizes.heads, sizes.tiers)


def _print_forms(title: str, forms: tuple[KvForm, ...], tiers: dict[str, int]) -> None:
    from rich.table import Table

    from appliance.cli.terminal import console

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    columns = ("K/V heads", "bytes a token", "a chat", *(f"chats in {tier}" for tier in tiers))
    for column in columns:
        table.add_column(column, justify="right")
    for form in forms:
        numbers = (f"{form.token_bytes:,}", _size(form.chat_bytes))
        chats = (f"{form.chats[tier]:,}" for tier in tiers)
        table.add_row(form.name, str(form.kv_heads), *numbers, *chats)
    console.print()
    console.print(table)


def _size(count: int) -> str:
    for unit, size in UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _evaluate(options: argparse.Namespace) -> None:
    from appliance.model.files import check_model

    # Before torch is loaded, so that a wrong path is told at once.
    check_model(options.path)
    content = _read_text(options.text)
    with _bars(shown=not options.json) as report:
        result = _compare(options, content, report)
    if options.json:
        forms = {"weight_dtype": options.weights, "kv_dtype": options.kv}
        print(json.dumps({**forms, **asdict(result)}, indent=1))
    else:
        _print_agreement(f"Weights in {options.weights}, K/V in {options.kv}", result)


def _compare(
    options: argparse.Namespace, content: str, report: Callable[[str, float], None]
) -> Agreement:
    from appliance.cli.demo_model import demo_cache_dir
    from appliance.cli.model_directory import model_directory
    from appliance.model.decoder import load_model
    from appliance.model.evaluate import compare
    from appliance.model.kv_cache import ELEMENT_TYPES

    directory = model_directory(options.path, demo_cache_dir(), report)
    token_ids = _encode(directory, options.text, content)[: options.tokens]
    reference = form = load_model(directory, "cpu", None)
    if options.weights != "float32":
        form = load_model(directory, "cpu", None, weight_dtype=options.weights)
    return compare(
        reference,
        form,
        token_ids,
        kv_dtype=ELEMENT_TYPES[options.kv],
        progress=lambda done: report("comparing", done),
    )


@contextmanager
def _bars(*, shown: bool) -> Iterator[Callable[[str, float], None]]:
    """Bars by stage, or nothing where the output is for a program."""
    if not shown:
        yield lambda stage, done: None
        return
    from appliance.cli.terminal import progress_bars

    with progress_bars() as report:
        yield report


def _print_agreement(form: str, result: Agreement) -> None:
    from appliance.cli.terminal import console

    console.print(
        f"{form}, beside float32, over {result.tokens:,} tokens:\n"
        f"  the likeliest token is the same   {result.top1:.2%}\n"
        f"  perplexity                        {result.perplexity:.4f} "
        f"(float32: {result.float32_perplexity:.4f})\n"
        f"  divergence, nats a token          {result.divergence:.6f}\n"
        f"  largest difference of a logit     {result.logit_difference:.4f}",
        soft_wrap=True,
    )


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InvalidRequest(f"{path}: no regular file")
        if path.stat().st_size > TEXT_BYTES_MAX:
            raise InvalidRequest(f"{path}: larger than {TEXT_BYTES_MAX >> 20} MiB")
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from error


def _encode(directory: Path, text: Path, content: str) -> list[int]:
    from appliance import tokens
    from appliance._core import Tokenizer
    from appliance.model.evaluate import TOKENS_MIN

    file = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer(file.read_bytes(), memo_bytes_max=0)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from error
    try:
        token_ids = list(tokens.unpack(tokenizer.encode(content)))
    except ValueError as error:
        raise InvalidRequest(f"{text}: {error}") from error
    if len(token_ids) < TOKENS_MIN:
        raise InvalidRequest(f"{text}: holds fewer than {TOKENS_MIN} tokens")
    return token_ids
