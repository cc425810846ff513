"""The settings of every process: one TOML file, parsed once into frozen values and checked together.

Owns the defaults, the limits, and an example of each setting that has no default. Never: reads the
environment, or opens anything a setting names.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from appliance.database_url import check_database_url
from appliance.errors import ConfigError, NotReadable
from appliance.file_access import not_allowed

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

ENGINES_MAX = 16

NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Device = Annotated[str, Meta(pattern="^(cpu|cuda:(0|[1-9][0-9]?))$")]
Sha256Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and a misspelt setting is an error."""


class ApiKey(_Section, frozen=True, kw_only=True):
    """One caller: the SHA-256 of its key, the tenant it speaks for, whether it may add characters."""

    tenant: Annotated[str, Meta(max_length=128, pattern="^[^\\x00-\\x1f\\x7f]+$")]
    sha256: Sha256Hex
    operator: bool = False


class ServerConfig(_Section, frozen=True, kw_only=True):
    """The HTTP door. An empty `api_keys` is allowed on loopback only."""

    host: str = "127.0.0.1"
    port: Port = 8400
    api_keys: tuple[ApiKey, ...] = ()
    body_bytes_max: PositiveInt = 8 * MIB
    body_timeout_s: Seconds = 20
    drain_s: Seconds = 10
    streams_max: PositiveInt = 512
    ping_interval_s: Seconds = 10
    write_buffer_bytes_max: PositiveInt = 256 * KIB
    write_timeout_s: Seconds = 30
    new_tokens_default: PositiveInt = 512
    tokenizer_memo_bytes: PositiveInt = 64 * MIB


class ModelSource(_Section, frozen=True, kw_only=True):
    """A model directory (Hugging Face layout) or a .gguf file, and the name clients call it by."""

    path: Path
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class EngineConfig(_Section, frozen=True, kw_only=True):
    """Batching and memory of the engine. `device` is `auto`, `cpu` or a torch device such as `cuda:0`.

    `devices` in its place names one for each of several engines; every other setting holds for each.

    `pin_pages_max`: pages that pinned conversations may keep (None: a quarter of all). The audit computes
    at most `audit_tokens_per_minute` tokens again, in idle time; 0 leaves only audits on demand.

    The lower tiers are off by default: on a CPU, memory is better given to `kv_cache_bytes`, whose pages
    need no copies, and a file that holds what was said in chats is made only where it was asked for.
    """

    device: Annotated[str, Meta(pattern="^(auto|cpu|cuda(:[0-9]{1,2})?)$")] = "auto"
    devices: Annotated[tuple[Device, ...], Meta(max_length=ENGINES_MAX)] = ()
    kv_cache_bytes: PositiveInt = 2 * GIB
    weight_dtype: Literal["auto", "float32", "bfloat16", "int12", "int8"] = "auto"
    kv_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8"] = "auto"
    host_cache_bytes: NonNegativeInt = 0
    disk_cache_bytes: NonNegativeInt = 0
    page_size: Annotated[int, Meta(ge=1, le=256)] = 16
    context_tokens_max: Annotated[PositiveInt | None, Meta(examples=[8192])] = None
    running_max: PositiveInt = 16
    waiting_max: PositiveInt = 256
    waiting_per_tenant_max: Annotated[PositiveInt | None, Meta(examples=[64])] = None
    step_tokens_max: PositiveInt = 512
    step_ms_max: Annotated[PositiveInt | None, Meta(examples=[100])] = None
    threads: Annotated[PositiveInt | None, Meta(examples=[8])] = None
    pin_pages_max: Annotated[NonNegativeInt | None, Meta(examples=[1000])] = None
    audit_tokens_per_minute: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    trace_path: Annotated[Path | None, Meta(examples=["/var/lib/appliance/trace"])] = None
    trace_bytes_max: PositiveInt = GIB


class DatabaseConfig(_Section, frozen=True, kw_only=True):
    """Without a `url`, an embedded PostgreSQL runs in `paths.data_dir`.

    A finished turn that the database does not take within `journal_after_s` goes to the journal, which
    holds at most `journal_bytes`; other changes are tried again for `write_retry_s`.

    `pooling` is `transaction` where `url` leads to a pooler that gives a session of the server for one
    transaction at a time (pgbouncer's `pool_mode = transaction`).
    """

    url: Annotated[str | None, Meta(examples=["postgresql://chat@db.example/chat"])] = None
    pooling: Literal["session", "transaction"] = "session"
    pool_max: PositiveInt = 4
    statement_timeout_ms: PositiveInt = 5000
    write_retry_s: Seconds = 30
    journal_after_s: Seconds = 1
    journal_bytes: Annotated[int, Meta(ge=4 * MIB, le=GIB)] = 512 * MIB

    def __post_init__(self) -> None:
        if self.url is not None:
            try:
                check_database_url(self.url)
            except ValueError as error:
                raise ValueError(f"database.url {error}") from error


