"""How a failure looks: the table of codes, the error envelope, a bug's log line, the door's own failures.

Never decides whether something failed, and never puts an unexpected exception's text into an answer.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from aiohttp import web

from appliance.errors import (
    ApplianceError,
    GenerationFailed,
    InsufficientMemory,
    InvalidRequest,
)
from appliance.server.json_answer import json_answer

log = logging.getLogger("appliance.server")

STATUS: dict[str, int] = {
    "invalid_request": 400,
    "invalid_card": 400,
    "invalid_bundle": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "forbidden_origin": 403,
    "not_allowed": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "conflict": 409,
    "label_protected": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "internal_error": 500,
    "generation_failed": 500,
    "template_error": 500,
    "engine_unavailable": 503,
    "insufficient_memory": 503,
    "overloaded": 503,
    "server_shutdown": 503,
    "storage_unavailable": 503,
    "unknown_node": 503,
    "deadline_exceeded": 504,
}
"""HTTP status by error code; a code that is not here is a bug of ours and answers 500."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class PayloadTooLarge(InvalidRequest):
    """The body is larger than `server.body_bytes_max`, before or after decompression."""

    code = "payload_too_large"


class BodyTimeout(InvalidRequest):
    """The body did not arrive within `server.body_timeout_s`."""

    code = "body_timeout"


class UnsupportedMediaType(InvalidRequest):
    """A content type, charset or content encoding the door does not read."""

    code = "unsupported_media_type"


class MethodNotAllowed(InvalidRequest):
    """The path exists, with other methods."""

    code = "method_not_allowed"


class ForbiddenOrigin(ApplianceError):
    """A browser sent this request from another site, or by a name that is not this machine's."""

    code = "forbidden_origin"


class ReaderTooSlow(ConnectionError):
    """The client did not take its bytes within `server.write_timeout_s`; its connection is gone."""


def as_told(error: ApplianceError, request_id: str) -> ApplianceError:
    """The failure as a client may read it: what an engine says of its own trouble stays in the log."""
    if isinstance(error, GenerationFailed | InsufficientMemory):
        cause = "ran out of memory on" if isinstance(error, InsufficientMemory) else "failed on"
        return type(error)(f"The model {cause} this reply; the log has it as {request_id}.")
    return error


def status_of(error: ApplianceError) -> int:
    """The HTTP status of a failure."""
    return STATUS.get(error.code, 500)


def envelope(error: ApplianceError, request_id: str) -> dict[str, Any]:
    """The error envelope of every endpoint and of every `error` event."""
    error = as_told(error, request_id)
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
            "request_id": request_id,
        }
    }


def internal_error(request_id: str) -> ApplianceError:
    """What a client is told about a bug: nothing but the id under which the log describes it."""
    return ApplianceError(f"Something went wrong on our side; the log has it as {request_id}.")


def log_bug(error: Exception, request_id: str) -> None:
    """Describe an unexpected exception by type and place: its text may quote a user's."""
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    log.error(
        "unexpected_error",
        extra={"request_id": request_id, "error": type(error).__name__, "where": where},
    )


def error_response(error: ApplianceError, request_id: str) -> web.Response:
    """The whole answer for a failure that happened before any byte was sent."""
    response = json_answer(envelope(error, request_id), status=status_of(error))
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(retry_after_s)
    if response.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="appliance"'
    if isinstance(error, PayloadTooLarge | BodyTimeout):
        response.force_close()
    return response
