"""Text that PostgreSQL can hold. Owns the one rule for characters it cannot.

PostgreSQL's text holds every character but U+0000, and UTF-8 has no lone surrogates. The server refuses
both at its door (400); what a model writes cannot be refused, so here U+0000 becomes U+2400 (SYMBOL FOR
NULL, visible) and a lone surrogate U+FFFD. Nothing is lost but the character, and every read works.
"""

from __future__ import annotations


def storable(text: str) -> str:
    """The text itself where PostgreSQL can hold it, else with the substitutes above."""
    if "\0" in text:
        text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    try:
        text.encode()
    except UnicodeEncodeError:
        # Pairs of surrogates become the character they stand for; only lone ones are replaced.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
