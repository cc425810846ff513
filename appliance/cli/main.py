"""The `appliance` command: parses the command line and hands over. Subcommands import lazily."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from appliance.cli.cache import add_cache, run_cache
from appliance.cli.db import add_db, run_db
from appliance.cli.doctor import add_doctor, run_doctor
from appliance.cli.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_READER_GONE
from appliance.cli.experiment import add_experiment
from appliance.cli.model import add_model
from appliance.cli.option_types import utf8_path
from appliance.cli.process_options import add_processes
from appliance.cli.prompt import add_prompt
from appliance.cli.status import add_status, run_status
from appliance.cli.system import add_system, run_system
from appliance.cli.task_ended import add_task_ended, run_task_ended
from appliance.errors import ApplianceError
from appliance.file_access import not_allowed
from appliance.log import complain, tell_crash

RUN: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "doctor": run_doctor,
    "status": run_status,
    "system": run_system,
    "task-ended": run_task_ended,
}
"""Commands of an installed appliance, whose modules load nothing until they run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code (2: the input or the set-up is at fault)."""
    sys.excepthook = tell_crash
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run(given)
        except SystemExit:  # The help.
            sys.stdout.flush()
            raise
    except BrokenPipeError:
        if not _is_reader_gone():
            raise
        # Nothing more can be told, and nobody wants to know.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return EXIT_READER_GONE


def _run(given: list[str]) -> int:
    options = _parser(given).parse_args(given)
    try:
        code = _dispatch(options)
        # What is left is written now: at the interpreter's end nobody could catch a failure.
        sys.stdout.flush()
        return code
    except ApplianceError as error:
        complain(f"appliance: {error.message}")
        return EXIT_BAD_INPUT
    except PermissionError as error:
        complain(f"appliance: {not_allowed(error.filename)}")
        return EXIT_BAD_INPUT
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():
            raise
        # A disk that is full, a folder that may not be written: the person at the terminal mends it.
        complain(f"appliance: {error}")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _is_reader_gone() -> bool:
    """Whether output of this process is a pipe or socket whose other end is closed, poll(2)."""
    looked = select.poll()
    for stream in (sys.stdout, sys.stderr):
        looked.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))


def _dispatch(options: argparse.Namespace) -> int:
    if options.command == "demo":
        from appliance.cli.demo import run_demo

        return run_demo(
            port=options.port, data_dir=options.data_dir, open_browser=not options.no_browser
        )
    if options.command == "cache":
        return run_cache(options)
    if options.command == "db":
        return run_db(options)
    if options.command == "model":
        from appliance.cli.model import run_model

        return run_model(options)
    if options.command == "prompt":
        from appliance.cli.prompt import run_prompt

        return run_prompt(options)
    if options.command == "experiment":
        from appliance.cli.experiment import run_experiment

        return run_experiment(options)
    if options.command in RUN:
        return RUN[options.command](options)
    if options.command == "serve":
        from appliance.cli.serve import run_serve
        from appliance.config import load_config

        return run_serve(load_config(options.config))
    from appliance.cli.run_process import run_process

    return run_process(options)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these arguments; what no other command needs is added for `db` alone."""
    parser = argparse.ArgumentParser(
        prog="appliance", description="A single-box chat appliance: chat, cache and ledger."
    )
    parser.add_argument("--version", action="version", version=f"appliance {version('appliance')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="chat with a small real model on this machine, now")
    demo.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("PORT") or "8400",
        help="port on 127.0.0.1 (default: $PORT, else 8400; 0 picks a free one)",
    )
    demo.add_argument(
        "--data-dir",
        type=utf8_path,
        default=None,
        help="where chats are kept (default: $XDG_DATA_HOME/appliance)",
    )
    demo.add_argument("--no-browser", action="store_true", help="only print the page's address")

    add_cache(commands)
    add_db(commands, arguments)
    add_model(commands)
    add_prompt(commands)
    add_experiment(commands)
    add_system(commands)
    add_status(commands)
    add_doctor(commands)
    add_processes(commands)
    add_task_ended(commands)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port from 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
