"""Expected failures, each with a stable code. Never: bugs (those are asserts) or foreign errors.

`server/failures.py` maps the codes to HTTP statuses in one table.
"""

from __future__ import annotations


class ApplianceError(Exception):
    """A failure the caller is told about.

    `message` is one sentence that names the thing and the limit; `param` is the path of the offending
    field (`messages[2].content`) when the caller's input is at fault.
    """

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(ApplianceError):
    """A setting is missing, mistyped or contradicts another; the process does not start (exit 2)."""

    code = "config_error"


class NotReadable(ConfigError):
    """This user may not read a file of settings or secrets, and another may."""


class ModelError(ApplianceError):
    """Model files are missing, damaged or unsupported; the process does not start (exit 2)."""

    code = "model_error"


class TemplateError(ApplianceError):
    """A prompt template is wrong, or cannot be rendered with these values; names file, line and part."""

    code = "template_error"


class DatabaseError(ApplianceError):
    """The database cannot be started or is of a kind this code must not touch (exit 2)."""

    code = "database_error"


class LockUnusable(ApplianceError):
    """A lock file is a link, no file, or another user's; the process does not start (exit 2)."""

    code = "lock_unusable"


class InvalidTrace(ApplianceError):
    """A file is not a recorded trace, or nothing in it can be read (exit 2)."""

    code = "invalid_trace"


class InvalidRequest(ApplianceError):
    """A field of the request has a wrong type, range or combination."""

    code = "invalid_request"


class InvalidCard(InvalidRequest):
    """A character card is damaged, too large or no card at all; names the field and the limit."""

    code = "invalid_card"


class InvalidBundle(InvalidRequest):
    """The files of a character are too many, too large or damaged; names character, file and limit."""

    code = "invalid_bundle"


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the reply asked for do not fit into the model's context."""

    code = "context_length_exceeded"


class NotFound(ApplianceError):
    """No such conversation, message or model for this tenant."""

    code = "not_found"


class Conflict(ApplianceError):
    """The conversation moved on, or a turn of it is already running."""

    code = "conflict"


class LabelProtected(Conflict):
    """A protected label moves only when the caller names it once more."""

    code = "label_protected"


class Unauthorized(ApplianceError):
    """No valid API key."""

    code = "invalid_api_key"


class NotAllowed(ApplianceError):
    """The caller is known, and may not do this."""

    code = "not_allowed"


class Overloaded(ApplianceError):
    """A queue is full; try again after `retry_after_s`."""

    code = "overloaded"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class EngineUnavailable(ApplianceError):
    """The engine is starting, restarting or lost the request; safe to send again."""

    code = "engine_unavailable"
    retry_after_s = 2


class UnknownNode(ApplianceError):
    """The engine does not have the place a request goes on from; it needs the whole prompt."""

    code = "unknown_node"


class DeadlineExceeded(ApplianceError):
    """The request did not finish within its own `deadline_ms`."""

    code = "deadline_exceeded"


class InsufficientMemory(ApplianceError):
    """The engine ran out of memory on this request; other requests go on."""

    code = "insufficient_memory"
    retry_after_s = 5


class GenerationFailed(ApplianceError):
    """The engine failed on this request; the details are in its log under the request id."""

    code = "generation_failed"


class StorageUnavailable(ApplianceError):
    """The database did not take the read or write in time."""

    code = "storage_unavailable"
    retry_after_s = 2


class JournalFull(StorageUnavailable):
    """The journal takes no more: its limit is met, or the disk is full."""


class JournalHeld(ApplianceError):
    """Another process has the journal; the process does not start, the command does nothing (exit 2)."""

    code = "journal_held"


class JournalDamaged(ApplianceError):
    """A file is not a journal, or not any more."""

    code = "journal_damaged"


class JournalForeign(ApplianceError):
    """What waits in the journal is another database's; the process does not start, the command does
    nothing (exit 2)."""

    code = "journal_foreign"


class NotRunning(ApplianceError):
    """No appliance, or no PostgreSQL, answers where a command asks; nothing was done."""

    code = "not_running"


class ShuttingDown(ApplianceError):
    """The process is draining."""

    code = "server_shutdown"
    retry_after_s = 5
