"""The `aka` command. Every command's own imports happen when it runs, so that `--help` answers at once."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from aka import __version__
from aka.errors import AkaError

app = typer.Typer(
    name="aka",
    help="Turn a JAX op into a faster Pallas kernel for TPU, and prove it. Works with no TPU and no API key.",
    epilog="Start here:  aka optimize examples/rmsnorm.py --chip v5e",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"aka {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Only the options that stand before a command."""


def _register() -> None:
    from aka.cli import check, doctor, kb, optimize, profile, report, runs

    app.command("optimize")(optimize.optimize)
    app.command("check")(check.check)
    app.command("profile")(profile.profile)
    app.command("report")(report.report)
    app.command("doctor")(doctor.doctor)
    app.add_typer(runs.app, name="runs")
    app.add_typer(kb.app, name="kb")


def main() -> None:
    """Entry point: one line and an exit code for every error that we raise; a report for our own bugs."""
    _register()
    try:
        sys.exit(app(prog_name="aka", standalone_mode=False))
    except AkaError as error:
        from aka.cli import console

        sys.exit(console.fail(error))
    except TyperException as error:
        sys.exit(_wrong_usage(error))
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception:
        sys.exit(_own_bug())


def _wrong_usage(error: TyperException) -> int:
    """A bad option or argument in one line; a command without any is shown its help."""
    from aka.cli import console

    message = error.format_message()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
    else:
        context = getattr(error, "ctx", None)
        console.note(f"aka: {message} (see {context.command_path if context else 'aka'} --help)")
    return error.exit_code


def _own_bug() -> int:
    """Write the traceback where it can be found, and say so in one line."""
    with tempfile.NamedTemporaryFile("w", prefix="aka-bug-", suffix=".txt", delete=False) as file:
        file.write(f"aka {__version__}\n{' '.join(map(repr, sys.argv))}\n\n{traceback.format_exc()}")
    last = traceback.format_exc().strip().splitlines()[-1]
    print(f"aka: this is a bug in aka: {last[:300]}; the report lies in {Path(file.name)}", file=sys.stderr)
    return 70
