"""A model's chat format: the control tokens and texts around contents, as token ids.

Owns the layout and the ids of its texts. Control tokens come from here only: a content never passes
through the template, so nothing a user writes can become one. Never: contents (`render`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from appliance._core import ChatPieces, Tokenizer
from appliance.errors import InvalidRequest, ModelError
from appliance.prompt.chat_format.layout import Layout, PairLayout, derive_layout
from appliance.prompt.chat_format.probe import Placement, Refused, Shape, Slot
from appliance.prompt.chat_format.template_runner import TemplateRunner
from appliance.prompt.messages import ROLES, PromptMessage, Role
from appliance.tokens import TokenIds, common, count, head, unpack

_PIECES_MAX = 4096
_LED: tuple[Role, ...] = ("user", "assistant", "system", "user")

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PLAIN = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ {'system': '', 'user': 'User: ', 'assistant': 'Assistant: '}[m.role] + m.content + '\n\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)


class End(Enum):
    """How a prompt ends."""

    REPLY = "reply"
    """With the header of a new reply."""

    CONTINUE = "continue"
    """Right after the last content, which the model goes on writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a conversation goes on: the reply, the next message of the user, and the text after it."""

    reply: Slot
    message: Slot
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How messages become a prompt.

    `closing` are the ids that follow a reply in every longer prompt; `end_token` is the first of
    them when it is a control token, else `stop_strings` end a reply. `overhead` is how many tokens
    the format puts in front of a content at most, by role, the default system text aside.
    `following` is None when a reply stands in later prompts in another way than it was generated, or
    the place of a message depends on more than its neighbours. `takes_leads`: whether a system text may
    stand between a reply and the next message of a user.
    `fallback_reason` is set when the model's own template could not be used and a generic format
    stands in.
    """

    layout: Layout
    tokenizer: Tokenizer
    closing: TokenIds
    end_token: int | None
    stop_strings: tuple[str, ...]
    overhead: Mapping[Role, int]
    following: Following | None
    takes_leads: bool
    fallback_reason: str | None
    _table: ChatPieces | None
    _pieces: dict[str, TokenIds] = field(default_factory=dict)

    @classmethod
    def derive(cls, runner: TemplateRunner, tokenizer: Tokenizer) -> ChatFormat:
        """The format of a chat template, or a generic one when the template looks inside contents.

        The generic format is ChatML where the tokenizer has its control tokens, else plain text.
        Raises ModelError, naming file and line, when the template fails on an ordinary message.
        """
        layout = derive_layout(runner)
        if not isinstance(layout, Refused):
            return _finished(layout, tokenizer, None)
        if layout.broken_line is not None:
            raise ModelError(f"{runner.origin}, line {layout.broken_line}: {layout.sentence}")
        return cls.generic(runner, tokenizer, f"{runner.origin}: {layout.sentence}")

    @classmethod
    def generic(cls, runner: TemplateRunner, tokenizer: Tokenizer, reason: str) -> ChatFormat:
        """A format for a model whose own template is missing or cannot be used."""
        has_chatml = all(tokenizer.token_id(t) is not None for t in ("<|im_start|>", "<|im_end|>"))
        stand_in = replace(
            runner, template=_CHATML if has_chatml else _PLAIN, origin="the generic chat format"
        )
        layout = derive_layout(stand_in)
        assert not isinstance(layout, Refused)
        return _finished(layout, tokenizer, reason)

    @property
    def may_run_process(self) -> bool:
        """Whether placing messages may run the template, seconds long: not on an event loop."""
        return self.layout.may_run_process

    def accepts(self, roles: Sequence[Role]) -> bool:
        """Whether the template takes messages of these roles, in this order. May run a process, and then
        raises ModelError for a template that goes past its limits."""
        shape = Shape(roles=tuple(roles), header=True)
        return isinstance(self.layout.place(shape), Placement)

    def place(self, roles: Sequence[Role], empty: frozenset[int], end: End) -> Placement:
        """The slots of the contents and the text after the last.

        Raises InvalidRequest with the template's own sentence when it refuses the order of roles. May run
        a process, as `accepts`.
        """
        shape = Shape(roles=tuple(roles), header=end is End.REPLY, empty=empty)
        reading = self.layout.place(shape)
        if isinstance(reading, Refused):
            raise InvalidRequest(
                f"the model's chat format refuses these messages: {reading.sentence}",
                param="messages",
            )
        return reading if end is End.REPLY else replace(reading, after="")

    def slots_after_reply(self, roles: Sequence[Role]) -> tuple[Slot, ...] | None:
        """The slots of messages that follow a reply; None when the format refuses their order, or
        places depend on more than their neighbours."""
        if not isinstance(self.layout, PairLayout):
            return None
        pairs: list[tuple[Role | None, Role]] = list(
            zip(("assistant", *roles[:-1]), roles, strict=True)
        )
        found = [self.layout.slots.get(pair) for pair in pairs]
        slots = tuple(slot for slot in found if slot is not None)
        return slots if len(slots) == len(found) else None

    def pieces_for(self, messages: Sequence[PromptMessage]) -> ChatPieces | None:
        """The format as a table of ids; None when these messages' places depend on more than their
        neighbours."""
        if not isinstance(self.layout, PairLayout):
            return None
        if self.layout.holes is not None and not all(message.content for message in messages):
            return None
        return self._table

    def ids(self, text: str) -> TokenIds:
        """Ids of the format's own text, control tokens included."""
        known = self._pieces.get(text)
        if known is None:
            known = self.tokenizer.encode_template(text)
            if len(self._pieces) < _PIECES_MAX:
                self._pieces[text] = known
        return known


