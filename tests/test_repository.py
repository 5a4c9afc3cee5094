"""What people meet before the code: images, workflows and templates name what exists, and pin what they install."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
IMAGES = [ROOT / "Dockerfile", ROOT / "Dockerfile.cuda"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def file_name(path):
    return path.name


def pins():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines)}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def read_workflow(path):
    content = yaml.safe_load(path.read_text())
    return content | {"on": content.pop(True)}  # YAML 1.1 takes the word for a truth


def all_steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def make_targets():
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_requirement_is_pinned_exactly():
    requirements = [*PROJECT["dependencies"], *(name for extra in ("dev", "docs") for name in extra_names(extra))]
    names = {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements} - {PROJECT["name"]}
    assert names - set(pins()) == set()
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in pins().values())


def extra_names(extra):
    return PROJECT["optional-dependencies"][extra]


def test_tests_run_on_every_python_that_is_claimed():
    claimed = {found[1] for text in PROJECT["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", text))}
    assert claimed == {"3.11", "3.12", "3.13"}
    for name, job in (("tests.yml", "test"), ("wheel.yml", "use")):
        workflow = read_workflow(ROOT / ".github" / "workflows" / name)
        assert set(workflow["jobs"][job]["strategy"]["matrix"]["python"]) == claimed


@pytest.mark.parametrize("path", WORKFLOWS, ids=file_name)
def test_workflows_may_only_read_and_call_what_exists(path):
    workflow = read_workflow(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "permissions" not in job or name == "publish"
        if job.get("uses", "").startswith("./"):
            assert (ROOT / job["uses"]).is_file()
    for step in all_steps(workflow):
        assert set(re.findall(r"\bmake ([\w-]+)", step.get("run", ""))) <= make_targets()
        assert "${{" not in step.get("run", "")  # what others can name, such as a branch, never becomes a command


@pytest.mark.parametrize("path", WORKFLOWS, ids=file_name)
def test_actions_are_pinned_by_commit(path):
    for step in all_steps(read_workflow(path)):
        action, _, version = step.get("uses", "").partition("@")
        assert not action or re.fullmatch(r"[0-9a-f]{40}", version) or action == "pypa/gh-action-pypi-publish"


def test_nothing_is_published_without_approval():
    workflow = read_workflow(ROOT / ".github" / "workflows" / "release.yml")
    publish = workflow["jobs"]["publish"]
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("path", FORMS, ids=file_name)
def test_forms_ask_questions_that_can_be_told_apart(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)


@pytest.mark.parametrize("path", IMAGES, ids=file_name)
def test_images_copy_what_is_there_and_do_not_run_as_root(path):
    lines = re.sub(r"\\\n\s*", "", path.read_text()).splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    for source in (name for names in copied for name in names):
        assert (ROOT / source).exists()
        assert not ignored(source)
    installs = [line for line in lines if "pip install" in line]
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)
    assert [line for line in lines if line.startswith("USER")][-1] not in ("USER root", "USER 0")
    assert 'ENTRYPOINT ["graft"]' in lines


def ignored(name):
    """Returns whether an image's build would not see a file: the last rule that fits decides."""
    decision = False
    for rule in (ROOT / ".dockerignore").read_text().split("\n"):
        if rule and not rule.startswith("#") and fnmatch.fnmatch(name, rule.lstrip("!")):
            decision = not rule.startswith("!")
    return decision


def test_builds_of_images_see_neither_tests_nor_runs():
    assert all(ignored(name) for name in ("tests", "runs", ".venv", ".git", "docs"))
