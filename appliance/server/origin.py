"""Which requests a browser may make when no API key protects this machine.

Any web page can make a visitor's browser send requests to 127.0.0.1, and a name under somebody else's
control can be made to point there (DNS rebinding). Without a key, such requests are refused here. Never
looks at keys or bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from appliance.server.auth import is_loopback
from appliance.server.failures import ForbiddenOrigin

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{1,5})?")
_OWN_SITE = ("same-origin", "none")


def refuse_foreign(headers: Mapping[str, str], *, navigation: bool) -> None:
    """Raise ForbiddenOrigin for a request that some other site's page made.

    `navigation`: the request is for the page itself, which a link from elsewhere may open.
    """
    host = headers.get("Host")
    if host is not None and not is_loopback(_host_name(host)):
        raise ForbiddenOrigin(
            "Without API keys this server answers only to the names of this machine "
            "(localhost, 127.0.0.1): the Host header names another."
        )
    if navigation:
        return
    origin = headers.get("Origin")
    if origin is not None and _origin_host(origin) != (host or "").lower():
        raise ForbiddenOrigin("Without API keys, requests from another site's page are refused.")
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITE:
        raise ForbiddenOrigin("Without API keys, requests from another site's page are refused.")


def _origin_host(origin: str) -> str | None:
    """Host and port of an Origin header in lower case; None when it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; '' when it is malformed."""
    found = _HOST.fullmatch(host)
    return found[1] if found is not None else ""
