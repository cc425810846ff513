"""Without a key, only this machine's own page may send requests through a browser."""

from __future__ import annotations

import pytest

from appliance.server.failures import ForbiddenOrigin
from appliance.server.origin import refuse_foreign

OWN = {"Host": "127.0.0.1:8400"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        OWN,
        {"Host": "localhost:8400", "Origin": "http://localhost:8400"},
        {"Host": "[::1]:8400", "Origin": "http://[::1]:8400", "Sec-Fetch-Site": "same-origin"},
        {**OWN, "Sec-Fetch-Site": "none"},
    ],
)
def test_requests_from_here_pass(headers: dict[str, str]) -> None:
    refuse_foreign(headers, navigation=False)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8400"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Host": "evil.example@127.0.0.1:8400x"},
        {**OWN, "Origin": "http://evil.example"},
        {**OWN, "Origin": "null"},
        {**OWN, "Origin": "http://localhost:8400"},
        {**OWN, "Origin": "http://127.0.0.1:9999"},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_from_other_sites_and_by_other_names_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ForbiddenOrigin):
        refuse_foreign(headers, navigation=False)


def test_a_link_from_elsewhere_may_open_the_page_but_not_by_another_name() -> None:
    refuse_foreign({**OWN, "Sec-Fetch-Site": "cross-site"}, navigation=True)
    with pytest.raises(ForbiddenOrigin):
        refuse_foreign({"Host": "evil.example"}, navigation=True)
