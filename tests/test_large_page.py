"""What docs/large.md and compose.yaml hand to other programs: names and options exist, images hold what is called."""

import re
import shlex
import tomllib

import pytest
import yaml
from typer.main import get_command

from graft.cli import app
from tests.documents import ROOT, blocks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own settings
PAGE = ROOT / "docs" / "large.md"
COMPOSE = ROOT / "compose.yaml"


def snippet(name):
    """Returns the block of YAML that has a top-level field of that name."""
    contents = [yaml.safe_load(block.code) for block in blocks(PAGE, "yaml")]
    return next(content for content in contents if name in content)


def ray_options(command):
    """Returns the options of a command of Ray."""
    pytest.importorskip("ray")
    from ray.scripts.scripts import cli

    return {option for parameter in cli.commands[command].params for option in parameter.opts}


def check_ray(words):
    """Checks a call of Ray: its command and its options."""
    program, command, *options = words
    assert program == "ray"
    named = {option.partition("=")[0] for option in options if option.startswith("--")}
    assert named - ray_options(command) == set()


def check_graft(line):
    """Checks that a line calls graft with what it understands."""
    name, *arguments = shlex.split(line.partition("graft ")[2])
    get_command(app).commands[name].make_context(name, arguments)


def test_compose_has_a_head_and_two_workers_that_publish_nothing():
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == {"head", "worker"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert set(services["worker"]["depends_on"]) == {"head"}
    assert len({service["image"] for service in services.values()}) == 1  # of one Ray and one Python
    for service in services.values():
        assert "ports" not in service
        check_ray(service["entrypoint"] + service["command"])
    addresses = re.findall(r"--address=([\w:]+)", COMPOSE.read_text())
    port = next(word.partition("=")[2] for word in services["head"]["entrypoint"] if word.startswith("--port"))
    assert addresses == [f"head:{port}"]
    check_ray(services["head"]["healthcheck"]["test"][1:])


def test_compose_builds_an_image_with_the_extra_that_it_needs():
    build = yaml.safe_load(COMPOSE.read_text())["services"]["head"]["build"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert build["args"]["EXTRAS"] in extras
    for name in ("Dockerfile", "Dockerfile.cuda"):
        stage = (ROOT / name).read_text().partition("AS build")[2].partition("\nFROM")[0]
        assert stage.index("ARG EXTRAS=\n") < stage.index('".${EXTRAS:+[$EXTRAS]}"')


def test_compose_shows_calls_of_graft_that_work():
    lines = [line for line in COMPOSE.read_text().splitlines() if re.match(r"#.*\bgraft run", line)]
    assert lines
    for line in lines:
        check_graft(line)


def test_ray_up_takes_the_clusters_file():
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = snippet("cluster_name")
    validate_config(prepare_config(dict(config)))
    for line in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        check_ray(shlex.split(line))
    with pytest.raises(Exception, match="no_such_field"):
        validate_config(prepare_config({**config, "no_such_field": 1}))


def test_the_manifest_of_kuberay_names_what_a_raycluster_has():
    manifest = snippet("apiVersion")
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    assert set(manifest["spec"]) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert manifest["spec"]["rayVersion"] == pinned
    for group in [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]:
        assert {f"--{name}" for name in group["rayStartParams"]} <= ray_options("start")
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"].endswith("graft:ray")
        for probe in ("readinessProbe", "livenessProbe"):
            check_ray(container[probe]["exec"]["command"])


def test_calls_in_blocks_that_are_not_run_are_understood():
    lines = [line for block in blocks(PAGE, "bash") for line in block.code.splitlines()]
    calls = [line.partition("#")[0].rstrip(" '") for line in lines if "graft run" in line]
    assert len(calls) == 3
    for call in calls:
        check_graft(call[call.index("graft run") :])
