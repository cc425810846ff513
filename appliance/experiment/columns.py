"""Rows of a query as columns: numbers alone, in PostgreSQL's binary COPY format, without a Python
object each.

A query may be an operator's, so whatever it does is told with its file. Never: decides what to ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.database_failure import DatabaseFailure, FailureKind, failure_kind
from appliance.errors import InvalidRequest
from appliance.store.pool import Connection

COLUMNS_MAX = 200
BYTES_MAX = 1 << 30
"""Of one query's answer: 30 million rows of three integers."""
SIZE_MAX = 1e15
"""Of a number; sums of squares of more than that lose what they are for."""

_TYPES = {"int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8"}
_HEADER_BYTES = 19
_TRAILER_BYTES = 2

Columns = Mapping[str, NDArray[np.float64]]


async def read_columns(
    connection: Connection, origin: str, query: str, name: str, *, timeout_s: float
) -> Columns:
    """The columns of a query whose one parameter is the experiment's name, each as float64; one of them
    is `person`.

    Raises InvalidRequest naming `origin`, and the column where it is one's, for a statement that is no
    SELECT of numbers, that PostgreSQL refuses or that is at fault itself; for a value that is null, not
    finite or beyond SIZE_MAX; for too many columns or bytes, and for one that has not ended in time.
    """
    # In the parentheses of a COPY a comment in its last line would have no end.
    statement = f"{query}\n"
    await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(timeout_s * 1000))}")
    found = _Answer(origin)
    try:
        prepared = await connection.prepare(statement)
        row = _row(
            origin,
            [(attribute.name, attribute.type.name) for attribute in prepared.get_attributes()],
            [parameter.name for parameter in prepared.get_parameters()],
        )
        await connection.copy_from_query(statement, name, output=found.take, format="binary")
    except DatabaseFailure as error:
        match failure_kind(error):
            case FailureKind.CONNECTION | FailureKind.STARTING:
                raise
            case FailureKind.CANCELLED:
                told = f"was not done in the {timeout_s:.3g} s that were left"
            case _:
                told = str(error)
        raise InvalidRequest(f"{origin}: {told}") from error
    return _columns(origin, row, found.body)


class _Answer:
    """The bytes of an answer as they come, up to a limit."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._bytes = bytearray()

    async def take(self, data: bytes) -> None:
        """Keep more of it; raises InvalidRequest."""
        if len(self._bytes) + len(data) > BYTES_MAX:
            raise InvalidRequest(
                f"{self._origin}: answers with more than {BYTES_MAX >> 20} MiB: group by person"
            )
        self._bytes += data

    @property
    def body(self) -> memoryview:
        """The rows alone."""
        return memoryview(self._bytes)[_HEADER_BYTES:-_TRAILER_BYTES]


def _row(
    origin: str, columns: Sequence[tuple[str, str]], parameters: Sequence[str]
) -> np.dtype[np.void]:
    """How a row of the answer lies in memory: the number of its columns, and each after its length."""
    names = [name for name, _ in columns]
    if not names:
        raise InvalidRequest(f"{origin}: is no SELECT")
    if list(parameters) != ["text"]:
        told = ", ".join(f"${place} of {name}" for place, name in enumerate(parameters, 1))
        raise InvalidRequest(
            f"{origin}: $1::text, the experiment's name, is to be its one parameter; it has "
            f"{told or 'none'}"
        )
    if len(names) > COLUMNS_MAX:
        raise InvalidRequest(f"{origin}: {len(names)} columns, at most {COLUMNS_MAX} are allowed")
    for name, kind in columns:
        if kind not in _TYPES:
            raise InvalidRequest(f"{origin}: column {name!r} is of type {kind}: cast it to float8")
        if names.count(name) > 1:
            raise InvalidRequest(f"{origin}: {names.count(name)} columns are named {name!r}")
    if "person" not in names:
        raise InvalidRequest(f"{origin}: has no column 'person', which says whose row it is")
    fields: list[tuple[str, str]] = [("", ">i2")]
    for number, (name, kind) in enumerate(columns):
        fields += [(f"length {number}", ">i4"), (name, _TYPES[kind])]
    return np.dtype(fields)


def _columns(origin: str, row: np.dtype[np.void], body: memoryview) -> Columns:
    assert row.names is not None
    names = row.names[2::2]
    # A null has no bytes, so that all after it lie elsewhere: the first one is found, and told.
    missing = -len(body) % row.itemsize
    rows = np.frombuffer(bytes(body) + bytes(missing) if missing else body, dtype=row)
    is_null = [rows[f"length {number}"] != row[name].itemsize for number, name in enumerate(names)]
    if any(one.any() for one in is_null):
        first = min(int(one.argmax()) for one in is_null if one.any())
        column = next(name for name, one in zip(names, is_null, strict=True) if one[first])
        raise InvalidRequest(f"{origin}: a value of {column!r} is null; use coalesce")
    assert not missing
    found = {name: rows[name].astype(np.float64) for name in names}
    for name, values in found.items():
        wrong = ~(np.abs(values) <= SIZE_MAX)
        if wrong.any():
            raise InvalidRequest(
                f"{origin}: a value of {name!r} is {values[wrong.argmax()]:g}: a finite number, at "
                f"most {SIZE_MAX:g}, is wanted"
            )
    return found
