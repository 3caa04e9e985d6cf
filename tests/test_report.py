"""The pages of real tiny runs, read back by a parser, with hostile responses.

Also what notebooks show of objects, and how records are grouped.
"""

import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import written_records
from conftest import small_lab
from typer.testing import CliRunner

import workbench as wb
from workbench.__main__ import main
from workbench.analysis.curves import comparable
from workbench.analysis.runs import labelled, load_all
from workbench.reports import page as pages
from workbench.reports import report
from workbench.reports.tables import compared, configuration, default_baseline, differing, responses

HOSTILE = [
    "</td></tr></table><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "{{ 7 * 7 }} {% raw %} $title ${body}",
    "</script><script src='https://example.org/x.js'></script>",
    "]]><svg onload=alert(1)>",
    "&lt;b&gt; &amp; <b>bold</b>",
    "\u202eevil",
    "<b>word " * 1000,
]
VOID = {"meta", "input", "link", "br", "img"}


class Page(HTMLParser):
    """Elements with their attributes and text, and whether each is closed where it should be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.open = []
        self.texts = []
        self.wrong = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")
        if tag not in VOID:
            self.open.append((tag, len(self.texts) - 1))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.wrong.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data):
        for _, place in self.open:
            self.texts[place] += data

    def all(self, tag, **attributes):
        """(attributes, text) of the elements with this tag and these attributes."""
        return [
            (own, self.texts[i])
            for i, (name, own) in enumerate(self.elements)
            if name == tag and all(own.get(key) == value for key, value in attributes.items())
        ]

    @property
    def well_formed(self):
        return not self.wrong and not self.open


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, one with two seeds, on a pool so small that problems come again."""
    folder = tmp_path_factory.mktemp("runs")
    lab = small_lab(pool=8)
    for method, seed, path in (
        (wb.methods.grpo(4), 0, "grpo/seed-0"),
        (wb.methods.grpo(4), 1, "grpo/seed-1"),
        (wb.methods.pods(4, 2), 0, "pods/seed-0"),
    ):
        run = wb.Run(
            lab, method, seed=seed, out=folder / path, problems_per_round=4, evaluate_every=2
        )
        for _ in run.rounds(4, progress=False):
            pass
    return folder


@pytest.fixture(scope="module")
def page(runs):
    return Page(report(load_all(runs), runs / "deep" / "page.html").read_text())


@pytest.fixture(scope="module")
def hostile(runs, tmp_path_factory):
    """A copy of a record in which everything that a stranger can name is hostile.

    That is the responses, the problems, the method, the warnings and the directory.
    """
    path = tmp_path_factory.mktemp("hostile") / "a<script>alert(1)<" / "$x_1"
    shutil.copytree(runs / "pods" / "seed-0", path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["method"]["name"] = "_<script>alert('$\\frac')</script>"
    manifest["versions"]["<u>"] = "<u>"
    (path / "manifest.json").write_text(json.dumps(manifest))
    warnings = ["", "entropy collapse: <b>0</b>\nnothing learnt: <i>", "", None]
    for part in sorted((path / "rollouts").glob("*.parquet")):
        frame = pd.read_parquet(part)
        frame["text"] = [HOSTILE[i % len(HOSTILE)] for i in range(len(frame))]
        frame["problem"] = frame["problem"] + "<i onclick=alert(1)>"
        frame["status"] = "<b>ok</b>"
        frame.to_parquet(part)

    def warned(entry):
        if "row" in entry:
            entry["row"]["warnings"] = warnings[entry["row"]["round"] - 1]
        return entry

    written_records.sign(path, warned)
    return path


# The page


@pytest.mark.slow
def test_the_page_is_well_formed_and_loads_and_runs_nothing(page, runs):
    assert page.well_formed
    text = (runs / "deep" / "page.html").read_text()
    # Names of the standards of SVG are no addresses that a reader loads.
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text).replace(r"\boxed", "")
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert not [own for _, own in page.elements if {"src", "srcset", "action"} & set(own)]
    assert not page.all("script")
    [(policy, _)] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"

    links = [own["href"] for own, _ in page.all("a")]
    ids = [own["id"] for _, own in page.elements if "id" in own]
    assert {link[1:] for link in links} <= set(ids)


