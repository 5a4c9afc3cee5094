"""`graft keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from graft.cli.console import guarded, say

keys = typer.Typer(
    help="Make certificates: a CA for trials, and keys for a server, a party or a peer.", no_args_is_help=True
)


def ca(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where ca.crt and ca.key are written.")],
    name: Annotated[str, typer.Option(help="What the CA is called.")] = "Graft test CA",
    days: Annotated[int, typer.Option(help="How long it is valid.")] = 3650,
) -> None:
    """Make a CA for trials. Whoever has its key can make certificates in anybody's name."""
    from graft.keys import CA_KEY, make_ca

    certificate = make_ca(folder, name, days)
    say(f"{certificate}: the certificate of {name}, which everybody gets.")
    say(f"{folder / CA_KEY}: its key, which stays here.")


def party(
    name: Annotated[str, typer.Argument(help="The name in the federation: a server's, a party's or a peer's.")],
    ca: Annotated[Path, typer.Option(metavar="DIR", help="The folder of `graft keys ca`.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Where they are written; by default a folder called as NAME."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    address: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="HOST", help="A host name or IP address that others reach NAME at; may be repeated."),
    ] = None,
) -> None:
    """Make certificate and key for a server, a party or a peer; one that others connect to needs its addresses."""
    from graft.keys import make_party_keys

    files = make_party_keys(name, ca, out or Path(name), days, address or [])
    say(f"{files.certificate}: the certificate of {name}; {files.ca}: that of its CA.")
    say(f"{files.key}: its key, which only {name} may have.")


keys.command()(guarded(ca))
keys.command()(guarded(party))
