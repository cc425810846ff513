"""Small tokenizers of each kind that models ship, trained or written by hand: `tokenizer.json` texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HfTokenizer

MARK = "\u2581"
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SENTENCEPIECE = ["<unk>", "<s>", "</s>"]

# The pattern of Llama 3, which most byte-level models since use in one form or another.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Name = Literal["byte-level", "llama3", "sentencepiece", "gemma", "unigram", "unigram-bytes"]
NAMES: tuple[Name, ...] = (
    "byte-level",
    "llama3",
    "sentencepiece",
    "gemma",
    "unigram",
    "unigram-bytes",
)

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 1234 o'clock.",
    "def encode(text: str) -> bytes:\n    return text.encode('utf-8')\n\n\n",
    "Größe, naïve café, Ελληνικά, Русский текст, العربية, עברית, हिन्दी, ไทย",
    "中文字符测试。日本語のテキスト、한국어 문장. 你好世界。",
    "emoji 😀😀 👩‍👧 🇨🇩 🇪🇳 🙂 and   spaces \t tabs <tag> [x] {y} |z| _under_ __init__",
    "aaaa bbbb aaaa bbbb ==== ---- ____ .... \u00a0\u3000 e\u0301 é",
] * 12


@cache
def tokenizer_json(name: Name) -> str:
    """The `tokenizer.json` of a small trained tokenizer. The same text in every process."""
    makers: dict[Name, Callable[[], str]] = {
        "byte-level": _byte_level,
        "llama3": _llama3,
        "sentencepiece": _sentencepiece,
        "gemma": _gemma,
        "unigram": lambda: _unigram(byte_fallback=False),
        "unigram-bytes": lambda: _unigram(byte_fallback=True),
    }
    return makers[name]()


def oracle(name: Name) -> HfTokenizer:
    """The crate's own Python package on the same file, control tokens off in what it encodes."""
    tokenizer = HfTokenizer.from_str(tokenizer_json(name))
    tokenizer.encode_special_tokens = True
    return tokenizer


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's `encoder.py`)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def byte_level_pieces(pieces: Iterable[bytes]) -> tuple[str, list[int]]:
    """A byte-level tokenizer that holds these pieces, and their ids."""
    letters = byte_letters()
    vocab = {name: index for index, name in enumerate([*CHATML, *letters])}
    words = ["".join(letters[byte] for byte in piece) for piece in pieces]
    ids = [vocab.setdefault(word, len(vocab)) for word in words]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return _written(model, byte_level, CHATML), ids


def sentencepiece_pieces(
    pieces: Sequence[str], decoder: Literal["metaspace", "strip"]
) -> tuple[str, list[int]]:
    """A SentencePiece BPE vocabulary with byte pieces and these pieces, and the ids of these."""
    vocab = {name: index for index, name in enumerate([*SENTENCEPIECE, *BYTE_PIECES])}
    ids = [vocab.setdefault(piece, len(vocab)) for piece in pieces]
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always"}
    chain: dict[str, list[dict[str, Any]]] = {
        "metaspace": [{"type": "ByteFallback"}, metaspace],
        "strip": [
            {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True}
    sequence = {"type": "Sequence", "decoders": chain[decoder]}
    return _written(model, sequence, SENTENCEPIECE), ids


def _written(model: dict[str, Any], decoder: dict[str, Any], control: Sequence[str]) -> str:
    added = [{"id": index, "content": name} | _CONTROL for index, name in enumerate(control)]
    fields = {"version": "1.0", "added_tokens": added, "decoder": decoder, "model": model}
    return json.dumps(fields)


_CONTROL = {
    "special": True,
    "normalized": False,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
}


def _byte_level() -> str:
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=CHATML,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    # A post-processor that would add a beginning and an end to every text.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    return str(tokenizer.to_str())


def _llama3() -> str:
    tokenizer = HfTokenizer.from_str(_byte_level())
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    fields = json.loads(tokenizer.to_str())
    fields["model"]["ignore_merges"] = True
    return json.dumps(fields)


def _strip_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [
            decoders.Replace(MARK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def _with_plain_byte_pieces(tokenizer: HfTokenizer, **model: object) -> str:
    """The trainer made the byte pieces control tokens, so that they get ids; they are none."""
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = [
        token for token in fields["added_tokens"] if token["content"] in SENTENCEPIECE
    ]
    fields["model"] |= model
    return json.dumps(fields)


def _sentencepiece() -> str:
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    tokenizer.decoder = _strip_decoder()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SENTENCEPIECE + BYTE_PIECES,
        limit_alphabet=120,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _with_plain_byte_pieces(tokenizer)


def _gemma() -> str:
    """As `sentencepiece`, but no mark is put before a text, and no space is dropped."""
    tokenizer = HfTokenizer.from_str(_sentencepiece())
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return str(tokenizer.to_str())


def _unigram(*, byte_fallback: bool) -> str:
    tokenizer = HfTokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = SENTENCEPIECE
    if byte_fallback:
        special = SENTENCEPIECE + BYTE_PIECES
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=len(special) + 300,
        special_tokens=special,
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _with_plain_byte_pieces(tokenizer, byte_fallback=byte_fallback)