class TracesConfig(_Section, frozen=True, kw_only=True):
    """Without an `endpoint` (OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces) none are told."""

    endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://[^\\s/]+(/\\S*)?$")] | None,
        Meta(examples=["http://127.0.0.1:4318/v1/traces"]),
    ] = None


class Paths(_Section, frozen=True, kw_only=True):
    """Where state lives, and where sockets do (`run_dir`; a socket's path is limited to 107 bytes).

    `engine_name` tells the files of several engines apart; `engine_configs` sets it.
    """

    data_dir: Path
    run_dir: Path
    engine_name: Annotated[str, Meta(pattern="^engine(-[0-9]{1,2})?$")] = "engine"

    @property
    def engine_socket(self) -> Path:
        """The engine's unix socket."""
        return self.run_dir / f"{self.engine_name}.sock"

    @property
    def admin_socket(self) -> Path:
        """The server's unix socket for the operator's commands."""
        return self.run_dir / "admin.sock"

    @property
    def kv_slots(self) -> Path:
        """The engine's file of cached pages, its disk tier."""
        return self.data_dir / "kv" / self.engine_name / "slots"

    @property
    def models_dir(self) -> Path:
        """Converted forms of .gguf files."""
        return self.data_dir / "models"

    @property
    def journal_dir(self) -> Path:
        """The server's journal of turns that the database could not take."""
        return self.data_dir / "journal"

    @property
    def postgres_dir(self) -> Path:
        """The embedded cluster."""
        return self.data_dir / "postgres"


class Config(_Section, frozen=True, kw_only=True):
    """Everything a process needs to know."""

    model: ModelSource
    paths: Paths
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    database: DatabaseConfig = DatabaseConfig()
    traces: TracesConfig = TracesConfig()

    def __post_init__(self) -> None:
        _check_devices(self.engine)
        if self.engine.step_tokens_max < self.engine.running_max:
            raise ValueError(
                f"engine.step_tokens_max ({self.engine.step_tokens_max}) must be at least "
                f"engine.running_max ({self.engine.running_max}): a step decodes one token of each"
            )


def engine_configs(config: Config) -> tuple[Config, ...]:
    """The configuration of each engine process: all the same, but for its device and its name.

    Without `engine.devices` there is one, called "engine"; else they are "engine-0", "engine-1" …,
    and each adds its name to that of the trace.
    """
    if not config.engine.devices:
        return (config,)
    trace, replace = config.engine.trace_path, msgspec.structs.replace
    return tuple(
        replace(
            config,
            engine=replace(
                config.engine,
                device=device,
                devices=(),
                trace_path=trace and trace.with_name(f"{trace.name}.engine-{number}"),
            ),
            paths=replace(config.paths, engine_name=f"engine-{number}"),
        )
        for number, device in enumerate(config.engine.devices)
    )


def _check_devices(engine: EngineConfig) -> None:
    if engine.devices and engine.device != "auto":
        raise ValueError(
            f"engine.device ({engine.device}) and engine.devices ({', '.join(engine.devices)}) "
            "exclude each other"
        )
    gpus = [device for device in engine.devices if device != "cpu"]
    for gpu in gpus:
        if gpus.count(gpu) > 1:
            raise ValueError(f"engine.devices names {gpu} twice: one engine uses all of a GPU")


def load_config(path: Path) -> Config:
    """Read and check a configuration file; relative paths in it are relative to the file.

    Raises ConfigError naming the file, the setting and what was expected.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except PermissionError as error:
        raise NotReadable(not_allowed(path)) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_config(text, base=path.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def parse_config(text: str, *, base: Path) -> Config:
    """Check the text of a configuration file; raises ConfigError."""
    try:
        config = msgspec.convert(tomllib.loads(text), Config, dec_hook=_decode_path)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(str(error)) from error
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, path=base / config.model.path),
        paths=msgspec.structs.replace(
            config.paths,
            data_dir=base / config.paths.data_dir,
            run_dir=base / config.paths.run_dir,
        ),
        engine=msgspec.structs.replace(
            config.engine,
            trace_path=config.engine.trace_path and base / config.engine.trace_path,
        ),
    )


def dump_config(config: Config) -> str:
    """TOML text that `parse_config` reads back to an equal value."""
    lines: list[str] = []
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(config, enc_hook=str)
    for name, settings in sections.items():
        lines.append(f"[{name}]")
        lines += [
            f"{key} = {toml_value(value)}" for key, value in settings.items() if value is not None
        ]
        lines.append("")
    return "\n".join(lines)


def _decode_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError(f"Expected a path, got `{value!r}`")


def toml_value(value: object) -> str:
    """A setting's value as a file of settings has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    # A JSON string, number or boolean is also a TOML one, DEL aside.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
