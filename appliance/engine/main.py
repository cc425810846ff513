"""The engine process: loads the model, serves its socket, drains on a signal."""

from __future__ import annotations

import os
import signal
from functools import partial

from appliance._core import set_kernel_threads
from appliance.config import Config
from appliance.engine.connections import Connections
from appliance.engine.limits import fit_limits, usable_cores
from appliance.engine.service import EngineService
from appliance.model.config import read_config
from appliance.model.decoder import load_model
from appliance.model.files import check_model
from appliance.model.kv_cache import bytes_per_page


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code (0 drained, 1 the device is lost).

    On a signal what waits is refused, what runs may finish for `server.drain_s` and is failed then; a
    second signal ends at once. The socket appears when the model can answer. Raises ModelError and
    ConfigError before that.
    """
    # Limits are checked before the weights are read: a wrong setting is told within a second.
    check_model(config.model.path)
    model = read_config(config.model.path)
    limits = fit_limits(
        config.engine,
        model_context_tokens=model.context_tokens,
        bytes_per_page=bytes_per_page(model, config.engine.page_size),
        cores=usable_cores(),
    )
    set_kernel_threads(limits.threads)
    decoder = load_model(config.model.path, config.engine.device, limits.threads)
    service = EngineService(
        decoder,
        limits,
        partial(Connections, config.paths.engine_socket),
        pid=os.getpid(),
        drain_s=config.server.drain_s,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: service.stop())
    return service.serve()
