"""Finds the mistakes in a page of the documentation: commands, names and links that do not exist.

A fenced block is one of: ``python`` (a complete program), ``python test`` (a pytest file), ``python fragment`` (part of
a program: it compiles, and what it imports exists), or another language.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import connectgroup
from connectgroup import testing
from connectgroup.assign.placement import placement_settings
from connectgroup.cli.errors import UsageError
from connectgroup.cli.parser import arranged, build_parser
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.config.rest import RestConfig
from connectgroup.config.worker import WorkerConfig
from connectgroup.connectors.pipeline import PipelineSettings
from connectgroup.dataplane.settings import setting_names
from connectgroup.plugins import available, load_sink_class, load_source_class
from connectgroup.rest.app import OPERATIONS
from connectgroup.telemetry.metric_table import METRICS

ROOT = Path(__file__).parent.parent
METHODS = r"(?:GET|POST|PUT|PATCH|DELETE)"
METRIC = r"(?:kafka_connect|kafka_consumer|connectgroup_(?:worker|group|coordinator))_\w+"
PYTEST_OPTIONS = {f"--connectgroup-{name}" for name in ("seed", "seeds", "faults", "shrink-seconds")}
OF_EVERY_CONNECTOR = {
    "name",
    "connector.class",
    "tasks.max",
    "task.progress.timeout.ms",
    "errors.retry.timeout",
    "errors.retry.delay.max.ms",
}


class Block(NamedTuple):
    """A fenced block: the words after the fence, the line of the fence, the text."""

    info: str
    line: int
    text: str


class Table(NamedTuple):
    """A table: the cells of its header, and of its rows."""

    header: list[str]
    rows: list[list[str]]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [Block(each[1].strip(), page.count("\n", 0, each.start()) + 1, each[2]) for each in found]


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def code(text: str) -> list[str]:
    """The text between backticks."""
    return [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", text)]


def tables(page: str) -> list[Table]:
    """The tables of a page."""
    found = []
    for text in re.findall(r"(?:^\|.*\n)+", prose(page) + "\n", re.MULTILINE):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()]
        found.append(Table(rows[0], rows[2:]))
    return found


def command_lines(page: str) -> list[list[str]]:
    """The words after ``connectgroup`` of each command line in a block."""
    found = []
    for block in blocks(page):
        if block.info in ("", "sh", "console"):
            commands = re.findall(
                r"(?:^|\bdo |; |\$ )connectgroup (.*?)(?=$|;| \|\|?\s|\s&| > )", block.text, re.MULTILINE
            )
            found += [shlex.split(words, comments=True) for words in commands]
        if block.info == "ini":  # a systemd unit
            found += [
                shlex.split(words) for words in re.findall(r"^ExecStart=\S+/connectgroup (.*)$", block.text, re.M)
            ]
    return found


# ------------------------------------------------------------------------------------------------------------ mistakes


def mistakes(page: str, folder: Path) -> list[str]:
    """Everything on a page that does not exist; the page is a file of this folder."""
    return [
        *wrong_fragments(page),
        *wrong_commands(page),
        *wrong_code(page),
        *wrong_columns(page),
        *wrong_links(page, folder),
    ]


def wrong_fragments(page: str) -> Iterator[str]:
    """Fragments that do not compile, or import what does not exist; blocks of an unknown kind."""
    for block in blocks(page):
        if block.info.startswith("python") and block.info not in ("python", "python test", "python fragment"):
            yield f"line {block.line}: {block.info}: allowed: python, python test, python fragment"
        if block.info == "toml":
            tomllib.loads(block.text)
        if block.info != "python fragment":
            continue
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(block.text, f"line {block.line}", "exec", flags=flags)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("connectgroup"):
                for each in node.names:
                    if not hasattr(import_module(str(node.module)), each.name):
                        yield f"line {block.line}: {node.module} has no {each.name}"


def wrong_commands(page: str) -> Iterator[str]:
    """Command lines in blocks that the parser rejects, or in which an option is abbreviated."""
    for words in command_lines(page):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):  # --help, --version
            try:
                build_parser().parse_args(arranged(words))
            except UsageError as error:
                yield f"connectgroup {shlex.join(words)}: {error}"
                continue
        yield from wrong_words(words)


def wrong_words(words: list[str]) -> Iterator[str]:
    """A subcommand or options after ``connectgroup`` that do not exist; arguments may be missing."""
    commands, shown = options_by_command(), f"connectgroup {' '.join(words)}"
    named = [word for word in arranged(words) if not word.startswith("-")]
    command = next((tuple(named[:n]) for n in (2, 1) if tuple(named[:n]) in commands), ())
    has_actions = any(len(other) > 1 and other[:1] == command for other in commands)
    if named and (not command or (has_actions and named[1:])):
        yield f"{shown}: no such command"
        return
    wrong = options_in(shown) - commands[command] - {"--verbose", "--version", "--help"}
    yield from (f"{shown}: no option {option}" for option in sorted(wrong))


def wrong_code(page: str) -> Iterator[str]:
    """Commands, options, routes and metrics between backticks that do not exist."""
    options = PYTEST_OPTIONS.union(*options_by_command().values())
    for span in code(prose(page)):
        words = span.split()
        if words[0] == "connectgroup":
            yield from wrong_words(words[1:])
        elif span.startswith("--"):
            for option in sorted(options_in(span) - options):
                # "--rest-" is a prefix of options.
                if not (option.endswith("-") and any(each.startswith(option) for each in options)):
                    yield f"{span}: no option {option}"
        elif re.match(rf"{METHODS}[ ,]", span):
            yield from wrong_routes(span)
        elif re.fullmatch(METRIC, span) and span not in {metric.exported for metric in METRICS}:
            yield f"{span}: no such metric"


def wrong_routes(span: str) -> Iterator[str]:
    """``GET, DELETE /connectors/{c}``: the routes that the REST API does not have."""
    methods, _, path = span.partition(" /")
    known = {(operation.method, re.sub(r"\{.*?\}", "{}", operation.path)) for operation in OPERATIONS}
    path = re.sub(r"\{.*?\}", "{}", "/" + path.partition("?")[0])
    for method in re.findall(METHODS, methods):
        if (method, path) not in known:
            yield f"{span}: no such route"


def wrong_columns(page: str) -> Iterator[str]:
    """Names in columns of tables that do not exist: the header says what they are."""
    for table in tables(page):
        for number, header in enumerate(table.header):
            known = known_names(header)
            if known is not None:
                for row in table.rows:
                    yield from (f"{header}: no {name}" for name in code(row[number]) if name not in known)


def wrong_links(page: str, folder: Path) -> Iterator[str]:
    """Relative links to files and headings that do not exist."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = folder / path if path else None
        if file is not None and not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(page if file is None else file.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


# --------------------------------------------------------------------------------------------------------- what exists


def known_names(header: str) -> set[str] | None:
    """The names that a column may have; null for a column that is not checked."""
    if header == "setting":
        return all_settings()
    if header == "metric":
        return {metric.exported for metric in METRICS}
    if header == "Kafka's name":
        return {metric.name for metric in METRICS}
    if header == "entry point":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return set(project["entry-points"])
    if member := re.fullmatch(r"(?:field|method) of `(\w+)`", header):
        home = connectgroup if member[1] in connectgroup.__all__ else testing
        cls: Any = getattr(home, member[1])
        documented = re.findall(r"^ +(\w+): ", cls.__doc__ or "", re.MULTILINE)  # attributes
        return {*dir(cls), *getattr(cls, "__dataclass_fields__", ()), *documented}
    return None


@cache
def all_settings() -> set[str]:
    """The settings of coordinators, workers, REST servers, connectors, and installed sources and sinks."""
    models = (CoordinatorConfig, WorkerConfig, RestConfig)
    names = {name for model in models for name in model.model_fields}
    names |= {*setting_names(PipelineSettings), *placement_settings(), *OF_EVERY_CONNECTOR}
    for source in available("sources"):
        names |= set(setting_names(load_source_class(source).Settings, "source."))
    for sink in available("sinks"):
        names |= set(setting_names(load_sink_class(sink).Settings, "sink."))
    return names


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def options_in(text: str) -> set[str]:
    """The long options that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


@cache
def options_by_command() -> dict[tuple[str, ...], set[str]]:
    """The options of each command, as its usage lists them."""
    found: dict[tuple[str, ...], set[str]] = {}

    def visit(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            parser.parse_args([*words, "--help"])
        found[words] = options_in(said.getvalue().partition("\n\n")[0])
        choices = None
        try:
            parser.parse_args([*words, "no-such-command"])
        except UsageError as error:
            choices = re.search(r"choose from (.*?)\)", str(error))
        if choices and len(words) < 2:
            for word in re.findall(r"[a-z]+", choices[1]):
                visit(parser, (*words, word))

    visit(build_parser(), ())
    return found
