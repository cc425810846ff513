"""Gathers what `appliance system` decides from, and lets `system_plan.py` decide. Changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import appliance
from appliance.cli.db_choice import is_there
from appliance.cli.doctor_files import faults_of_model
from appliance.cli.installed import CONFIG, CREDENTIALS
from appliance.cli.service_states import is_open, services
from appliance.cli.system_apply import ROOT, below, installed_units, link_target, look
from appliance.cli.system_config import config_text, read_meanings
from appliance.cli.system_files import (
    BACKUPS,
    CACHE,
    COMMAND,
    GPU_CONTROL,
    PREVIOUS,
    PROGRAM,
    RUN,
    STATE,
    UNITS,
    USER,
    account_files,
    engine_units,
    listen_address,
    program_files,
    unit_file,
    unit_files,
)
from appliance.cli.system_plan import Step, plan_install, plan_uninstall
from appliance.config import Config, engine_configs, load_config, parse_config
from appliance.credentials import with_secrets
from appliance.errors import ConfigError, ModelError, NotReadable
from appliance.file_access import (
    ENTER,
    READ,
    Who,
    advice,
    hidden_at,
    no_home,
    not_allowed,
    stopped_at,
    told,
    user,
)
from appliance.model.files import check_model
from appliance.server.auth import Keys
from appliance.task_notes import notes_of

FOLDERS = (RUN, STATE, CACHE, BACKUPS, CREDENTIALS)
DELETABLE = (STATE, CACHE, BACKUPS, CONFIG.parent)
NOT_YET_MADE = Who(name=f"the user {USER}", uid=-1, gids=frozenset())
"""The service's user before it exists: it may what everybody may."""


def install_steps(
    root: Path, sources: Path, *, model: Path | None, name: str | None, start: bool
) -> tuple[Step, ...]:
    """The steps to an installed appliance; none when there is nothing left to do.

    Raises ConfigError when the configuration that is there is wrong or no service's, when the service's
    user could not reach the program, or something else lies where its command has to.
    """
    texts = _texts(sources)
    toml = _config_toml(root, model, name)
    config = _config(root, toml)
    prefix = Path(sys.prefix)
    Keys.from_config(config.server)
    if root == ROOT:
        check_reach(prefix)
    _check_command(root)
    accounts = account_files(texts)
    has_gpu = _has_gpu(root, config)
    files = (*program_files(prefix, toml), *unit_files(texts, config, has_gpu=has_gpu))
    extra = installed_units(root, UNITS, texts.keys()) - {item.path for item in files}
    return plan_install(
        accounts,
        files,
        look(root, (*accounts, *files)),
        extra | _notes(root, config, extra),
        running=_left_running(config) if root == ROOT else (),
        has_user=root != ROOT or user(USER) is not None,
        folders_missing=_missing(root),
        start=start,
    )


def steps_without_settings(root: Path, sources: Path) -> tuple[Step, ...]:
    """What differs from an installation in what no setting has a part in: accounts, and units there."""
    texts = _texts(sources)
    units = [unit_file(name, text) for name, text in texts.items() if "/" not in name]
    files = [unit for unit in units if os.path.lexists(below(root, unit.path))]
    accounts = account_files(texts)
    return plan_install(
        accounts,
        files,
        look(root, (*accounts, *files)),
        (),
        running=(),
        has_user=root != ROOT or user(USER) is not None,
        folders_missing=_missing(root),
        start=False,
    )


def _missing(root: Path) -> list[Path]:
    """The folders that are not there. One that this user cannot look for counts as there."""
    return [f for f in FOLDERS if root == ROOT and not is_there(f)]


def next_commands(root: Path, *, is_started: bool) -> list[str]:
    """What a person types after an installation, a line for each. Raises ConfigError."""
    if is_started:
        first = "appliance status     # the first start takes minutes: engines load the model"
    elif root == ROOT and is_open(services()):
        first = (
            "systemctl restart appliance.target     # what runs still has the settings of before"
        )
    else:
        first = "systemctl start appliance.target     # it starts with the box from now on"
    page = f"http://{listen_address(installed_config(root).server)}/"
    return [f"    {line}" for line in (first, "appliance doctor", f"and chat at {page}")]


def not_this_version(root: Path) -> str | None:
    """That another version is installed, and what lets this one take its place; None where it is not."""
    installed = link_target(below(root, PROGRAM))
    if root != ROOT or installed is None or installed == Path(sys.prefix):
        return None
    return (
        f"{PROGRAM} is {installed}, and this is the program in {sys.prefix}, which takes its place by "
        "`appliance system upgrade` alone: it tries the database first, and leaves a way back"
    )


