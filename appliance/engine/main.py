"""The engine process: loads the model, serves its socket, drains on a signal."""

from __future__ import annotations

import os
import signal
from functools import partial

import torch

from appliance._core import set_kernel_threads
from appliance.config import Config
from appliance.engine.connections import Connections
from appliance.engine.limits import available_memory_bytes, check_memory, fit_limits, usable_cores
from appliance.engine.service import EngineService
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.kv_cache import ELEMENT_TYPES, bytes_per_page


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0 drained, 1 the device is lost).

    On a signal what waits is refused, what runs may finish for `server.drain_s` and is failed then; a
    second signal ends at once. The socket appears when the model can answer. Raises ModelError and
    ConfigError before that.
    """
    # Limits are checked before the weights are read: a wrong setting is told within a second.
    check_model(config.model.path)
    model = read_config(config.model.path)
    kv_dtype = ELEMENT_TYPES[config.engine.kv_dtype]
    limits = fit_limits(
        config.engine,
        model_context_tokens=model.context_tokens,
        bytes_per_page=bytes_per_page(model, config.engine.page_size, kv_dtype),
        cores=usable_cores(),
    )
    check_memory(
        config.engine,
        on_gpu=config.engine.device != "cpu" and torch.cuda.is_available(),
        available_bytes=available_memory_bytes(),
    )
    set_kernel_threads(limits.threads)
    decoder = load_model(
        config.model.path,
        config.engine.device,
        limits.threads,
        weight_dtype=config.engine.weight_dtype,
        kv_dtype=config.engine.kv_dtype,
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
