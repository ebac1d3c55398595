"""Where an application is found, and how each mistake in a user's file is reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.examples.registry import EXAMPLES
from holdfast.loading import find_application, names_application

APP = """
import holdfast

print("loading")
app = holdfast.Application("web")
visits = app.source("visits", schema={"page": "string"})
visits.filter(lambda rows: rows["page"], id="pages").output(priority=3)
if __name__ == "__main__":
    raise AssertionError("this is no program here")
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, modules = list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


@pytest.mark.parametrize("given", ["my_app.py", "my_app.py:app", "my_app:app", "./my_app.py"])
def test_an_application_in_a_file(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("my_app.py", APP)
    assert names_application(given)
    app = find_application(given)
    assert app.name == "web"
    assert [str(one) for one in app.topology().partitions()] == ["visits[0]", "pages[0]"]
    printed = capsys.readouterr()
    assert printed.out == "", "standard output is the command's"
    assert printed.err == "loading\n"


def test_an_application_in_a_package() -> None:
    write("shop/__init__.py", "")
    write("shop/streams.py", APP.replace('"web"', '"shop"'))
    assert find_application("shop.streams:app").name == "shop"


def test_modules_beside_the_file_are_found() -> None:
    write("place/beside.py", "PAGE = 'web'\n")
    write("place/with_module.py", "from beside import PAGE\n" + APP.replace('"web"', "PAGE"))
    assert find_application("place/with_module.py").name == "web"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_by_name(name: str) -> None:
    write(f"{name}.py", "raise AssertionError('the name is the example')")
    assert find_application(name).topology() == EXAMPLES[name].application().topology()
    assert not names_application(name)


TWO = 'from holdfast import Application\na = Application("a")\nb = Application("b")\n'


@pytest.mark.parametrize(
    ("given", "text", "line"),
    [
        ("nowhere.py", None, "nowhere.py: no such file; give the path of a Python file that defines an application"),
        ("none.py", "x = 1", "none.py: defines no application; write app = "),
        ("two.py", TWO, "two.py: defines several applications: a, b; name one: two.py:a"),
        ("two.py:c", TWO, "two.py: defines no 'c'; it has a, b"),
        ("two.py:Application", TWO, "two.py: 'Application' is not an application; it has a, b"),
        ("broken.py", "x = 1\ny = (\n", "broken.py, line 2: cannot be loaded: SyntaxError: '(' was never closed"),
        ("fails.py", "def f():\n    return 1 / 0\n\nf()\n", "fails.py, line 2: cannot be loaded: ZeroDivisionError"),
        ("leaves.py", "import sys\n\nsys.exit(3)\n", "leaves.py, line 3: ended Python (status 3) while it was loaded"),
        (
            "wrong.py",
            'from holdfast import Application\n\napp = Application("w")\napp.source("s", schema={"a": "strange"})\n',
            "wrong.py, line 4: s.schema.a: 'strange' is not a column type",
        ),
        ("syntax.py", "def (\n", "syntax.py, line 1: cannot be loaded: SyntaxError: invalid syntax; correct that line"),
        (
            "lacks.py",
            "import nothing_like_it\n",
            "lacks.py, line 1: cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_it'; install "
            "nothing_like_it into the environment of this command, or correct the import",
        ),
        (
            "argument.py",
            'from holdfast import Application\napp = Application("w")\ns = app.source("s", schema="a bigint")\n'
            's.output("rows", priorty=3)\n',
            "argument.py, line 4: cannot be loaded: TypeError: Stream.output() got an unexpected keyword argument "
            "'priorty'; did you mean 'priority'?",
        ),
        (
            "again.py",
            "from holdfast.loading import find_application\nfind_application('again.py')\n",
            "again.py: starts a run while it is loaded",
        ),
        (
            "session.py",  # as pyspark.sql.functions.col("a") does where no session is active
            "exec('assert False', {'__name__': 'pyspark.sql.functions'})\n",
            "session.py, line 1: cannot be loaded: AssertionError; an application is written without a Spark session",
        ),
        ("nowhere:app", None, "there is no module 'nowhere'"),
        ("hashtag", None, "hashtag: no such file, and no example of that name; give my_app.py, my_app.py:name, "),
        ("beside", None, "beside: is not the name of an example; write beside.py for the file"),
    ],
)
def test_mistakes_are_one_line(given: str, text: str | None, line: str) -> None:
    write("beside.py", "")
    if text is not None:
        write(given.partition(":")[0], text)
    with pytest.raises(BadInput) as caught:
        find_application(given)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.status == 2


def test_a_folder_is_no_application() -> None:
    Path("folder.py").mkdir()
    with pytest.raises(BadInput, match="is not a file"):
        find_application("folder.py")


def test_a_file_that_imports_from_the_working_directory_is_named_by_its_module() -> None:
    """As `python fleet/trucks.py` does, a file finds modules beside itself, not those of the working directory."""
    write("fleet/__init__.py", "")
    write("fleet/units.py", "")
    write("fleet/trucks.py", "import fleet.units\n" + APP)
    with pytest.raises(BadInput, match=r"fleet/trucks.py, line 1: cannot be loaded.*give fleet\.trucks:app$"):
        find_application("fleet/trucks.py")
    assert find_application("fleet.trucks:app").name == "web"
