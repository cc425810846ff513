"""Types of the Rust extension. Token ids are packed little-endian u32 (`appliance.tokens`)."""

from collections.abc import Sequence
from typing import Literal, Self, TypeAlias, final

__all__ = [
    "Assembled",
    "ChatPieces",
    "ContentRefused",
    "IntLayer",
    "IntMatrix",
    "Lease",
    "LoreMatcher",
    "PrefixIndex",
    "PromptTooLong",
    "StreamDecoder",
    "Tokenizer",
    "cut",
    "join_prompt",
    "page_keys",
    "paged_attention",
    "rms_norm",
    "rotate",
    "set_kernel_threads",
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
_Part: TypeAlias = tuple[str, int, str | None]
"""Name, truncation priority (0: never left out), block."""
_Window: TypeAlias = tuple[int, int, int, int]
"""Limit, reserve, step, draft."""
_Kept: TypeAlias = tuple[int, list[int], int]
"""Dropped, left out, window_tokens."""

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
        front: Sequence[_Part],
        after: Sequence[_Part],
        holds: Sequence[int],
        history_priority: int,
        window: _Window,
    ) -> tuple[_Kept, Assembled | None]:
        """The prompt for a reply to the last message of the history, and what is kept of it, see `cut`.

        The messages are those of `front`, the history, and those of `after`. The prompt is None when the
        format refuses the order of roles of what is kept. Raises ContentRefused, PromptTooLong. Long
        texts are encoded with the GIL released.
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
    history: Sequence[tuple[str, int]],
    *,
    front: Sequence[_Part],
    after: Sequence[_Part],
    tokens: Sequence[int],
    format_tokens: int,
    holds: Sequence[int],
    history_priority: int,
    window: _Window,
) -> _Kept:
    """What still goes into the prompt for a reply to the last turn: (dropped, left_out, window_tokens).

    `history`: roles and tokens; `tokens` are those of the parts before (`front`) and after it, whose
    names, priorities and blocks are given; `format_tokens` are in every prompt. A turn opens with a
    user's message and the system texts just before it, or what comes first; messages of the history in
    `holds` (indices) go on with the one before them.

    A fold over the turns: when a turn's opening (`draft` tokens at least) does not fit into `limit -
    reserve`, parts of a higher priority than the history go, the highest number first, blocks whole,
    then the first `dropped` messages, whole turns, until all that is gone of the path is a whole number
    of `step`s, a quarter of one at least is free, and the opening fits. Parts of a lower
    priority than the history but 0 go when the newest opening would not fit otherwise. What went does
    not come back. The same path gives the same cut, and branches are cut at the same places.
    `left_out` are indices of parts; `window_tokens` is all that is kept. Raises PromptTooLong, with names
    and numbers, when the parts that never go and the newest opening alone do not fit.
    """

_Place: TypeAlias = Literal["device", "host", "disk"]

@final
class PrefixIndex:
    """The pages of one device: free, in the radix tree, or leased. Thread-safe."""

    def __new__(
        cls,
        *,
        page_size: int,
        pages: int,
        pin_pages_max: int = 0,
        host_slots: int = 0,
        disk_slots: int = 0,
    ) -> Self:
        """`host_slots`, `disk_slots`: how many evicted pages host memory and disk keep.

        Raises ValueError unless there is a page and a row, and at most 2**32 slots."""

    def admit(
        self,
        token_ids: bytes,
        stretches: Sequence[tuple[bytes, int]],
        reserve_tokens: int,
        *,
        after: int | None = None,
        conversation: bytes = b"",
        priority: int = 0,
        resumes: bool = False,
        onload_tokens_min: int | None = None,
    ) -> Lease | None:
        """Match, lock and reserve in one call.

        Finds the longest cached prefix of all but the last token, locks it, and takes pages for
        `reserve_tokens` positions in all (at least the prompt's), evicting if needed. None (and no
        change) when the pages cannot be had. `stretches`: (namespace, tokens) in path order, covering
        `token_ids`; one of no tokens at the end names the namespace of the reply.

        With `after`, the `node` of a lease that was released after a commit, `token_ids` and
        `stretches` are only what follows the end of what it committed (its *tip*), and may be empty;
        all counts of the lease are from position 0. The cost is that of the new tokens and of the
        branches on the path. The caller vouches that the asker may know the tip's path; namespaces
        after it may be others. A tip dies
        with the page it ends in, and when a newer one takes its place: a page has one, and a
        `conversation` (any bytes; empty for none) its newest and the one continued to it.

        `priority` (0 to 255): one step keeps the pages as long as 4,096 later uses would. `resumes`: a
        preempted sequence goes on; what it finds and lacks is counted apart. `onload_tokens_min`: full
        pages in lower tiers that follow the device's in a row are restored, into pages of the lease's
        own, if they are at least so many tokens; None for never. They count as hit; see `take_moves`.

        Raises LookupError when `after` is not known (any more), and ValueError on malformed input or
        when `reserve_tokens` is more than the whole device has.
        """

    def take_moves(self) -> list[tuple[_Place, int, _Place, int, bytes]]:
        """(from, its page or slot, to, its page or slot, page key) of each move of a full page's content
        that `admit` and `Lease.grow` decided since the last call, in order.

        To be taken after each of these calls and carried out in this order, before a row is written into
        a page that the call gave (`Lease.copy` included) and before later moves. Copies may be
        asynchronous as long as whatever reads or writes one of the places later is ordered after them.
        The key, 32 bytes, is the tag to keep with a slot's content and to compare when it is read back:
        a page with another is given to `Lease.reject`. Without slots there are none.
        """

    def node_tokens(self, node: int) -> int | None:
        """Tokens from position 0 to a tip; None when it is not known (any more)."""

    def pin(self, node: int) -> None:
        """Keep the path to a tip from eviction, whatever becomes of the tip. Pages that pinned paths
        share count for each. Raises LookupError for an unknown node, ValueError, with the numbers, when
        it does not fit `pin_pages_max`."""

    def unpin(self, node: int) -> bool:
        """Whether it was pinned."""

    def explain(
        self, token_ids: bytes, stretches: Sequence[tuple[bytes, int]]
    ) -> dict[str, int | str | bytes | None]:
        """What an admission would find, and why not more; changes nothing. Pages in lower tiers count as
        found, as if `onload_tokens_min` were 0.

        hit_tokens (also the position of the first difference), of these host_tokens and disk_tokens in
        lower tiers, miss_tokens, cause (`hit cold evicted
        diverged truncated namespace`), and up to 8 tokens each of `before`, `asked` and `cached` (what
        stands there instead), None when there is nothing to show. Shown is only what stands in a
        namespace that the prompt has at that place itself: of other tenants nothing, not even that
        they have something. Raises ValueError on malformed input.
        """

    def dump(self, fingerprint: bytes) -> bytes:
        """The cached pages and what they hold, for `load` while the pages' contents are kept.
        `fingerprint`: of all that makes K/V what they are. Leases, tips, pins, counters and lower tiers
        are left out."""

    @staticmethod
    def load(
        dump: bytes,
        fingerprint: bytes,
        *,
        page_size: int,
        pages: int,
        pin_pages_max: int = 0,
        host_slots: int = 0,
        disk_slots: int = 0,
    ) -> PrefixIndex:
        """Raises ValueError, with the reason, for a dump that is damaged or of another fingerprint,
        page_size or number of pages. The lower tiers are empty."""

    def dump_tier(self, name: Literal["host", "disk"], fingerprint: bytes) -> bytes:
        """Which slots of one tier have which pages, for `load_tier` when the slots' contents survive."""

    def load_tier(self, name: Literal["host", "disk"], dump: bytes, fingerprint: bytes) -> None:
        """Fill an empty tier, of the same page_size and at least the slots in use.

        Raises ValueError, with the reason and nothing changed: the tier has pages, or the dump is
        damaged, of something else, or has a page that is already on the device or in the other tier."""

    def tier_pages(self, name: Literal["host", "disk"]) -> list[tuple[bytes, int]]:
        """(page key, slot) of one tier's pages, those that go first first."""

    def fill_tier(self, name: Literal["host", "disk"], pages: Sequence[tuple[bytes, int]]) -> None:
        """`load_tier` for slots that say themselves what is in them: (page key, slot), those that are
        to go first first.

        Raises ValueError, with the reason and nothing changed: the tier has pages, a slot is none or
        given twice, a page is given twice or is on the device or in the other tier."""

    def stats(self) -> dict[str, int]:
        """pages_total, pages_free, pages_cached, pages_leased, pages_evictable, pages_pinned, pages_host,
        pages_disk, nodes, tips, hit_tokens, miss_tokens, resumed_tokens, recomputed_tokens,
        onloaded_tokens (of hit and resumed ones), offloaded_pages, dropped_pages, evicted_pages,
        committed_tokens."""

    def check(self) -> None:
        """Prove that every page is in exactly one place, slots included; raises AssertionError with what
        is wrong."""

    def quarantine(
        self, token_ids: bytes, stretches: Sequence[tuple[bytes, int]], from_token: int
    ) -> int:
        """Position `from_token` of this path is wrong: drop every cached page whose path has its tokens
        up to there, and all that follows them; returns how many pages were dropped, in all tiers.

        Nothing finds these pages any more; those that leases hold are free when the last of these is
        released, and what these leases commit from now on is not cached. Tips and pins in the pages are
        gone. Of the lower tiers, whose pages are known by keys that do not say what they follow, all
        pages go. Copies that leases have not done yet are to be done before. Raises ValueError on
        malformed input, or when the path has no such position.
        """

    def purge(self, namespace: bytes) -> int:
        """Drop every cached page with a token in `namespace`, and what follows it, like `quarantine`."""

    def clear(self) -> int:
        """Drop every cached page that no lease or pin locks, and all of the lower tiers; returns how
        many pages of the device became free."""

@final
class LoreMatcher:
    """The compiled keys of a lorebook: finds all that a text holds in time linear in the text.

    `keys` are (text, case sensitive, whole words), `patterns` regular expressions in JavaScript's
    syntax, bare or as `/pattern/flags`, with whether a bare one is case sensitive."""

    def __new__(
        cls, *, keys: list[tuple[str, bool, bool]], patterns: list[tuple[str, bool]]
    ) -> LoreMatcher: ...
    @property
    def refused(self) -> list[tuple[int, str]]:
        """The patterns that are never found, by index, and why: look-around, back-references, what is
        no expression, and what is too large."""

    def matches(self, text: str) -> list[int]:
        """Indexes of the keys in a text, ascending; patterns are counted on behind the keys. Of a text
        of more than 16 KiB patterns see the end."""

@final
class Lease:
    """One sequence's hold on pages. Dropping it releases it."""

    @property
    def hit_tokens(self) -> int:
        """Leading tokens whose K/V are in the leased pages once `copy` and the moves have been done."""

    @property
    def onloaded_tokens(self) -> int:
        """The last of the hit tokens, as many as this, are restored by moves, into the lease's own pages.

        Like computed ones they are cached by a commit, and gone when the lease is released before: commit
        `hit_tokens` as soon as they are known to be right."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens that were admitted, those before a tip included."""

    @property
    def tokens(self) -> int:
        """Tokens admitted and appended; 0 once released."""

    @property
    def is_detached(self) -> bool:
        """Whether a quarantine dropped pages that it holds: what it commits is not cached."""

    @property
    def node(self) -> int:
        """This lease's number. It names its tip, the end of what it committed, once it is released."""

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

    def token_ids(self) -> bytes:
        """All tokens admitted and appended. O(history): for preemption and penalties only."""

    def append(self, token_ids: bytes) -> None:
        """Tokens that follow, under the last stretch: sampled, or closing a reply; not computed yet.
        Raises ValueError once released."""

    def commit(self, tokens: int) -> None:
        """The first `tokens` positions have their K/V in the leased pages: put them into the tree.
        O(new pages).

        May be called again with more, and with fewer than the prompt (a prefill that was cut off);
        with no more than before nothing happens. Rows are immutable once committed. Raises ValueError
        past the tokens admitted and appended or the reserved room, and once released.
        """

    def reject(self, tokens: int) -> None:
        """What was restored is doubtful from position `tokens` on: `hit_tokens` becomes `tokens`, and
        what follows is to be computed, into the same pages. Raises ValueError unless `tokens` is among
        the positions restored and not committed, and once released."""

    def release(self) -> None:
        """Unlock, and free the pages that the tree did not take. Idempotent. The page table is empty
        from then on."""

def page_keys(token_ids: bytes, stretches: Sequence[tuple[bytes, int]], page_size: int) -> bytes:
    """32 bytes for each full page: a BLAKE3 chain over namespaces and tokens from position 0 on, the
    identity of a page outside the device. Raises ValueError when the stretches do not cover the
    tokens."""

def store_kv(
    k: int,
    v: int,
    k_cache: int,
    v_cache: int,
    slots: bytes,
    *,
    half: bool = False,
    scales: tuple[int, int] | None = None,
    kv_heads: int,
    head_dim: int,
    pages: int,
    page_size: int,
) -> None:
    """Write new K and V rows into their slots (page * page_size + row, u32).

    `k`, `v`: addresses of contiguous float32 [tokens, kv_heads, head_dim]; caches, `half` and
    `scales` as in `paged_attention`. A float16 value is the nearest, ties to even, and infinite above
    65,504. An int8 row is symmetric: scale = largest magnitude / 127, numbers = values / scale rounded
    to the nearest, ties to even; a value that is not finite makes the scale NaN. The caller keeps the
    tensors alive. Raises ValueError on a bad slot.
    """

def paged_attention(
    out: int,
    q: int,
    k_cache: int,
    v_cache: int,
    *,
    half: bool = False,
    scales: tuple[int, int] | None = None,
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
    window: int | None = None,
) -> None:
    """Causal attention of a ragged batch over pages read in place, on the CPU.

    `out`, `q`: addresses of contiguous float32 [tokens, heads, head_dim]; `k_cache`, `v_cache`:
    contiguous [pages, kv_heads, page_size, head_dim]. The caches are float32, with `half` float16.
    With `scales`, the addresses of those of K and of V, contiguous float32 [pages, kv_heads, page_size],
    they are int8, and a value is the number times the scale of its row; where the CPU has AVX-512 VNNI
    and `head_dim` is a multiple of 32 up to 512, a row of `q` is rounded to int16 over its own largest
    value then, which moves a score by scale * largest * sum(|K|) / 65,534 at most. `query_starts`: u32
    [sequences + 1], row ranges of `q`; `context_lens`: u32 [sequences], positions including the new
    ones, so the queries of a sequence are its last positions; `page_tables`: u32, all sequences'
    pages one after the other;
    `page_starts`: u32 [sequences + 1], ranges of `page_tables`. With a `window` a query sees the last
    `window` positions up to its own; what lies in pages before them is never read. Raises ValueError
    on lengths, pages or a window that do not fit. Releases the GIL.
    """

@final
class IntMatrix:
    """Weights [outputs, inputs] as integers with a float32 scale for each output, and their products.

    Rows are symmetric as those of `store_kv`: value = number * scale, scale = largest magnitude / 127,
    or / 2047 with numbers of 12 bits. A token's activations become 16-bit numbers with a scale of their
    own, of as many bits as 32-bit sums over `inputs` can hold (14 and a sign at 1,024 inputs); with
    12 bits the sums are over 128 inputs (13 and a sign), and added in float32, in order. So a token's
    results depend neither on the batch nor on the number of threads. A token whose values are not all
    finite gets NaN in all of its outputs, and touches no other.

    Arguments that are addresses are those of contiguous tensors, which the caller keeps alive. `norm` is
    (address of the weight, float32 [inputs], epsilon) of an RMSNorm that x goes through first. Every
    method raises ValueError when a size or an address does not fit, and when rows are missing; then
    nothing was written. The GIL is released.
    """

    def __new__(cls, outputs: int, inputs: int, *, bits: int = 8, gated: bool = False) -> Self:
        """Room for a matrix of 1 to 2^24 outputs and 1 to 2^17 inputs; `bits`: 8 or 12. When `gated`,
        its outputs are [gate; up], an even number, and `gate` may be called. Raises ValueError."""

    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def nbytes(self) -> int:
        """Memory that it holds: about 1 or 1.5 bytes for each weight."""

    def push_rows(self, rows: int, count: int) -> None:
        """Quantise the next rows, float32 [count, inputs]. A row that is not finite makes its output NaN.
        Raises ValueError past `outputs`, RuntimeError while another thread uses the matrix."""

    def set_bias(self, bias: int) -> None:
        """Set what is added to the outputs, float32 [outputs]. Raises RuntimeError as `push_rows`."""

    def linear(
        self, out: int, x: int, tokens: int, *, norm: tuple[int, float] | None = None
    ) -> None:
        """out = x W^T + b: x float32 [tokens, inputs], out float32 [tokens, outputs]."""

    def add_linear(
        self, residual: int, x: int, tokens: int, *, norm: tuple[int, float] | None = None
    ) -> None:
        """residual += x W^T + b, float32 [tokens, outputs]."""

    def gate(
        self,
        out: int,
        x: int,
        tokens: int,
        *,
        activation: Literal["silu", "gelu_tanh", "gelu_erf"],
        norm: tuple[int, float] | None = None,
    ) -> None:
        """out = activation(gate) * up, where [gate; up] = x W^T + b: float32 [tokens, outputs / 2]."""

    def rows(self, out: int, token_ids: int, tokens: int) -> None:
        """The rows of the ids, int64 [tokens], as float32 [tokens, inputs]: a tied embedding."""

@final
class IntLayer:
    """A layer of a decoder in one call: x += output(attention(qkv(norm(x)))), x += down(gate(norm(x))).

    The steps are those of `IntMatrix`, `rotate`, `store_kv` and `paged_attention`, and so are the
    results. It shares the matrices, to which no rows can be added any more; norms as in `IntMatrix`,
    whose weights the caller keeps alive.
    """

    def __new__(
        cls,
        qkv: IntMatrix,
        output: IntMatrix,
        gate: IntMatrix,
        down: IntMatrix,
        *,
        norm: tuple[int, float],
        mlp_norm: tuple[int, float],
        activation: Literal["silu", "gelu_tanh", "gelu_erf"],
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int | None = None,
    ) -> Self:
        """`qkv` has the rows of all heads of q, then k, then v; `gate` is gated. Raises ValueError unless
        each matrix is filled and takes what the one before it gives."""

    def run(
        self,
        x: int,
        k_cache: int,
        v_cache: int,
        turns: tuple[int, int, int, int] | None,
        *,
        half: bool = False,
        scales: tuple[int, int] | None = None,
        slots: bytes,
        query_starts: bytes,
        context_lens: bytes,
        page_tables: bytes,
        page_starts: bytes,
        pages: int,
        page_size: int,
    ) -> None:
        """Move x, the address of float32 [tokens, inputs of qkv], through the layer, in place.

        `turns`: addresses of the positions, int64 [tokens], and of a table of `rotate`, then its rows
        and pairs; None for heads that do not turn. Caches and batch as in `paged_attention`, slots as in
        `store_kv`. The caller keeps the tensors alive. Raises ValueError on what does not fit; x is
        unchanged then. Releases the GIL.
        """

def rms_norm(out: int, x: int, weight: int, *, tokens: int, hidden: int, epsilon: float) -> None:
    """out = x / sqrt(mean(x^2) + epsilon) * weight (arXiv:1910.07467), row by row.

    Addresses of contiguous float32: `out` and `x` [tokens, hidden], which may be the same, `weight`
    [hidden]. The caller keeps the tensors alive. Raises ValueError.
    """

def rotate(
    x: int,
    positions: int,
    table: int,
    *,
    tokens: int,
    heads: int,
    head_dim: int,
    stride: int,
    rows: int,
    pairs: int,
) -> None:
    """Rotary embedding (arXiv:2104.09864) in place, of pairs that lie side by side.

    `x`: address of contiguous float32 [tokens, stride], of which the first `heads` heads of `head_dim`
    values turn, each by its first `pairs` pairs; `positions`: int64 [tokens]; `table`: complex64 [rows,
    pairs], cosine and sine by position. The caller keeps the tensors alive. Raises ValueError on a
    position outside of the table, and on sizes that do not fit.
    """

def set_kernel_threads(n: int) -> None:
    """Set how many threads share a call of a kernel, the caller's included (1 to 1024).

    The default is the number of cores the process may use. Results do not depend on it. Raises
    ValueError.
    """
