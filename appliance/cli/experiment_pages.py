"""The operator's pages of a look at all experiments: a list, and a report for each. Never: looks."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from appliance.cli.admin_client import ask
from appliance.cli.experiment_look import Look
from appliance.cli.plain_text import visible
from appliance.errors import ApplianceError
from appliance.log import complain

LIST_FILE = "index.html"


def draw(looks: tuple[Look, ...]) -> Mapping[str, str]:
    """The pages by the names of their files."""
    from appliance.experiment.report.list_page import Listed, list_page
    from appliance.experiment.report.page import report_page

    pages = {
        f"{found.experiment.name}.html": report_page(found.subject, found.analysis)
        for found in looks
        if found.analysis is not None
    }
    files = [f"{found.experiment.name}.html" for found in looks]
    listed = tuple(
        Listed(
            subject=found.subject,
            analysis=found.analysis,
            lacks=found.lacks,
            address=file if file in pages else None,
        )
        for found, file in zip(looks, files, strict=True)
    )
    return {**pages, LIST_FILE: list_page(listed)}


def publish(options: argparse.Namespace, pages: Mapping[str, str]) -> None:
    """Give them to the server, whose operators read them at /experiments. One that is away is told of,
    and has them with the next check."""
    try:
        ask(options, "PUT", "/experiments", {"pages": pages})
    except ApplianceError as error:
        told = f"appliance: /experiments keeps what it shows: {error.message}"
        complain(visible(told), logging.WARNING)


def write(folder: Path, pages: Mapping[str, str]) -> None:
    """Write them to a folder, the list last: it links to the others. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        _replace(folder / name, text)


def _replace(path: Path, text: str) -> None:
    """In one step: whoever reads it meanwhile has the old page or the new one."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
