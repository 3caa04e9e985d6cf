"""The house style of all figures: sizes, colours, names, places of labels, and how they are saved.

- A figure is 7 inches wide, 700 pixels at the usual 100 dots an inch, and its text is readable at
  that size.
- A method, an outcome, a phase and a verdict have the same colour in every figure. The colours are
  distinguishable with the usual kinds of colour blindness, and none of them is needed to read a
  figure: lines have labels or dashes, bars have names.
- A title says what the figure shows; whoever draws it for a text passes the finding as `title`.
- Bands and bars are 95 % Student intervals over seeds, and the number of seeds is named.
- Saved as SVG, a figure follows the reader's light or dark setting.
"""

from __future__ import annotations

import io
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import is_color_like, same_color
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy.optimize import isotonic_regression

from workbench.utils.validation import brief, instance_of, one_of

WIDTH = 7.0  # inches
HEIGHT = 3.6
NARROW = 5.0  # inches, below which a legend has no room beside the axes
SHORT = 27  # letters of a label that has room at the end of a line even there
LETTER, LINE = 0.55, 1.6  # width of a letter and height of a line, in heights of the letters
OF_HANDLE = 7  # letters' room that the mark of an entry in a legend takes
LABEL_GAP = 0.075  # of the height of the axes, between labels at the ends of lines
TITLE_LETTERS = 72  # in a line of the title of a whole figure

SETTINGS = rc_params_from_file(Path(__file__).parent / "house.mplstyle", use_default_template=False)
INK = SETTINGS["text.color"]
SOFT = SETTINGS["xtick.color"]
GRID = SETTINGS["grid.color"]
PAPER = SETTINGS["figure.facecolor"]

COLOURS = tomllib.loads((Path(__file__).parent / "colours.toml").read_text(encoding="utf-8"))
PALETTE = tuple(COLOURS["palette"])
METHODS = COLOURS["methods"]  # by the beginning of their label
NAMED = COLOURS["named"]  # of everything else, by its name in tables
BASELINE = METHODS["grpo"]

# The same parts of a figure on a dark page.
DARK = {
    INK: "#e6e6e6",
    SOFT: "#a8a8a8",
    GRID: "#3a3f45",
    PAPER: "#16191d",
    BASELINE: "#d0d0d0",
    METHODS["random"]: "#a995dd",
}

# Later settings of one method share its colour and differ in their dashes.
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = "os^Dv*P<>X"

# Ticks of an axis of ratios within a decade, from narrow ranges to wide ones.
TICKS = (
    (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 4, 7),
    (1, 2, 4),
    (1, 3),
    (1,),
)


class Look(NamedTuple):
    """How one label is drawn."""

    colour: str
    dash: Any
    marker: str


@contextmanager
def style() -> Iterator[Any]:
    """The house style for drawing of your own: `with plots.style() as colours: ...`.

    Only these settings change, and they come back: a whole `rc_context` would also undo the
    notebook's switch to inline figures.

    Yields
    ------
    seaborn palette
    """
    current: Any = plt.rcParams
    before = {name: current[name] for name in SETTINGS}
    current.update(SETTINGS)
    try:
        yield sns.color_palette(PALETTE)
    finally:
        current.update(before)


