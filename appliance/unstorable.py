"""Which characters no text may hold. Owns the pattern alone: who refuses says it in words of its own."""

from __future__ import annotations

import re

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""U+0000 and halves of characters: no database and no encoding holds them."""
