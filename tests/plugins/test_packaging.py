"""The contents of site-packages after an installation, and the importable names: wheel, sdist and editable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.volume import ci_only

ROOT = Path(__file__).parents[2]
UNPACKED = ci_only("two installations more; in a user's run, the wheel, the checkout, and the files in the sdist")
USE = """
import importlib
from connectgroup.plugins import available, load_assignor, load_listener, load_partition_assignor
print(type(load_assignor("balanced")).__module__, type(load_partition_assignor("range")).__module__,
      type(load_listener("log")).__module__)
assert len([load_assignor(name) for name in available("assignors")]) == 3
assert len([load_partition_assignor(name) for name in available("partition_assignors")]) == 6
for name in "assignors", "listeners", "tests", "examples", "benchmarks":
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
    else:
        print("importable:", name)
"""


class Built(NamedTuple):
    """A wheel and an sdist of the checkout, in ``folder``."""

    folder: Path
    wheel: Path
    sdist: Path


def run(*words: object, cwd: Path) -> str:
    """Run a command outside of the checkout's path; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    for package in "hatchling", "editables":
        pytest.importorskip(package, reason=f"{package} is not installed; allowed: pip install {package}")
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(folder, wheel, sdist)


def from_wheel(built: Built) -> list[object]:
    return [built.wheel]


def from_sdist(built: Built) -> list[object]:
    return ["--no-build-isolation", built.sdist]


def editable(built: Built) -> list[object]:
    return ["--no-build-isolation", "--editable", ROOT]


def editable_of_an_unpacked_sdist(built: Built) -> list[object]:
    shutil.unpack_archive(built.sdist, built.folder)
    return ["--no-build-isolation", "--editable", built.sdist.with_name(built.sdist.name.removesuffix(".tar.gz"))]


@pytest.mark.parametrize(
    "source",
    [
        from_wheel,
        pytest.param(from_sdist, marks=UNPACKED),
        editable,
        pytest.param(editable_of_an_unpacked_sdist, marks=UNPACKED),
    ],
)
def test_install_adds_one_top_level_package(built: Built, tmp_path: Path, source: object) -> None:
    """The built-in assignors and listeners are ``connectgroup.assignors`` and ``connectgroup.listeners`` alone."""
    assert callable(source)
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # Dependencies and the build back end come from the test environment. Its .pth files are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", *source(built), cwd=tmp_path)

    packages = {path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert packages - {"__pycache__"} <= {"connectgroup"}
    assert not list(site.glob("*assignors*")) + list(site.glob("*listeners*"))
    assert run(python, "-c", USE, cwd=tmp_path).splitlines() == [
        "connectgroup.assignors.balanced connectgroup.assignors.range connectgroup.listeners.log"
    ]
    command = (python, "-m", "connectgroup", "docs")
    assert run(*command, "operations", cwd=tmp_path) == (ROOT / "docs" / "operations.md").read_text()
    listed = {line.split()[0] for line in run(*command, cwd=tmp_path).splitlines()[1:]}
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    guides |= {f"deploy/{path.name}" for path in (ROOT / "docs" / "deploy").iterdir()}
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert listed - {"api"} == {"readme", *guides, *examples} - {"api"}  # made by make docs
    shown = Path(run(*command, "examples/demo.py", "--path", cwd=tmp_path).strip())
    assert shown.read_text() == (ROOT / "examples" / "demo.py").read_text()


def test_wheel_and_sdist_have_the_files_of_the_live_page(built: Built) -> None:
    expected = {f"connectgroup/rest/page/{path.name}" for path in (ROOT / "connectgroup" / "rest" / "page").iterdir()}
    assert "connectgroup/rest/page/index.html" in expected
    with zipfile.ZipFile(built.wheel) as wheel, tarfile.open(built.sdist) as sdist:
        assert expected <= set(wheel.namelist())
        assert expected <= {name.partition("/")[2] for name in sdist.getnames()}


@pytest.mark.parametrize("name", ["assignors", "listeners"])
def test_source_folder_is_not_importable_as_a_second_package(name: str) -> None:
    """From the checkout, where the folders are on ``sys.path``: two copies of a class would not be equal."""
    code = f"try:\n    import {name}\nexcept ImportError as error:\n    print(error)"
    assert run(sys.executable, "-c", code, cwd=ROOT) == f"the package is connectgroup.{name}, not {name}\n"
