"""The bodies of the operator's questions as typed values. Unknown fields are errors: one client asks."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

AUDIT_TOKENS_MAX = 1_000_000
AUDIT_TIMEOUT_S_MAX = 3600


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /cache/purge: `everything`, or what is private of a tenant or of a conversation."""

    everything: bool = False
    tenant: str | None = None
    conversation: UUID | None = None


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /cache/audit: a conversation, or turns that ended lately, up to `tokens` tokens of them."""

    tenant: str | None = None
    conversation: UUID | None = None
    tokens: Annotated[int, Meta(ge=1, le=AUDIT_TOKENS_MAX)] = 4096
    timeout_s: Annotated[float, Meta(gt=0, le=AUDIT_TIMEOUT_S_MAX)] = 120


PURGE = msgspec.json.Decoder(PurgeRequest)
AUDIT = msgspec.json.Decoder(AuditRequest)
