"""HTML and SVG elements whose texts and attributes are escaped. Never: knows what a report is."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"meta", "br", "hr"})


class Markup(str):
    """Text that is HTML already; every other string is a text and is escaped where it is put in."""

    __slots__ = ()


def tag(element: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """One element. `class_` is class, `aria_label` is aria-label; what is None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{told}>")
    return Markup(f"<{element}{told}>{together(*children)}</{element}>")


def together(*children: str | None) -> Markup:
    """Elements and texts, one after the other; those that are None are left out."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else escape(child, quote=False)
            for child in children
            if child is not None
        )
    )
