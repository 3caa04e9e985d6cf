"""JupyterLab as a person uses it.

The quickstart is opened in Chromium, every cell is run, and the live figure is watched. In a second
notebook the kernel is interrupted in the middle of a run, and the cell is run again.

    make test-browser

Screenshots go to build/browser. Without the package playwright or a Chromium the test is skipped,
and says which. The variable CHROMIUM names the browser; else the first of `CHROMIUMS` on the path.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

import workbench as wb

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "browser"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A hundred rounds redraw the figure five times. The notebook asserts that both methods learn, which
# an evaluation of fewer problems is too noisy to show every time.
PARAMETERS = {"rounds": 100, "evaluate_every": 50, "held_out": 64, "samples": 4}
# A run that takes long enough to be interrupted. The pause is in the middle of a round, so that is
# where the interrupt comes.
INTERRUPTED = 30
RUN = """
import time
from dataclasses import replace

import workbench as wb


class Slow(wb.verifiers.Math):
    def judge(self, responses, answers):
        time.sleep({pause})
        return super().judge(responses, answers)


lab = replace(wb.labs.tiny(pool=64, held_out=0), verifier=Slow(boxed=True))
run = wb.Run(lab, wb.methods.grpo(4), seed=3, problems_per_round=8, out={out!r})
"""
LOOP = f"""
for row in run.rounds({INTERRUPTED}):
    pass
print("rounds in the record:", len(run.record.rounds))
"""
PATIENCE = 900  # seconds for what may take long on a busy machine
SETTINGS = "/lab/api/settings/@jupyterlab/apputils-extension:"
FINGERPRINT = """cell =>
    [...cell.querySelectorAll('.jp-OutputArea-output img')].map(image => image.src).join('|')"""


def chromium():
    """Path of the browser, None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def copy_with_parameters(source, target):
    """A copy of a notebook without outputs, and with the values of `PARAMETERS`."""
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if "parameters" in cell.metadata.get("tags", []):
            lines = [line.partition("#") for line in cell.source.splitlines()]
            names = [code.partition(":")[0] for code, _, _ in lines]
            assert PARAMETERS.keys() <= set(names)
            cell.source = "\n".join(
                f"{name}: int = {PARAMETERS[name]}" if name in PARAMETERS else "".join(line)
                for name, line in zip(names, lines)
            )
    nbformat.write(notebook, target)


@pytest.fixture(scope="module")
def jupyterlab(browser, tmp_path_factory):
    """Address, token and folder of a JupyterLab on copies of the notebooks, without anybody's
    settings.
    """
    home, (port, token) = tmp_path_factory.mktemp("lab"), (_free_port(), "browser-test")
    (home / "notebooks").mkdir()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, home / "notebooks")
    copy_with_parameters(
        ROOT / "notebooks" / "00_quickstart.ipynb", home / "notebooks" / "00_quickstart.ipynb"
    )
    settings = {
        name: str(home / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
        )
    }
    environment = {
        **os.environ,
        **settings,
        "JUPYTER_PREFER_ENV_PATH": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("MPLBACKEND", None)
    with open(home / "log.txt", "w") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                "--no-browser",
                "--allow-root",
                f"--port={port}",
                "--ServerApp.port_retries=0",
                f"--IdentityProvider.token={token}",
                f"--notebook-dir={home / 'notebooks'}",
            ],
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, home / "log.txt")
        yield f"http://127.0.0.1:{port}", token, home / "notebooks"
    finally:
        server.terminate()  # it shuts its kernels down first
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser():
    """Chromium, headless."""
    sync_api = pytest.importorskip(
        "playwright.sync_api",
        reason="playwright is not installed: pip install 'workbench-rlvr[browser]'",
    )
    if chromium() is None:
        pytest.skip(
            "no Chromium here: apt-get install chromium, or name one by CHROMIUM=/path/to/it"
        )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


def test_the_quickstart_runs_and_its_figure_is_alive(jupyterlab, browser):
    page = _opened(browser, jupyterlab, "00_quickstart.ipynb")
    _choose(page, "Run", "Run All Cells")
    live = page.locator(".jp-CodeCell").filter(has_text="wb.plots.watch").first
    live.scroll_into_view_if_needed()
    seen = _changes(page, live, 3)
    page.screenshot(path=SHOTS / "jupyterlab-running.png")
    assert len(set(seen)) == 3 and seen[0], (
        "the figure appears and is redrawn twice while the cell runs"
    )

    _wait_until_all_cells_ran(page, jupyterlab[2] / "00_quickstart.ipynb")
    live.scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "jupyterlab-light.png")
    assert "light" in _theme(page).lower()

    _choose_theme(page, "JupyterLab Dark")
    assert "dark" in _theme(page).lower()
    live.scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "jupyterlab-dark.png")
    for name in ("running", "light", "dark"):
        assert (SHOTS / f"jupyterlab-{name}.png").stat().st_size > 20_000


