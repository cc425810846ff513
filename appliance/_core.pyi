"""Types of the Rust extension. Token ids are packed little-endian u32 (`appliance.tokens`)."""

from collections.abc import Sequence
from typing import Self, TypeAlias, final

__all__ = [
    "Assembled",
    "ChatPieces",
    "ContentRefused",
    "Lease",
    "PrefixIndex",
    "PromptTooLong",
    "StreamDecoder",
    "Tokenizer",
    "cut",
    "join_prompt",
    "paged_attention",
    "set_attention_threads",
    "store_kv",
]

@final
class Tokenizer:
    """A model's own tokenizer with a byte-bounded memo of encodings. Thread-safe."""

    def __new__(cls, tokenizer_json: bytes, *, memo_bytes_max: int) -> Self:
        """Raises ValueError when the JSON is not a tokenizer, or its decoder needs more than a token
        and its place at the start (supported: byte-level, Replace, ByteFallback, Metaspace, Fuse,
        Strip of the start)."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""

    @property
    def is_fast(self) -> bool:
        """Ordinary texts are encoded from tables, ten times faster, with the same ids: byte-level
        vocabularies with GPT-2's or GPT-4's split."""

    @property
    def fingerprint(self) -> str:
        """BLAKE3 of the tokenizer JSON, hex."""

    def encode(self, text: str, namespace: bytes = b"") -> bytes:
        """Ids of a text, special tokens off: a control token's name in it is plain text.

        A text remembered under the same namespace gives the remembered ids. A token is a control
        token when the file marks it special, or by a name like `<|...|>`. Raises ValueError for a text
        over 8 MiB, or one that the vocabulary cannot write without a control token.
        """

    def encode_many(self, texts: Sequence[str], namespace: bytes = b"") -> list[bytes]: ...
    def encode_template(self, text: str) -> bytes:
        """Ids of a chat format's own text, in which control tokens count."""

    def remember(self, namespace: bytes, text: str, token_ids: bytes) -> None:
        """Make `encode(text, namespace)` return the ids that were generated.

        Raises ValueError unless the ids decode to exactly this text. Ids with a control token among
        them are not kept: a message of that text would bring it into a prompt.
        """

    def decode(self, token_ids: bytes) -> str:
        """The text of the ids: control tokens add none, what is not UTF-8 becomes U+FFFD as in
        `bytes.decode("utf-8", "replace")`. Raises ValueError for unknown ids."""

    def token_id(self, token: str) -> int | None: ...
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to the text (control tokens add none). Raises ValueError."""

    def memo_stats(self) -> dict[str, int]:
        """hits, misses, entries, bytes, evictions."""

@final
class StreamDecoder:
    """Turns a growing reply into text that is certain: whole characters, no part of a stop string.

    The parts, joined, equal `decode` of all ids up to the stop string. To go on with a text, push its
    ids first: SentencePiece drops the space at a start.
    """

    def __new__(cls, tokenizer: Tokenizer, *, stop: Sequence[str] = ()) -> Self:
        """Raises ValueError for an empty stop string."""

    def push(self, token_ids: bytes) -> str:
        """Text that became certain; empty once `stopped`. Raises ValueError, and takes nothing, for an
        unknown id, and after `finish`."""

    def finish(self) -> str:
        """The rest at the end of a reply; incomplete UTF-8 becomes U+FFFD. Empty once `stopped`."""

    @property
    def stopped(self) -> bool:
        """A stop string was found; the text delivered ends just before it."""

    @property
    def delivered_tokens(self) -> int:
        """How many leading tokens lie entirely inside the delivered text; one without text lies where
        the one before it ends."""

_Slot: TypeAlias = tuple[bytes, bool, bool]
_Messages: TypeAlias = tuple[Sequence[str], Sequence[str], Sequence[bytes | None], Sequence[bytes]]

class ContentRefused(ValueError):
    """A content cannot be encoded. `args`: the index of its message, and why."""

class PromptTooLong(ValueError):
    """What every prompt holds and the newest message are more than the room; names and numbers."""

@final
class Assembled:
    """A prompt: its ids, and what they are made of."""

    @property
    def token_ids(self) -> bytes:
        """What the model reads."""

    @property
    def stretches(self) -> tuple[tuple[bytes, int], ...]:
        """(namespace, tokens) in order, covering the prompt.

        The format's text in front of a public first message is public too; from the first private
        message on, every token belongs to the namespace of the latest private one. A prompt that begins
        with private text is private from its first token.
        """

    @property
    def part_tokens(self) -> tuple[int, ...]:
        """Tokens of each message with the format's text in front of it; one more for the text after the
        last, when there is any."""

@final
class ChatPieces:
    """A chat format as ids, for formats whose texts depend on neighbours only.

    Messages come as parallel lists: (roles, contents, stored ids of exactly the content or None,
    namespaces). A content without ids is encoded through the tokenizer's memo, under its namespace.
    `public` is the namespace that belongs to everybody.
    """

    def __new__(
        cls,
        tokenizer: Tokenizer,
        *,
        slots: Sequence[tuple[str | None, str, _Slot]],
        ends: Sequence[tuple[str, bool, bytes]],
        overhead: Sequence[tuple[str, int]],
    ) -> Self:
        """`slots`: role before (None at the start), role, and the ids in front of the content, whether
        its start and its end are trimmed. `ends`: last role, with the header of a reply or without,
        ids. `overhead`: what the cut counts for the format's text in front of a role's content."""

    def fit(
        self,
        messages: _Messages,
        *,
        public: bytes,
        front: Sequence[str],
        limit: int,
        reserve: int,
        step: int,
    ) -> tuple[int, int, Assembled | None]:
        """The prompt for a reply to the last message: (dropped, window_tokens, prompt).

        The first messages, which `front` names, are always kept; of the others `dropped` at the front
        are not, see `cut`. The prompt is None when the format refuses the order of roles of what is
        kept. Raises ContentRefused, PromptTooLong. Long texts are encoded with the GIL released.
        """

    def join(self, messages: _Messages, *, public: bytes, continues: bool) -> Assembled | None:
        """The prompt of all these messages, with the header of a reply; when it `continues`, it ends
        right after the last content, of which then nothing is trimmed. None when the format refuses the
        order of roles. Raises ContentRefused."""

def join_prompt(
    tokenizer: Tokenizer,
    messages: _Messages,
    *,
    public: bytes,
    slots: Sequence[_Slot],
    after: bytes,
    continues: bool,
) -> Assembled:
    """`ChatPieces.join` for messages whose places are given one by one. Raises ContentRefused."""

def cut(
    sizes: Sequence[tuple[bool, int]],
    *,
    protected: Sequence[tuple[str, int]],
    limit: int,
    reserve: int,
    step: int,
) -> tuple[int, int]:
    """Which messages still go into the prompt for a reply to the last turn: (dropped, window_tokens).

    `sizes`: whether a message opens a turn (the first one does anyway), and its tokens; `protected` are
    the names and tokens of the parts in every prompt. A fold over the turns: when a turn's opening does
    not fit into `limit - reserve`, turns go at the front until `step` tokens are free. The same path
    gives the same cut, and so does a path that begins at a cut of before. `window_tokens` are the
    protected parts and all that is kept. Raises PromptTooLong, with names and numbers, when the
    protected parts and the newest opening alone do not fit.
    """

@final
class PrefixIndex:
    """The pages of one device: free, in the radix tree, or leased. Thread-safe."""

    def __new__(cls, *, page_size: int, pages: int) -> Self:
        """Raises ValueError unless there is a page and a row, and at most 2**32 slots."""

    def admit(
        self,
        token_ids: bytes,
        stretches: Sequence[tuple[bytes, int]],
        reserve_tokens: int,
        *,
        after: int | None = None,
        conversation: bytes = b"",
    ) -> Lease | None:
        """SEAM"""

    def node_tokens(self, node: int) -> int | None:
        """SEAM"""

    def stats(self) -> dict[str, int]:
        """pages_total, pages_free, pages_cached, pages_leased, pages_evictable, nodes, hit_tokens,
        miss_tokens, evicted_pages, committed_tokens."""

    def check(self) -> None:
        """Prove that every page is in exactly one place; raises AssertionError with what is wrong."""

    def clear(self) -> int:
        """Drop every cached page that no lease locks; returns how many pages became free."""

@final
class Lease:
    """One sequence's hold on pages. Dropping it releases it."""

    @property
    def hit_tokens(self) -> int:
        """Leading tokens whose K/V are in the leased pages once `copy` has been done."""

    @property
    def copy(self) -> tuple[int, int, int] | None:
        """(source page, target page, rows): copy these rows before anything else is written.

        None when there is nothing to copy, and once a commit has said that it was done.
        """

    @property
    def page_table(self) -> bytes:
        """Page ids, u32, position order; shared pages first."""

    @property
    def tokens_reserved(self) -> int:
        """Positions the page table has room for."""

    def grow(self, tokens: int) -> bool:
        """Make room for `tokens` positions in all; False (and no change) when there are no pages."""

    @property
    def node(self) -> int:
        """SEAM"""

    @property
    def prompt_tokens(self) -> int:
        """SEAM"""

    def token_ids(self) -> bytes:
        """SEAM"""

    def append(self, token_ids: bytes) -> None:
        """SEAM"""

    def commit(self, tokens: int) -> None:
        """SEAM"""

    def release(self) -> None:
        """Unlock, and free the pages that the tree did not take. Idempotent. The page table is empty
        from then on."""

