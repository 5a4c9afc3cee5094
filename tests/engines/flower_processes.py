"""Flower's own programs on loopback addresses, for tests: bounded in time, and ended with all that they started."""

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
HERE = "127.0.0.1"


def free_port():
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return probe.getsockname()[1]


def environment(home, **more):
    """Returns the variables of Flower's processes: offline, with a home of their own, and able to import the tests."""
    return {
        **os.environ,
        **kept_bytecode(home),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def kept_bytecode(home):
    """Returns variables that keep bytecode where it is not kept: Flower starts a process for every message, and each
    would compile PyTorch, Flower and Graft from their sources, which takes longer than all else."""
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(home / "bytecode")}


@contextmanager
def running(command, env, log):
    """A process of a session of its own, which is ended whole."""
    with Path(log).open("w") as file:
        process = subprocess.Popen(
            [str(part) for part in command], env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                time.sleep(0.5)
            except ProcessLookupError:
                break
        process.wait(timeout=10)


def wait_for_port(port, process, log, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, Path(log).read_text()[-3000:]
        try:
            socket.create_connection((HERE, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(Path(log).read_text()[-3000:])


def flwr(home, *arguments, env=None, seconds=240):
    """Returns what a command of `flwr` prints; it must succeed."""
    done = subprocess.run(
        [str(BIN / "flwr"), *map(str, arguments)],
        env=env or environment(home),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def simulation_link(folder, **variables):
    """A SuperLink for simulations; returns its home, in which it is called `here`."""
    home, port, log = folder / "home", free_port(), folder / "superlink.log"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HERE}:{port}"\ninsecure = true\n'
    )
    options = ["--disable-runtime-dependency-installation", "--host", HERE, "--port", port]
    command = [BIN / "flower-superlink", "--insecure", "--simulation", *options]
    with running(command, environment(home, **variables), log) as process:
        wait_for_port(port, process, log)
        yield home


class Deployment:
    """A SuperLink with TLS and authentication of SuperNodes, and the SuperNodes that a test starts."""

    def __init__(self, folder, **variables):
        self.folder, self.home, self.port = folder, folder / "home", free_port()
        self.env = environment(self.home, **variables)
        self.nodes = {}

    def __enter__(self):
        self._stack = ExitStack()
        self.home.mkdir()
        make_certificates(self.folder)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HERE}:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        log = self.folder / "superlink.log"
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
        tls = [self.folder / part if "." in part else part for part in tls]
        options = ["--disable-runtime-dependency-installation", "--enable-supernode-auth"]
        command = [BIN / "flower-superlink", "--host", HERE, "--port", self.port, *tls, *options]
        try:
            process = self._stack.enter_context(running(command, self.env, log))
            wait_for_port(self.port, process, log)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        for process in self.nodes.values():
            process.terminate()  # all at once: each takes seconds to end
        self._stack.close()

    def register(self, name):
        make_node_key(self.folder, name)
        flwr(self.home, "supernode", "register", self.folder / f"{name}.pub", "here", "--name", name)

    def start_node(self, name, config):
        log = self.folder / f"{name}.log"
        command = [
            *(BIN / "flower-supernode", "--superlink", f"{HERE}:{self.port}", "--host", HERE, "--port", free_port()),
            *("--root-certificates", self.folder / "ca.crt", "--auth-supernode-private-key", self.folder / name),
            *("--node-config", config),
        ]
        self.nodes[name] = self._stack.enter_context(running(command, self.env, log))

    def run(self, app, *arguments, seconds=240):
        return flwr(self.home, "run", app, "here", "--stream", *arguments, env=self.env, seconds=seconds)


def make_node_key(folder, name):
    """Write the key of a SuperNode, as `ssh-keygen -t ecdsa -b 384` does."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / name).write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)


def make_certificates(folder):
    """Write a certificate authority and a server's certificate for the loopback address, for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begun(subject, key):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("test CA"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        return builder.not_valid_after(now + datetime.timedelta(days=1))

    def pem(certificate):
        return certificate.public_bytes(serialization.Encoding.PEM)

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = begun("test CA", ca_key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(usage, critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
    (folder / "ca.crt").write_bytes(pem(ca.sign(ca_key, hashes.SHA256())))
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HERE))]
    server = begun("localhost", key).add_extension(x509.SubjectAlternativeName(names), critical=False)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    (folder / "server.crt").write_bytes(pem(server.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA256())))
    plain = serialization.NoEncryption()
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
