"""A strict parser of server-sent events, after the WHATWG algorithm (HTML, 9.2.6). Reads bytes only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One dispatched event."""

    name: str
    data: str


@dataclass(slots=True)
class SseParser:
    """Feed bytes, take events. `comments` counts comment lines; `ids` collects `id` fields."""

    comments: int = 0
    ids: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that became complete. Raises UnicodeDecodeError for a line that is not UTF-8."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode("utf-8"))
            if event is not None:
                found.append(event)
        return found

    def finish(self) -> None:
        """The stream ended: an event without its empty line is lost, and a fault here."""
        assert not self._rest, "the stream ends inside a line"
        assert not self._data, "the stream ends inside an event"

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            return self._dispatch()
        if line.startswith(":"):
            assert not self._data, "a comment inside an event"
            self.comments += 1
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self.ids.append(value)
        return None

    def _dispatch(self) -> SseEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        return SseEvent(name=name or "message", data="\n".join(data)) if data else None