def _finished(layout: Layout, tokenizer: Tokenizer, reason: str | None) -> ChatFormat:
    """Add what follows a reply: the ids that its end and the next user's message have in common."""
    turns: tuple[Role, ...] = ("user", "assistant", "user")
    longer = layout.place(Shape(roles=turns, header=True))
    assert isinstance(longer, Placement)
    following = longer.slots[2].before
    closing = tokenizer.encode_template(following)
    ended = layout.place(Shape(roles=turns[:2], header=False))
    if isinstance(ended, Placement) and ended.after:
        ending = tokenizer.encode_template(ended.after)
        closing = head(closing, common(closing, ending))
    end_token = None
    if closing and not tokenizer.token_bytes(unpack(closing)[0]):
        end_token = unpack(closing)[0]
    stop = following.strip()
    overhead = _overhead(layout, tokenizer)
    led = layout.place(Shape(roles=_LED, header=True))
    return ChatFormat(
        layout=layout,
        tokenizer=tokenizer,
        closing=closing,
        end_token=end_token,
        stop_strings=(stop,) if end_token is None and stop else (),
        overhead=overhead,
        following=_following(layout, longer),
        takes_leads=isinstance(led, Placement),
        fallback_reason=reason,
        _table=_table(layout, tokenizer, overhead) if isinstance(layout, PairLayout) else None,
    )


def _table(layout: PairLayout, tokenizer: Tokenizer, overhead: Mapping[Role, int]) -> ChatPieces:
    return ChatPieces(
        tokenizer,
        slots=[
            (
                before,
                role,
                (tokenizer.encode_template(slot.before), slot.trim_left, slot.trim_right),
            )
            for (before, role), slot in layout.slots.items()
        ],
        ends=[
            (last, header, tokenizer.encode_template(text))
            for (last, header), text in layout.ends.items()
        ],
        overhead=list(overhead.items()),
    )


def _following(layout: Layout, longer: Placement) -> Following | None:
    # A reply must stand in later prompts as it was asked for.
    if not isinstance(layout, PairLayout) or longer.after != longer.slots[1].before:
        return None
    return Following(reply=longer.slots[1], message=longer.slots[2], after=longer.after)


def _overhead(layout: Layout, tokenizer: Tokenizer) -> dict[Role, int]:
    found: dict[Role, int] = dict.fromkeys(ROLES, 0)
    longest: tuple[Role, ...] = ("system", "user", "assistant", "user", "assistant", "user")
    # A system text before a later message of the user, and one after another, have more before them
    # than the first: what closes the message before.
    others: tuple[tuple[Role, ...], ...] = (
        ("user", "user"),
        ("assistant", "assistant"),
        ("system", "system", "user"),
        _LED,
    )
    for roles in (longest, longest[1:], longest[2:], *others):
        reading = layout.place(Shape(roles=roles, header=True))
        if isinstance(reading, Refused):
            continue
        for index, (role, slot) in enumerate(zip(roles, reading.slots, strict=True)):
            if index > 0 or role == "system":
                found[role] = max(found[role], count(tokenizer.encode_template(slot.before)))
    return found
