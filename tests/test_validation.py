"""The checks of arguments: what each lets through, and that its message helps."""

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.utils import validation
from workbench.utils.validation import (
    LARGEST_FILE,
    LARGEST_INTEGER,
    booleans,
    brief,
    check_size,
    did_you_mean,
    instance_of,
    is_number,
    number,
    numpy_generator,
    one_of,
    plain_data,
    positive_number,
    success_rates,
    whole_number,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.integers(-(2**40), 2**40).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.sampled_from([np.bool_(True), np.array([1]), object(), int, len]),
)


def accepts(check, *arguments, **options):
    """Whether a check lets a value through; it may raise nothing but a named ValueError."""
    try:
        check("size", *arguments, **options)
    except ValueError as error:
        message = str(error)
    else:
        return True
    assert message.startswith("size=")
    assert "\n" not in message
    return False


# Numbers


@given(ANYTHING)
def test_a_number_is_finite_and_real_and_no_truth_value(value):
    plain = isinstance(value, int | float | np.integer | np.floating)
    truth = isinstance(value, bool | np.bool_)
    if not plain or truth:
        assert not is_number(value)
    elif isinstance(value, float | np.floating):
        assert is_number(value) == math.isfinite(value)
    else:
        assert is_number(value) == (abs(int(value)) < 2**1024)


@pytest.mark.parametrize("value", [2**1024, -(10**400), math.inf, -math.inf, math.nan, True, "1"])
def test_what_is_no_number(value):
    assert not is_number(value)


@given(ANYTHING, st.integers(-5, 5), st.one_of(st.none(), st.integers(5, 50)))
def test_a_whole_number_lies_between_its_bounds(value, low, high):
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    largest = LARGEST_INTEGER if high is None else high
    assert accepts(whole_number, value, low, high) == (whole and low <= value <= largest)


@given(ANYTHING, st.booleans())
def test_a_positive_number_is_above_zero_or_zero_where_that_is_allowed(value, zero):
    expected = is_number(value) and (value > 0 or (zero and value == 0))
    assert accepts(positive_number, value, zero=zero) == expected


@given(st.one_of(ANYTHING, st.floats(-0.5, 1.5)))
def test_a_number_lies_within_its_bounds(value):
    expected = is_number(value) and 0 < value <= 1
    assert accepts(number, value, above=0, high=1) == expected
    expected = is_number(value) and 0 <= value < 1
    assert accepts(number, value, low=0, below=1) == expected


# Names


@given(ANYTHING)
def test_one_of_some_texts(value):
    allowed = ("token", "sequence")
    assert accepts(one_of, value, allowed) == (isinstance(value, str) and value in allowed)


@pytest.mark.parametrize("value", [True, 1.0, np.int64(1), "1"])
def test_one_of_some_numbers_does_not_mix_types(value):
    assert accepts(one_of, 1, (None, 1))
    assert accepts(one_of, None, (None, 1))
    assert not accepts(one_of, value, (None, 1))


def test_a_name_that_is_nearly_right_is_suggested():
    with pytest.raises(ValueError, match=r"loss='tokens'.*did you mean 'token'"):
        one_of("loss", "tokens", ("token", "rollout"))
    with pytest.raises(ValueError, match=r"'rollout'$"):
        one_of("loss", "median", ("token", "rollout"))


@given(st.text(), st.lists(st.text(min_size=1), max_size=5))
def test_a_suggestion_is_one_of_the_allowed_names_or_nothing(value, allowed):
    text = did_you_mean(value, allowed)
    assert text == "" or text in [f"; did you mean {name!r}?" for name in allowed]
    if value in allowed:
        assert text == f"; did you mean {value!r}?"


@given(ANYTHING)
def test_anything_may_be_compared_with_anything(value):
    assert did_you_mean(value, [None, 1, "x" * 9, int]) == ""


@given(st.sampled_from(["learning_rate", "max_new_tokens", "problems_per_round"]), st.data())
def test_a_missing_letter_is_forgiven(name, data):
    place = data.draw(st.integers(0, len(name) - 1))
    typo = name[:place] + name[place + 1 :]
    assert did_you_mean(typo, [name, "samples", "seed"]) == f"; did you mean {name!r}?"