def store_kv(
    k: int,
    v: int,
    k_cache: int,
    v_cache: int,
    slots: bytes,
    *,
    kv_heads: int,
    head_dim: int,
    pages: int,
    page_size: int,
) -> None:
    """Write new K and V rows into their slots (page * page_size + row, u32).

    `k`, `v`: addresses of contiguous float32 [tokens, kv_heads, head_dim]; caches as in
    `paged_attention`. The caller keeps the tensors alive. Raises ValueError on a bad slot.
    """

def paged_attention(
    out: int,
    q: int,
    k_cache: int,
    v_cache: int,
    *,
    query_starts: bytes,
    context_lens: bytes,
    page_tables: bytes,
    page_starts: bytes,
    heads: int,
    kv_heads: int,
    head_dim: int,
    pages: int,
    page_size: int,
    scale: float,
) -> None:
    """Causal attention of a ragged batch over pages read in place, float32, on the CPU.

    `out`, `q`: addresses of contiguous [tokens, heads, head_dim]; `k_cache`, `v_cache`: contiguous
    [pages, kv_heads, page_size, head_dim]. `query_starts`: u32 [sequences + 1], row ranges of `q`;
    `context_lens`: u32 [sequences], positions including the new ones, so the queries of a sequence are
    its last positions; `page_tables`: u32, all sequences' pages one after the other;
    `page_starts`: u32 [sequences + 1], ranges of `page_tables`. Raises ValueError on lengths or
    pages that do not fit. Releases the GIL.
    """

def set_attention_threads(n: int) -> None:
    """Set how many threads share a `paged_attention` call, the caller's included (1 to 1024).

    The default is the number of cores the process may use. Results do not depend on it. Raises
    ValueError.
    """
