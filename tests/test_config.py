"""Settings: which source wins, what is refused, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from aka.config import Settings, load_settings
from aka.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's configuration folder and a project folder, both empty, and no AKA_ variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "aka").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path


def _user(home: Path, text: str) -> None:
    (home / "config" / "aka" / "config.toml").write_text(text)


def _project(home: Path, text: str, name: str = "aka.toml") -> Path:
    (home / "project" / name).write_text(text)
    return home / "project"


def test_the_defaults(home: Path) -> None:
    settings = load_settings(folder=home / "project")
    assert settings == Settings()
    assert (settings.chip, settings.max_trials, settings.max_minutes, settings.dropout) == ("v5e", 40, 10.0, "both")
    assert settings.origin("chip") == "default"


@pytest.mark.parametrize(
    ("sources", "winner"),
    [
        ({"user"}, "user"),
        ({"user", "pyproject"}, "pyproject"),
        ({"user", "pyproject", "aka.toml"}, "aka.toml"),
        ({"user", "aka.toml", "env"}, "env"),
        ({"user", "pyproject", "aka.toml", "env", "flag"}, "flag"),
        ({"user", "flag"}, "flag"),
        ({"pyproject", "env"}, "env"),
    ],
)
def test_precedence(home: Path, monkeypatch: pytest.MonkeyPatch, sources: set[str], winner: str) -> None:
    place = {"user": 1, "pyproject": 2, "aka.toml": 3, "env": 4, "flag": 5}
    if "user" in sources:
        _user(home, "max_trials = 1")
    if "pyproject" in sources:
        _project(home, "[tool.aka]\nmax_trials = 2", "pyproject.toml")
    if "aka.toml" in sources:
        _project(home, "max_trials = 3")
    if "env" in sources:
        monkeypatch.setenv("AKA_MAX_TRIALS", "4")
    settings = load_settings({"max_trials": 5 if "flag" in sources else None}, home / "project")
    assert settings.max_trials == place[winner]
    where = {"user": "config.toml", "pyproject": "[tool.aka]", "env": "AKA_MAX_TRIALS", "flag": "--max-trials"}
    assert where.get(winner, winner) in settings.origin("max_trials")


def test_each_value_keeps_its_own_origin(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _user(home, 'chip = "v6e"')
    monkeypatch.setenv("AKA_SEED", "7")
    settings = load_settings({"out": "elsewhere"}, _project(home, "patience = 3"))
    assert (settings.chip, settings.seed, settings.out, settings.patience) == ("v6e", 7, "elsewhere", 3)
    origins = [settings.origin(field) for field in ("seed", "out", "min_gain")]
    assert origins == ["AKA_SEED", "--out", "default"]
    assert settings.origin("chip").endswith("config.toml")
    assert settings.origin("patience").endswith("aka.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_trials = 0", r"aka\.toml: max_trials = '0' .* greater than 0"),
        ("max_trials = -1", "greater than 0"),
        ("max_trials = true", "true and false are no values"),
        ("max_trials = 2.5", "valid integer"),
        ("max_minutes = nan", r"aka\.toml: max_minutes = 'nan' is not allowed; it must be"),
        ("max_minutes = inf", "finite number"),
        ("max_minutes = 0.0", "greater than 0"),
        ("max_minutes = -2", "greater than 0"),
        ("dropout_fraction = 1.5", "less than or equal to 1"),
        ('chip = "v9"', "one of v4, v5e, v5p, v6e, tpu7x"),
        ('dropout = "some"', "one of off, mask, fresh, both"),
        (
            "max_trails = 3",
            r"aka\.toml: no setting is called 'max_trails'; did you mean 'max_trials'\? the settings are",
        ),
        ("_origins = 3", "no setting is called '_origins'"),
        ("max_trials =", r"aka\.toml: not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(home: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(folder=_project(home, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AKA_MAX_MINUTES", "nan", "^AKA_MAX_MINUTES: max_minutes = 'nan' is not allowed"),
        ("AKA_SEED", "many", "^AKA_SEED: .* valid integer"),
        ("AKA_CHIPP", "v5e", "^AKA_CHIPP: no setting is called 'chipp'; did you mean 'chip'"),
    ],
)
def test_what_is_wrong_in_a_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        load_settings(folder=home / "project")


def test_what_is_wrong_in_a_flag(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--max-minutes: "):
        load_settings({"max_minutes": float("nan")}, home / "project")


def test_an_empty_variable_counts_as_unset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKA_CHIP", "")
    assert load_settings(folder=home / "project").chip == "v5e"


def test_files_that_cannot_be_settings(home: Path) -> None:
    folder = _project(home, "[tool]\naka = 3", "pyproject.toml")
    with pytest.raises(ConfigError, match="must be a table"):
        load_settings(folder=folder)
    (folder / "aka.toml").write_bytes(b"chip = '\xff'")
    with pytest.raises(ConfigError, match=r"aka\.toml: not valid TOML"):
        load_settings(folder=folder)


def test_settings_are_frozen_and_direct_ones_read_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AKA_MAX_TRIALS", "4")
    settings = Settings(max_trials=9)
    assert settings.max_trials == 9
    assert Settings().max_trials == 40
    with pytest.raises(ValueError, match="frozen"):
        settings.max_trials = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        settings.origin("seeds")
