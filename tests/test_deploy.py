"""Files that others deploy: units of systemd, containers; their commands exist, and do the right thing when started
again."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
import yaml
from typer.main import get_command

from graft.cli import app
from graft.experiments.federation_file import read_federation
from tests.documents import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PARTIES = ("alpha", "beta", "gamma")
GRAFT = "/opt/graft/bin/graft"
HARDENED = {
    "NoNewPrivileges": "true",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "CapabilityBoundingSet": "",
    "User": "graft",
    "UMask": "0077",
}


def file_name(path):
    return path.name


def read_unit(path):
    """Returns the sections of a unit."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(text)
    return parser


def read_environment(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def check_graft(words):
    """Returns what a call of graft is understood as; one that is not understood fails."""
    command = get_command(app)
    for depth, word in enumerate(words):
        command = command.commands[word]
        if not hasattr(command, "commands"):
            return command.make_context(word, list(words[depth + 1 :])).params
    raise AssertionError(words)


def said_to_graft(tmp_path, words, **environment):
    """Returns what a command says to graft, which is a stand-in here that writes it down."""
    stand_in = tmp_path / "bin" / "graft"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    words = [word.replace(GRAFT, str(stand_in)) for word in words]
    ran = subprocess.run(words, env={"PATH": path, **environment}, capture_output=True, text=True, timeout=20)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def as_systemd_starts(line, instance, environment):
    """Returns the words of ExecStart as systemd understands them, of what is used here."""
    words = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$[A-Z]+", word):
            words += shlex.split(environment[word[1:]])
            continue
        word = re.sub(r"(?<!\$)\$\{([A-Z]+)\}", lambda match: environment[match[1]], word)
        words.append(word.replace("%S", "/var/lib").replace("%i", instance).replace("$$", "$"))
    return words


def test_there_is_a_unit_for_each_role_with_its_settings_beside_it():
    assert list(map(file_name, UNITS)) == ["graft-party@.service", "graft-peer@.service", "graft-server.service"]
    for path in UNITS:
        role = re.match(r"graft-(\w+)", path.name)[1]
        environment = read_environment(path.with_name(f"{role}.env"))
        assert environment["MONITOR"].startswith("127.0.0.1:")
        settings = "-/etc/graft/server.env" if role == "server" else f"/etc/graft/{role}-%i.env"
        assert read_unit(path)["Service"]["EnvironmentFile"] == settings


@pytest.mark.parametrize("path", UNITS, ids=file_name)
def test_units_are_hardened_and_start_again_after_a_failure(path):
    unit = read_unit(path)
    service = unit["Service"]
    assert {name: service[name] for name in HARDENED} == HARDENED
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert int(service["RestartSec"]) >= 10
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    # What it writes lies in its own folder, and a run that is over is left alone.
    state = service["StateDirectory"]
    assert f"%S/{state}/run" in service["ExecStart"]
    assert unit["Unit"]["ConditionPathExists"] == f"!%S/{state}/run/result.json"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=file_name)
