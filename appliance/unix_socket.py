"""A unix socket that a process listens on for others of its user. Never: accepts a connection."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from appliance.errors import ConfigError

SOCKET_MODE = 0o600
SOCKET_PATH_BYTES_MAX = 107
BACKLOG = 64


def bind_unix_socket(path: Path) -> socket.socket:
    """A listening unix socket with mode 0600; replaces a socket that nobody listens on any more.

    Raises ConfigError when the path is too long, is another kind of file, or is served by someone.
    """
    length = len(bytes(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"{path}: a socket's path may have {SOCKET_PATH_BYTES_MAX} bytes, this has {length}; "
            "choose a shorter paths.run_dir"
        )
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file gets the socket's own mode, so no moment passes with a wider one.
        os.fchmod(listening.fileno(), SOCKET_MODE)
        listening.bind(str(path))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigError(f"{path}: cannot listen: {error.strerror}") from error
    return listening


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path}: is not a socket; move it away or choose another paths.run_dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failure = probe.connect_ex(str(path))
    if failure != errno.ECONNREFUSED:
        # Connected, or its backlog is full: someone listens.
        raise ConfigError(f"{path}: another process is listening here")
    path.unlink()
