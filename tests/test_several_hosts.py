"""A server and three banks, each at an address of its own: from keys to predictions with the commands people type."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import namespaces


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The folder of a federation of several hosts, after its end."""
    pytest.importorskip("zenoh")
    reason = namespaces.missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    before = networks()
    script = Path(namespaces.__file__)
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=namespaces.SECONDS, check=False
    )
    logs = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return folder, before


def networks():
    """What can be seen of networks from outside."""
    named = Path("/run/netns")
    return sorted(entry.name for entry in named.iterdir()) if named.is_dir() else [], sorted(
        entry.name for entry in Path("/sys/class/net").iterdir()
    )


@pytest.mark.slow
def test_hosts_with_addresses_of_their_own_train_together_and_end_with_predictions(hosts):
    folder, before = hosts
    report = json.loads((folder / "report.json").read_text())
    assert set(report["codes"].values()) == {0}
    assert report["reached"] == {name: {"there": True, "here": False} for name in namespaces.BANKS}
    result = json.loads((folder / "coordinator" / "result.json").read_text())
    assert (result["rounds"], result["absences"]) == (3, {})
    for name in namespaces.BANKS:
        rows = list(csv.reader((folder / name / "predictions.csv").open()))
        assert len(rows) > 60
    assert len((folder / "new.csv").read_text().splitlines()) > 10
    assert networks() == before


def test_a_host_that_cannot_be_made_says_why(monkeypatch):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert namespaces.missing() == "it needs root on Linux"
