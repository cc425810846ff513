"""What is said of the ledger's statements in more than one test."""

from __future__ import annotations

OF_ALL_TENANTS = frozenset({"live_chats", "live_of_version", "live_groups", "newest_of_character"})
"""Questions of the operator's about a character, whoever talks to it: they read every partition."""
