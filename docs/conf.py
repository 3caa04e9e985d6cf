"""How the documentation is built (`make docs`).

Pages are MyST, the API pages come from docstrings, and formulas become MathML.
Nothing is loaded from a network, neither when the pages are built nor when they are read.
"""

import re
import textwrap
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

import workbench

project = "workbench"
copyright = "the workbench maintainers"
release = workbench.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
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

API = Path(__file__).parent / "api"  # written before every build, not kept in the repository


def rooms():
    """The public rooms, in alphabetical order."""
    return sorted({*workbench._ROOMS, *workbench._NAMES.values()})


def write_api(app):
    """A page a room."""
    API.mkdir(exist_ok=True)
    for page in API.glob("*.md"):
        if page.stem not in rooms():
            page.unlink()
    for room in rooms():
        directive = f"```{{eval-rst}}\n.. automodule:: workbench.{room}\n   :members:\n```\n"
        (API / f"{room}.md").write_text(f"# {room}\n\n{directive}")


def readable(app, what, name, obj, options, lines):
    """Docstrings are plain text with `code`, lists, and indented or aligned blocks."""
    blocks = re.split(r"\n\s*\n", textwrap.dedent("\n".join(lines)).strip("\n"))
    lines[:] = "\n\n".join(map(_block, blocks)).splitlines()


def _block(text):
    if text.startswith("    ") or re.search(r"\S {2,}\S", text) or "\n    " in text:
        return "::\n\n" + textwrap.indent(textwrap.dedent(text), "   ")
    return "".join(
        _code(part) if part.startswith("`") else _escaped(part)
        for part in re.split(r"(`[^`]+`)", text)
    )


def _code(quoted):
    """A name becomes a link to its place in the API, if it has one; anything else stays code."""
    role = f":py:obj:{quoted}" if re.fullmatch(r"`[A-Za-z_][\w.]*`", quoted) else f"`{quoted}`"
    return role + "\\ "  # so that a letter may follow, as in `Problem`s


def _escaped(text):
    return re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", text)


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
    app.connect("autodoc-process-docstring", readable)
