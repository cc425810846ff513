"""The directory a model is loaded from, whatever file was named. Never: loading, output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.errors import ConfigError
from appliance.model.conversion import convert_once


def model_directory(source: Path, models_dir: Path, report: Callable[[str, float], None]) -> Path:
    """`source`, or the directory below `models_dir` that a .gguf file is converted into.

    A file is converted once, again only when it changes; `report` gets the stage and its fraction.
    Raises ModelError and ConfigError.
    """
    if source.is_dir():
        return source
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be made: {error.strerror}") from error
    return convert_once(
        source,
        models_dir,
        lambda done: report("converting the model", done),
        lambda done: report("waiting for another conversion", done),
    )
