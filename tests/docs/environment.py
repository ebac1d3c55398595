"""A fresh environment for the Start page: the wheel and what it declares, nothing else, without a network.

`pip install` of the page is carried out here. Our own wheel is installed by pip itself, from the file. What it and
PySpark declare as dependencies (the closure of their metadata) is linked file by file from the environment that the
suite runs in, which set-up built from the lock file: the versions are the locked ones, nothing is downloaded, and a
dependency that the wheel forgets to declare is missing, as it would be for a user. A system-site-packages environment
would hide that; an install from an index would need a network and build PySpark (a source archive of 400 MB) anew.

Called as a program, it stands for pip: python environment.py PREFIX install FILE-OR-NAME…
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return the installed distributions that these requirements ask for, directly and through others."""
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        try:
            here = distribution(wanted.name)
        except PackageNotFoundError:
            sys.exit(f"{wanted.name} is declared, and not in the suite's environment: run `make setup`")
        if not wanted.specifier.contains(here.version, prereleases=True):
            sys.exit(f"{wanted.name} {here.version} is locked, and {wanted.specifier} is declared: run `make lock`")
        extras = {"", *wanted.extras}
        if name in found and extras == {""}:
            continue
        found[name] = here
        waiting += [(Requirement(one), extra) for one in here.requires or () for extra in sorted(extras)]
    return found


def link(one: Distribution, site: Path) -> None:
    """Put the files of an installed distribution into another environment."""
    for file in one.files or ():
        source = Path(str(one.locate_file(file))).resolve()
        target = Path(os.path.normpath(site / str(file)))
        if not source.is_file() or source.suffix == ".pyc":
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.parts[0] == "..":  # a script: it names the interpreter in its first line
            text = source.read_bytes()
            target.write_bytes(text.replace(str(Path(sys.prefix)).encode(), str(site.parents[2]).encode()))
            target.chmod(source.stat().st_mode)
            continue
        try:
            os.link(source, target)
        except FileExistsError:
            continue
        except OSError:  # another file system
            shutil.copy2(source, target)


def declared(wheel: Path) -> list[str]:
    """Return what a wheel's own metadata asks for."""
    with ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)


def install(prefix: Path, wanted: list[str]) -> None:
    """Install wheels and names into the environment at `prefix`."""
    site = next((prefix / "lib").glob("python*/site-packages"))
    wheels = [Path(re.sub(r"\[.*\]$", "", one)) for one in wanted if re.search(r"\.whl(\[.*\])?$", one)]
    extras = {e.strip() for one in wanted for some in re.findall(r"\.whl\[(.*)\]$", one) for e in some.split(",")}
    names = [one for one in wanted if not re.search(r"\.whl(\[.*\])?$", one)]
    asked = list(names)
    for wheel in wheels:
        for text in declared(wheel):
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                one.marker = None
                asked.append(str(one))
    for one in closure(asked).values():
        assert isinstance(one, PathDistribution)
        link(one, site)
    pip = [sys.executable, "-m", "pip", "--python", str(prefix), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, *map(str, wheels)], check=True)


if __name__ == "__main__":
    prefix, action, *arguments = sys.argv[1:]
    if action != "install":
        sys.exit(f"only `pip install` is known here, not {action}")
    install(Path(prefix), arguments)
