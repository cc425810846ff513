"""Records what requests do to the prefix index, for `appliance cache simulate`. Never: text, or a key.

Token ids and names are replaced by others, chosen anew for each engine and kept nowhere: equal ones stay
equal, which is what a replay needs. It is a substitution and no encryption: how often ids come and which
follow each other shows, so a trace is as confidential as the chats it was made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from appliance._core import Lease
from appliance.engine.trace_file import Deed, Mark, Request, Section, encode_request, encode_section
from appliance.errors import ConfigError
from appliance.tokens import TokenIds
from appliance.wire.frames import FinishReason, Generate

log = logging.getLogger("appliance.engine")

FILE_MODE = 0o600
HIDDEN_NAME_BYTES = 16
_ROUNDS = 4
_HALF_BITS = 16
_KEY_BYTES = 32


class Hiding:
    """One secret bijection on u32, and one on names.

    Ids go through a Feistel network of four rounds whose round functions are tables of random numbers
    (Luby and Rackoff, 1988); names through keyed BLAKE2b. The empty name stays empty: it means none.
    """

    def __init__(self, random: Callable[[int], bytes]) -> None:
        halves = 1 << _HALF_BITS
        drawn = np.frombuffer(random(_ROUNDS * halves * 2), dtype="<u2")
        self._rounds = drawn.astype(np.uint32).reshape(_ROUNDS, halves)
        self._key = random(_KEY_BYTES)

    def token_ids(self, token_ids: TokenIds) -> TokenIds:
        """As many others."""
        values = np.frombuffer(token_ids, dtype="<u4")
        left, right = values >> _HALF_BITS, values & ((1 << _HALF_BITS) - 1)
        for table in self._rounds:
            left, right = right, left ^ table[right]
        return ((left << _HALF_BITS) | right).astype("<u4").tobytes()

    def name(self, name: bytes) -> bytes:
        """16 other bytes."""
        if not name:
            return name
        hashed = hashlib.blake2b(name, digest_size=HIDDEN_NAME_BYTES, key=self._key)
        return hashed.digest()


class TraceWriter:
    """One engine's section of a trace file; records nothing more once the file is full or fails.

    Each record is written at once, so that a process that dies loses none; trouble with the file never
    reaches a request.
    """

    def __init__(
        self,
        path: Path,
        section: Section,
        *,
        bytes_max: int,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Append to the file, made with mode 0600. Raises ConfigError when it cannot be, or is in use."""
        self._hiding = Hiding(random)
        self._bytes_max = bytes_max
        self._order = 0
        self._file: int | None = _open(path)
        self._size = os.fstat(self._file).st_size
        self._append(encode_section(section))

    def request(self, request: Generate, *, ordinal: int, arrived_s: float) -> RequestTrace:
        """What a request does from now on; `arrived_s` counts from any one moment."""
        return RequestTrace(self, request, ordinal=ordinal, arrived_s=arrived_s)

    def close(self) -> None:
        """Record nothing more. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def next_order(self) -> int:
        """The place of a deed among those of all requests."""
        self._order += 1
        return self._order

    def write(self, request: Request) -> None:
        """Append one request, hidden. O(its new tokens)."""
        if self._file is None:
            return
        hiding = self._hiding
        hidden = msgspec.structs.replace(
            request,
            token_ids=hiding.token_ids(request.token_ids),
            stretches=[(hiding.name(namespace), count) for namespace, count in request.stretches],
            conversation=hiding.name(request.conversation),
            reply=hiding.token_ids(request.reply),
        )
        self._append(encode_request(hidden))

    def _append(self, record: bytes) -> None:
        assert self._file is not None
        if self._size + len(record) > self._bytes_max:
            log.warning("trace_full", extra={"bytes": self._size, "bytes_max": self._bytes_max})
            self.close()
            return
        try:
            written = os.write(self._file, record)
            if written < len(record):
                # A disk that is nearly full takes a part; a reader must not find it.
                os.ftruncate(self._file, self._size)
                raise OSError(f"only {written} of {len(record)} bytes were taken")
            self._size += written
        except OSError as error:
            log.error("trace_failed", extra={"error": str(error)})
            self.close()


class RequestTrace:
    """The deeds of one request, written when it has ended and holds no pages any more.

    A request that never had pages leaves no record: it did nothing to the index.
    """

    def __init__(
        self, writer: TraceWriter, request: Generate, *, ordinal: int, arrived_s: float
    ) -> None:
        self._writer = writer
        self._request = request
        self._ordinal = ordinal
        self._arrived_s = arrived_s
        self._marks: list[Mark] = []
        self._committed = 0
        self._holds = False
        self._hit_tokens = 0
        self._node = 0
        self._end: tuple[FinishReason, int, TokenIds] | None = None

    def admitted(self, lease: Lease) -> None:
        """It has these pages, for the first time or after a preemption."""
        if not self._marks:
            self._hit_tokens = lease.hit_tokens
        self._node = lease.node
        self._holds = True
        self._committed = 0
        self._mark(Deed.ADMIT, lease.prompt_tokens, lease.tokens_reserved)

    def committed(self, count: int) -> None:
        """Its first `count` tokens are in the index."""
        if count > self._committed:
            self._committed = count
            self._mark(Deed.COMMIT, count)

    def released(self) -> None:
        """It holds no pages now."""
        self._mark(Deed.RELEASE)
        self._holds = False
        self._write_if_over()

    def ended(self, reason: FinishReason, new_tokens: int, reply: TokenIds) -> None:
        """Its terminal event is sent; `reply` with the closing tokens that are to be written."""
        self._end = (reason, new_tokens, reply)
        self._write_if_over()

    def _mark(self, deed: Deed, count: int = 0, reserved: int = 0) -> None:
        order = self._writer.next_order()
        self._marks.append(Mark(order=order, deed=deed, tokens=count, reserved=reserved))

    def _write_if_over(self) -> None:
        if self._end is None or self._holds or not self._marks:
            return
        reason, new_tokens, reply = self._end
        request, after = self._request, self._request.after
        self._writer.write(
            Request(
                ordinal=self._ordinal,
                arrived_s=self._arrived_s,
                after=None if after is None else (after.number, after.tokens),
                token_ids=request.token_ids,
                stretches=request.stretches,
                conversation=request.conversation,
                reply=reply,
                new_tokens=new_tokens,
                reason=reason,
                hit_tokens=self._hit_tokens,
                node=self._node,
                marks=self._marks,
            )
        )


def _open(path: Path) -> int:
    """The file, locked for as long as it is open. Raises ConfigError, naming the setting."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags, FILE_MODE)
    except OSError as error:
        raise ConfigError(f"engine.trace_path: {path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ConfigError(f"engine.trace_path: {path}: not a regular file")
        os.fchmod(file, FILE_MODE)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        reason = (
            "another engine writes it" if isinstance(error, BlockingIOError) else error.strerror
        )
        raise ConfigError(f"engine.trace_path: {path}: {reason}") from error
    except ConfigError:
        os.close(file)
        raise
    return file
