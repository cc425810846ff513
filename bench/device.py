"""One GPU end to end, alone, without network, in a few minutes.

    python -m bench.device                          a random model of 0.3 billion weights on the GPU
    python -m bench.device --model DIRECTORY        and a real one
    python -m bench.device --device cpu --shape tiny    a try-out on any machine

Prints which way attention went, how far the device's logits are from the CPU's, how long decode steps
take by batch, how fast pages move to host memory and back, and a load of chats.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from appliance.engine.runner import Runner
from appliance.log import configure_logging
from appliance.model.batch import StepBatch
from appliance.model.decoder import Decoder, load_model
from appliance.model.kv_cache import KVCache, kv_type
from appliance.model.weight_form import WeightDtype
from bench.device_load import Load, run_load
from bench.measure import Timing, duration, seconds, timing
from tests.model_fixtures import TinyModel, tiny_model, write_directory
from tests.unit.model.steps import Piece, step

ROUNDS = 20
WARM_ROUNDS = 3
FLOAT_TOLERANCE = 1e-2
"""Of float32 logits, as a share of their spread: the orders of sums differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the random model and of what is run on it."""

    model: dict[str, Any]
    kv_heads: int
    page_size: int
    pages: int
    context: int
    batches: tuple[int, ...]
    load: Load


SHAPES = {
    "tiny": Shape(
        model={"vocab_size": 300},
        kv_heads=1,
        page_size=16,
        pages=20,
        context=40,
        batches=(1, 4),
        load=Load(
            chats=6,
            turns=2,
            at_once=3,
            first_tokens=48,
            message_tokens=8,
            reply_tokens=4,
            host_slots=60,
        ),
    ),
    "box": Shape(
        model={
            "vocab_size": 32_000,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 2816,
            "max_position_embeddings": 4096,
        },
        kv_heads=1,
        page_size=16,
        pages=12_000,
        context=2000,
        batches=(1, 2, 4, 8, 16, 32, 64),
        load=Load(
            chats=256,
            turns=6,
            at_once=32,
            first_tokens=600,
            message_tokens=40,
            reply_tokens=48,
            host_slots=20_000,
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; returns 1 when float32 logits are further apart than rounding explains."""
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=list(SHAPES), default="box")
    parser.add_argument("--model", type=Path)
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    print(f"torch {torch.__version__}, {_name(options.device)}")
    started = time.perf_counter()
    is_right = True
    with tempfile.TemporaryDirectory(prefix="appliance-bench-") as folder:
        random_model = write_directory(Path(folder) / "model", _scaled(shape))
        for directory in (random_model, options.model):
            if directory is not None:
                print(f"\n{directory.name}")
                is_right &= _parity(directory, options.device, shape)
                _speed(directory, options.device, shape)
    print(f"\ndone in {time.perf_counter() - started:.0f} s")
    return 0 if is_right else 1


def _parity(directory: Path, device: str, shape: Shape) -> bool:
    """Compare logits of a prompt and of decode steps with the CPU's in float32."""
    on_gpu = device != "cpu"
    on_cpu = load_model(directory, "cpu", None)
    needed = max(shape.context + 4, shape.load.chat_tokens)
    if on_cpu.config.context_tokens < needed:
        raise SystemExit(f"{directory}: its context is under {needed} tokens: use --shape tiny")
    expected = _logits(on_cpu, torch.float32, shape)
    is_right = True
    forms: tuple[WeightDtype, ...] = ("float32", "bfloat16", "int8")
    for form in forms:
        decoder = load_model(directory, device, None, weight_dtype=form)
        kinds = [torch.float32, torch.int8]
        if on_gpu and form != "float32":
            kinds.append(torch.bfloat16)
        for kind in kinds:
            difference, same = _differences(_logits(decoder, kind, shape), expected)
            print(
                f"parity: weights {form}, K/V {str(kind).removeprefix('torch.')}: logits differ by "
                f"{difference:.2g} of their spread, the likeliest token is the same for {same:.1%}"
            )
            if form == "float32" and kind == torch.float32:
                is_right = difference < FLOAT_TOLERANCE
    return is_right


def _logits(decoder: Decoder, kind: torch.dtype, shape: Shape) -> torch.Tensor:
    """Of a prompt of one sequence and then decode steps of two, of which one is the first's copy."""
    count, size = shape.context, shape.page_size
    pages = list(range(-(-(count + 4) // size)))
    cache = decoder.new_cache(2 * len(pages), size, kind)
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(3, decoder.config.vocab_size, (count + 4,), generator=random).tolist()
    other = [page + len(pages) for page in pages]
    parts = []
    for own in (pages, other):
        prompt = step([Piece(token_ids=ids[:count], start=0, pages=own)], page_size=size)
        parts.append(decoder.forward(prompt, cache))
    for place in range(count, count + 4):
        pieces = [Piece(token_ids=[ids[place]], start=place, pages=own) for own in (pages, other)]
        parts.append(decoder.forward(step(pieces, page_size=size), cache))
    return torch.cat(parts).cpu()


def _differences(logits: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Largest difference by the spread of the expected, and how often the likeliest is the same."""
    difference = float((logits - expected).abs().max() / expected.std())
    return difference, float((logits.argmax(-1) == expected.argmax(-1)).float().mean())


def _speed(directory: Path, device: str, shape: Shape) -> None:
    """Decode steps launched kernel by kernel and as graphs, copies of pages, and chats."""
    decoder = load_model(directory, device, None, weight_dtype="auto")
    kind = kv_type("auto", on_gpu=device != "cpu")
    cache = decoder.new_cache(shape.pages, shape.page_size, kind)
    for batch in shape.batches:
        print(f"decode of {batch}, launched: {_decode_time(decoder, cache, batch, shape)}")
    with _timed("warm-up and captures"):
        Runner(decoder, cache).warm_up(
            sequences_max=max(shape.batches), context_tokens_max=decoder.config.context_tokens
        )
    if decoder.device.type == "cuda":
        for batch in shape.batches:
            print(f"decode of {batch}, captured: {_decode_time(decoder, cache, batch, shape)}")
    _copies(cache)
    with _timed("chats"):
        outcome = run_load(decoder, cache, shape.load)
    print("\n".join(outcome.lines()))


def _decode_time(decoder: Decoder, cache: KVCache, sequences: int, shape: Shape) -> str:
    """Best and median of a step of decodes behind contexts of `shape.context` tokens."""
    width = -(-shape.context // shape.page_size)
    room = cache.pages // width
    batch = step(
        [
            # Where the cache has no room for so many, contexts are read twice; the places written differ.
            Piece(
                token_ids=[3 + number],
                start=shape.context - 1 - number // room,
                pages=range(number % room * width, (number % room + 1) * width),
            )
            for number in range(sequences)
        ],
        page_size=shape.page_size,
    )
    spent = [seconds(lambda: _forward(decoder, batch, cache)) for _ in range(ROUNDS)]
    return _figure(timing(spent[WARM_ROUNDS:], 1))


def _forward(decoder: Decoder, batch: StepBatch, cache: KVCache) -> None:
    """A step whose end the CPU waits for, as the sampler does."""
    decoder.forward(batch, cache).argmax(-1).cpu()


def _copies(cache: KVCache) -> None:
    """Bandwidth of pages to host memory and back."""
    count, size = min(cache.pages, 1000), cache.page_content_bytes
    pinned = cache.data.device.type == "cuda"
    arena = torch.empty((count, size), dtype=torch.uint8, pin_memory=pinned)

    def out() -> None:
        for page in range(count):
            cache.read_page(page, arena[page])
        cache.finish_copies()

    def back() -> None:
        for page in range(count):
            cache.write_page(page, arena[page])
        cache.finish_copies()

    for name, copy in (("to host", out), ("from host", back)):
        best = timing([seconds(copy) for _ in range(WARM_ROUNDS)], 1).best
        print(f"pages of {size:,} bytes {name}: {count * size / best / 1e9:.2f} GB/s")


def _scaled(shape: Shape) -> TinyModel:
    """The random model, with matrices that keep the size of what goes through them."""
    model = tiny_model(kv_heads=shape.kv_heads, **shape.model)
    tensors = {
        name: tensor if tensor.ndim == 1 else tensor * (5 / tensor.shape[1] ** 0.5)
        for name, tensor in model.tensors.items()
    }
    return TinyModel(config=model.config, tensors=tensors)


def _name(device: str) -> str:
    return "CPU" if device == "cpu" else torch.cuda.get_device_name(device)


def _figure(spent: Timing) -> str:
    return f"{duration(spent.best)} ({duration(spent.median)})"


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"{what}: {duration(time.perf_counter() - started)}")


if __name__ == "__main__":
    configure_logging()
    raise SystemExit(main())
