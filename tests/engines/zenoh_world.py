"""Keys, nodes and strangers for tests of the wire between organisations, all on loopback addresses."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from graft import keys
from graft.engines.wire import Patience
from graft.engines.zenoh import ZenohNode

LONG = 60.0  # seconds that nothing takes, even on a busy machine
PATIENT = Patience(LONG)
PARTIES = ("bank_a", "bank_b", "bank_c")
NAMESPACE = "trial"


def make_keys(folder):
    """Make keys of a CA for all, of somebody it knows who is in no federation, of another CA, and old ones."""
    keys.make_ca(folder / "ca")
    keys.make_ca(folder / "foreign_ca")
    for name in ("server", *PARTIES, "mallory"):
        keys.make_party_keys(name, folder / "ca", folder / name)
    keys.make_party_keys("bank_a", folder / "foreign_ca", folder / "foreign")
    make_old_keys("bank_a", folder / "ca", folder / "expired")
    return folder


def make_old_keys(name, ca_folder, folder):
    """Make keys as `make_party_keys` does, but that they expired an hour ago."""
    issuer, issuer_key = keys.read_ca(ca_folder)
    files = keys.make_party_keys(name, ca_folder, folder)
    now = datetime.now(UTC)
    given = keys.read_certificates(files.certificate)[0]
    builder = keys.new_certificate(
        name, issuer.subject, keys.read_key(files.key), now - timedelta(days=2), now - timedelta(hours=1)
    )
    for extension in given.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    files.certificate.write_bytes(keys.pem(keys.sign(builder, issuer_key)))
    return files


def free_address():
    """Returns a free address whose port the system gives to nobody who calls somebody else."""
    while True:
        address = "127.0.0.1", random.randrange(16_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return f"{address[0]}:{address[1]}"


def until(condition):
    """Wait until something holds."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class World:
    """Nodes, strangers and processes of one test, which end with it."""

    def __init__(self, key_folder):
        self.keys = key_folder
        self.address = free_address()
        self._open = []

    def node(self, name, handler=lambda _, request: request, *, others=("server",), **settings):
        if not {"listen", "connect"} & set(settings):
            settings["connect"] = [self.address]
        files = keys.key_files(self.keys / name, name)
        node = ZenohNode(name, files, handler, others=others, namespace=NAMESPACE, **settings)
        self._open.append(node.close)
        return node

    def server(self, handler=lambda _, request: request, others=PARTIES, **settings):
        return self.node("server", handler, others=others, listen=[self.address], **settings)

    def process(self, name, *words):
        """Start a party in a process of its own."""
        script = Path(__file__).with_name("zenoh_party.py")
        command = [sys.executable, script, name, self.keys / name, self.address, *(words or ("no mark",))]
        process = subprocess.Popen(command)
        self._open.append(lambda: (process.kill(), process.wait()))
        return process

    def stranger(
        self,
        name,
        folder=None,
        *,
        mode="peer",
        listen=(),
        connect=None,
        protocol="tls",
        tls=None,
        session_id=None,
    ):
        """Open a session that follows none of our rules."""
        import zenoh

        files = keys.key_files(self.keys / (folder or name), name)
        certificate, key = str(files.certificate), str(files.key)
        settings = {
            "mode": mode,
            "listen/endpoints": [f"{protocol}/{address}" for address in listen],
            "connect/endpoints": [f"{protocol}/{address}" for address in (connect or [self.address])],
            "connect/timeout_ms": 5000 if mode == "client" else -1,
            "scouting/multicast/enabled": False,
            "transport/link/tls": {
                "root_ca_certificate": str(files.ca),
                "enable_mtls": True,
                "listen_certificate": certificate,
                "listen_private_key": key,
                "connect_certificate": certificate,
                "connect_private_key": key,
            }
            if tls is None
            else tls,
        }
        if session_id is not None:
            settings["id"] = session_id
        config = zenoh.Config()
        for path, value in settings.items():
            config.insert_json5(path, json.dumps(value))
        session = zenoh.open(config)
        self._open.append(session.close)
        return session

    def close(self):
        for close in reversed(self._open):
            close()