def test_an_interrupted_run_loses_nothing(jupyterlab, browser, tmp_path):
    folder = jupyterlab[2]
    cells = [
        nbformat.v4.new_code_cell(RUN.format(out="runs/stopped", pause=1.0).strip()),
        nbformat.v4.new_code_cell(LOOP.strip()),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "stop.ipynb")
    page = _opened(browser, jupyterlab, "stop.ipynb")
    _choose(page, "Run", "Run All Cells")

    # In the middle of the run, and of a round as likely as not.
    stopped = folder / "runs" / "stopped"
    deadline = time.monotonic() + PATIENCE
    while _rounds_in(stopped) < 7:
        assert time.monotonic() < deadline, f"after {PATIENCE} s the run had not begun"
        page.wait_for_timeout(50)
    _choose(page, "Kernel", "Interrupt Kernel")
    page.locator(".jp-OutputArea-output").filter(has_text="KeyboardInterrupt").first.wait_for()
    kept = _rounds_in(stopped)
    page.screenshot(path=SHOTS / "jupyterlab-interrupted.png")
    assert 7 <= kept < INTERRUPTED

    # The same cell once more, and nothing else.
    cell = page.locator(".jp-CodeCell").nth(1)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    page.get_by_text(f"rounds in the record: {INTERRUPTED}").first.wait_for()
    page.screenshot(path=SHOTS / "jupyterlab-again.png")

    # What is there now is what a run that was never interrupted leaves.
    names = {}
    exec(RUN.format(out=str(tmp_path / "whole"), pause=0), names)
    for _ in names["run"].rounds(INTERRUPTED, progress=False):
        pass
    whole = names["run"].record
    again = names["wb"].load(stopped)
    assert again.rounds["round"].tolist() == list(range(1, INTERRUPTED + 1))
    timings = [name for name in whole.rounds if name.startswith("seconds")]
    assert again.rounds.drop(columns=timings).equals(whole.rounds.drop(columns=timings))
    assert again.rollouts().equals(whole.rollouts())


def _opened(browser, jupyterlab, name):
    """A page with a notebook whose kernel is ready."""
    address, token, _ = jupyterlab
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE * 1000)
    page.request.put(
        f"{address}{SETTINGS}notification?token={token}", data={"raw": '{"fetchNews": "false"}'}
    )
    page.goto(f"{address}/lab/tree/{name}?reset&token={token}")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.get_by_text("Python 3 (ipykernel) | Idle").first.wait_for()
    SHOTS.mkdir(parents=True, exist_ok=True)
    return page


def _choose(page, menu, entry):
    """Click on an entry of a menu of JupyterLab."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    # By its label, since the name of an entry may end with its keyboard shortcut.
    page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()


def _wait_until_all_cells_ran(page, path):
    """Save the open notebook until its file shows that every code cell has run without an error.

    The page itself does not show it: JupyterLab empties the cells that are out of sight.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        page.keyboard.press("Control+s")
        page.wait_for_timeout(2000)
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        errors = [o for cell in cells for o in cell.outputs if o.output_type == "error"]
        assert not errors, "a cell failed:\n" + "\n".join(errors[0].traceback)
        if all(cell.execution_count for cell in cells):
            return
        ran = sum(bool(cell.execution_count) for cell in cells)
        assert time.monotonic() < deadline, f"after {PATIENCE} s, {ran} of {len(cells)} had run"


def _rounds_in(path):
    """How many rounds a record has so far, 0 before it begins."""
    return len(wb.load(path).rounds) if wb.records.exists(path) else 0


def _changes(page, cell, number):
    """The pictures in a cell's output after each of its first `number` changes."""
    seen, handle, deadline = [], cell.element_handle(), time.monotonic() + PATIENCE
    while len(seen) < number:
        assert time.monotonic() < deadline, (
            f"after {PATIENCE} s the figure had changed {max(len(seen) - 1, 0)} times"
        )
        found = handle.evaluate(FINGERPRINT)
        if found and found not in seen:
            assert "[*]" in cell.locator(".jp-InputPrompt").inner_text(), (
                "the figure changed only after the cell had ended"
            )
            seen.append(found)
        page.wait_for_timeout(100)
    return seen


def _choose_theme(page, name):
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-item").filter(
        has_text="Theme"
    ).first.click()  # a submenu, which has no role
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
    page.wait_for_timeout(1000)  # for the style sheet to be drawn


def _theme(page):
    return page.evaluate("document.body.dataset.jpThemeName")


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for(address, server, log):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            return urllib.request.urlopen(address, timeout=10).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
