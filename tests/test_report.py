"""The HTML report of real tiny runs, read back by a parser, with hostile responses.

Also what notebooks show of objects.
"""

import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
import written_records
from conftest import small_lab
from typer.testing import CliRunner
from workbench.reports.figures import _inline

import workbench as wb
from workbench.__main__ import main
from workbench.analysis.courses import comparable
from workbench.analysis.runs import labelled, load_all
from workbench.plots.style import PALETTE, looks
from workbench.reports import figures, report
from workbench.reports.page import TEMPLATES
from workbench.reports.tables import comparison, configuration, default_baseline, responses

HOSTILE = [
    "</td></tr></table><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "{{ 7 * 7 }} {% raw %}",
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


def rows_of(page):
    """The attributes of the rows of sample responses."""
    return [own for own, _ in page.all("tr", role="row") if "data-round" in own]


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
    return Page(report(load_all(runs), runs / "report.html").read_text())


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
        frame["status"] = "<b>ok</b>\x1b[2J"
        frame.to_parquet(part)

    def warned(entry):
        if "row" in entry:
            entry["row"]["warnings"] = warnings[entry["row"]["round"] - 1]
        return entry

    written_records.sign(path, warned)
    return path


# The page


@pytest.mark.slow
def test_the_page_is_well_formed_and_loads_nothing(page, runs):
    assert page.well_formed
    text = (runs / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text.replace(r"\boxed", ""))
    assert not [own for _, own in page.elements if {"src", "srcset", "action"} & set(own)]

    links = [own["href"] for own, _ in page.all("a")]
    ids = [own["id"] for _, own in page.elements if "id" in own]
    assert all(link.startswith("#") for link in links)
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in links} <= set(ids)


def test_the_page_can_be_read_by_all(page):
    assert page.elements[0] == ("html", {"lang": "en"})
    assert len(page.all("h1")) == 1
    assert len(page.all("h2")) == 5
    pictures = [own for own, _ in page.all("svg")]
    assert len(pictures) >= 10
    for own in pictures:
        assert own["role"] == "img"
        assert len(own["aria-label"]) > 20
    course = r"held-out accuracy .* by round: grpo from 0\.\d+ to 0\.\d+; pods from"
    assert any(re.search(course, own["aria-label"]) for own in pictures)
    assert all("scope" in own for own, _ in page.all("th"))
    # The table of responses has its heading instead of a caption.
    assert len(page.all("caption")) == len(page.all("table")) - 1
    assert page.all("meta", name="viewport")
    assert "prefers-color-scheme: dark" in page.all("style")[0][1]


def test_numbers_are_those_of_the_records(page, runs):
    cells = " ".join(text for _, text in page.all("section"))
    record = wb.load(runs / "pods" / "seed-0")
    curve = record.accuracy()
    ends = [curve[y].iloc[place] for y in ("accuracy", "greedy") for place in (0, -1)]
    # 1 run, 4 rounds of 4 problems x 4 rollouts
    row = "pods14" + "".join(f"{value:.3f}" for value in ends) + "64"
    assert any(text.startswith(row) for _, text in page.all("tr"))
    assert "MaxVariance(m=2, baseline=selection)" in cells
    assert "fresh problems" not in cells
    assert "avg@2 before" in cells


# Sample responses


def test_responses_say_what_was_trained_on(page, runs):
    rows = rows_of(page)
    frames = {}
    for label, seed in (("grpo", 0), ("grpo", 1), ("pods", 0)):
        frames[label, seed] = wb.load(runs / label / f"seed-{seed}").rollouts()
    # Fewer than the limit, so all are there.
    assert len(rows) == sum(map(len, frames.values())) == 192
    for (label, seed), frame in frames.items():
        own = [row for row in rows if row["data-run"] == f"{label}, seed {seed}"]
        assert sum(row["data-training"] == "trained" for row in own) == frame["trained"].sum()
        assert sum(row["data-training"] == "left out" for row in own) == (~frame["selected"]).sum()
        assert sum(row["data-reward"] == "above 0" for row in own) == (frame["reward"] > 0).sum()


def test_every_filter_offers_what_the_rows_have(page):
    options = {own["value"] for own, _ in page.all("option")}
    for row in rows_of(page):
        for name in ("run", "round", "reward", "training"):
            assert row[f"data-{name}"] in options
    # The script shows the form, so there are no controls that do nothing without it.
    assert "hidden" in page.all("form")[0][0]


