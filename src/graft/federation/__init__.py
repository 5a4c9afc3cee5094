"""What a federation is: methods, a server, clients, fleets and the session that runs rounds; here, the topologies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graft.errors import InputError
from graft.registry import Registry

TOPOLOGIES: Registry[Callable[..., Any]] = Registry(
    "topology",
    {
        "none": "graft.federation.topologies:nobody",
        "complete": "graft.federation.topologies:complete",
        "ring": "graft.federation.topologies:ring",
        "star": "graft.federation.topologies:star",
        "regular": "graft.federation.topologies:regular",
        "random": "graft.federation.topologies:random_peers",
        "random-undirected": "graft.federation.topologies:random_undirected",
        "small-world": "graft.federation.topologies:small_world",
        "matching": "graft.federation.topologies:matching",
        "tournament": "graft.federation.topologies:tournament",
        "exponential": "graft.federation.topologies:exponential",
    },
)
OPTIONS: dict[str, dict[str, int]] = {  # name -> option -> the least value that makes sense
    "star": {"centre": 0},
    "regular": {"k": 1},
    "random": {"k": 0},
    "random-undirected": {"k": 0},
    "small-world": {"k": 2, "p": 0},
    "tournament": {"level": 0},
    "exponential": {"k": 1},
}


def check_topology(name: str, options: Mapping[str, Any]) -> None:
    """Refuses a topology that is neither a name with its options nor a file; imports nothing."""
    if name in TOPOLOGIES:
        check_options(name, options)
    elif not Path(name).is_file():
        raise InputError(f"There is no topology '{name}': there are {', '.join(TOPOLOGIES)}, or a file.")
    elif options:
        raise InputError(f"The topology file {name} takes no options.")


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options that a topology does not have, and values that make no sense for them."""
    possible = OPTIONS.get(name, {})
    for option, value in options.items():
        if option not in possible:
            raise InputError(f"Topology '{name}' has no option '{option}': it has {', '.join(possible) or 'none'}.")
        least = possible[option]
        if option == "p":
            kind, usable = "a number from 0 to 1", isinstance(value, int | float) and 0 <= value <= 1
        else:
            kind, usable = f"a whole number of at least {least}", isinstance(value, int) and value >= least
        if name == "small-world" and option == "k":
            kind, usable = "an even number of at least 2", usable and value % 2 == 0
        if isinstance(value, bool) or not usable:
            raise InputError(f"{option} of topology '{name}' is {value!r}; it must be {kind}.")
