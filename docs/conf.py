"""How the documentation is built: MyST pages, the API from docstrings, formulas as MathML.

Nothing is loaded from a network, neither when the pages are built nor when they are read.
"""

import inspect
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from nbconvert import MarkdownExporter

import workbench
from workbench import methods
from workbench.methods import MORE_PAPERS

project = "workbench"
copyright = "the workbench maintainers"
release = workbench.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# A type such as (low, high) is prose. As a field it would become a link to any attribute that is
# called so.
napoleon_use_param = False
suppress_warnings = ["ref.python"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "workbench"
html_static_path = ["static"]
html_css_files = ["workbench.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

PACKAGE = Path(workbench.__file__).parent
# The study of the papers stands beside the notebooks that import it.
STUDY = Path(__file__).parents[1] / "notebooks" / "papers"
sys.path.insert(0, str(STUDY.parent))
# Written before every build, not kept in the repository.
API = Path(__file__).parent / "api"
NOTEBOOKS = Path(__file__).parent / "notebooks"

# Modules that nobody calls directly: a name, or the start of names with a dot at its end.
INTERNAL = (
    "__main__",
    "cli.",
    "datasets.environments",
    "datasets.reasoning_gym",
    "datasets.rows",
    "plots.style",  # as a member of the package, `style` is a function
    "policies.decoding",
    "policies.merged",
    "policies.packing",
    "policies.unsloth",  # cannot be imported without Unsloth
    "pools",
    "reports.page",
    "reports.tables",
    "trials.",
    "trl.",
    "utils.",
    "verifiers.inside",
    "verifiers.inside.",
    "verifiers.pool",
    "verl.",
)
# Packages whose page would only repeat the pages of their modules.
NO_PAGE = ("analysis", "catalogue", "cli", "datasets", "utils", "verifiers")


def documented_modules():
    """Names of the modules that have a page, in alphabetical order."""
    # Read from the folders, so that a package which needs others is not imported for its name.
    names = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE or path.name != "__init__.py"
    ]
    names = [name.removesuffix(".__init__") for name in names]
    of_library = sorted(f"workbench.{name}" for name in names if not is_internal(name))
    of_study = sorted(f"papers.{path.stem}" for path in STUDY.glob("[!_]*.py"))
    return of_library + of_study


def is_internal(name):
    """Whether a module has no page of its own."""
    if name in NO_PAGE:
        return True
    return any(name == part or (part[-1] == "." and name.startswith(part)) for part in INTERNAL)


def write_api(app):
    """One page for each module."""
    API.mkdir(exist_ok=True)
    modules = documented_modules()
    pages = {module.removeprefix("workbench."): module for module in modules}
    for page in API.glob("*.md"):
        if page.stem not in pages:
            page.unlink()
    for page, module in pages.items():
        directive = f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n"
        (API / f"{page}.md").write_text(f"# {page}\n\n{directive}")


def write_notebooks(app):
    """One page for each notebook, with the outputs that are stored in it."""
    # Nothing of a notebook that was renamed or removed stays.
    shutil.rmtree(NOTEBOOKS, ignore_errors=True)
    NOTEBOOKS.mkdir()
    for path in sorted(STUDY.parent.glob("*.ipynb")):
        page, resources = MarkdownExporter().from_filename(path)
        for name, picture in resources["outputs"].items():
            (NOTEBOOKS / f"{path.stem}-{name}").write_bytes(picture)
            page = page.replace(f"]({name})", f"]({path.stem}-{name})")
        (NOTEBOOKS / f"{path.stem}.md").write_text(page.replace("](../docs/", "](../"))


def link_notebooks(app, page, source):
    """A link to a notebook leads to its page; in a clone it leads to its file."""
    link = r"\]\(\.\./((?:\.\./)*)notebooks/(\w+)\.ipynb\)"
    source[0] = re.sub(link, r"](\1notebooks/\2.md)", source[0])


def insert_papers(app, page, source):
    """The entries of further papers: the docstrings of their files, below the slot they decide."""
    if page != "papers/more":
        return
    for name in MORE_PAPERS:
        entry = methods.entry(name)
        first, _, text = inspect.getdoc(inspect.getmodule(entry.make)).partition("\n")
        title = first[0].lower() + first[1:].rstrip(".")
        place = f"<!-- {entry.decides} -->"
        source[0] = source[0].replace(place, f"### `{name}`: {title}\n{text}\n\n{place}")


SECTIONS_WITH_ENTRIES = ("Parameters", "Attributes", "Returns", "Yields", "Raises")


def readable(app, what, name, obj, options, lines):
    """Docstrings become reStructuredText; the extension napoleon then reads their sections.

    A docstring is plain text with `code`, with sections in the style of numpydoc, and with blocks
    that stand four columns further in, which are shown as they are.
    """
    if what == "module" and name.startswith("workbench.catalogue."):
        # It is written in Markdown, for the page of all papers.
        lines[:] = ["Its description stands on the page :doc:`/papers/more`."]
        return
    blocks = "\n".join(lines).strip("\n").split("\n\n")
    entries = False
    out = []
    for block in blocks:
        heading = re.match(r"(\w[\w ]*)\n-+(?:\n|$)", block)
        if heading:
            entries = heading[1] in SECTIONS_WITH_ENTRIES
        out += [*_block(block, 8 if entries else 4), ""]
    lines[:] = out


def _block(text, literal_from):
    """The lines of one block; one that is indented so far is shown as it is."""
    lines = text.splitlines() or [""]
    first = lines[0]
    indent = len(first) - len(first.lstrip())
    if first.lstrip().startswith(">>>"):
        return lines
    if indent >= literal_from:
        margin = " " * (indent - 4)
        return [margin + "::", "", *lines]
    return [_inline_markup(line) for line in lines]


def _inline_markup(line):
    if re.fullmatch(r"\s*-+", line):
        return line
    # Several backticks in a row are meant as they are.
    parts = re.split(r"((?<!`)`[^`]+`(?!`))", line)
    return "".join(_code(part) if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _code(quoted):
    """A name becomes a link to its place in the API, if it has one; anything else stays code."""
    is_name = re.fullmatch(r"`[A-Za-z_][\w.]*`", quoted)
    role = f":py:obj:{quoted}" if is_name else f"`{quoted}`"
    return role + "\\ "  # so that a letter may follow, as in `Problem`s


def _escaped(text):
    return re.sub(r"([*|`\\]|(?<=\w)_(?!\w))", r"\\\1", text)


def _inline(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _displayed(self, node):
    formula, _, tag = node.astext().partition(r"\tag{")
    number = f'<span class="tag">({tag.rstrip("} ")})</span>' if tag else ""
    self.body.append(
        f'<div class="formula">{convert(formula.strip(), display="block")}{number}</div>'
    )
    raise nodes.SkipNode


def setup(app):
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    app.connect("builder-inited", write_api)
    app.connect("builder-inited", write_notebooks)
    app.connect("source-read", link_notebooks)
    app.connect("source-read", insert_papers)
    app.connect("autodoc-process-docstring", readable, priority=400)  # before napoleon