def test_an_interval_of_one_seed_is_no_number(runs, tmp_path):
    for label in ("grpo", "pods"):
        shutil.copytree(runs / label / "seed-0", tmp_path / label / "seed-0")
    groups = load_all(tmp_path / "grpo", tmp_path / "pods")
    table, _ = comparison(groups)
    cells = [cell for frame in table.parts.values() for cell in frame.to_numpy().flat]
    assert "needs two seeds" in cells
    assert not [cell for cell in cells if "nan" in str(cell)]


def test_runs_without_a_later_evaluation_are_not_compared(tmp_path):
    for label in ("a", "b"):
        written_records.write(tmp_path, label, scores=((0, 0.25),), rollouts=[10] * 3)
    table, notes = comparison(load_all(tmp_path))
    assert table is None
    assert "let it go on to its next evaluation" in notes[0]


def test_the_axes_say_how_many_samples_an_accuracy_is_the_mean_of(page):
    assert any("held-out accuracy (avg@2)" in own.get("aria-label", "") for _, own in page.elements)
    assert "avg@k" not in " ".join(page.texts)


def test_a_share_of_the_responses_is_whole_groups(runs, tmp_path):
    groups = load_all(runs)
    rows = responses(groups, 60)["rows"]
    sizes = Counter((row["run"], row["round"], row["problem"]) for row in rows)
    assert {run for run, _, _ in sizes} == {"grpo, seed 0", "grpo, seed 1", "pods, seed 0"}
    # All 4 rollouts of each problem of a round.
    assert set(sizes.values()) == {4}
    assert len(sizes) == 12
    # Too few for a whole group a run.
    assert [len(responses(groups, most)["rows"]) for most in (0, 6, 9)] == [0, 6, 9]
    assert "too few rows" in responses(groups, 2)["note"]
    with pytest.raises(ValueError, match="rows=-1"):
        report(groups, tmp_path / "few.html", rows=-1)


# Hostile records


@pytest.mark.slow
def test_what_a_model_writes_stays_text(hostile, tmp_path):
    text = report(wb.load(hostile), tmp_path / "report.html").read_text()
    assert "\x1b" not in text and "\\x1b[2J" in text
    page = Page(text)
    assert page.well_formed
    script = (TEMPLATES / "report.js").read_text()
    assert [text for _, text in page.all("script")] == [script]
    assert not {tag for tag, _ in page.elements} & {"img", "b", "i", "u", "iframe", "object"}
    assert not [name for _, own in page.elements for name in own if name.startswith("on")]

    shown = {text for own, text in page.all("div") if own.get("class") == "response"}
    longest = max(shown, key=len)
    # Every character of the others came through.
    assert sorted(shown - {longest}) == sorted(HOSTILE[:-1])
    cut = HOSTILE[-1]
    assert longest == f"{cut[:240]}…{cut[240:4000]}\n… 4000 characters more"


@pytest.mark.slow
def test_warnings_stay_text_and_are_one_list(hostile, tmp_path):
    page = Page(report(wb.load(hostile), tmp_path / "report.html").read_text())
    [(_, warnings)] = page.all("section", **{"class": "warnings"})
    assert "round 2: entropy collapse: <b>0</b>" in warnings
    # The heading, and two warnings in one list.
    assert len(warnings.strip().splitlines()) == 2


@pytest.mark.slow
def test_half_surrogate_pairs_and_formulas_break_no_report(runs, tmp_path):
    path = tmp_path / "a" / "$\\foo{$"
    shutil.copytree(runs / "pods" / "seed-0", path)
    groups = {"$\\foo{$": wb.load(path), "half \ud800 pair": wb.load(runs / "grpo" / "seed-0")}
    page = Page(report(groups, tmp_path / "report.html").read_text())
    assert page.well_formed