def test_systemd_understands_every_line_of_a_unit(path, tmp_path):
    unit = tmp_path / path.name.replace("@", "@alpha")

    def complaints(text):
        unit.write_text(text.replace(GRAFT, "/bin/true"))
        words = ["systemd-analyze", "verify", "--man=no", str(unit)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stderr

    text = path.read_text()
    if "Failed" in (said := complaints(text)):
        pytest.skip(f"systemd-analyze does not work here: {said}")
    assert said == ""
    assert "ProtectSistem" in complaints(text.replace("ProtectSystem", "ProtectSistem"))


def test_a_server_runs_in_a_folder_in_which_it_goes_on(tmp_path):
    settings = read_environment(DEPLOY / "systemd" / "server.env")
    line = read_unit(DEPLOY / "systemd" / "graft-server.service")["Service"]["ExecStart"]
    words = said_to_graft(tmp_path, as_systemd_starts(line, "", settings))
    said = check_graft(words)
    assert words[0] == "serve"
    assert (str(said["out"]), said["resume"], said["overwrite"]) == ("/var/lib/graft/server/run", None, False)
    assert (said["monitor"], said["listen"]) == (settings["MONITOR"], "0.0.0.0:7447")


@pytest.mark.parametrize("role", ["party", "peer"])
def test_parties_and_peers_are_started_under_the_name_of_the_instance(role, tmp_path):
    settings = read_environment(DEPLOY / "systemd" / f"{role}.env")
    line = read_unit(DEPLOY / "systemd" / f"graft-{role}@.service")["Service"]["ExecStart"]
    words = said_to_graft(tmp_path, as_systemd_starts(line, "beta", settings))
    said = check_graft(words)
    assert words[0] == {"party": "join", "peer": "peer"}[role]
    assert (said["name"], said["data"], said["monitor"]) == ("beta", settings["DATA"], settings["MONITOR"])
    assert str(said["out"]) == f"/var/lib/graft/{role}/beta/run"
    assert not said["approve"]  # which is for a person to decide


def read_compose():
    return yaml.safe_load(COMPOSE.read_text())


def test_containers_are_a_server_and_its_parties_in_a_network_of_their_own():
    content = read_compose()
    file = read_federation(DEPLOY / "federation.toml")
    services = content["services"]
    assert set(services) == {file.server, *file.parties} == {"coordinator", *PARTIES}
    assert content["networks"] == {"federation": {"internal": True}}
    assert file.address == "coordinator:7447"
    for service in services.values():
        assert "ports" not in service
        assert service["networks"] == ["federation"]
        assert service["image"] == "graft:federation"
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["restart"].startswith("on-failure")


def test_containers_see_their_own_files_and_change_none_but_their_run():
    for name, service in read_compose()["services"].items():
        mounts = {mount["target"]: mount for mount in service["volumes"]}
        assert mounts["/keys"]["source"] == f"./keys/{name}"
        assert mounts["/work"]["source"] == f"./runs/{name}"
        assert [target for target, mount in mounts.items() if not mount.get("read_only")] == ["/work"]
        if name in PARTIES:
            assert mounts["/bank"]["source"] == f"./banks/{name}"
        else:
            assert "/bank" not in mounts  # a server never sees a graph
        for mount in mounts.values():
            assert mount["source"] == "./federation.toml" or mount["bind"] == {"create_host_path": False}


def test_health_checks_ask_where_each_is_monitored():
    for service in read_compose()["services"].values():
        command = " ".join([service["command"]] if isinstance(service["command"], str) else service["command"])
        monitor = re.search(r"--monitor (\S+)", command)[1]
        kind, program, option, code = service["healthcheck"]["test"]
        assert (kind, program, option) == ("CMD", "python", "-c")
        assert f"http://{monitor}/health" in code
        compile(code, "healthcheck", "exec")


def test_parties_in_containers_join_with_what_is_mounted():
    services = read_compose()["services"]
    for name in PARTIES:
        said = check_graft(shlex.split(services[name]["command"]))
        mounted = {mount["target"] for mount in services[name]["volumes"]}
        assert said["name"] == name
        assert {said["data"], str(said["keys"]), str(said["federation"])} <= mounted
        assert str(said["out"]).startswith("/work/")
        assert services[name]["depends_on"] == {"coordinator": {"condition": "service_healthy"}}


def test_a_server_in_a_container_runs_in_a_folder_in_which_it_goes_on():
    service = read_compose()["services"]["coordinator"]
    said = check_graft(shlex.split(service["command"]))
    assert (str(said["out"]), said["resume"], said["overwrite"]) == ("/work/run", None, False)
    assert said["listen"].endswith(read_federation(DEPLOY / "federation.toml").address.partition(":")[2])


def test_the_image_is_built_from_the_repository_with_the_extra_that_it_needs():
    built = [service["build"] for service in read_compose()["services"].values() if "build" in service]
    (build,) = built
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / "Dockerfile").is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "prometheus-client" in " ".join(extras[build["args"]["EXTRAS"]])


def test_the_lines_that_get_containers_ready_are_understood():
    lines = [line.lstrip("# ") for line in COMPOSE.read_text().splitlines() if re.match(r"#\s+graft ", line)]
    said = [check_graft(shlex.split(line)[1:]) for line in lines]
    made = {str(entry["out"]): list(entry["address"] or ()) for entry in said if "address" in entry}
    assert made == {"keys/coordinator": ["coordinator"], "keys/alpha": [], "keys/beta": [], "keys/gamma": []}
    ignored = (DEPLOY / ".gitignore").read_text().split()
    assert {"/keys", "/ca", "/banks", "/runs"} <= set(ignored)


def test_the_page_names_the_metrics_that_there_are():
    pytest.importorskip("prometheus_client")
    from graft.experiments.monitoring import RunWatch

    text = RunWatch("server", "coordinator").answer("/metrics")[2].decode()
    families = set(re.findall(r"^# TYPE (graft_\w+)", text, re.MULTILINE))
    there = {name for name in families if not name.endswith("_created")}
    page = (DEPLOY / "README.md").read_text()
    assert set(re.findall(r"\bgraft_\w+", page)) == there
    for rule in yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])["groups"][0]["rules"]:
        assert set(re.findall(r"\bgraft_\w+", rule["expr"])) <= there