def new_axes(height: float = HEIGHT, width: float = WIDTH) -> Axes:
    """An Axes of a figure of its own, in inches."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def looks(labels: Iterable[str], taken: Iterable[str] = (), palette: Any = None) -> dict[str, Look]:
    """Colour, dash and marker of every label, the same in every figure.

    A label that begins with the name of a method has its colour; the second and later settings of
    that method have other dashes and markers. Other labels take colours that none of these has.

    Parameters
    ----------
    labels : texts
        In the order in which they are drawn.
    taken : colours
        Of lines that are on the same Axes already.
    palette : dict from label to colour, or list of colours, optional
        Colours of your own, those of a list in the order of the labels.

    Returns
    -------
    dict from label to Look

    Examples
    --------
    >>> drawn = looks(["GRPO", "Knapsack RL", "knapsack-maxvar"])
    >>> drawn["Knapsack RL"].colour == drawn["knapsack-maxvar"].colour
    True
    >>> drawn["Knapsack RL"].dash == drawn["knapsack-maxvar"].dash
    False
    """
    labels = list(labels)
    own = {label: _method_colour(label) for label in labels}
    if palette is not None:
        given = palette if isinstance(palette, Mapping) else dict(zip(labels, palette))
        for label, colour in given.items():
            one_of("palette", label, labels)
            if not is_color_like(colour):
                raise ValueError(f"palette={brief(colour)}: a colour of Matplotlib is needed")
        own |= given
    used = Counter(taken)
    # Labels that are no method must not look like one that is in the same figure. Where all
    # colours are taken, some have to be used twice.
    not_free = {*own.values(), *used}
    free = cycle([colour for colour in PALETTE if colour not in not_free] or PALETTE)
    by_label = {}
    for label in labels:
        colour = own[label] or next(free)
        # How often the colour has been used so far decides the dashes and the marker.
        turn = used[colour]
        used[colour] += 1
        by_label[label] = Look(colour, DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])
    return by_label


@contextmanager
def framed(
    ax: Axes | None = None, *, height: float = HEIGHT, width: float = WIDTH, **texts: Any
) -> Iterator[Axes]:
    """Axes to draw on in the house style; title, labels and legend are set when all is drawn.

    Parameters
    ----------
    ax : Axes, optional
        New ones of this height and width by default.
    height, width : float
        In inches. A column of a paper is often 3.25 wide.
    texts
        title, xlabel, ylabel and legend, as for `finish`.

    Yields
    ------
    Axes
    """
    with style():
        ax = ax or new_axes(height, width)
        yield ax
        finish(ax, **texts)


def finish(
    ax: Axes,
    *,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: str | None = "outside",
) -> None:
    """Set title and axis labels where they are given, and place the legend.

    Parameters
    ----------
    ax : Axes
    title, xlabel, ylabel : str, optional
        None leaves what is there.
    legend : {"outside", "above", "direct", None}
        Beside the axes, above them, as labels at the ends of the lines, or none. In a figure of
        less than 5 inches it stands below them, but for short labels at the ends of lines.
    """
    given = {"title": title, "xlabel": xlabel, "ylabel": ylabel}
    ax.set(**{name: text for name, text in given.items() if text is not None})
    if legend is None:
        return
    whole: Any = ax.get_figure(root=True)
    alone = len(whole.axes) == 1
    narrow = is_narrow(ax)
    names = ax.get_legend_handles_labels()[1]
    longest = max(map(len, names), default=0)
    if narrow and alone and not (legend == "direct" and longest <= SHORT):
        legend = "outside"
    needed = 0.0  # inches of height that labels and axes take together
    if legend == "direct":
        label_ends(ax)
        needed = 0.8 * inches(LINE) * len(names) + 0.9
    elif legend == "outside":
        needed = _legend_outside(ax, narrow)
    elif legend == "above":
        _legend_above(ax)
    # A figure grows with its labels where they would leave no room for the axes.
    if alone and whole.get_figheight() < needed:
        whole.set_figheight(needed + 0.5)


def _legend_outside(ax: Axes, narrow: bool) -> float:
    """A legend beside the axes, or below narrow ones; the height in inches that it needs."""
    handles, names = ax.get_legend_handles_labels()
    width = (0.95 if narrow else 0.45) * ax.figure.bbox.width / ax.figure.dpi
    letters = max(int(width / inches(LETTER)) - OF_HANDLE, 9)
    texts = [wrapped(name, letters) for name in names]
    height = inches(LINE) * sum(text.count("\n") + 1 for text in texts)
    if not narrow:
        ax.legend(handles, texts, loc="center left", bbox_to_anchor=(1, 0.5))
        return height
    # Beside narrow axes it would leave no room for them, and without a layout be cut off.
    whole: Any = ax.get_figure(root=True)
    whole.set_layout_engine("constrained")
    ax.figure.legend(handles, texts, loc="outside lower left", frameon=False)
    return height + 1.6


def _legend_above(ax: Axes) -> None:
    """A legend where the title would stand, in as many columns as fit; the title moves up."""
    lengths = sorted(map(len, ax.get_legend_handles_labels()[1]))
    # A layout makes the axes a little wider than they are now.
    room = 1.15 * ax.bbox.width / ax.figure.dpi / inches(LETTER)
    columns = 4
    while columns > 1 and sum(lengths[-columns:]) + OF_HANDLE * columns > room:
        columns -= 1
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)
    rows = -(-len(lengths) // columns)
    ax.set_title(ax.get_title("left"), pad=8 + 16 * rows)


def inches(share: float) -> float:
    """A share of the height of the letters, in inches."""
    return float(share * plt.rcParams["font.size"] / 72)


def is_narrow(ax: Axes) -> bool:
    """Whether a figure has no room for long texts beside its axes."""
    return bool(ax.figure.bbox.width < NARROW * ax.figure.dpi)


def wrapped(text: str, letters: int) -> str:
    """A label in lines of at most so many letters, its number of seeds in one of them."""
    lines = fill(text.replace(" seed", "\N{NO-BREAK SPACE}seed"), letters)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def heading(
    part: Axes | Figure | SubFigure, title: str | None = None, legend: int = 0
) -> Figure | SubFigure:
    """What the panels of a figure share: the finding above them, and one legend below.

    Parameters
    ----------
    part : Axes, Figure or SubFigure
        One of the panels, whose labels are those of all of them, or the figure.
    title : str, optional
        None leaves it out.
    legend : int
        Columns of the legend, which stands below all panels; 0 for none. It needs an Axes.

    Returns
    -------
    Figure or SubFigure
        That of the panels.
    """
    figure = part.figure if isinstance(part, Axes) else part
    if isinstance(part, Axes) and legend:
        labels = part.get_legend_handles_labels()
        figure.legend(*labels, loc="outside lower center", ncols=legend, frameon=False)
    if title:
        figure.suptitle(fill(title, TITLE_LETTERS), x=0.01, ha="left", weight="bold")
    return figure


def label_ends(ax: Axes) -> None:
    """Write each line's label beside its right end, in its colour, apart from one another.

    Parameters
    ----------
    ax : Axes
        Lines whose label begins with an underscore are passed over.
    """
    ends = {}
    for line in ax.lines:
        points = np.asarray(line.get_xydata(), dtype=float)
        # The last point that is there: a line may end in NaN, or consist of nothing else.
        points = points[np.isfinite(points).all(axis=1)]
        if len(points) and not str(line.get_label()).startswith("_"):
            ends[line] = points[-1]
    if not ends:
        return
    # Matplotlib sets the limits lazily, and the transform does not know them before.
    ax.autoscale_view()
    # Distances count as they look, in shares of the axes, also where the scale is logarithmic.
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = to_axes.transform(list(ends.values()))[:, 1]
    gap = min(LABEL_GAP, 1 / len(ends))
    for line, height in zip(ends, spread(heights, gap, top=1.0)):
        ax.annotate(
            str(line.get_label()),
            (1.01, height),
            xycoords="axes fraction",
            color=line.get_color(),
            va="center",
            size="small",
            annotation_clip=False,
        )


def spread(heights: Any, gap: float, top: float = np.inf) -> np.ndarray:
    """Heights moved apart to a least distance, each as little as needed, (N,) float64.

    Parameters
    ----------
    heights : (N,) numbers
    gap : float
        The least distance.
    top : float
        The highest place; what would stand above it moves down, and pushes others down.

    Examples
    --------
    >>> spread([0.5, 0.5, 0.9], 0.1).round(2).tolist()
    [0.45, 0.55, 0.9]
    >>> spread([0.5, 0.99, 1.0], 0.1, top=1.0).round(2).tolist()
    [0.5, 0.9, 1.0]
    """
    heights = np.asarray(heights, dtype=float)
    # A stable sort keeps labels of one height in the order of their lines.
    order = np.argsort(heights, kind="stable")
    # Places that are a gap apart never fall once the gaps are taken off. The nearest such places
    # are an isotonic regression.
    gaps = gap * np.arange(len(heights))
    placed = isotonic_regression(heights[order] - gaps).x + gaps
    moved = np.empty(len(heights))
    # The highest label may stand at the top, the next one a gap below it, and so on.
    moved[order] = np.minimum(placed, top - gaps[::-1])
    return moved


def short_numbers(ax: Axes, x: Any) -> None:
    """Ticks of the x axis: whole numbers of rounds, and 20k or 1.5T of everything else.

    Parameters
    ----------
    ax : Axes
    x : str or curves.Unit
        What the axis shows.
    """
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4 if is_narrow(ax) else 6, integer=x == "round"))
    # Tokens and FLOPs run into millions and more; rounds and seconds are read as they are.
    if x not in ("round", "seconds"):
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def ratio_ticks(
    axis: Axis, low: float, high: float, most: int, text: Callable[[float], str] = "{:g}".format
) -> None:
    """Numbers at no more than so many ticks of a logarithmic axis.

    Parameters
    ----------
    axis : Axis
    low, high : float
        Where the axis begins and ends.
    most : int
    text : function
        What a tick is called; by default a plain number.
    """
    for mantissas in TICKS:
        decades = 10.0 ** np.arange(-9, 25)
        ticks = np.outer(decades, mantissas).ravel()
        ticks = ticks[(low <= ticks) & (ticks <= high)]
        if len(ticks) <= most:
            break
    axis.set_ticks(ticks, [text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def save(figures: Mapping[str, Any], folder: Any) -> None:
    """Write figures as SVG that follow the reader's light or dark setting.

    Parameters
    ----------
    figures : dict from name to Axes or Figure
        Of Axes their whole figure is written, to folder/name.svg, without a date in the file.
    folder : path
        Made when missing.
    """
    instance_of("figures", figures, Mapping, '{"accuracy": ax}')
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, drawn in figures.items():
        # A Figure or a part of one, or the Axes that most functions return.
        whole = drawn.get_figure(root=True)
        (Path(folder) / f"{name}.svg").write_text(svg(whole))


def svg(figure: Figure) -> str:
    """A figure as SVG text, with the colours of paper and ink for dark pages."""
    _black_to_ink(figure)
    buffer = io.StringIO()
    with style():
        # As wide as what is drawn: a title or label longer than the figure is not cut off.
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    # Matplotlib writes colours into style attributes, which only a rule with !important
    # overrides.
    rules = [
        f'[style*="{part}: {light}"]{{{part}:{dark} !important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    ]
    sheet = "<style>@media (prefers-color-scheme: dark){" + "".join(rules) + "}</style>"
    # The first tag is the one of the drawing itself.
    return re.sub(r"(<svg\b[^>]*>)", lambda tag: tag[1] + sheet, buffer.getvalue(), count=1)


def seeds(counts: Iterable[int]) -> str:
    """How many seeds, for labels and titles: "8 seeds", "5 or 8 seeds".

    Examples
    --------
    >>> seeds([8, 5, 8])
    '5 or 8 seeds'
    """
    numbers = sorted({int(count) for count in counts})
    return " or ".join(map(str, numbers)) + (" seed" if numbers == [1] else " seeds")


def without_seeds(label: str) -> str:
    """A label without the number of seeds behind it.

    Examples
    --------
    >>> without_seeds("grpo (8 seeds)")
    'grpo'
    """
    return re.sub(r" \(\d+ seeds?\)$", "", label)


def _black_to_ink(figure: Figure) -> None:
    """Give what was drawn outside `style` its ink: on a dark page black would not be seen."""
    parts = {Text: ("color",), Line2D: ("color", "markeredgecolor"), Patch: ("edgecolor",)}
    for kind, names in parts.items():
        for artist in figure.findobj(kind):
            for name in names:
                if same_color(plt.getp(artist, name), "black"):
                    artist.set(**{name: INK})


def _method_colour(label: str) -> str | None:
    """The colour of the method that a label begins with."""
    text = re.sub(r"[^a-z0-9]+", "_", label.lower())
    # "dr_grpo" and "grpo" cannot be taken for one another, since only the beginning counts; of
    # several beginnings that fit, the longest says most.
    fitting = [name for name in METHODS if text.startswith(name)]
    return METHODS[max(fitting, key=len)] if fitting else None


# Names: other people's records may call a method anything.

INVISIBLE = "\N{ZERO WIDTH SPACE}"
LONGEST = 48  # characters: more would leave no room for the figure


def plain(label: Any) -> str:
    r"""A label that Matplotlib draws as it is written.

    Dollars are no mathematics, and a leading _ does not hide the label from the legend. Of a label
    that is too long for any figure the beginning and the end are kept. What has been made plain
    stays as it is.

    Parameters
    ----------
    label : str, or anything else as `str` writes it

    Returns
    -------
    str

    Examples
    --------
    >>> plain("a $x$")
    'a \\$x\\$'
    >>> plain(plain("a $x$")) == plain("a $x$")
    True
    >>> plain("a" * 500 + "z" * 500)
    'aaaaaaaaaaaaaaaaaaaaaaaa…zzzzzzzzzzzzzzzzzzzzzzz'
    """
    text = str(label)
    # What is counted is what is seen: escapes and the space of no width take no room, and a label
    # that has been made plain must not be cut once more.
    visible = text.removeprefix(INVISIBLE).replace(r"\$", "$")
    if len(visible) > LONGEST:
        # Paths, which tell equal names apart, differ at their end.
        text = text[: LONGEST // 2] + "…" + text[1 - LONGEST // 2 :]
    # Only dollars that are not escaped yet, so that a second call changes nothing.
    escaped = re.sub(r"(?<!\\)\$", r"\\$", text)
    # A space of no width keeps the _ from being the first character.
    return INVISIBLE + escaped if escaped.startswith("_") else escaped
