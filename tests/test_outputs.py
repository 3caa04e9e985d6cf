"""Where something cannot be written, it is said in one sentence that names the argument."""

import os
import sys

import pytest

import workbench as wb
import workbench.trials.grids
from workbench.records import RecordError, pack
from workbench.reports import report
from workbench.utils.validation import output


def never(*arguments, **options):
    raise AssertionError("something was loaded before the argument was checked")


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr("workbench.labs.Lab.policy", never)
    monkeypatch.setattr("workbench.labs.Lab.check_answers", never)
    monkeypatch.setattr(sys.modules["workbench.trials.profile"], "_sample", never)
    monkeypatch.setattr(sys.modules["workbench.trials.grids"], "read", never)
    monkeypatch.setattr(sys.modules["workbench.trials.trial"], "choose_lab", never)


def wrong_outputs(folder):
    loop = folder / "loop"
    loop.symlink_to("loop")
    return {
        "a NUL byte": str(folder / "a\0b"),
        "a long name": str(folder / ("x" * 256)),
        "a long name below what is not there": str(folder / "a" / "b" / ("x" * 256)),
        "a long path": str(folder / "/".join(["y" * 200] * 21)),
        "a link to itself": str(loop),
        "below a link to itself": loop / "run",
        "half a character": str(folder / "\udc80"),
        "a number": 7,
    }


KINDS = (
    "a NUL byte",
    "a long name",
    "a long name below what is not there",
    "a long path",
    "a link to itself",
    "below a link to itself",
    "half a character",
    "a number",
)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_no_file_system_takes_is_named_before_anything_is_loaded(
    kind, tmp_path, nothing_is_loaded
):
    out = wrong_outputs(tmp_path)[kind]
    before = sorted(tmp_path.iterdir())
    lab = wb.labs.tiny()
    calls = {
        "out": (
            lambda: wb.Run(lab, wb.methods.grpo(), out=out),
            lambda: wb.trial(["pods"], lab="tiny", out=out),
            lambda: wb.profile(lab, out=out),
            lambda: wb.trials.sweep({}, out=out),
        ),
        "folder": (lambda: pack(out),),
    }
    for name, made in calls.items():
        for call in made:
            with pytest.raises(ValueError, match=rf"^{name}=") as error:
                call()
            assert str(error.value).isprintable()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["a NUL byte", "a long name", "a link to itself"])
def test_a_page_is_not_made_for_a_path_that_cannot_be_written(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.page.arms", lambda records: {"a": []})
    monkeypatch.setattr("papermill.execute_notebook", never)
    with pytest.raises(ValueError, match=r"^path="):
        report([], wrong_outputs(tmp_path)[kind])


@pytest.mark.parametrize("kind", ["a NUL byte", "a long name", "a long path", "a link to itself"])
def test_nothing_can_be_read_there_either(kind, tmp_path):
    path = wrong_outputs(tmp_path)[kind]
    for read in (wb.load, wb.Run.resume):
        with pytest.raises(RecordError, match=r"no record|cannot be read"):
            read(path)
    with pytest.raises((RecordError, ValueError), match=r"no record|cannot be read"):
        wb.load_all(path)


def test_usual_outputs_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for out in ("runs/a", ".", "file", "file/below", "link/new", "x" * 255, "é" * 100, "a b%c"):
        assert output("out", out) == tmp_path / out
    assert output("out", tmp_path / "new") == tmp_path / "new"
    assert output("out", os.sep).is_dir()
