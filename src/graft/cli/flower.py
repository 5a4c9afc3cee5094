"""`graft flower`: a federation for those who run Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tomli_w
import typer

from graft import __version__
from graft.cli.console import guarded, say
from graft.cli.federations import (
    Approve,
    As,
    Data,
    Device,
    FederationPath,
    ModelName,
    PolicyFile,
    Scores,
    asking,
)
from graft.errors import InputError, RunError
from graft.files import explained, read_text, write_text

if TYPE_CHECKING:
    from graft.experiments.federation_file import FederationFile

SERVE = "graft.experiments.flower_run:serve_over_flower"
OPEN_PARTY = "graft.experiments.flower_run:open_party"

flower = typer.Typer(help="Write what Flower needs to carry a federation.", no_args_is_help=True)


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
    file, text = read_with_text(federation)
    if folder.exists():
        raise InputError(f"{folder} exists already: name a new folder.")
    with explained(f"{folder} cannot be written to", InputError):
        folder.mkdir(parents=True)
    try:
        write_text(folder / "pyproject.toml", project_text(file, text))
        write_text(folder / "README.md", readme_text(file))
    except RunError as error:
        raise InputError(str(error)) from error
    say(f"{folder}: pyproject.toml, README.md. {file.name} has {len(file.parties)} parties.")
    say(f"The commands for a simulation and for a deployment are in {folder / 'README.md'}.")


def read_with_text(path: Path) -> tuple[FederationFile, str]:
    """Returns the federation of a file, and the text of the file; Flower carries none without a server."""
    from graft.experiments.federation_file import read_federation

    file = read_federation(path)
    if not file.has_server:
        raise InputError(f"Method '{file.experiment.method}' has no server, and Flower carries none without one.")
    return file, read_text(path)


@flower.command()
@guarded
def party(
    federation: FederationPath,
    name: As = ...,  # type: ignore[assignment]
    data: Data = ...,  # type: ignore[assignment]
    out: Annotated[
        Path, typer.Option(help="The folder that your SuperNode is started with: a new one for every run.")
    ] = ...,  # type: ignore[assignment]
    model: ModelName = None,
    approve: Approve = False,
    policy: PolicyFile = None,
    scores: Scores = None,
    device: Device = "cpu",
) -> None:
    """Approve of what will leave, and write the folder from which a SuperNode answers with your graph and model."""
    import tomllib

    from graft.engines.policy import read_policy
    from graft.experiments.flower_run import write_party
    from graft.experiments.party_run import Joining

    file, text = read_with_text(federation)
    joining = Joining(name, data, model, device, read_policy(policy, scores=scores))
    ready = write_party(federation, tomllib.loads(text), joining, out, asking(approve))
    say(f"{out}: {name} takes part in {file.name} with {ready.data.graph.nodes} nodes, once the server invites it.")
    say(f'Start its SuperNode with: --node-config \'name="{name}" folder="{out.resolve()}"\'')


def project_text(file: FederationFile, text: str) -> str:
    """Returns the project file: two apps that are installed with Graft, and what they are told."""
    settings = {
        "federation": text,
        "server": file.server,
        "parties": ",".join(file.parties),
        "serve": SERVE,
        "out": f"runs/{file.name}",
        "meeting-seconds": 120,
        "folders": "",
        "open-party": OPEN_PARTY,
    }
    content = {
        "project": {
            "name": f"graft-{file.name}".lower().replace("_", "-").replace(".", "-"),
            "version": __version__,
            "description": f"The federation {file.name}, carried by Flower",
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


def readme_text(file: FederationFile) -> str:
    """Returns the commands for this federation, ready to be copied."""
    first = file.parties[0]
    values = {"@NAME": file.name, "@PARTIES": ", ".join(file.parties), "@FIRST": first}
    values["@COUNT"] = str(len(file.parties))
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

Each party has a folder of its name in `parties/`, a new one for every run:

    graft flower party federation.toml --as @FIRST --data /path/to/data/of/@FIRST --out parties/@FIRST

In one terminal:

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

Each party, with its own copy of the federation's file, reads what will leave, approves of it, and starts its SuperNode
with the folder that this makes. Where its data is, and what answers, is said here and nowhere else:

    graft flower party federation.toml --as @FIRST --data /path/to/data --out /path/to/folder/of/@FIRST
    flower-supernode --superlink HOST:PORT --root-certificates ca.crt --auth-supernode-private-key @FIRST.key \\
        --host 127.0.0.1 --port 9094 --node-config 'name="@FIRST" folder="/path/to/folder/of/@FIRST"'

Then, in this folder; `out` is where the server's record goes, on the SuperLink's machine. A run that was stopped goes
on where the same `out` is given again:

    flwr run . deployment --stream --run-config 'out="/path/to/run"'

A SuperNode that was killed can start again after about a minute, when the SuperLink has noticed.
"""
