"""Labels: any text of one line, and directories of their own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.utils.labels import RESERVED, check_label, from_folder, to_folder

LABELS = st.text(min_size=1).filter(lambda text: text.isprintable() and text.strip())
# A character is at most 12 bytes of a name, so the name of none of these is cut.
SHORT_LABELS = st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable() and t.strip())
# Those that could name a directory before any label could.
PLAIN = st.from_regex(r"\w[\w.=+,~-]{0,60}", fullmatch=True).filter(str.isprintable)


@given(st.lists(SHORT_LABELS, min_size=2, max_size=8, unique=True))
def test_no_two_labels_share_a_directory_and_each_is_read_back(labels):
    folders = [to_folder(label) for label in labels]
    assert len(set(folders)) == len(labels)
    assert [from_folder(folder) for folder in folders] == labels


@given(LABELS | st.text("aÄ漢", min_size=60, max_size=400))
def test_a_directory_is_one_visible_name_that_a_file_system_takes(label):
    check_label(label)
    folder = to_folder(label)
    assert folder == os.path.basename(folder) and folder[0] not in ".-~"
    assert len(folder.encode()) <= 255 and folder not in RESERVED


@given(PLAIN)
def test_what_was_a_name_of_a_directory_stays_it(label):
    assert label in RESERVED or to_folder(label) == label


def test_long_labels_that_begin_alike_have_directories_of_their_own():
    assert to_folder("a" * 255) == "a" * 255
    assert to_folder("a" * 300) != to_folder("a" * 301)
    # What was cut cannot be read back: the directory is called as it is.
    assert from_folder(to_folder("a" * 300)) == to_folder("a" * 300)


@pytest.mark.parametrize("name", ["a b", "%ZZ", "50%", "%0A", "%6cogs"])
def test_a_directory_that_no_label_has_is_called_as_it_is(name):
    assert from_folder(name) == name
