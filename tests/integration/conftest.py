"""One group of real workers for all tests of this folder: each Spark session takes seconds to start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.config.connector_file import ConnectorFile

from .cluster import LocalGroup, plugin_path
from .flow import Feeder, Pipe, compare
from .processes import marked
from .scene import Scenario


class Background:
    """A healthy connector that runs during all tests, to check that the rest of the group continues."""

    def __init__(self, root: Path) -> None:
        self.feeder = Feeder(root / "background")
        self.pipe = Pipe("background", self.feeder.directory, root, "sqlite", tasks=1)

    def continues(self, cluster: LocalGroup) -> None:
        """Write some rows and wait until they are in the sink."""
        self.feeder.write(100)
        cluster.wait("the background's rows", lambda: self.pipe.count() >= self.feeder.written)


@pytest.fixture(scope="package")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    made = Background(tmp_path_factory.mktemp("background"))
    yield made
    made.feeder.close()
    compare(made.pipe, made.feeder.written)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, background: Background) -> Iterator[LocalGroup]:
    """The group; tests call ``have_workers`` with the number they need."""
    made = LocalGroup(
        tmp_path_factory.mktemp("cluster"), [ConnectorFile(name="background", config=background.pipe.config)]
    )
    with pytest.MonkeyPatch.context() as patched, marked():
        patched.setenv("PYTHONPATH", plugin_path())
        made.start()
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def scene(cluster: LocalGroup, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A scenario for one test, named after it."""
    arguments = re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).split("_")
    made = Scenario(cluster, tmp_path, "-".join(arguments)[:40].strip("-"))
    yield made
    made.close()
