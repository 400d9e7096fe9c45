"""The files in ``docs/deploy``: every command line in them is accepted, and what they refer to exists."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from connectgroup import __version__
from connectgroup.cli.arguments import allowed_paths_of, secrets_of
from connectgroup.cli.parser import arranged, build_parser
from connectgroup.cli.processes import coordinator_config
from connectgroup.config.base import Settings, checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.config.rest import RestConfig
from connectgroup.config.worker import WorkerConfig

from .guides import ROOT, blocks, options_by_command, wrong_words

DEPLOY = ROOT / "docs" / "deploy"
GUIDE = (ROOT / "docs" / "several-machines.md").read_text(encoding="utf-8")
IMAGE = f"connectgroup:{__version__}"
DOCKERFILE = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
WORKLOADS = [each for each in OBJECTS if "template" in each.get("spec", {})]


class Program(NamedTuple):
    """A command line of ``connectgroup`` in a container.

    Attributes:
        where: the service or the pod.
        words: the words after ``connectgroup``.
        environment: the variables of the container.
        files: what is mounted, and the files of passwords that an init container has copied.
    """

    where: str
    words: list[str]
    environment: dict[str, str]
    files: tuple[Path, ...]


def commands_in(words: list[str]) -> Iterator[list[str]]:
    """The command lines in the command of a probe: its words, or those that a shell gets."""
    if words[:1] == ["connectgroup"]:
        yield words[1:]
    for text in words if words[:2] == ["sh", "-c"] else ():
        yield from (shlex.split(each) for each in re.findall(r"\bconnectgroup (.*?)(?=$|;| \|)", text))


def of_compose() -> Iterator[Program]:
    for name, service in COMPOSE["services"].items():
        if service["image"] != IMAGE:
            continue
        variables = {key: str(value) for key, value in service.get("environment", {}).items()}
        files = tuple(Path(each.split(":")[1]) for each in service["volumes"])
        for words in (service["command"], *commands_in(service.get("healthcheck", {}).get("test", [])[1:])):
            yield Program(name, words, variables, files)


def of_kubernetes() -> Iterator[Program]:
    for workload in WORKLOADS:
        pod, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        copied = tuple(
            Path(each["command"][-1], Path(source).name)
            for each in pod["initContainers"]
            for source in each["command"][2:-1]
        )
        for number in range(workload["spec"]["replicas"]):
            for container in pod["containers"]:
                variables = environment(container, pod=f"{name}-{number}")
                probes = [
                    each["exec"]["command"]
                    for key, each in container.items()
                    if key.endswith("Probe") and "exec" in each
                ]
                lines = [container["args"], *(line for probe in probes for line in commands_in(probe))]
                # "own" has nothing but what the init container has copied.
                mounts = [Path(each["mountPath"]) for each in container["volumeMounts"] if each["name"] != "own"]
                for words in lines:
                    full = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in words]  # noqa: B023
                    yield Program(f"{name}-{number}", full, variables, (*mounts, *copied))


def environment(container: dict[str, Any], *, pod: str) -> dict[str, str]:
    """The variables of a container; those from a Secret are empty."""
    found: dict[str, str] = {}
    for each in container.get("envFrom", ()):
        (config,) = (
            one
            for one in OBJECTS
            if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", each["configMapRef"]["name"])
        )
        found |= config["data"]
    for each in container.get("env", ()):
        is_name = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == "metadata.name"
        found[each["name"]] = pod if is_name else each.get("value", "")
    return found


PROGRAMS = [*of_compose(), *of_kubernetes()]


def parsed(program: Program, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """What the command line's parser makes of a program in its environment."""
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    return build_parser().parse_args(arranged(program.words))


