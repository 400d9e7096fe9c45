"""The guides in ``docs/``, README and ARCHITECTURE: programs run, and what they name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.registry import log_from_url
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer

from . import guides
from .guides import ROOT, Block, blocks, mistakes

GUIDES = (
    "assignors",
    "consumer-groups",
    "embedding",
    "from-kafka-connect",
    "operations",
    "several-machines",
    "testing",
    "writing-connectors",
)
ARCHITECTURE = ROOT / "connectgroup" / "ARCHITECTURE.md"
# The other pages are generated.
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES), ARCHITECTURE]
LIMIT_S = 120


def blocks_of(info: str) -> dict[str, list[Block]]:
    """The blocks of this kind, by page."""
    texts = {page.stem: page.read_text(encoding="utf-8") for page in PAGES if page.is_file()}
    found = {name: [block for block in blocks(text) if block.info == info] for name, text in texts.items()}
    return {name: each for name, each in found.items() if each}


PROGRAMS = [
    pytest.param(block.text, id=f"{page}:{block.line}")
    for page, found in blocks_of("python").items()
    for block in found
]
TESTS = [pytest.param(found, id=page) for page, found in blocks_of("python test").items()]


def test_every_guide_exists_and_readme_links_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in GUIDES:
        assert (ROOT / "docs" / f"{name}.md").is_file()
        assert f"(docs/{name}.md)" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    assert mistakes(page.read_text(encoding="utf-8"), page.parent) == []


def test_files_that_the_architecture_names_exist() -> None:
    """``group/NAME/`` and the like stand for a file to be made."""
    spans = guides.code(guides.prose(ARCHITECTURE.read_text(encoding="utf-8")))
    named = [span for span in spans if re.fullmatch(r"[\w./-]+(/|\.(py|json|md|txt|toml))", span)]
    named = [span for span in named if not re.search("NAME|RESOURCE", span)]
    files = {path.name for folder in ("connectgroup", "tests") for path in (ROOT / folder).rglob("*.*")}
    places = (ARCHITECTURE.parent, ROOT)
    missing = [span for span in named if span not in files and not any((place / span).exists() for place in places)]
    assert missing == []
    assert len(named) > 80


async def test_heartbeat_passes_the_files_that_the_architecture_names(tmp_path: Path) -> None:
    """From the socket to the log: a reader of these few files knows how a heartbeat is processed."""
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("## The path of a heartbeat")[2]
    rows = [line.split("|")[-2] for line in text.splitlines() if line.startswith("| ")]
    named: list[Path] = []
    for span in guides.code("".join(rows[2:8])):  # below the head and the worker's row
        named.append(ARCHITECTURE.parent / span if "/" in span else named[-1].parent / span)
    assert len(named) <= 15

    passed: set[Path] = set()
    coordinator = Coordinator(log_from_url(f"sqlite:///{tmp_path}/log"), GroupSettings())
    server = TcpServer(coordinator)
    await coordinator.start()
    await server.start()
    client = TcpClient("127.0.0.1", server.port)
    try:
        sys.setprofile(lambda frame, event, argument: passed.add(Path(frame.f_code.co_filename)))
        await client.call(
            HeartbeatRequest(group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000, owned=()),
            timeout_s=60,
        )
    finally:
        sys.setprofile(None)
        await client.close()
        await server.close()
        await coordinator.close()
    assert [path for path in named if path not in passed] == []


@pytest.mark.parametrize(("page", "most"), [("README", 130), ("CHANGELOG", 40), ("connectgroup/ARCHITECTURE", 200)])
def test_pages_that_are_read_as_a_whole_are_short(page: str, most: int) -> None:
    assert len((ROOT / f"{page}.md").read_text(encoding="utf-8").splitlines()) <= most


def run(folder: Path, *words: str) -> str:
    """Run Python with these arguments; return its output."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_and_print_what_their_comments_say(program: str, tmp_path: Path) -> None:
    """``print(state)  # Stable``: the comments are lines of the output, in this order."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    output = run(tmp_path, str(file))
    lines = iter(output.splitlines())
    for shown in re.findall(r"^ *print\(.*\) +# (.*)$", program, re.MULTILINE):
        assert shown in lines, output


@pytest.mark.parametrize("found", TESTS)
def test_tests_pass(found: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in found:
        (tmp_path / f"test_line_{block.line}.py").write_text(block.text, encoding="utf-8")
    # Without the plug-ins of other packages, whose import takes half of the time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ("-p", "no:cacheprovider", "-p", "pytest_asyncio", "-p", "connectgroup.testing.pytest_plugin")
    output = run(tmp_path, "-m", "pytest", "-q", *plugins, str(tmp_path))
    assert re.search(r"^\d+ passed", output, re.MULTILINE), output


WRONG = """
# A page

[a](nosuch.md), [b](#nosuch), [c](test_guides.py), [d](#a-page)

`connectgroup workers fly`, `connectgroup worker --nosuch`, `--never`, `connectgroup groups list --json`
`GET /connectors/{c}/nosuch`, `PUT, POST /connectors/{c}/pause`, `connectgroup_worker_nosuch_total`

| setting | metric | Kafka's name | entry point | field of `TaskContext` | method of `WorkerGroup` | other |
|---|---|---|---|---|---|---|
| `no.such` | `no_metric` | `no-name` | `no.point` | `no_field` | `no_method` | `anything` |
| `tasks.max` | `connectgroup_group_epoch` | `epoch` | `connectgroup.sinks` | `scratch` | `kill` | `anything` |

```
connectgroup groups delete
$ connectgroup worker --group g --port 1     # a comment
connectgroup worker --group g --assign balanced
for w in a b; do connectgroup workers restart $w --fast || break; done
connectgroup groups describe workers
```

```python fragment
from connectgroup import NoSuchName, Worker
```

```python exotic
```
"""


def test_mistakes_are_found() -> None:
    found = mistakes(WRONG, ROOT / "tests")
    expected = [
        r"line 22: connectgroup has no NoSuchName",
        r"line 26: python exotic: allowed",
        r"connectgroup groups delete: .*required: group",
        r"connectgroup worker --group g --port 1: ",
        r"connectgroup workers restart '\$w' --fast: ",
        r"connectgroup worker --group g --assign balanced: no option --assign$",
        r"connectgroup workers fly: no such command",
        r"connectgroup worker --nosuch: no option --nosuch",
        r"--never: no option --never",
        r"GET /connectors/\{c\}/nosuch: no such route",
        r"PUT, POST /connectors/\{c\}/pause: no such route",
        r"connectgroup_worker_nosuch_total: no such metric",
        r"setting: no no\.such",
        r"metric: no no_metric",
        r"Kafka's name: no no-name",
        r"entry point: no no\.point",
        r"field of `TaskContext`: no no_field",
        r"method of `WorkerGroup`: no no_method",
        r"nosuch\.md: no such file",
        r"#nosuch: no such heading",
    ]
    for pattern in expected:
        assert any(re.match(pattern, each) for each in found), (pattern, found)
    assert len(found) == len(expected), found


def test_guides_have_programs_commands_and_names_to_check() -> None:
    """The checks above would also pass for pages in which they find nothing."""
    pages = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in GUIDES]
    assert len(PROGRAMS) >= 5
    assert len(TESTS) >= 3
    assert sum(len(guides.command_lines(page)) for page in pages) >= 20
    checked = [header for page in pages for table in guides.tables(page) for header in table.header]
    assert {"setting", "metric", "Kafka's name", "entry point"} <= set(checked)
