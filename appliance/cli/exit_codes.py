"""Exit codes that the `appliance` command gives and its supervisor reads. Zero is success."""

from __future__ import annotations

EXIT_FOUND_WRONG = 1
"""The command did its work, and what it was to check is not right."""

EXIT_BAD_INPUT = 2
"""The input or the set-up is at fault: starting again cannot help."""

EXIT_READER_GONE = 141
"""Whoever read the output has gone, as `head` does: what a shell tells of an end by SIGPIPE."""

EXIT_INTERRUPTED = 130
"""Ctrl-C before anything ran that could be stopped in order."""
