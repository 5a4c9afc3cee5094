"""`graft flower`: a federation for those who run Flower."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, NamedTuple

import tomli_w
import typer

from graft import __version__
from graft.cli.console import guarded, say
from graft.errors import InputError, RunError
from graft.files import explained, read_text, write_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a party: it is the name of a folder, and stands in lists
SERVE = "graft.experiments.serving:serve_over_flower"
OPEN_PARTY = "graft.experiments.joining_in:open_party"

flower = typer.Typer(help="Write what Flower needs to carry a federation.", no_args_is_help=True)


class Members(NamedTuple):
    """Who takes part in a federation, by its file."""

    name: str
    server: str
    parties: list[str]
    text: str  # of the file


@flower.callback()
def commands() -> None:
    """Write what Flower needs to carry a federation."""


@flower.command()
@guarded
def app(
    folder: Annotated[Path, typer.Argument(help="Where it goes: a new folder.")],
    federation: Annotated[Path, typer.Option(help="The federation's file.")] = Path("federation.toml"),
) -> None:
    """Write the small project that `flwr run` is given, with a README of the commands; no code is in it."""
    members = read_members(federation)
    if folder.exists():
        raise InputError(f"{folder} exists already: name a new folder.")
    with explained(f"{folder} cannot be written to", InputError):
        folder.mkdir(parents=True)
    try:
        write_text(folder / "pyproject.toml", project_text(members))
        write_text(folder / "README.md", readme_text(members))
    except RunError as error:
        raise InputError(str(error)) from error
    say(f"{folder}: pyproject.toml, README.md. {members.name} has {len(members.parties)} parties.")
    say(f"The commands for a simulation and for a deployment are in {folder / 'README.md'}.")


def read_members(path: Path) -> Members:
    """Returns who takes part, by a federation's file."""
    try:
        text = read_text(path)
        content = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a federation's file: {error}.") from error
    server, listed = content.get("server"), content.get("parties")
    if isinstance(server, dict):
        server = server.get("name")
    if isinstance(listed, list):
        listed = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
    names = [content.get("name", path.stem), server, *(listed or ())]
    wrong = [name for name in names if not (isinstance(name, str) and NAME.fullmatch(name))]
    if wrong or not listed or len(set(names[1:])) < len(names[1:]):
        shown = f" {wrong[0]!r} is no such name." if wrong and listed else ""
        raise InputError(
            f"{path} should have name, server, and parties, a list of names: letters, digits, '_', '.' and '-', each "
            f"used once.{shown}"
        )
    return Members(names[0], names[1], names[2:], text)


def project_text(members: Members) -> str:
    """Returns the project file: two apps that are installed with Graft, and what they are told."""
    settings = {
        "federation": members.text,
        "server": members.server,
        "parties": ",".join(members.parties),
        "serve": SERVE,
        "out": f"runs/{members.name}",
        "meeting-seconds": 120,
        "folders": "",
        "open-party": OPEN_PARTY,
    }
    content = {
        "project": {
            "name": f"graft-{members.name}".lower().replace("_", "-").replace(".", "-"),
            "version": __version__,
            "description": f"The federation {members.name}, carried by Flower",
            "license": "Apache-2.0",
            "dependencies": [f"graft-fgl[flower]=={__version__}"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "graft",
                    "fab-include": ["/README.md"],  # else all that comes to lie in the folder would travel too
                    "components": {
                        "serverapp": "graft.engines.flower:server_app",
                        "clientapp": "graft.engines.flower:client_app",
                    },
                    "config": settings,
                }
            }
        },
    }
    return tomli_w.dumps(content, multiline_strings=True)


def readme_text(members: Members) -> str:
    """Returns the commands for this federation, ready to be copied."""
    first = members.parties[0]
    values = {"@NAME": members.name, "@PARTIES": ", ".join(members.parties), "@FIRST": first}
    values["@COUNT"] = str(len(members.parties))
    text = README
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


README = """# The federation @NAME, carried by Flower

Parties: @PARTIES. This folder is what `flwr run` is given. It holds settings and no code: both apps are in the package
graft-fgl, which has to be installed, in the same version, where the SuperLink and where each SuperNode runs:

    pip install 'graft-fgl[flower]'
    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

## Whoever reaches the SuperLink can run code at every party

The SuperLink serves its control interface (`/v1/control/`) on the same port as that for SuperNodes (`/v1/fleet/`), and
asks for no account. Whoever reaches this port, for which the file of the CA is enough, can register SuperNodes of their
own and submit any Python code, which then runs at every party with the rights of its SuperNode. Graft's own checks of
what a party answers do not help against that.

* Let the SuperLink listen on 127.0.0.1 or in a private network, and put a proxy with TLS before it that passes on
  `/v1/fleet/` and nothing else. Submit runs from behind the proxy.
* Start SuperNodes as a user, or in a container, that can read the party's folder and nothing else.
* Where parties do not trust whoever runs the SuperLink, use `graft serve` and `graft join` instead: there nobody can
  submit code.

## Simulation: all parties on this machine

`parties/` has one folder for each party, by its name. In one terminal:

    flower-superlink --insecure --simulation --host 127.0.0.1 --port 8000 \\
        --disable-runtime-dependency-installation

In `~/.flwr/config.toml`:

    [superlink.simulation]
    address = "127.0.0.1:8000"
    insecure = true

In another terminal, in this folder:

    flwr run . simulation --stream --federation-config 'num-supernodes=@COUNT' \\
        --run-config "folders='$PWD/parties' out='$PWD/run'"

## Deployment: every party where its data is

The server's certificate must name the host that SuperNodes connect to. Where the SuperLink runs:

    flower-superlink --host 127.0.0.1 --port 8000 --enable-supernode-auth --disable-runtime-dependency-installation \\
        --ssl-ca-certfile ca.crt --ssl-certfile hub.crt --ssl-keyfile hub.key

Each party makes a key, keeps `@FIRST.key` and hands over `@FIRST.key.pub`:

    ssh-keygen -t ecdsa -b 384 -N '' -f @FIRST.key

Whoever runs the SuperLink has in `~/.flwr/config.toml`

    [superlink.deployment]
    address = "127.0.0.1:8000"
    root-certificates = "/path/to/ca.crt"

and registers each key under the party's name. Only nodes that are registered under the name of a party are asked:

    flwr supernode register @FIRST.key.pub deployment --name @FIRST

Each party starts its SuperNode. Where its data is, and what answers, is said here and nowhere else:

    flower-supernode --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key @FIRST.key \\
        --host 127.0.0.1 --port 9094 --node-config 'name="@FIRST" folder="/path/to/folder/of/@FIRST"'

Then, in this folder, with a folder `out` where the SuperLink is:

    flwr run . deployment --stream --run-config 'out="/path/to/run"'

A SuperNode that was killed can start again after about a minute, when the SuperLink has noticed.
"""
