"""When this process began, for whoever counts how often it did. Never: the time now."""

from __future__ import annotations

import time

STARTED_AT_S = time.time()
"""Seconds since 1970: when this was first imported, at the start of an engine or a server."""
