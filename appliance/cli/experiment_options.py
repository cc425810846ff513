"""The options that `appliance experiment` commands share, and how they name an experiment. Asks
nobody."""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path
from urllib.parse import quote

from appliance.cli.admin_client import add_place


def add_name(parser: argparse.ArgumentParser) -> None:
    """Which experiment."""
    parser.add_argument("name", metavar="NAME", help="the experiment's name")


def add_arm(parser: argparse.ArgumentParser) -> None:
    """Which of its arms."""
    parser.add_argument("arm", metavar="ARM", help="the arm's name; `status NAME` lists them")


def add_who_and_why(parser: argparse.ArgumentParser) -> None:
    """`-m` and `--author`, which are kept."""
    parser.add_argument("-m", "--message", required=True, help="why; kept in the history")
    parser.add_argument("--author", default=None, help="who (default: your user name)")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--metrics`, a folder of metrics of one's own."""
    parser.add_argument(
        "--metrics",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="metrics of your own: a metrics.yaml and the SQL files it names",
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """Which appliance, and JSON."""
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def who_and_why(options: argparse.Namespace) -> dict[str, str]:
    """What is kept with a deed."""
    author = getpass.getuser() if options.author is None else options.author
    return {"author": author, "message": options.message}


def address(options: argparse.Namespace, deed: str = "") -> str:
    """The address of the experiment that is named, and of what is done with it. Raises InvalidRequest for
    what cannot be a name: some would be read as parts of the address."""
    from appliance.experiment.definition import checked_name

    return f"/experiments/{quote(checked_name(options.name), safe='')}{deed}"
