"""What the documentation says: its code runs, and its commands, files, columns and links exist."""

import ast
import html
import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

import workbench as wb
from workbench import methods
from workbench.cli.app import main
from workbench.rules.scheduler import Scheduler
from workbench.utils.names import MORE_PAPERS

COMMANDS = typer.main.get_command(main).commands
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS)): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if path.parent.name not in ("api", "notebooks")  # written when the pages are built
}
FIVE = ("pods", "ar3po", "knapsack", "aero", "cbs")
# What the code asks for by number, and needs less of here.
SMALLER = {"max_steps=20": "max_steps=1", '"seeds": 2': '"seeds": 1'}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def pages_with(language):
    return [page for page in PAGES if blocks(page, language)]


def guides():
    """The pages with code; `test_code_guide.py` follows the one about programs."""
    for page in pages_with("python"):
        if page != "guides/code.md":
            is_slow = page in ("guides/sweeps.md", "guides/trl.md")
            yield pytest.param(page, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize("page", guides())
@pytest.mark.slow
def test_code_runs_at_a_small_scale(page, at_small_scale, tmp_path, monkeypatch):
    if page == "guides/trl.md":
        pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(page, "python"):
        for text, smaller in SMALLER.items():
            block = block.replace(text, smaller)
        exec(compile(block, page, "exec"), names)


def test_pages_write_into_folders_of_their_own():
    """Whoever follows them all would otherwise be told that a folder holds another run."""
    owners = {}
    for page, text in PAGES.items():
        for folder in re.findall(r'(?:out=|--out |GRPOConfig\()"?(runs/[\w/-]+)', text):
            assert owners.setdefault(folder, page) == page, folder


@pytest.mark.parametrize("page", pages_with("py"))
def test_code_that_needs_another_machine_is_python(page):
    for block in blocks(page, "py"):
        ast.parse(block)


@pytest.mark.parametrize("page", pages_with("console"))
def test_commands_exist(page):
    targets = set(
        re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    targets = {name for names in targets for name in names.split()}
    for line in "\n".join(blocks(page, "console")).splitlines():
        if not (words := shlex.split(line.removeprefix("$ "), comments=True)):
            continue
        if words[0] == "make":
            assert words[1] in targets, line
        elif words[:3] == ["python", "-m", "workbench"]:
            command = COMMANDS[words[3]]
            command.make_context(words[3], words[4:])
        for path in (word for word in words if re.fullmatch(r"[\w./-]+\.(yaml|yml|py|txt)", word)):
            assert (ROOT / path).exists(), line


@pytest.mark.parametrize("page", PAGES)
def test_no_line_of_a_paragraph_is_read_as_something_else(page):
    """A wrapped line that begins with % is a comment, and one that begins with 1. is a list."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^ *%.*", text, re.MULTILINE)
    paragraphs = re.findall(r"^(?![-+*>#|:]|\d+[.)] )\S.*\n((?:\S.*\n)+)", text, re.MULTILINE)
    for lines in paragraphs:
        assert not re.findall(r"^(?:[-+*] |1[.)] |>|#+ ).*", lines, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page):
    folders = "data|docs|examples|figures|notebooks|tests|workbench"
    for name in re.findall(rf"`((?:{folders})/[\w./-]*|constraints[\w-]*\.txt)`", PAGES[page]):
        # What commands make is not in the repository.
        made = name in ("figures/quickstart.svg", "data/runs/gpu")
        is_metric = name.startswith("workbench/") and "." not in name and not name.endswith("/")
        assert made or is_metric or (ROOT / name).exists(), name


@pytest.mark.parametrize("paper", FIVE)
def test_the_page_of_a_paper_names_its_notebook(paper):
    named = re.findall(r"`notebooks/(\d\d_\w+)\.ipynb`", PAGES[f"papers/{paper}.md"])
    assert any(name.endswith(paper) for name in named)


@pytest.mark.parametrize("name", MORE_PAPERS)
def test_every_further_paper_says_its_source_and_its_formula(name):
    """The docstring of its file is its entry in the documentation."""
    entry = methods.entry(name)
    text = inspect.getmodule(entry.make).__doc__
    assert "$$" in text
    assert re.search(r"arxiv\.org/abs/\d{4}\.\d{5}", text) or "same paper" in text
    for number in re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", text):
        assert number in entry.make.__doc__
    assert f"<!-- {entry.decides} -->" in PAGES["papers/more.md"]


def test_the_map_names_every_file_once_and_no_other():
    """In the lists, and "To follow one round" before them names some a second time."""
    lists = PAGES["map.md"].split("\n## ", 1)[1].split("## Beside the library")[0]
    named = re.findall(r"`([\w./]+\.py)`", lists)
    package = ROOT / "workbench"
    files = (p.relative_to(package) for p in package.rglob("*.py") if p.name != "__init__.py")
    # The catalogue has a line for all of its files, so that a new paper touches no list.
    files = [str(file) for file in files if file.parts[0] != "catalogue"]
    assert sorted(name for name in named if name != "__init__.py") == sorted(files)


@pytest.mark.parametrize("paper", FIVE)
def test_defaults_are_those_of_the_method(paper):
    """Every argument in a page's table of defaults is one of the method or of its slots."""
    table = PAGES[f"papers/{paper}.md"].split("## Our defaults")[1].split("\n## ")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    make = getattr(wb.methods, paper)
    sources = (type(make().allocator), Scheduler, make)
    known = {
        name: parameter
        for source in sources
        for name, parameter in inspect.signature(source).parameters.items()
    }
    assert rows
    for names, defaults in rows:
        names = re.findall(r"`(\w+)`", names)
        assert set(names) <= set(known), names
        numbers = [
            float(x)
            for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-\d+)?", defaults.split(";")[0])
        ]
        actual = [known[name].default for name in names]
        flat = [x for value in actual for x in (value if isinstance(value, tuple) else [value])]
        if numbers and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in flat):
            assert numbers[: len(flat)] == flat, (names, defaults)


