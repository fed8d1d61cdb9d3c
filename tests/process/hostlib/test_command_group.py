"""A command's subcommands are the modules of a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from hostlib.system.command_group import FolderGroup

ONE = (
    "import click\n\n@click.command()\ndef {0}():\n    '''Do {0}.'''\n    click.echo('{0} done')\n\nCOMMANDS = ({0},)\n"
)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Group:
    folder = tmp_path / "folder_of_commands"
    folder.mkdir()
    for name in ("early", "late"):
        (folder / f"{name}.py").write_text(ONE.format(name))
    with (folder / "late.py").open("a") as late:
        late.write("PLACE = 10\n")
    (folder / "other.py").write_text(ONE.format("hidden_there"))
    (folder / "helper.py").write_text("NUMBER = 3\n")
    package = ModuleType("folder_of_commands")
    package.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    yield FolderGroup("test", package=package)
    for name in [name for name in sys.modules if name.startswith(package.__name__ + ".")]:
        del sys.modules[name]


def test_a_file_is_a_command_and_one_alone_is_loaded(group: click.Group) -> None:
    assert CliRunner().invoke(group, ["late"]).output == "late done\n"
    assert "folder_of_commands.early" not in sys.modules


def test_help_has_all_in_order(group: click.Group) -> None:
    assert group.list_commands(click.Context(group)) == ["late", "early", "hidden-there"]
    assert "Do late." in CliRunner().invoke(group, ["--help"]).output


def test_one_more_file_is_in_the_help_with_its_whole_first_sentence(group: click.Group) -> None:
    sentence = " ".join(["Do what takes many words to say"] * 5) + "."
    (folder,) = group._package.__path__
    Path(folder, "between.py").write_text(ONE.format("between").replace("Do between.", f"{sentence} And more."))
    page = CliRunner().invoke(group, ["--help"]).output
    assert sentence in " ".join(page.split()) and "And more" not in page and "say..." not in page
    assert group.list_commands(click.Context(group)) == ["late", "between", "early", "hidden-there"]


def test_a_command_is_found_whatever_its_module_is_called(group: click.Group) -> None:
    assert CliRunner().invoke(group, ["hidden-there"]).output == "hidden_there done\n"
    refused = CliRunner().invoke(group, ["nothing"])
    assert refused.exit_code == 2 and "No such command 'nothing'" in refused.output
