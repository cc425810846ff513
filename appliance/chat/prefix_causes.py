"""Why a prompt does not begin as it might: the causes by name, in words. Names mean the same wherever one
is told: of a stored turn (`prompt_explanation`) and of what is cached now (`cache_explanation`)."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = {
    "first turn": "there was no turn before it: what is cached is shared with other conversations",
    "goes on": "nothing broke it: it begins with all of the turn before",
    "cached": "all of it is cached but what is always computed",
    "cut": "the window was full: what follows the cut stands elsewhere",
    "edited message": "another message stands there: an edit, or a branch from an earlier place",
    "other reply": "another reply stands there: a swipe, or another greeting",
    "volatile text": "the template writes text after the newest message, in every prompt anew",
    "character version": "it is made with another version of the character",
    "persona": "who the user is was changed",
    "note": "the author's note was changed",
    "pinned text": "what the user has pinned was changed",
    "members": "the members of the group, or their versions, were changed",
    "scene": "what the user has set was changed",
    "lore": "lore that its card wants among the newest messages came or went",
    "template variable": "a variable of the template has another value",
    "tokenizer": "the model has another tokenizer",
    "broken character": "the reply before ended inside a character, so its last tokens differ",
    "stopped reply": "the reply before was stopped: its last token and what closes it are computed",
    "chat format": "the model's chat format writes the turn before in another way",
    "changed since": "the prompt would be made otherwise today: model or limits were changed",
    "evicted": "it was as the turn before left it, but no longer cached",
    "cold": "nothing of it was cached: never computed here, long forgotten, or dropped by a restart",
    "namespace": "the same tokens are cached as somebody else's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One of CAUSES; `detail` names what changed, "" where there is no more to say."""

    name: str
    detail: str = ""

    @property
    def why(self) -> str:
        """The cause in words."""
        return CAUSES[self.name]