def test_an_instance():
    assert accepts(instance_of, {}, dict, "dict()")
    with pytest.raises(ValueError, match=r"^table=\[\]: a dict is needed, such as dict\(a=1\)$"):
        instance_of("table", [], dict, "dict(a=1)")
    with pytest.raises(ValueError, match="an ArithmeticError is needed"):
        instance_of("error", 1, ArithmeticError, "ArithmeticError()")


@given(ANYTHING, st.integers(10, 90))
def test_a_value_is_shown_within_the_limit(value, limit):
    text = brief(value, limit)
    assert len(text) <= limit
    if len(repr(value)) <= limit and not callable(value):
        assert text == repr(value)


def test_functions_and_classes_are_shown_by_name():
    assert brief(brief) == "brief"
    assert brief(int) == "int"
    assert brief("x" * 100) == "'" + "x" * 76 + "..."


# Arrays


@given(st.lists(st.one_of(st.floats(0, 1), st.just(np.nan)), max_size=20))
def test_rates_pass_as_they_are(rates):
    checked = success_rates("p", rates)
    assert checked.dtype == np.float64
    np.testing.assert_array_equal(checked, rates)


@given(st.lists(st.floats(0, 1), max_size=5), st.floats(allow_nan=False), st.integers(0, 5))
def test_a_rate_outside_is_named(rates, outside, place):
    if 0 <= outside <= 1:
        return
    rates.insert(place, outside)
    with pytest.raises(ValueError, match=r"^p=.*: success rates lie in \[0, 1\]"):
        success_rates("p", rates)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_counts_pass_as_int64(values):
    checked = validation.counts("n", values)
    assert checked.dtype == np.int64
    assert checked.tolist() == values


@pytest.mark.parametrize("values", [[1, -1], [1.0], [True], ["1"], np.full(20, -1)])
def test_wrong_counts_are_named(values):
    with pytest.raises(ValueError, match=r"^n=.*: whole numbers of at least 0 are needed"):
        validation.counts("n", values)


@given(st.lists(st.sampled_from([0, 1, True, False, 0.0, 1.0]), max_size=20))
def test_truth_values_pass_as_bool(values):
    checked = booleans("correct", values)
    assert checked.dtype == bool
    assert checked.tolist() == [bool(value) for value in values]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 2], "correct: row 1 is 2; True or False is needed"),
        ([0.5], r"correct: row 0 is 0\.5"),
        ([np.nan], "correct: row 0 is nan"),
        ([[True]], r"correct: shape \(1, 1\); one True or False for each rollout"),
        (True, r"correct: shape \(\)"),
    ],
)
def test_wrong_truth_values_are_named_by_row(values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        booleans("correct", values)


@pytest.mark.parametrize("rng", [7, None, np.random, np.random.PCG64(0)])
def test_only_a_generator_is_one(rng):
    generator = np.random.default_rng(0)
    assert numpy_generator(generator) is generator
    with pytest.raises(ValueError, match=r"^rng=.*: a Generator is needed, such as"):
        numpy_generator(rng)


# Data from files


@pytest.mark.parametrize("value", [None, 1, "text\n", {"a": [1.5, {"b": (True, None)}]}, []])
def test_plain_data_passes(value):
    plain_data(value)


ITSELF: list = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    "value", ["half a character: \ud800", object(), {"a": [b"x"]}, {1: 2}, {"a": {None: 1}}, ITSELF]
)
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(ValueError, match=r"no plain data|is no text|nested|no valid text"):
        plain_data(value)


def test_a_file_of_the_largest_size_is_read_and_no_larger_one(tmp_path):
    path = tmp_path / "data"
    path.touch()
    os.truncate(path, LARGEST_FILE)  # zeros, which take no place on the disk
    check_size(path)
    os.truncate(path, LARGEST_FILE + 1)
    with pytest.raises(ValueError, match="data: it is larger than 4 GiB"):
        check_size(path)
