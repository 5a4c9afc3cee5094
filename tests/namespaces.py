"""Several hosts on one machine: a federation from keys to predictions, each of its members in a network of its own.

    python tests/namespaces.py FOLDER

Everything happens in namespaces of the kernel that are unshared first: a network without any way out, in which a switch
and four hosts with addresses of their own are made, and processes and mounts that nobody else sees. All of it is gone
with the process that began it, however that ends. What is left are the files in FOLDER, with report.json among them.
It needs root, and the commands ip, mount and unshare.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

GRAFT = [sys.executable, "-c", "import sys; from graft.cli import main; sys.argv[0] = 'graft'; main()"]
SERVER, BANKS = "coordinator", ("alpha", "beta", "gamma")
ADDRESSES = {name: f"10.77.0.{number}" for number, name in enumerate((SERVER, *BANKS), 1)}
PORT = 7447
SECONDS = 400  # for everything
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
FEDERATION = """
name = "banks"
classes = ["no", "yes"]
positive = "yes"
server = "{server}"
address = "{address}"
parties = {parties}
[experiment]
method = "fedgkc"
rounds = 3
width = 8
metric = "auprc"
features = "standard"
[schema]
label = "fraud"
numeric = ["balance", "turnover"]
categorical = ["channel", "branch"]
date = ["opened"]
hash = 4
unknown_nodes = "drop"
[rounds]
join_timeout = 200
timeout = 120
"""
REACHES = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"


def missing():
    """Returns why hosts cannot be made here; nothing where they can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "it needs root on Linux"
    for command in ("ip", "mount", "unshare"):
        if shutil.which(command) is None:
            return f"the command {command} is not there"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=60, check=False)
    return f"no namespaces can be made: {tried.stderr.strip()}" if tried.returncode else ""


def run(*words, check=True, **options):
    return subprocess.run(list(map(str, words)), check=check, timeout=SECONDS, **options)


def make_hosts():
    """Make a switch, and a host for everybody with one cable to it."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where names of networks are kept, for nobody else to see
    for name in ("switch", *ADDRESSES):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "dev", "lo", "up")
    run("ip", "-n", "switch", "link", "add", "name", "bridge", "type", "bridge")
    run("ip", "-n", "switch", "link", "set", "dev", "bridge", "up")
    for name, address in ADDRESSES.items():
        cable = f"to-{name}"[:15]
        run("ip", "-n", "switch", "link", "add", "name", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", "switch", "link", "set", "dev", cable, "master", "bridge")
        run("ip", "-n", "switch", "link", "set", "dev", cable, "up")
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "dev", "eth0", "up")


def on(host, *words):
    """Returns the words of a command that runs at a host."""
    return ["ip", "netns", "exec", host, *map(str, words)]


def make_keys(folder):
    run(*GRAFT, "keys", "ca", folder / "ca")
    for name, address in ADDRESSES.items():
        run(*GRAFT, "keys", "party", name, "--ca", folder / "ca", "--out", folder / "keys" / name, "--address", address)


def commands(folder):
    """Returns what everybody types; the last bank has no copy of the federation's file."""
    file, keys = folder / "federation.toml", folder / "keys"
    address = f"{ADDRESSES[SERVER]}:{PORT}"
    file.write_text(FEDERATION.format(server=SERVER, address=address, parties=json.dumps(BANKS)))
    words = {SERVER: ["serve", file, "--keys", keys / SERVER, "--out", folder / SERVER]}
    for name in BANKS:
        which = ["--server", address] if name == BANKS[-1] else [file]
        own = ["--as", name, "--data", folder / "data" / name, "--keys", keys / name, "--out", folder / name]
        words[name] = ["join", *which, *own, "--approve", "--device", "cpu"]
    return words


def reaches(host, address):
    """Returns whether somebody at a host can connect to the server's port at an address."""
    words = on(host, sys.executable, "-c", REACHES, address, PORT)
    return run(*words, check=False, stderr=subprocess.DEVNULL).returncode == 0


def federate(folder):
    """Run the federation and return what came of it."""
    make_keys(folder)
    logs = {name: (folder / f"{name}.log").open("wb") for name in ADDRESSES}
    words = commands(folder)

    def start(name):
        return subprocess.Popen(
            on(name, *GRAFT, *words[name]), stdin=subprocess.DEVNULL, stdout=logs[name], stderr=logs[name]
        )

    processes = {SERVER: start(SERVER)}
    end = time.monotonic() + 100
    while not reaches("alpha", ADDRESSES[SERVER]) and time.monotonic() < end:
        time.sleep(0.5)
    reached = {name: {"there": reaches(name, ADDRESSES[SERVER]), "here": reaches(name, "127.0.0.1")} for name in BANKS}
    processes |= {name: start(name) for name in BANKS}
    codes = {name: process.wait(SECONDS) for name, process in processes.items()}
    new = folder / "new.csv"
    predicted = on("alpha", *GRAFT, "predict", folder / "alpha", "--data", folder / "data" / "alpha-new", "--out", new)
    codes["predict"] = run(*predicted, check=False, stdout=logs["alpha"], stderr=logs["alpha"]).returncode
    return {"addresses": ADDRESSES, "reached": reached, "codes": codes}


def inside(folder):
    from graft.data.example_banks import write_banks

    make_hosts()
    write_banks(folder / "data", size=0.1)
    (folder / "report.json").write_text(json.dumps(federate(folder), indent=1))


def main(folder):
    """Run it all where nobody else is; returns the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*UNSHARE, sys.executable, __file__, "--inside", str(folder.resolve())]
    return subprocess.run(words, timeout=SECONDS, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        inside(Path(sys.argv[2]))
    else:
        sys.exit(missing() or main(Path(sys.argv[1])))
