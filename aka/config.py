"""Settings and where each came from: defaults < user file < project file < AKA_* variables < flags.

The user file is `$XDG_CONFIG_HOME/aka/config.toml`; the project file is `aka.toml`, or else `[tool.aka]` of
`pyproject.toml`, in the current folder. Importing this module costs pydantic's import: do it where settings are used.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from aka.errors import ConfigError

ChipName = Literal["v4", "v5e", "v5p", "v6e", "tpu7x"]
_PREFIX = "AKA_"
_TABLE = ("tool", "aka")


class Settings(BaseSettings):
    """What a run may be told. Fractions are of 1; `out` is the folder of all runs; `seed` seeds every choice.

    Made by `load_settings`; made directly, it reads nothing but its arguments.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=_PREFIX, env_ignore_empty=True)

    chip: ChipName = "v5e"
    proposer: Literal["offline"] = "offline"
    max_trials: int = Field(40, gt=0)
    max_minutes: float = Field(10.0, gt=0, allow_inf_nan=False)
    seed: int = Field(0, ge=0)
    min_gain: float = Field(0.03, ge=0, le=1)
    patience: int = Field(8, gt=0)
    dropout: Literal["off", "mask", "fresh", "both"] = "both"
    dropout_fraction: float = Field(0.5, gt=0, le=1)
    branches: int = Field(3, gt=0)
    early_stop_roofline: float = Field(0.95, gt=0, le=1)
    out: str = Field("runs", min_length=1)
    sandbox: Literal["auto", "bubblewrap", "landlock", "rlimits"] = "auto"

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def origin(self, field: str) -> str:
        """Where the value of `field` came from: a file, a variable, a flag, or "default"."""
        if field not in type(self).model_fields:
            raise ConfigError(_unknown("origin", field))
        return self._origins.get(field, "default")

    @field_validator("*", mode="before")
    @classmethod
    def _no_bools(cls, value: object) -> object:
        # Pydantic would read `max_trials = true` as 1.
        if isinstance(value, bool):
            raise ValueError("true and false are no values of this setting")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what it is given: `load_settings` reads the sources itself, to know which value came from where."""
        return (init_settings,)


@dataclass(frozen=True)
class _Layer:
    """The values of one source, and what to call each in a message."""

    values: Mapping[str, Any]
    names: Mapping[str, str]


def load_settings(flags: Mapping[str, Any] | None = None, folder: Path | None = None) -> Settings:
    """The settings for a command that runs in `folder` (default: the current one); flags that are None count as unset.

    Raises ConfigError naming the file, variable or flag at fault and what is allowed.
    """
    folder = folder if folder is not None else Path.cwd()
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in (_file(_user_file()), _project(folder), _variables(), _flags(flags or {})):
        values |= layer.values
        origins |= layer.names
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from error
    settings._origins.update(origins)
    return settings


def _user_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(home) / "aka" / "config.toml"


def _project(folder: Path) -> _Layer:
    if (folder / "aka.toml").exists():
        return _file(folder / "aka.toml")
    return _file(folder / "pyproject.toml", _TABLE)


def _file(path: Path, table: tuple[str, ...] = ()) -> _Layer:
    data: Any = _read_toml(path)
    for key in table:
        data = data.get(key, {}) if isinstance(data, dict) else {}
    where = f"{path} [{'.'.join(table)}]" if table else str(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: must be a table of settings")
    return _layer(data, dict.fromkeys(data, where))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return TomlConfigSettingsSource(Settings, path).toml_data
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno or 0)}") from error


def _variables() -> _Layer:
    names = {name[len(_PREFIX) :].lower(): name for name in os.environ if name.upper().startswith(_PREFIX)}
    known = EnvSettingsSource(Settings)()
    unknown = {field: os.environ[name] for field, name in names.items() if field not in Settings.model_fields}
    return _layer({**known, **unknown}, {field: names[field] for field in (*known, *unknown)})


def _flags(flags: Mapping[str, Any]) -> _Layer:
    given = {field: value for field, value in flags.items() if value is not None}
    return _layer(given, {field: f"--{field.replace('_', '-')}" for field in given})


def _layer(values: Mapping[str, Any], names: Mapping[str, str]) -> _Layer:
    for field in values:
        if field not in Settings.model_fields:
            raise ConfigError(_unknown(names[field], field))
    return _Layer(values, names)


def _unknown(where: str, field: str) -> str:
    near = difflib.get_close_matches(field, Settings.model_fields, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{where}: no setting is called {field!r}; {hint}the settings are {', '.join(Settings.model_fields)}"


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    choices = get_args(Settings.model_fields[field].annotation)
    allowed = f"one of {', '.join(choices)}" if choices else message
    return (
        f"{origins.get(field, 'default')}: {field} = {str(first['input'])[:80]!r} is not allowed; it must be {allowed}"
    )