@pytest.mark.slow
def test_the_page_can_be_read_by_all(page):
    assert page.elements[0] == ("html", {"lang": "en"})
    assert page.all("h1")[0][1] == "grpo, pods"
    headings = [text.removesuffix("¶") for _, text in page.all("h2")]
    assert headings == ["Results", "What was run", "Rounds", "Responses"]
    pictures = [own for own, _ in page.all("svg")]
    assert len(pictures) == 14
    for own in pictures:
        assert own["role"] == "img" and len(own["aria-label"]) > 20
    assert all("scope" in own for own, _ in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert page.all("meta", name="viewport")
    assert "prefers-color-scheme: dark" in page.all("style")[0][1]
    # The number of samples that an accuracy is the mean of.
    assert "held-out accuracy (avg@2)" in " ".join(page.texts)
    assert "avg@k" not in " ".join(page.texts)


@pytest.mark.slow
def test_numbers_are_those_of_the_records(page, runs):
    record = wb.load(runs / "pods" / "seed-0")
    curve = record.accuracy()
    ends = [curve[y].iloc[place] for y in ("accuracy", "greedy") for place in (0, -1)]
    # 1 run, 4 rounds of 4 problems x 4 rollouts
    row = "pods14" + "".join(f"{value:.3f}" for value in ends) + "64"
    rows = [text for _, text in page.all("tr")]
    assert any(text.startswith(row) for text in rows)
    assert any(text.startswith("method.selector.is") for text in rows), "settings that differ"
    assert "MaxVariance(m=2, baseline=selection)" in " ".join(rows)
    # All responses are there, since they are fewer than the limit.
    shown = [text for text in rows if re.match(r"(grpo|pods), seed \d", text)]
    trained = sum(text.endswith("trained") for text in shown)
    every = [run.rollouts() for group in load_all(runs).values() for run in group]
    assert len(shown) == sum(map(len, every)) == 192
    assert trained == sum(frame["trained"].sum() for frame in every)


@pytest.mark.slow
def test_a_share_of_the_responses_is_of_every_run(runs):
    groups = load_all(runs)
    table = responses(groups, 60)
    # One round of each: 4 problems, whose 4 rollouts stand together.
    assert dict(table.groupby(level=0).size()) == {
        "grpo, seed 0": 16,
        "grpo, seed 1": 16,
        "pods, seed 0": 16,
    }
    assert (table["problem"].to_numpy() != np.roll(table["problem"].to_numpy(), 1)).sum() <= 12
    assert len(responses(groups, 192)) == 192, "all are there where the limit admits them"
    assert responses(groups, 2).empty
    with pytest.raises(ValueError, match="rows=-1"):
        report(groups, runs / "few.html", rows=-1)
    with pytest.raises(ValueError, match="at least one"):
        report([], runs / "empty.html")


@pytest.mark.slow
def test_an_interval_of_one_seed_is_no_number(runs):
    groups = {label: group[:1] for label, group in load_all(runs).items()}
    table = wb.analysis.comparisons.at_budget(groups, "rollouts", baseline="grpo")
    cells = compared(table, "grpo").to_numpy().ravel()
    assert "needs two seeds" in cells
    assert not [cell for cell in cells if "nan" in str(cell)]


# Hostile records


@pytest.mark.long
def test_what_a_model_writes_stays_text(hostile, tmp_path):
    page = Page(report(wb.load(hostile), tmp_path / "page.html").read_text())
    assert page.well_formed
    assert not {tag for tag, _ in page.elements} & {"script", "img", "b", "i", "u", "iframe"}
    assert not [name for _, own in page.elements for name in own if name.startswith("on")]
    # Every character came through.
    assert set(HOSTILE) <= {text for _, text in page.all("div")}
    assert page.all("h1")[0][1] == "_<script>alert('$\\frac')</script>"
    warnings = [text for _, text in page.all("p", **{"class": "warning"})]
    assert [text.partition(", round 2: ")[2] for text in warnings] == [
        "entropy collapse: <b>0</b>",
        "nothing learnt: <i>",
    ]


# Records that lack something, and names that are hard to write


@pytest.mark.long
def test_records_without_rounds_evaluations_or_texts(runs, tmp_path):
    run = wb.Run(
        small_lab(held_out=0), wb.methods.grpo(4), out=tmp_path / "blind", problems_per_round=4
    )
    for _ in run.rounds(2, progress=False):
        pass
    shutil.copytree(runs / "pods" / "seed-0", tmp_path / "thin")
    wb.records.pack(tmp_path / "thin", columns=())
    wb.records.Writer(tmp_path / "new", wb.load(tmp_path / "thin").manifest)
    labels = {"blind": '"; quotes \\', "thin": "$\\foo{$", "new": "{new} $title"}
    groups = {label: wb.load(tmp_path / name) for name, label in labels.items()}
    page = Page(report(groups, tmp_path / "page.html").read_text())
    assert page.well_formed
    text = " ".join(page.texts)
    assert "never evaluated on held-out problems" in text
    rows = [text for _, text in page.all("tr")]
    assert [any(row.startswith(f"{label}, seed") for row in rows) for label in labels.values()] == [
        True,
        False,
        False,
    ]
    shown = {own["aria-label"] for own, _ in page.all("svg")}
    assert "Mean reward of a round's rollouts." in shown
    assert not [name for name in shown if "Held-out" in name]


@pytest.mark.slow
def test_without_the_packages_the_command_that_installs_them_is_named(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "papermill", None)
    with pytest.raises(ImportError, match=r"papermill.*pip install 'workbench-rlvr\[notebooks\]'"):
        report(load_all(runs), runs / "none.html")
    assert not (runs / "none.html").exists()


@pytest.mark.long
def test_an_installed_package_has_the_notebooks(runs, tmp_path, monkeypatch):
    """The wheel puts them into workbench/_data/notebooks, see test_packaging."""
    package = tmp_path / "site" / "workbench"
    (package / "_data" / "notebooks").mkdir(parents=True)
    for name in ("record", "trial"):
        shutil.copy(pages.notebook(name), package / "_data" / "notebooks")
    monkeypatch.setattr(pages, "PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert package in pages.notebook("trial").parents
    assert "grpo" in report(load_all(runs), "page.html", rows=0).read_text()


# Figures


def test_a_share_goes_from_0_to_1(tmp_path):
    columns = {"effective_gradient_ratio": np.linspace(0, 1, 4), "reward": np.linspace(0, 1, 4)}
    written_records.write(tmp_path, "a", rollouts=[10] * 4, columns=columns)
    record = wb.load(tmp_path / "a" / "seed-0")
    ax = wb.plots.learning_curve(record, y="effective_gradient_ratio")
    assert ax.get_ylim() == (0, 1)
    # A reward is no share: it may lie below 0.
    assert wb.plots.learning_curve(record, y="reward").get_ylim()[0] < 0


# Groups


@pytest.mark.parametrize(
    ("labels", "methods", "expected"),
    [
        (["aero", "grpo", "pods"], ["aero", "grpo", "pods"], "grpo"),
        (["first", "second"], ["aero", "grpo"], "second"),
        (["first", "grpo"], ["grpo", "pods"], "grpo"),
        (["pods", "aero"], ["pods", "aero"], "pods"),
    ],
)
def test_what_others_are_compared_with(labels, methods, expected, tmp_path):
    """The label grpo, or else the first label whose method is grpo, or else the first label."""
    groups = {}
    for label, method in zip(labels, methods):
        written_records.write(tmp_path, label, method={"name": method})
        groups[label] = [wb.load(tmp_path / label / "seed-0")]
    assert default_baseline(groups) == expected
    if expected == "second":
        paths = [str(tmp_path / label) for label in labels]
        told = CliRunner().invoke(main, ["compare", *paths, "--x", "rollouts", "--json"])
        assert told.exit_code == 0, told.output
        baseline = load_all(*paths)[json.loads(told.output)["baseline"]]
        assert baseline[0].path == tmp_path / "second" / "seed-0"


@pytest.mark.slow
def test_records_are_grouped_by_what_was_run(runs, tmp_path):
    for paths in ([runs], [runs / "grpo", runs / "pods" / "seed-0"]):
        assert {label: len(group) for label, group in load_all(*paths).items()} == {
            "grpo": 2,
            "pods": 1,
        }
    copies = {"a": "grpo/seed-1", "b": "grpo/seed-0", "c": "grpo/seed-0", "d": "pods/seed-0"}
    for name, source in copies.items():
        shutil.copytree(runs / source, tmp_path / name)
    groups = load_all(tmp_path / "a", tmp_path / "b", tmp_path / "d")
    seeds = {label: [r.manifest["seed"] for r in group] for label, group in groups.items()}
    assert seeds == {"grpo": [0, 1], "pods": [0]}

    twice = load_all(tmp_path / "b", tmp_path / "c", tmp_path / "c")
    assert list(twice) == [f"grpo ({tmp_path / 'b'})", f"grpo ({tmp_path / 'c'})"]
    other = json.loads((tmp_path / "c" / "manifest.json").read_text())
    other["method"]["allocator"]["n"] = 5
    written_records.with_manifest(tmp_path / "c", other)
    both = labelled([wb.load(tmp_path / "b"), wb.load(tmp_path / "c")])
    assert [re.search(r"n=(\d)", label)[1] for label in both] == ["4", "5"]
    with pytest.raises(ValueError, match="path="):
        load_all(tmp_path / "nowhere")


@pytest.mark.slow
def test_only_runs_on_the_same_problems_compare(runs, tmp_path):
    comparable(load_all(runs))
    shutil.copytree(runs / "pods" / "seed-0", tmp_path / "other")

    def renamed(entry):
        if "evaluation" in entry:
            entry["columns"]["problem"] = [f"{name}?" for name in entry["columns"]["problem"]]
        return entry

    written_records.sign(tmp_path / "other", renamed)
    groups = {**load_all(runs), "x": [wb.load(tmp_path / "other")]}
    with pytest.raises(ValueError, match="other held-out problems"):
        comparable(groups)


# Notebooks


@pytest.mark.slow
def test_notebooks_show_short_escaped_tables(hostile, tmp_path):
    lab = small_lab()
    record = wb.load(hostile)
    method = wb.methods.pods(4, 2).but(name="<b>mine</b>")
    run = wb.Run(lab, method, seed=3, out=tmp_path / "<i>")
    expected = {
        "Pool(32 problems": lab,
        "MaxVariance(m=2)": run.method,
        "&lt;i&gt;": run,
        "held-out accuracy": record,
    }
    for wanted, shown in expected.items():
        html = shown._repr_html_()
        page = Page(html)
        assert wanted in html
        assert page.well_formed
        assert len(page.all("tr")) <= 7
        assert len(page.all("caption")) == 1
        assert len(page.all("b")) == 1
        tags = {tag for tag, _ in page.elements}
        assert tags == {"table", "caption", "b", "tbody", "tr", "th", "td"}


def test_a_manifest_may_have_anything_as_its_reward(tmp_path):
    written_records.write(tmp_path, "a")
    path = tmp_path / "a" / "seed-0"
    manifest = wb.load(path).manifest
    manifest["method"]["reward"] = 3
    written_records.with_manifest(path, manifest)
    [record] = load_all(path)["a"]
    assert configuration([record])["what a rollout earns (reward)"] == "3"
    assert differing({"a": [record]}).empty


def test_what_a_run_has_nothing_of_is_no_row(tmp_path):
    written_records.write(tmp_path, "a")
    path = tmp_path / "a" / "seed-0"
    manifest = wb.load(path).manifest
    manifest |= {"code": {"my_ideas.Shortest": "2bf1"}, "files": {}}
    written_records.with_manifest(path, manifest)
    [record] = load_all(path)["a"]
    words = configuration([record])
    assert words["code"] == "my_ideas.Shortest 2bf1"
    assert "files" not in words
