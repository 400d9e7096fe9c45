"""One group of real workers for all tests of this folder, because each Spark session costs seconds to start."""

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
    """A healthy connector that runs through all tests, so that each can see that the group goes on."""

    def __init__(self, root: Path) -> None:
        self.feeder = Feeder(root / "background")
        self.pipe = Pipe("background", self.feeder.directory, root, "sqlite", tasks=1)

    def goes_on(self, cluster: LocalGroup) -> None:
        """Write some rows and see them arrive."""
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
    """The group; tests say with ``have_workers`` how many they need."""
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
    """A scene of its own for a test, named after it."""
    words = re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).split("_")
    made = Scenario(cluster, tmp_path, "-".join(words)[:40].strip("-"))
    yield made
    made.close()
