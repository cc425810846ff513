"""The engine process: loads the model, serves its socket, drains on a signal."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import torch

from appliance._core import set_kernel_threads
from appliance.config import Config, EngineConfig, engine_configs
from appliance.engine.connections import Connections
from appliance.engine.limits import (
    EngineLimits,
    available_memory_bytes,
    check_memory,
    fit_limits,
    usable_cores,
)
from appliance.engine.service import EngineService
from appliance.engine.trace import TraceWriter
from appliance.engine.trace_file import FORMAT, Section
from appliance.errors import ConfigError
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.kv_cache import bytes_per_page, kv_type
from appliance.service_manager import ServiceManager
from appliance.spans import tracer


def run(whole: Config, number: int | None, manager: ServiceManager) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0 drained, 1 the device is lost).

    On a signal what waits is refused, what runs may finish for `server.drain_s` and is failed then; a
    second signal ends at once. The socket appears when the model can answer. `number` says which of
    several engines this is, `manager` hears of it. Raises ModelError and ConfigError before that.
    """
    config = _own(whole, number)
    # Limits are checked before the weights are read: a wrong setting is told within a second.
    check_model(config.model.path)
    model = read_config(config.model.path)
    on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
    kv_dtype = kv_type(config.engine.kv_dtype, on_gpu=on_gpu)
    page_bytes = bytes_per_page(model, config.engine.page_size, kv_dtype)
    limits = fit_limits(
        config.engine,
        model_context_tokens=model.context_tokens,
        bytes_per_page=page_bytes,
        cores=max(1, usable_cores() // max(1, whole.engine.devices.count("cpu"))),
        on_gpu=on_gpu,
    )
    check_memory(
        config.engine,
        on_gpu=on_gpu,
        available_bytes=available_memory_bytes(),
    )
    trace = _trace(config.engine, limits, page_bytes // limits.page_size)
    spans = tracer(config.traces.endpoint, config.paths.engine_name)
    set_kernel_threads(limits.threads)
    with manager.working("loading the model"):
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
            trace=trace,
            manager=manager,
            tracer=spans,
        )
    for stopping in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stopping, lambda _number, _frame: service.stop())
    try:
        return service.serve()
    finally:
        spans.close()


def _own(config: Config, number: int | None) -> Config:
    own = engine_configs(config)
    if number is None and len(own) > 1:
        raise ConfigError(
            f"engine.devices names {len(own)} engines: say which one this is (--number 0 …)"
        )
    if number is not None and not 0 <= number < len(own):
        raise ConfigError(f"--number {number}: engine.devices names {len(own)} engines, from 0 on")
    return own[number or 0]


def _trace(config: EngineConfig, limits: EngineLimits, bytes_per_token: int) -> TraceWriter | None:
    """The recorder of this run, closed by the end of the process. Raises ConfigError."""
    if config.trace_path is None:
        return None
    section = Section(
        format=FORMAT,
        started_at=time.time(),
        page_size=limits.page_size,
        pages=limits.pages,
        host_slots=limits.host_slots,
        disk_slots=limits.disk_slots,
        bytes_per_token=bytes_per_token,
    )
    return TraceWriter(config.trace_path, section, bytes_max=config.trace_bytes_max)
