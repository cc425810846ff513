"""Rows of a query as columns: numbers alone, in PostgreSQL's binary COPY format, without a Python
object each.

Never: decides what to ask.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.database_failure import QueryAtFault
from appliance.errors import InvalidRequest
from appliance.store.pool import Connection

_TYPES = {"int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8"}
_HEADER_BYTES = 19
_TRAILER_BYTES = 2

Columns = Mapping[str, NDArray[np.float64]]


async def read_columns(connection: Connection, origin: str, query: str, name: str) -> Columns:
    """The columns of a query whose one parameter is the experiment's name, each as float64.

    Raises InvalidRequest naming `origin` for a query that PostgreSQL refuses or that divides by zero,
    a column that is no number, or a value that is null.
    """
    try:
        prepared = await connection.prepare(query)
    except QueryAtFault as error:
        raise InvalidRequest(f"{origin}: {error}") from error
    attributes = prepared.get_attributes()
    for attribute in attributes:
        if attribute.type.name not in _TYPES:
            raise InvalidRequest(
                f"{origin}: column {attribute.name!r} is of type {attribute.type.name}: cast it to float8"
            )
    names = [attribute.name for attribute in attributes]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{origin}: two columns have the same name")
    sink = io.BytesIO()
    try:
        await connection.copy_from_query(query, name, output=sink, format="binary")
    except QueryAtFault as error:
        raise InvalidRequest(f"{origin}: {error}") from error
    fields: list[tuple[str, str]] = [("", ">i2")]
    for number, attribute in enumerate(attributes):
        fields += [(f"length {number}", ">i4"), (attribute.name, _TYPES[attribute.type.name])]
    row = np.dtype(fields)
    body = sink.getbuffer()[_HEADER_BYTES:-_TRAILER_BYTES]
    if len(body) % row.itemsize:
        raise InvalidRequest(f"{origin}: a value is null; use coalesce")
    rows = np.frombuffer(body, dtype=row)
    for number, attribute in enumerate(attributes):
        if (rows[f"length {number}"] != row[attribute.name].itemsize).any():
            raise InvalidRequest(f"{origin}: a value of {attribute.name!r} is null; use coalesce")
    return {name: rows[name].astype(np.float64) for name in names}