# the record


def documented(heading):
    """Columns, or files, in the tables of a section of record.md."""
    part = PAGES["record.md"].split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A small record of each method that adds files or columns."""
    methods = wb.methods
    made = []
    lab = wb.labs.tiny(pool=16, base="clean", levels=(1, 2, 3), held_out=8, samples=1)
    for method in (
        methods.dapo(2),
        methods.ar3po(k=2),
        methods.knapsack(2),
        methods.cbs(n=2, scope="buffer"),
    ):
        run = wb.Run(
            lab,
            method,
            out=tmp_path_factory.mktemp("record") / method.name,
            problems_per_round=4,
            evaluate_every=2,
        )
        for _ in run.rounds(2, progress=False):
            pass
        made.append(run.record)
    return made


# Columns of labs whose sampler is another program, which no test here has.
OF_ANOTHER_SAMPLER = {
    "sampler_gap",
    "sampler_above",
    "tokens_rescored",
    "flops_rescore",
    "seconds_rescore",
}


def check(names, patterns):
    matched = set(OF_ANOTHER_SAMPLER)
    for name in names:
        fitting = [p for p in patterns if re.fullmatch(re.escape(p).replace(r"\*", r"\w+"), name)]
        assert fitting, f"column {name} has no line in docs/record.md"
        matched.update(fitting)
    assert not set(patterns) - matched, "lines of docs/record.md without a column"


@pytest.mark.parametrize(
    "heading, table",
    [
        ("Rounds", lambda record: record.rounds),
        ("Rollouts", lambda record: record.rollouts()),
        ("Evaluations", lambda record: record.evals),
    ],
)
@pytest.mark.slow
def test_every_column_is_documented(records, heading, table):
    check({name for record in records for name in table(record)}, documented(heading))


def test_every_entry_of_the_manifest_is_documented(records):
    check({name for record in records for name in record.manifest}, documented("manifest.json"))


def test_every_file_is_documented(records):
    files = {
        str(path.relative_to(record.path))
        for record in records
        for path in record.path.rglob("*")
        if path.is_file()
    }
    files = {re.sub(r"\d{6}", "000012", name) for name in files}
    special = {"failed-000012.parquet"}
    assert files == set(documented("Files")) - special


def test_every_feature_is_named():
    (line,) = [line for line in PAGES["record.md"].splitlines() if "`feature_*`" in line]
    assert set(wb.scheduler.FEATURES) <= set(re.findall(r"\w+", line))


# the pages as built, by all that `make docs` does


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip(
        "sphinx", reason="sphinx is not installed: pip install 'workbench-rlvr[docs]'"
    )
    from sphinx.cmd.build import build_main

    out = tmp_path_factory.mktemp("docs")
    assert (
        build_main(
            ["-q", "-W", "--keep-going", "-d", str(out / "trees"), str(DOCS), str(out / "html")]
        )
        == 0
    )
    return out / "html"


@pytest.mark.long
def test_nothing_is_loaded_from_a_network(built):
    for page in built.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|source|iframe)[^>]+src=\"([^\"]+)\"|<link[^>]+href=\"([^\"]+)\"",
            page.read_text(),
        )
        assert loaded and not [
            url for urls in loaded for url in urls if re.match(r"(https?:)?//", url)
        ], page
    for sheet in built.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_of_a_clone(page):
    """Whoever reads the pages there has none that is written when they are built."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        path = link.partition("#")[0]
        if path:
            assert ((DOCS / page).parent / path).exists(), link


