"""What README says, it does: its code runs, and its files, folders, methods and links exist."""

import re
from pathlib import Path

import pytest
import typer

import workbench as wb
from papers import tuned
from workbench.utils.names import PAPERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DARK_PAGE = "prefers-color-scheme: dark"


def part(heading):
    """The text below one heading of README."""
    return README.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def page(name):
    return (ROOT / name).read_text()


@pytest.mark.slow
def test_the_code_runs_at_a_small_scale(at_small_scale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, names)
    assert DARK_PAGE in (tmp_path / "runs" / "first" / "compare.svg").read_text()
    assert names["run"].round == 2


def test_the_first_figure_follows_a_dark_page():
    assert DARK_PAGE in (ROOT / "figures" / "first.svg").read_text()


def test_the_comments_of_the_primitives_show_what_they_return(tmp_path, monkeypatch):
    names = {"wb": wb}
    block = re.findall(r"```python\n(.*?)```", part("The rules without the rest"), re.DOTALL)
    exec(block[0], names)
    shown = dict(re.findall(r"^(\w+) = .*# (\[.*\])$", block[0], re.MULTILINE))
    assert set(shown) == {"kept", "scores", "counts"}
    for name, text in shown.items():
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", text)]
        assert numbers == names[name].tolist()


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_links_lead_to_files_of_the_repository(link):
    if link.startswith("https://arxiv.org/abs/"):
        return
    assert "://" not in link, link
    path, _, _ = link.partition("#")
    assert (ROOT / path).exists(), link


def test_commands_are_targets_of_make_or_of_the_command_line():
    from workbench.cli.app import main

    commands = typer.main.get_command(main).commands
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            words = line.split("#")[0].split()
            if words[0] == "make":
                assert words[1] in targets
            if words[:3] == ["python", "-m", "workbench"]:
                commands[words[3]].make_context(words[3], words[4:])


def test_the_table_of_methods_is_that_of_the_papers():
    named = re.findall(r"^\| `(\w+)` \|", page("docs/papers/index.md"), re.MULTILINE)
    assert named == list(PAPERS)


def test_the_table_of_claims_is_that_of_the_verdicts():
    assert tuned.markdown(ROOT / "data") in page("docs/claims.md"), (
        "print the table anew, as CONTRIBUTING.md says"
    )


def test_every_notebook_is_listed():
    listed = set(re.findall(r"\((\w+\.ipynb)\)", page("notebooks/README.md")))
    assert listed == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_it_is_read_in_five_minutes():
    assert len(README.split()) <= 1000


def test_files_named_as_code_exist():
    names = set(re.findall(r"`((?:docs|examples|data|notebooks)/[\w./-]+)`", README))
    names |= {f"workbench/{name}" for name in re.findall(r"`(\w+\.py)`", README)}
    for name in names:
        assert (ROOT / name).exists(), name
