"""Seeded chat text: messages as people write them, in several languages, with numbers and emoji.

The words are this project's own. The same seed gives the same messages everywhere.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

MESSAGE_CHARS = 172
"""Length that messages have on average."""

_LANGUAGES = (
    # English is the most frequent, as in the vocabulary of the model.
    "the a you and of to that was in it my this with for her his not but what we they about there "
    "dragon tavern castle whisper sword moonlight laughs slowly remember yesterday morning "
    "because thinking something strange beautiful would should never always together adventure "
    "continue story please explain maybe friend tonight promise window garden river coffee",
    "the I'm don't it's you're I'll can't we've that's didn't quickly answer question school weekend "
    "project computer music movie weather hungry tired happy nervous actually honestly whatever "
    "listen smiles nods sighs looks away leans closer voice shadow forest mountain letter secret",
    "que de la el en y no una por con para como pero más está todo porque cuando también nunca "
    "siempre mañana corazón canción noche amigo dónde gracias",
    "ich und nicht die der das ist mit auf für aber vielleicht heute Geschichte Straße schön Mädchen "
    "wirklich zusammen erzähl Abenteuer Frühstück möchte",
    "je ne pas le la les et est dans pour avec mais peut-être aujourd'hui histoire château forêt "
    "très déjà bientôt être écouter",
    "я не что и в на это как мы она они ночь история друг почему сегодня хорошо дракон помню",
    "私 は あなた と 今日 物語 続けて ください 本当 ですか 森 の 中 で 静か に 笑った",
    "我 你 今天 故事 继续 为什么 真的 朋友 月亮 森林 里 一起 走 吧 谢谢",
    "मैं तुम कहानी आज क्यों दोस्त रात बहुत अच्छा है",
    "انا انت اليوم قصة لماذا صديق الليل جميل جدا",
)
_WEIGHTS = (52, 30, 4, 4, 3, 2, 2, 1, 1, 1)
_EMOJI = ("😀", "😂", "❤️", "👍🏽", "🐉", "✨", "🥺", "👩‍🚀", "🔥", "🤔")
_ENDS = (". ", ". ", "! ", "? ", "... ", ", ", ", ", "; ", " — ", "\n", '" ', "*\n")


def messages(count: int, seed: int, chars: int = MESSAGE_CHARS) -> list[str]:
    """So many messages of about `chars` characters each."""
    source = random.Random(seed)
    languages = [language.split() for language in _LANGUAGES]
    return [_message(source, languages, chars) for _ in range(count)]


def _message(source: random.Random, languages: list[list[str]], chars: int) -> str:
    words = source.choices(languages, _WEIGHTS)[0]
    # The last sentence goes beyond what is wanted by half its length.
    wanted = source.randint(chars // 2, chars + chars // 2) - 21
    text = source.choice(("", "", "*", '"'))
    while len(text) < wanted:
        sentence = " ".join(source.choices(words, k=source.randint(3, 12)))
        text += sentence[0].upper() + sentence[1:]
        extra = source.random()
        if extra < 0.06:
            text += " " + source.choice(_EMOJI)
        elif extra < 0.14:
            text += f" {source.randint(1, 2030)}"
        text += source.choice(_ENDS)
    return text.strip()


def english(source: random.Random, words: int) -> str:
    """So many English words, drawn from a source."""
    known = f"{_LANGUAGES[0]} {_LANGUAGES[1]}".split()
    return " ".join(source.choices(known, k=words))


def model_directory() -> Path:
    """The demo model: `$APPLIANCE_MODEL`, else where `make demo` put it.

    Raises SystemExit with what to do when it is not there.
    """
    chosen = os.environ.get("APPLIANCE_MODEL")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(chosen) if chosen else cache / "appliance/models/SmolLM2-135M-Instruct"
    if not (path / "tokenizer.json").is_file():
        raise SystemExit(f"no tokenizer in {path}: run `make demo` once, or set APPLIANCE_MODEL")
    return path


def tokenizer_json() -> bytes:
    """The demo model's tokenizer file."""
    return (model_directory() / "tokenizer.json").read_bytes()
