"""The frame of a page that needs nothing else: its style inside, and a policy that lets nothing in."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib import resources

from appliance.experiment.report.markup import Markup, tag

_STYLE = (resources.files("appliance.experiment.report") / "report.css").read_text(encoding="utf-8")
_STYLE_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'"
"""No script, no picture, no connection: what is in the page is all there is."""


def framed(title: str, *content: Markup | None) -> str:
    """A whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("title", title),
        tag("style", Markup(_STYLE)),
    )
    page = tag("html", head, tag("body", tag("main", *content)), lang="en")
    return f"<!doctype html>\n{page}\n"
