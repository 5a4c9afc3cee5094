"""Trackers write to the disk here, and nowhere else."""

import socket

import pytest

import graft

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=4, checkpoint_every=2
)


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """An empty folder to work in, and no way out of this machine."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    connect = socket.socket.connect

    def connect_here(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"something tried to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)
    return tmp_path


class Fails(graft.Callback):
    """Ends a run after one of its rounds."""

    def __init__(self, number):
        self.number = number

    def on_round(self, record):
        if record["round"] == self.number:
            raise ZeroDivisionError


@pytest.fixture
def run_with():
    """Runs a small experiment with a tracker; a number says after which round it fails."""

    def run(tracker, out="run", fails_after=None, **changes):
        settings = {**SETTINGS, **changes}
        if fails_after is None:
            return graft.run("fedprox", out=out, callbacks=[tracker], settings={"mu": 0.5}, **settings)
        with pytest.raises(ZeroDivisionError):
            graft.run("fedprox", out=out, callbacks=[tracker, Fails(fails_after)], settings={"mu": 0.5}, **settings)
        return None

    return run
