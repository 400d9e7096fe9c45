"""Options of ``connectgroup connectors`` and ``connectgroup plugins``."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import (
    add_allowed_paths,
    add_coordinator,
    add_group,
    add_json,
    add_plugin_path,
    add_secrets,
    add_wait,
    count,
    number,
    path,
    subcommand,
)
from .completion import with_connectors, with_plugins

Commands = Any
"""What ``ArgumentParser.add_subparsers`` returns."""


OF_STATUS = ("show_status", "describe_connector", "connector_logs", "connector_errors")
"""Actions whose functions are in ``status.py``."""


def add_status(command: argparse.ArgumentParser) -> None:
    """Add the options of ``status``, but for the group and the coordinator."""
    with_connectors(
        command.add_argument("names_of_connectors", nargs="*", metavar="NAME", help="a connector (all of the group)")
    )
    command.add_argument(
        "--watch",
        type=count,
        nargs="?",
        const=2,
        metavar="SECONDS",
        help="show it again at this interval, until Ctrl-C (2)",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="for monitors: one line for each problem; exit code 0: all runs, 1: something does not run yet, cannot be "
        "read or had errors within the last hour, 2: something has failed; 3 and above: no answer",
    )


def add_connectors(commands: Commands) -> None:
    """Add ``connectors`` and its actions."""
    help_ = "list, create, change, restart and delete connectors; their status and offsets"
    actions = commands.add_parser("connectors", help=help_).add_subparsers(required=True, metavar="ACTION")

    def add(name: str, help_: str, run: str, *, waits: bool = False) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(name, help=help_)
        module = "status" if run in OF_STATUS else "connectors"
        action.set_defaults(run=subcommand(f"{module}.{run}"), action=name)
        add_group(action)
        add_coordinator(action)
        add_json(action)
        if waits:
            add_wait(action)
        return action

    add("list", "list connectors; --json prints their configurations", "list_connectors")
    for name, help_ in (
        ("create", "create connectors from a file"),
        ("update", "replace the configurations of connectors by those of a file"),
        ("put", "create connectors, or update them, from a file: also from what list --json has printed"),
    ):
        action = add(name, help_, "put_connectors", waits=True)
        action.add_argument(
            "file",
            type=path,
            help="JSON, one connector or an array of them, or .properties, as for Kafka Connect; - reads JSON from "
            "standard input",
        )
        if name != "update":
            action.add_argument("--new-group", action="store_true", help="create the group if there are only others")
        add_plugin_path(action)
    patch = add("patch", "change some settings of a connector", "patch_connector", waits=True)
    with_connectors(patch.add_argument("name"))
    patch.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    patch.add_argument("--remove", action="append", default=[], metavar="SETTING", help="remove a setting")
    add_plugin_path(patch)
    add_status(add("status", "show the states of connectors, or of the tasks of those that are named", "show_status"))
    about = add("describe", "show all of a connector: failures, tasks, events, configuration", "describe_connector")
    with_connectors(about.add_argument("name"))
    for name, help_, last in (
        ("logs", "show the last log lines of a connector and of its tasks", 100),
        ("errors", "show the last errors and dead letters of a connector", 20),
    ):
        events = add(name, help_, f"connector_{name}")
        with_connectors(events.add_argument("name"))
        events.add_argument("--task", type=number, metavar="N", help="of this task only; -1: the connector itself")
        events.add_argument("--last", type=count, default=last, metavar="N", help=f"at most so many ({last})")
        if name == "logs":
            events.add_argument("--follow", action="store_true", help="go on with those that come, until Ctrl-C")
    edit = add("edit", "change the configuration of a connector in $EDITOR; it is checked before it is sent", "")
    edit.set_defaults(run=subcommand("connectors.edit_connector"))
    add_wait(edit)
    with_connectors(edit.add_argument("name"))
    add_plugin_path(edit)
    config = add("config", "print the configuration of a connector as JSON, as put reads it", "connector_config")
    with_connectors(config.add_argument("name"))
    validate = add(
        "validate",
        "print all errors of a connector's file; try its source and sink",
        "validate_connector",
    )
    validate.add_argument("file", type=path)
    validate.add_argument("--offline", action="store_true", help="check the settings only: open no file, no connection")
    add_secrets(validate)
    add_allowed_paths(validate, "those of the workers, if all run on this machine; else their rejection is a note")
    add_plugin_path(validate)
    translate = actions.add_parser(
        "translate", help="print a pipeline for a connector's file of Kafka Connect: FileStream, JDBC, S3, Debezium"
    )
    translate.set_defaults(run=subcommand("connectors.translate_connector"), action="translate")
    translate.add_argument("file", type=path, help="JSON or .properties; - reads JSON from standard input")
    help_ = "print one object: the pipelines, what is different (notes), and what the file does not say (missing)"
    translate.add_argument("--json", action="store_true", help=help_)
    translate.add_argument(
        "--bootstrap-servers", default="", metavar="HOST:PORT,...", help="the brokers of the Kafka Connect cluster"
    )
    for name, help_ in (
        ("import", "move connectors from Kafka Connect here, with their offsets"),
        ("export", "move connectors to Kafka Connect, or back, with their offsets"),
    ):
        moving = add(name, help_, "")
        moving.set_defaults(run=subcommand(f"moving.{name}_connectors"))
        moving.add_argument("url", metavar="URL", help="Kafka Connect's REST API, such as http://connect:8083")
        moving.add_argument(
            "--only",
            action="append",
            default=[],
            required=name == "export",
            metavar="NAME",
            help="this connector; may be repeated" + (" (all)" if name == "import" else ""),
        )
        moving.add_argument(
            "--stop-originals",
            action="store_true",
            help="stop the connectors where they run now, and put them into the same state on the other side",
        )
        moving.add_argument(
            "--resume",
            action="store_true",
            help="run the connectors where they are moved to, if the originals are stopped",
        )
        add_secrets(moving)
        add_plugin_path(moving)
        if name == "import":
            moving.add_argument("--dry-run", action="store_true", help="print the table, and change nothing")
            moving.add_argument(
                "--set",
                dest="settings",
                action="append",
                default=[],
                metavar="SETTING=VALUE",
                help="a setting of the connectors here, such as sink=parquet; may be repeated",
            )
            moving.add_argument("--native", action="store_true", help="prefer pipelines to Java classes")
            moving.add_argument("--new-group", action="store_true", help="create the group if there are only others")
            moving.add_argument(
                "--bootstrap-servers",
                default="",
                metavar="HOST:PORT,...",
                help="the brokers of the Kafka Connect cluster",
            )
    topics = add(
        "topics",
        "list the Kafka topics that the tasks of a connector have used",
        "connector_topics",
    )
    with_connectors(topics.add_argument("name"))
    topics.add_argument("--reset", action="store_true", help="forget them")
    delete = add("delete", "delete a connector and its tasks", "delete_connectors")
    add_wait(delete, "wait until its tasks have stopped")
    with_connectors(delete.add_argument("name"))
    for name, help_ in (
        ("pause", "stop the tasks of a connector; the connector itself keeps running"),
        ("resume", "run a paused or stopped connector"),
        ("stop", "stop a connector and its tasks"),
    ):
        with_connectors(add(name, help_, "set_target_state", waits=True).add_argument("name"))
    again = add("restart", "restart a connector, its tasks, or one task", "restart_connector", waits=True)
    with_connectors(again.add_argument("name"))
    again.add_argument("--include-tasks", action="store_true", help="restart the tasks as well")
    again.add_argument("--only-failed", action="store_true", help="restart only what has failed")
    again.add_argument("--task", type=number, metavar="N", help="restart only this task")
    offsets = add(
        "offsets", "show the committed offsets of a connector; change them if it is stopped", "connector_offsets"
    )
    with_connectors(offsets.add_argument("name"))
    add_secrets(offsets)
    add_plugin_path(offsets)
    change = offsets.add_mutually_exclusive_group()
    change.add_argument("--reset", action="store_true", help="forget all offsets of a stopped connector")
    change.add_argument(
        "--alter",
        type=path,
        metavar="FILE",
        help="JSON file in the form of --json; a null offset is forgotten",
    )


def add_plugins(commands: Commands) -> None:
    """Add ``plugins`` and its actions."""
    actions = commands.add_parser(
        "plugins", help="list plug-ins; describe settings; install Java plug-ins"
    ).add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the installed plug-ins")
    add_plugin_path(listing)
    listing.set_defaults(run=subcommand("connectors.list_plugins"))
    install = actions.add_parser("install", help="install a Java plug-in of Kafka Connect with Maven")
    install.add_argument("coordinates", metavar="GROUP:ARTIFACT:VERSION", help="the plug-in in a Maven repository")
    install.add_argument("--replace", action="store_true", help="replace another version of it")
    add_plugin_path(install)
    install.set_defaults(run=subcommand("connectors.install_plugin"))
    describe = actions.add_parser(
        "describe", help="describe the settings of a connector class, source, sink, transform or predicate"
    )
    with_plugins(
        describe.add_argument("name", help="its name"), "connectors", "sources", "sinks", "transforms", "predicates"
    )
    describe.add_argument(
        "--with",
        dest="settings",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="a setting that other settings depend on, such as source=files; may be repeated",
    )
    add_plugin_path(describe)
    describe.set_defaults(run=subcommand("connectors.describe_plugin"))
    for action in (listing, install, describe):
        add_json(action)