def test_no_script_but_its_own_may_run(page):
    [(policy, _)] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    digest = hashlib.sha256(page.all("script")[0][1].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy["content"]
    assert "default-src 'none'" in policy["content"]


# Records that lack something


@pytest.mark.slow
def test_records_without_rounds_evaluations_or_texts(runs, tmp_path):
    run = wb.Run(
        small_lab(held_out=0), wb.methods.grpo(4), out=tmp_path / "blind", problems_per_round=4
    )
    for _ in run.rounds(1, progress=False):
        pass
    shutil.copytree(runs / "pods" / "seed-0", tmp_path / "thin")
    wb.records.pack(tmp_path / "thin", columns=())
    wb.records.Writer(tmp_path / "new", wb.load(tmp_path / "thin").manifest)

    said = {}
    for name in ("blind", "thin", "new"):
        page = Page(report(wb.load(tmp_path / name), tmp_path / f"{name}.html").read_text())
        said[name] = " ".join(text for _, text in page.all("main"))
        assert page.well_formed
        assert len(page.all("h1")) == 1
    assert "Held-out accuracy of" not in said["blind"]
    assert "effective-gradient ratio" in said["blind"]
    assert "kept no texts" in said["thin"]
    assert "no round yet" in said["new"]
    assert "Curves" not in said["new"]

    groups = {"a": wb.load(tmp_path / "blind"), "b": [wb.load(tmp_path / "thin")]}
    both = report(groups, tmp_path / "deep" / "both.html")
    assert "never evaluated on held-out problems" in both.read_text()
    with pytest.raises(ValueError, match="at least one"):
        report([], tmp_path / "empty.html")


# Figures and groups


@pytest.mark.slow
def test_many_labels_have_a_legend_in_every_figure_of_curves(tmp_path):
    labels = [f"arm {number}" for number in range(25)] + ["grpo", "grpo n = 16"]
    groups = {}
    for label in labels:
        written_records.write(tmp_path, label)
        groups[label] = [wb.load(tmp_path / label / "seed-0")]
    svg = figures.curves(groups)[0]["svg"]
    assert all(f"{label} (1 seed)" in svg for label in labels)
    assert len({look[:2] for look in looks(labels).values()}) == len(labels)
    # The page has every variable, in light and in dark.
    sheet = (TEMPLATES / "report.css").read_text()
    assert all(sheet.count(f"--c{place}: #") == 2 for place in range(len(PALETTE)))


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
    table, _ = comparison(groups)
    assert all(f"minus {expected}" in frame for frame in table.parts.values())
    if expected == "second":
        paths = [str(tmp_path / label) for label in labels]
        told = CliRunner().invoke(main, ["compare", *paths, "--x", "rollouts", "--json"])
        assert told.exit_code == 0, told.output
        baseline = load_all(*paths)[json.loads(told.output)["baseline"]]
        assert baseline[0].path == tmp_path / "second" / "seed-0"


def test_colours_are_variables_and_ids_its_own():
    svg = (
        '<?xml?><svg width="9pt" viewBox="0 0 9 9"><g id="axes_1">'
        '<path id="m1" style="fill: #0173b2; stroke: #123456"/>'
        '<use xlink:href="#m1" clip-path="url(#p2)"/></g></svg>'
    )
    drawn = _inline(svg, "what it shows", ["#0173b2"])
    start = '<svg viewBox="0 0 9 9" role="img" aria-label="what it shows"><g><path id="f'
    assert drawn.startswith(start)
    assert "fill: var(--c0); stroke: #123456" in drawn
    assert "width=" not in drawn
    own = re.search(r'id="(f\w+-)m1"', drawn)[1]
    assert f'href="#{own}m1"' in drawn
    assert f"url(#{own}p2)" in drawn


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
    # That is no reason to have no report: it has the other figures, and says why these are missing.
    text = report(groups, tmp_path / "page.html", rows=0).read_text()
    assert "No comparison at an equal budget" in text and "Mean reward" in text


# Notebooks


def test_notebooks_show_short_escaped_tables(hostile, tmp_path):
    lab = small_lab()
    record = wb.load(hostile)
    method = wb.methods.pods(4, 2).but(name="<b>mine</b>")
    run = wb.Run(lab, method, seed=3, out=tmp_path / "<i>")
    expected = {
        "a pool of 32": lab,
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
    written_records.write(tmp_path, "a", 0)
    [record] = load_all(tmp_path)["a"]
    method = {**record.manifest["method"], "reward": 3}
    manifest = {**record.manifest, "method": method}
    stranger = SimpleNamespace(manifest=manifest, path=record.path, seed=record.seed)
    assert "3" in dict(configuration("a", [stranger])["words"]).values()
