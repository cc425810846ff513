"""The options that name a conversation, checked before anybody is asked."""

from __future__ import annotations

import argparse
from urllib.parse import quote
from uuid import UUID

TENANT_HELP = "whose it is (needed when several tenants are configured)"


def add_conversation(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """A conversation's id, and its tenant."""
    parser.add_argument(
        "conversation",
        type=_uuid,
        metavar="CONVERSATION",
        nargs="?" if is_optional else None,
        default=None,
        help="its id, as GET /api/conversations lists it",
    )
    parser.add_argument("--tenant", default=None, help=TENANT_HELP)


def address_of(options: argparse.Namespace, what: str = "") -> str:
    """The conversation's address at the admin socket."""
    address = f"/cache/conversations/{options.conversation}{what}"
    return address if options.tenant is None else f"{address}?tenant={quote(options.tenant)}"


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a conversation's id") from error
