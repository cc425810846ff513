"""The bodies of the operator's deeds with experiments. Unknown fields are errors: one client asks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.experiment.definition import Definition

BODY_BYTES_MAX = 16 * 1024 * 1024
"""A definition with its overrides, a report, or all pages."""


class Pages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PUT /experiments: what the operator's pages show from now on, by the name in their address."""

    pages: dict[str, str]


class Lint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments/lint."""

    definition: Definition


class WhoAndWhy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every deed is stored with; all of POST /experiments/{name}/withdraw."""

    author: str
    message: str


class Create(WhoAndWhy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments."""

    definition: Definition


class Start(WhoAndWhy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments/{name}/start: with a `coverage`, this share of its users is let in."""

    coverage: Annotated[float, Meta(gt=0, le=1)] | None = None


class Pause(WhoAndWhy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments/{name}/pause."""

    arm: str


class Stop(WhoAndWhy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments/{name}/stop: with the report of this moment."""

    report: msgspec.Raw


class Ship(WhoAndWhy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /experiments/{name}/ship."""

    arm: str
    report: msgspec.Raw
    confirmed: bool = False
    anyway: bool = False


PAGES = msgspec.json.Decoder(Pages)
LINT = msgspec.json.Decoder(Lint)
CREATE = msgspec.json.Decoder(Create)
START = msgspec.json.Decoder(Start)
PAUSE = msgspec.json.Decoder(Pause)
STOP = msgspec.json.Decoder(Stop)
WITHDRAW = msgspec.json.Decoder(WhoAndWhy)
SHIP = msgspec.json.Decoder(Ship)