@pytest.mark.long
def test_links_lead_somewhere(built):
    pages = {page: page.read_text() for page in built.rglob("*.html")}
    ids = {page: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for page, text in pages.items()}
    for page, text in pages.items():
        for link in re.findall(r"<a[^>]+href=\"([^\"]+)\"", text):
            if re.match(r"[a-z]+:", link) or link == "#":
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, link)
            assert not anchor or target not in ids or anchor in ids[target], (page, link)


@pytest.mark.long
def test_every_public_module_has_a_page_with_its_names(built):
    # The modules of the first six have one. `trial` and the types of pools stand on other pages.
    without_page = {"analysis", "catalogue", "cli", "datasets", "utils", "verifiers", "pools"}
    without_page |= {
        "trials.trial",
        "trials.compare",
        "trials.check",
        "trials.ledger",
        "trials.profile",
    }
    for page, name in [
        ("trials", "compare"),
        ("trials", "Ledger"),
        ("trials", "Profile"),
        ("problems", "Pool"),
    ]:
        text = (built / "api" / f"{page}.html").read_text()
        assert f'id="workbench.{page}.{name}"' in text
    for module in {*wb._MODULES, *wb._NAMES.values()} - without_page:
        assert f'id="module-workbench.{module}"' in (built / "api" / f"{module}.html").read_text()
    assert (
        'id="workbench.rules.selectors.MaxVariance"'
        in (built / "api" / "rules.selectors.html").read_text()
    )


@pytest.mark.long
def test_docstrings_have_their_sections(built):
    page = (built / "api" / "objectives.html").read_text()
    text = html.unescape(re.sub("<[^>]+>", "", page))
    for part in ("Parameters", "Raises", "References", ">>> "):
        assert part in text


@pytest.mark.long
def test_formulas_are_rendered(built):
    for page in ("index", "more", *FIVE):
        text = (built / "papers" / f"{page}.html").read_text()
        formulas = re.findall(r"<math .*?</math>", text, re.DOTALL)
        assert formulas, page
        assert "$$" not in text, page
        assert not [formula for formula in formulas if "\\" in formula], page  # no command is left