def uninstall_steps(root: Path, sources: Path, delete: Iterable[Path]) -> tuple[Step, ...]:
    """The steps that take it away. Raises ConfigError for a folder that is not the appliance's."""
    folders = [folder.absolute() for folder in delete]
    for folder in folders:
        if folder not in DELETABLE:
            known = ", ".join(map(str, DELETABLE))
            raise ConfigError(f"--delete {folder}: expected one of {known}")
    others = (
        *([COMMAND] if _is_command_ours(root) else []),
        PROGRAM,
        PREVIOUS,
        *(Path("/etc") / d / "appliance.conf" for d in ("sysusers.d", "tmpfiles.d")),
    )
    links = {path for path in others if os.path.lexists(below(root, path))}
    units = installed_units(root, UNITS, _texts(sources).keys())
    return plan_uninstall(
        units | links,
        [folder for folder in folders if below(root, folder).exists()],
        is_running=root == ROOT and UNITS / "appliance.target" in units,
    )


def _texts(sources: Path) -> dict[str, str]:
    found = {
        str(path.relative_to(sources)): path.read_text(encoding="utf-8")
        for path in sorted(sources.rglob("*"))
        if path.is_file()
    }
    if not found:
        raise ConfigError(f"{sources}: the units are missing; install from a checkout or a package")
    return found


def _config_toml(root: Path, model: Path | None, name: str | None) -> str:
    """The text of the configuration for a first installation. Raises ConfigError."""
    if is_there(below(root, CONFIG)):
        if model is not None or name is not None:
            raise ConfigError(f"{CONFIG} exists: change [model] there, not with --model and --name")
        try:
            return below(root, CONFIG).read_text(encoding="utf-8")
        except PermissionError as error:
            raise NotReadable(not_allowed(CONFIG)) from error
    if model is None:
        raise ConfigError("say which model to serve: --model /srv/models/NAME (a model directory)")
    model = model.absolute()
    _check_model(root, model)
    name = model.name if name is None else name
    if not name.strip():
        raise ConfigError(f"--name {name!r}: clients call the model by it, so it may not be blank")
    values = {
        "model.path": str(model),
        "model.name": name,
        "paths.data_dir": str(STATE),
        "paths.run_dir": str(RUN),
    }
    return config_text(values, read_meanings())


def _check_model(root: Path, model: Path) -> None:
    """Raise ConfigError where services could not serve this model.

    In a tree that another system will boot it is looked at where it is there already.
    """
    try:
        if root == ROOT:
            for fault in faults_of_model(model, user(USER) or NOT_YET_MADE):
                raise ConfigError(
                    f"--model: {fault.what.removeprefix('model.path: ')}; {fault.mend}"
                )
        elif below(root, model).exists():
            check_model(below(root, model))
    except ModelError as error:
        raise ConfigError(f"--model: {error.message}") from error


def installed_config(root: Path) -> Config:
    """The settings as the installed services have them, secrets included. Raises ConfigError."""
    return with_secrets(load_config(below(root, CONFIG)), below(root, CREDENTIALS))


def _config(root: Path, toml: str) -> Config:
    if below(root, CONFIG).exists():
        return installed_config(root)
    return with_secrets(parse_config(toml, base=CONFIG.parent), below(root, CREDENTIALS))


def _has_gpu(root: Path, config: Config) -> bool:
    """Whether engines are to reach a GPU's nodes: where there are some here, or settings name a GPU of
    the system that will boot `root`, which nobody can look at yet."""
    if root == ROOT:
        return GPU_CONTROL.exists()
    return any(own.engine.device.startswith("cuda") for own in engine_configs(config))


def _notes(root: Path, config: Config, extra: Iterable[Path]) -> set[Path]:
    """What tasks have left for /metrics whose timers are `extra`."""
    tasks = [unit.stem.removeprefix("appliance-") for unit in extra if unit.suffix == ".timer"]
    notes = {note for task in tasks for note in notes_of(config.paths.data_dir, task)}
    return {note for note in notes if os.path.lexists(below(root, note))}


def _left_running(config: Config) -> Iterable[str]:
    """Engines that run though the settings have none of their number."""
    wanted = engine_units(config)
    return (
        unit
        for unit, state in services().items()
        if unit.startswith("appliance-engine@")
        and unit not in wanted
        and state.active != "inactive"
    )


def _is_command_ours(root: Path) -> bool:
    return link_target(below(root, COMMAND)) == PROGRAM / "bin" / COMMAND.name


def _check_command(root: Path) -> None:
    if os.path.lexists(below(root, COMMAND)) and not _is_command_ours(root):
        raise ConfigError(
            f"{COMMAND} is there already, and not from an installation: mv {COMMAND} {COMMAND}.old"
        )


def check_reach(prefix: Path) -> None:
    """Raise ConfigError when the service's user cannot get at the program's files."""
    who = user(USER) or NOT_YET_MADE
    places: Sequence[Path] = (
        prefix / "bin" / "appliance",
        Path(sys.executable),
        Path(appliance.__file__),
    )
    for place in places:
        hidden = hidden_at(place)
        if hidden is not None:
            raise ConfigError(f"the program: {place} {no_home(hidden)}")
        stopped = stopped_at(place, who, READ if place.suffix == ".py" else READ | ENTER)
        if stopped is not None:
            raise ConfigError(f"the program: {told(place, stopped, who)}; {advice(stopped)}")
