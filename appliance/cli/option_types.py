"""What options of commands may be: text and paths that can be written down in UTF-8. Pure."""

from __future__ import annotations

import argparse
from pathlib import Path


def utf8_text(text: str) -> str:
    """An option's text; raises ArgumentTypeError for bytes of a terminal that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected UTF-8") from error
    return text


def utf8_path(text: str) -> Path:
    """An option's path; raises as `utf8_text`."""
    return Path(utf8_text(text))
