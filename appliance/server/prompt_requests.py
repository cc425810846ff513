"""The bodies of the operator's questions about prompts. Unknown fields are errors: one client asks.

Files travel as base64, which is how JSON holds bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.chat.prompt_replay import CONVERSATIONS_MAX
from appliance.errors import InvalidRequest
from appliance.prompt.bundle import BYTES_MAX

BODY_BYTES_MAX = 3 * BYTES_MAX
"""Two bundles of the largest size, in base64."""

DAYS_MAX = 3650


class SentBundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a character by path."""

    name: str
    files: dict[str, bytes]


class Publish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /prompts."""

    bundle: SentBundle
    author: str
    message: str


class MoveLabel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PUT /prompts/{name}/labels/{label}: to what `version` means, from where it was `seen`."""

    version: str
    seen: str | None
    author: str
    message: str
    protect: bool | None = None
    confirmed: bool = False


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version: `name` and what of it (`at`, a label or the beginning of a version), or a bundle."""

    name: str | None = None
    at: str | None = None
    bundle: SentBundle | None = None

    def check(self, field: str) -> None:
        """Raise InvalidRequest unless it is exactly one of the two."""
        if (self.name is None) != (self.at is None) or (self.name is None) == (self.bundle is None):
            raise InvalidRequest("say either `name` and `at`, or `bundle`", param=field)


class Diff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /prompts/diff: live are conversations with activity in the last `days`."""

    before: Reference
    after: Reference
    days: Annotated[float, Meta(gt=0, le=DAYS_MAX)]


class Replay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /prompts/replay: the conversations that changed last."""

    before: Reference
    after: Reference
    conversations: Annotated[int, Meta(ge=1, le=CONVERSATIONS_MAX)]


PUBLISH = msgspec.json.Decoder(Publish)
MOVE_LABEL = msgspec.json.Decoder(MoveLabel)
DIFF = msgspec.json.Decoder(Diff)
REPLAY = msgspec.json.Decoder(Replay)
