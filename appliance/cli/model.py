"""`appliance model inspect | eval`: what a model is and needs, and how close its int8 form is."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.cli.terminal import console, progress_bars
from appliance.errors import InvalidRequest, ModelError

EVAL_TOKENS_DEFAULT = 4096
TEXT_BYTES_MAX = 64 * 2**20


def add_model(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Put `model` and its subcommands into the command line."""
    model = commands.add_parser("model", help="inspect a model, or compare its int8 form with float32")
    actions = model.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="its shape, and how many chats fit into this box")
    inspect.add_argument("--data-dir", type=Path, default=Path(), help="a folder of the disk that counts")
    evaluate = actions.add_parser("eval", help="perplexity and agreement of int8 with float32")
    evaluate.add_argument("--text", type=Path, required=True, help="a text file in UTF-8")
    evaluate.add_argument(
        "--tokens", type=_tokens, default=EVAL_TOKENS_DEFAULT, help="how many of the text (default: 4096)"
    )
    evaluate.add_argument("--weights", choices=("float32", "int8"), default="int8")
    evaluate.add_argument("--kv", choices=("float32", "int8"), default="int8")
    for action in (inspect, evaluate):
        action.add_argument("path", type=Path, help="a model directory, or a .gguf file (inspect)")
        action.add_argument("--json", action="store_true", help="print JSON")


def run_model(options: argparse.Namespace) -> int:
    """Run one of them; raises ApplianceError for what is wrong with the input."""
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
    from appliance.model.box import box_tiers
    from appliance.model.files import check_model, read_shape
    from appliance.model.footprint import (
        CHAT_MESSAGES,
        chat_tokens,
        chats_that_fit,
        element_forms,
        head_forms,
        kv_bytes_per_token,
        parameters,
    )

    check_model(path)
    config = read_shape(path)
    count = parameters(config)
    tiers = box_tiers(folder, weights_bytes=count)
    told: dict[str, Any] = {
        "family": config.family,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context_tokens": config.context_tokens,
        "parameters": count,
        "chat_messages": CHAT_MESSAGES,
        "chat_tokens": chat_tokens(config),
        "available_bytes": {tier.name: tier.available_bytes for tier in tiers},
        "forms": {
            part: [
                {
                    "name": form.name,
                    "kv_heads": form.kv_heads,
                    "kv_bytes_per_token": kv_bytes_per_token(config, form),
                    "chats": {tier.name: chats_that_fit(config, form, tier) for tier in tiers},
                }
                for form in forms
            ]
            for part, forms in (("element", element_forms(config)), ("heads", head_forms(config)))
        },
    }
    if as_json:
        print(json.dumps(told, indent=1))
    else:
        _print_inspection(path, told)


def _print_inspection(path: Path, told: dict[str, Any]) -> None:
    from rich.table import Table

    count = told["parameters"]
    console.print(
        f"{path}: {told['family']}, {told['layers']} layers of width {told['hidden']}, "
        f"{told['heads']} query and {told['kv_heads']} K/V heads of {told['head_dim']}, "
        f"vocabulary {told['vocab_size']:,}, context {told['context_tokens']:,} tokens",
        soft_wrap=True,
    )
    console.print(
        f"{count:,} parameters: {_bytes(4 * count)} in float32, {_bytes(count)} in int8\n"
        f"a chat of {told['chat_messages']} messages is kept as {told['chat_tokens']:,} tokens"
    )
    titles = {"element": "K/V of this model", "heads": "the same model in float32 with other K/V heads"}
    for part, title in titles.items():
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column("")
        table.add_column("K/V heads", justify="right")
        table.add_column("bytes a token", justify="right")
        for name, size in told["available_bytes"].items():
            table.add_column(f"chats in {name} ({_bytes(size)})", justify="right")
        for form in told["forms"][part]:
            chats = (f"{number:,}" for number in form["chats"].values())
            size = f"{form['kv_bytes_per_token']:,}"
            table.add_row(form["name"], str(form["kv_heads"]), size, *chats)
        console.print()
        console.print(table)


def _bytes(count: int) -> str:
    unit, size = next(
        (pair for pair in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)) if count >= pair[1]), ("kB", 1000)
    )
    return f"{count / size:.1f} {unit}"


def _evaluate(options: argparse.Namespace) -> None:
    from appliance.model.decoder import load_model
    from appliance.model.evaluate import compare

    token_ids = _read_tokens(options.path, options.text)[: options.tokens]
    reference = load_model(options.path, "cpu", None)
    form = load_model(options.path, "cpu", None, weight_dtype=options.weights)
    with progress_bars() as report:
        result = compare(
            reference,
            form,
            token_ids,
            kv_dtype=options.kv,
            progress=lambda done: report("comparing", done),
        )
    if options.json:
        print(json.dumps(asdict(result), indent=1))
        return
    console.print(
        f"weights {options.weights}, K/V {options.kv}, beside float32, over {result.tokens:,} tokens:\n"
        f"  the likeliest token is the same   {result.top1:.2%}\n"
        f"  perplexity                        {result.perplexity:.4f} "
        f"(float32: {result.reference_perplexity:.4f})\n"
        f"  divergence, nats a token          {result.divergence:.6f}\n"
        f"  largest difference of a logit     {result.logit_difference:.4f}",
        soft_wrap=True,
    )


def _read_tokens(directory: Path, text: Path) -> list[int]:
    from appliance import tokens
    from appliance._core import Tokenizer

    try:
        if text.stat().st_size > TEXT_BYTES_MAX:
            raise InvalidRequest(f"{text}: larger than {TEXT_BYTES_MAX >> 20} MiB")
        content = text.read_text(encoding="utf-8")
        tokenizer = Tokenizer((directory / "tokenizer.json").read_bytes(), memo_bytes_max=0)
        # By lines, for the tokenizer has a limit for one text.
        encoded = tokenizer.encode_many(content.splitlines(keepends=True))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{text}: not UTF-8: {error.reason}") from error
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{directory / 'tokenizer.json'}: {error}") from error
    token_ids = list(tokens.unpack(b"".join(encoded)))
    if len(token_ids) < 2:
        raise InvalidRequest(f"{text}: holds fewer than 2 tokens")
    return token_ids
