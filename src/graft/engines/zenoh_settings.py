"""The settings of zenoh that let in who may come and let each say what it may: mutual TLS, and rules by certificate."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from graft.errors import InputError
from graft.files import printable
from graft.keys import KeyFiles

ROOM = 2**20  # bytes above the limit which are read at all, so that somebody slightly above it gets a reason
LEASE_SECONDS = 10.0  # without a sign of life, after which somebody counts as lost
# Parts of a message, of 64 KB, that wait to be sent: with the usual 2, a model of 1 MB is held up again and again.
QUEUES = {
    **dict.fromkeys(("control", "real_time", "interactive_high", "interactive_low", "data_high"), 2),
    **{"data": 16, "data_low": 2, "background": 2},
}
RETRY_SECONDS = (0.2, 2.0)  # between attempts to connect: at first, and at most
ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def key_of(namespace: str, recipient: str, instance: str, sender: str) -> str:
    return f"{namespace}/to/{recipient}/{instance}/from/{sender}"


def configure(
    name: str,
    keys: KeyFiles,
    others: Collection[str],
    listen: Sequence[str],
    connect: Sequence[str],
    namespace: str,
    most_bytes: int,
) -> dict[str, Any]:
    """Returns zenoh's settings by their paths."""
    first, most = (int(1000 * seconds) for seconds in RETRY_SECONDS)
    certificate, key = str(keys.certificate), str(keys.key)
    return {
        # Peers forward nothing for others; a star is a mesh in which only the server listens.
        "mode": "peer",
        "listen/endpoints": [f"tls/{address}" for address in listen],
        "connect": {
            "endpoints": [f"tls/{address}" for address in connect],
            "exit_on_failure": False,
            "retry": {"period_init_ms": first, "period_max_ms": most, "period_increase_factor": 2},
        },
        "scouting": {"delay": 0, "multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "adminspace/enabled": False,
        "transport/shared_memory/enabled": False,  # it would pass messages by the memory of a host, without TLS
        "transport/unicast/max_links": 1,
        "transport/link/protocols": ["tls"],
        "transport/link/tx/lease": int(1000 * LEASE_SECONDS),
        "transport/link/tx/queue/size": QUEUES,
        "transport/link/rx/max_message_size": most_bytes + ROOM,
        "transport/link/tls": {
            "root_ca_certificate": str(keys.ca),
            "enable_mtls": True,
            "verify_name_on_connect": True,
            "close_link_on_expiration": True,
            "listen_certificate": certificate,
            "listen_private_key": key,
            "connect_certificate": certificate,
            "connect_private_key": key,
        },
        "access_control": access_rules(name, others, namespace),
    }


def access_rules(name: str, others: Collection[str], namespace: str) -> dict[str, Any]:
    """Returns what may pass between this node and each of the others; all else is denied, in both directions."""
    rules, policies = [], []
    for other in others:
        to_other, from_other = key_of(namespace, other, "*", name), key_of(namespace, name, "*", other)
        allowed = [
            ("egress", ["query"], to_other),
            ("ingress", ["reply"], to_other),
            ("ingress", ["declare_queryable"], key_of(namespace, other, "*", "*")),
            ("ingress", ["query"], from_other),
            ("egress", ["reply"], from_other),
            ("egress", ["declare_queryable"], key_of(namespace, name, "*", "*")),
            ("ingress", ["liveliness_token"], f"{namespace}/alive/{other}/*"),
            ("egress", ["liveliness_token"], f"{namespace}/alive/{name}/*"),
            ("ingress", ["declare_liveliness_subscriber"], f"{namespace}/alive/*/*"),
            ("egress", ["declare_liveliness_subscriber"], f"{namespace}/alive/*/*"),
        ]
        ids = [f"{other} {number}" for number in range(len(allowed))]
        policies.append({"rules": ids, "subjects": [other]})
        for rule, (flow, messages, key) in zip(ids, allowed, strict=True):
            rules.append({"id": rule, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": [key]})
    subjects = [{"id": other, "cert_common_names": [other]} for other in others]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def check_addresses(name: str, listen: Sequence[str], connect: Sequence[str]) -> None:
    """Refuses what is no address: after one, zenoh would take settings too, such as not to check names."""
    if not listen and not connect:
        raise InputError(f"{name} needs an address to listen on or one to connect to, as HOST:PORT.")
    for address in (*listen, *connect):
        match = ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) < 2**16:
            raise InputError(f"'{printable(address)[:100]}' is not an address; it should be HOST:PORT.")