def settings_of(options: Namespace, command: str) -> Settings | None:
    """The checked settings of a program that runs until it is stopped."""
    if command == "coordinator":
        return coordinator_config(options)
    if command not in ("worker", "rest"):
        return None
    model = WorkerConfig if command == "worker" else RestConfig
    prefix = "" if command == "worker" else "rest_"
    secrets = secrets_of(options)
    values = {name: getattr(options, f"{prefix}{name}", None) for name in model.model_fields}
    values |= {"secret_env": secrets.env, "secret_paths": secrets.paths, "allowed_paths": allowed_paths_of(options)}
    if command == "rest":
        values |= {"port": options.port, "group": options.group}
    elif values["scratch"] is None:
        values["scratch"] = Path.cwd()  # by default, a directory of its own
    return checked(model, {name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.where}:{program.words[0]}")
def test_command_is_accepted(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser of the command line and by the checks of its settings; no option is abbreviated."""
    options = parsed(program, monkeypatch)
    assert list(wrong_words(program.words)) == []
    settings = settings_of(options, program.words[0])
    assert (settings is None) == (program.words[0] in ("coordinators", "workers"))
    if isinstance(settings, CoordinatorConfig):
        assert (settings.host, settings.may_be_reachable) == ("0.0.0.0", True)
    if isinstance(settings, RestConfig):  # the server rejects such an address without them
        assert settings.host == "0.0.0.0"
        assert None not in (settings.users, settings.certificate, settings.key)
    documented = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    own = [name for name in program.environment if name.startswith("CONNECTGROUP_")]
    assert [name for name in own if f"`{name}`" not in documented] == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.where}:{program.words[0]}")
def test_files_of_a_command_are_in_its_container(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    options = vars(parsed(program, monkeypatch))
    if program.words[0] == "rest":
        del options["secret_path"]  # which references are allowed: this server reads no secret
    values = [each for value in options.values() for each in (value if isinstance(value, list) else [value])]
    made = [
        Path(path) for path in re.findall(r"\s(/\w+)", DOCKERFILE.partition("install --directory")[2].split("\n")[0])
    ]
    assert made
    found = [each for each in values if isinstance(each, Path) and each.is_absolute()]
    missing = [
        each for each in found if not any(place == each or place in each.parents for place in (*program.files, *made))
    ]
    assert missing == []


def test_every_program_is_there() -> None:
    """The checks above would also pass for files in which they find nothing."""
    assert {program.words[0] for program in PROGRAMS} == {"coordinator", "coordinators", "worker", "workers", "rest"}
    names = [each["image"] for each in COMPOSE["services"].values() if each["image"].startswith("connectgroup")]
    for workload in WORKLOADS:
        pod = workload["spec"]["template"]["spec"]
        names += [each["image"] for each in (*pod["containers"], *pod["initContainers"])]
    assert set(names) == {IMAGE}
    (built,) = set(re.findall(r"-t (connectgroup:\S+)", GUIDE + DOCKERFILE))
    assert built == IMAGE


@pytest.mark.parametrize("programs", [list(of_compose()), list(of_kubernetes())], ids=["compose", "kubernetes"])
def test_clients_have_the_addresses_of_all_coordinators(
    programs: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each advertised address is that of one container, for which the certificate of the guide is valid."""
    advertised: list[str] = []
    given: list[list[str]] = []
    names: list[str] = []
    for program in programs:
        with monkeypatch.context() as patch:
            options = parsed(program, patch)
        if program.words[0] == "coordinator":
            host, port = options.advertised.split(":")
            advertised.append(options.advertised)
            names.append(host)
            assert host.partition(".")[0] == program.where
            assert int(port) == options.port
        elif program.words[0] == "coordinators":  # a probe, of the coordinator itself
            names.append(options.coordinator.partition(":")[0])
        else:
            given.append(options.coordinator.split(","))
        if program.words[0] == "rest":
            names += options.rest_allowed_hosts or ["localhost"]
    assert len(advertised) >= 2
    assert given
    assert all(each == advertised for each in given)
    valid = re.findall(r"DNS:([^,']+)", GUIDE)
    for name in names:
        assert any(re.fullmatch(each.replace(".", r"\.").replace("*", r"[^.]+"), name) for each in valid), name


def test_services_of_compose_refer_to_what_exists() -> None:
    services, volumes = COMPOSE["services"], set(COMPOSE["volumes"])
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        sources = {each.split(":")[0] for each in service["volumes"]}
        assert {each for each in sources if not each.startswith("./")} <= volumes, name
    (log,) = {
        word for name in ("coordinator-1", "coordinator-2") for word in services[name]["command"] if "--log" in word
    }
    assert f"@database/{services['database']['environment']['POSTGRES_DB']}" in log
    published = services["rest"]["ports"][0].split(":")
    options = build_parser().parse_args(services["rest"]["command"])
    assert published[1:] == [str(options.port)] * 2
    assert f"localhost:{options.port}/page" in services["rest"]["healthcheck"]["test"][-1]


def test_objects_of_kubernetes_refer_to_what_exists() -> None:
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in OBJECTS}
    assert len(by_name) == len(OBJECTS)
    assert {each["metadata"]["namespace"] for each in OBJECTS} == {"connectgroup"}
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in WORKLOADS}
    for workload in WORKLOADS:
        spec, name = workload["spec"], workload["metadata"]["name"]
        assert spec["selector"]["matchLabels"] == labels[name]
        pod = spec["template"]["spec"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        for container in (*pod["containers"], *pod["initContainers"]):
            assert {each["name"] for each in container["volumeMounts"]} <= set(volumes), name
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in by_name
        (container,) = pod["containers"]
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
        for key, probe in container.items():
            for kind in ("httpGet", "tcpSocket"):
                if key.endswith("Probe") and kind in probe:
                    assert probe[kind]["port"] in ports, name
        for service in (each for each in OBJECTS if each["kind"] == "Service"):
            if service["metadata"]["name"] == name:
                assert service["spec"]["selector"] == labels[name]
                assert [(each["targetPort"], each["port"]) for each in service["spec"]["ports"]] == list(ports.items())
        if ports:
            parser = build_parser()
            assert list(ports.values()) == [parser.parse_args(container["args"]).port]
    coordinators = by_name["StatefulSet", "coordinator"]["spec"]
    assert by_name["Service", coordinators["serviceName"]]["spec"]["clusterIP"] == "None"
    budget = by_name["PodDisruptionBudget", "coordinator"]["spec"]
    assert budget["selector"]["matchLabels"] == labels["coordinator"]


def test_guide_makes_the_secrets_that_the_objects_use() -> None:
    """As files and as variables; and the files that the services of compose use."""
    text = "\n".join(block.text for block in blocks(GUIDE))
    made: dict[str, set[str]] = {}
    for name, words in re.findall(r"create secret generic (\S+) (.*)", text):
        made[name] = {word.partition("=")[2].partition("=")[0] for word in words.split()}
    used: dict[str, set[str]] = {}
    for workload in WORKLOADS:
        pod = workload["spec"]["template"]["spec"]
        secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
        for container in (*pod["initContainers"], *pod["containers"]):
            for variable in container.get("env", ()):
                if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                    used.setdefault(reference["name"], set()).add(reference["key"])
            words = [
                each.partition("=")[2] or each for each in (*container.get("args", ()), *container.get("command", ()))
            ]
            for mount in container["volumeMounts"]:
                if mount["name"] in secrets and not secrets[mount["name"]].get("optional"):
                    below = [Path(word).name for word in words if Path(word).parent == Path(mount["mountPath"])]
                    used.setdefault(secrets[mount["name"]]["secretName"], set()).update(below)
    assert used == made
    files = {
        Path(path).name for path in re.findall(r"/etc/connectgroup/([\w.-]+)", (DEPLOY / "compose.yaml").read_text())
    }
    assert all(re.search(rf"(> |-keyout |-out ){re.escape(file)}\b", text) for file in files)


def test_programs_stop_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is not killed while its tasks may still end; its memory holds the heap twice."""
    pod = next(each for each in WORKLOADS if each["metadata"]["name"] == "worker")["spec"]["template"]["spec"]
    compose = COMPOSE["services"]["worker"]
    (worker, *_) = (each for each in PROGRAMS if (each.where, each.words[0]) == ("worker", "worker"))
    settings = settings_of(parsed(worker, monkeypatch), "worker")
    assert isinstance(settings, WorkerConfig)
    for seconds in (pod["terminationGracePeriodSeconds"], int(compose["stop_grace_period"].removesuffix("s"))):
        assert seconds >= settings.rebalance_timeout_ms / 1_000 + 15
    heap_gb = int(worker.environment["CONNECTGROUP_SPARK_MEMORY"].removesuffix("g"))
    assert int(compose["deploy"]["resources"]["limits"]["memory"].removesuffix("g")) >= 2 * heap_gb
    assert int(pod["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi")) >= 2 * heap_gb


def test_image_has_what_its_build_names() -> None:
    """The files of the checkout, modules that a build step imports, commands, extras and the user of the pods."""
    for sources in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE):
        assert [each for each in sources.split() if not (ROOT / each).exists()] == []
    for code in re.findall(r'python -c "(.*)"$', DOCKERFILE, re.MULTILINE):
        for module, names in re.findall(r"from (\S+) import ([\w, ]+)", code):
            assert [name for name in names.split(", ") if not hasattr(import_module(module), name)] == []
    for words in re.findall(r"^RUN connectgroup (.*)$", DOCKERFILE, re.MULTILINE):
        assert tuple(words.split()) in options_by_command()
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    for workload in WORKLOADS:
        context = workload["spec"]["template"]["spec"]["securityContext"]
        assert (context["runAsUser"], context["fsGroup"]) == (int(user), int(user))
    assert f"--uid {user}" in DOCKERFILE
    assert f"chown {user} " in GUIDE
