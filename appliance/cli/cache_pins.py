"""`appliance cache pin` and `unpin`: what may not be evicted. Never: decides whether there is room."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from appliance.cli.admin_client import add_place, ask
from appliance.cli.conversation_options import add_conversation, address_of
from appliance.cli.plain_text import as_json

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_pin(subparsers: Subparsers) -> None:
    """The options of `pin`."""
    _add(subparsers, "pin", "keep what is cached of a conversation now")


def add_unpin(subparsers: Subparsers) -> None:
    """The options of `unpin`."""
    _add(subparsers, "unpin", "let a pinned conversation be evicted again")


def run_pin(options: argparse.Namespace) -> int:
    """Pin; returns the exit code."""
    return _run(options, "PUT", "pinned {pages} pages")


def run_unpin(options: argparse.Namespace) -> int:
    """Unpin; returns the exit code."""
    return _run(options, "DELETE", "unpinned {pages} pages")


def _add(subparsers: Subparsers, name: str, words: str) -> None:
    parser = subparsers.add_parser(name, help=words)
    add_conversation(parser)
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(options: argparse.Namespace, method: str, words: str) -> int:
    answer = ask(options, method, address_of(options, "/pin"))
    print(as_json(answer) if options.json else words.format(**answer))
    return 0
