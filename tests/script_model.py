"""The text files of a made-up model whose vocabulary holds exactly the byte pieces a test names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = b"<EOS>"


def write_script_model(directory: Path, pieces: Iterable[bytes]) -> dict[bytes, int]:
    """Write tokenizer and chat format; returns the token id of every piece (and of `EOS`).

    A text of a prompt is encoded byte by byte: there are no merges. A piece that is more than one byte
    is a token that only a scripted engine uses.
    """
    letters = _byte_letters()
    vocab = {name: index for index, name in enumerate(CONTROL)}
    for letter in letters:
        vocab.setdefault(letter, len(vocab))
    ids = {EOS: vocab["<|im_end|>"]}
    for piece in pieces:
        if piece != EOS:
            word = "".join(letters[byte] for byte in piece)
            ids[piece] = vocab.setdefault(word, len(vocab))
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": name,
                "special": True,
                "normalized": False,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
            }
            for index, name in enumerate(CONTROL)
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return ids


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-in of each byte (`bytes_to_unicode` of its encoder)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters
