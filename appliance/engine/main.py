"""The engine process: loads the model, serves its socket, drains on a signal."""

from __future__ import annotations

import os
import signal
from functools import partial

import torch

from appliance._core import set_attention_threads
from appliance.config import Config, engine_configs
from appliance.engine.connections import Connections
from appliance.engine.limits import available_memory_bytes, check_memory, fit_limits, usable_cores
from appliance.engine.service import EngineService
from appliance.errors import ConfigError
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.forms import kv_type
from appliance.model.kv_cache import bytes_per_page


def run(whole: Config, number: int | None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0 drained, 1 the device is lost).

    On a signal what waits is refused, what runs may finish for `server.drain_s` and is failed then; a
    second signal ends at once. The socket appears when the model can answer. `number` says which of
    several engines this is. Raises ModelError and ConfigError before that.
    """
    config = _own(whole, number)
    # Limits are checked before the weights are read: a wrong setting is told within a second.
    check_model(config.model.path)
    model = read_config(config.model.path)
    on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
    kv_dtype = kv_type(config.engine.kv_dtype, on_gpu=on_gpu)
    limits = fit_limits(
        config.engine,
        model_context_tokens=model.context_tokens,
        bytes_per_page=bytes_per_page(model, config.engine.page_size, kv_dtype),
        cores=max(1, usable_cores() // max(1, whole.engine.devices.count("cpu"))),
        on_gpu=on_gpu,
    )
    check_memory(
        config.engine,
        on_gpu=on_gpu,
        available_bytes=available_memory_bytes(),
    )
    set_attention_threads(limits.threads)
    decoder = load_model(
        config.model.path,
        config.engine.device,
        limits.threads,
        weight_dtype=config.engine.weight_dtype,
    )
    service = EngineService(
        decoder,
        limits,
        partial(Connections, config.paths.engine_socket),
        pid=os.getpid(),
        drain_s=config.server.drain_s,
        kv_slots=config.paths.kv_slots,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: service.stop())
    return service.serve()


def _own(config: Config, number: int | None) -> Config:
    own = engine_configs(config)
    if number is None and len(own) > 1:
        raise ConfigError(
            f"engine.devices names {len(own)} engines: say which one this is (--number 0 …)"
        )
    if number is not None and not 0 <= number < len(own):
        raise ConfigError(f"--number {number}: engine.devices names {len(own)} engines, from 0 on")
    return own[number or 0]
