"""The tables of answers and golds, judged by the verifiers; and what must hold of all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from answer_tables import Pair, pairs

from workbench.verifiers import Choice, Math

# Right answers that are read as wrong, each with the reason.
LIMITS = {
    r"\boxed{42 \frac{m}{s}}": "a unit as a fraction is a quotient of two unknowns",
    r"\boxed{\sqrt{1/n}}": "equal for real n, and Math-Verify 0.9.0 compares for complex ones",
    r"\boxed{4-3j}": "j is an unknown",
    r"\boxed{\text{1}2}": "a digit in a text joins no other",
}


@pytest.fixture(scope="module")
def math():
    with Math(deadline=20) as verifier:
        yield verifier


def statuses(verifier, rows: list[Pair]) -> list[str]:
    """The status of each pair, or "refused" where its gold is."""
    usable = {}
    for gold in {row.gold for row in rows}:
        try:
            verifier.score([r"\boxed{?}"], [gold])
            usable[gold] = True
        except ValueError:
            usable[gold] = False
    asked = [row for row in rows if usable[row.gold]]
    found = verifier.score([row.response for row in asked], [row.gold for row in asked]).status
    status = dict(zip(asked, found.tolist()))
    return [status.get(row, "refused") for row in rows]


def mistakes(rows: list[Pair], found: list[str]) -> list[tuple[Pair, str]]:
    """Pairs that were paid or refused against the table."""
    fine = {
        "right": {"ok"},
        "open": {"ok", "unparsed"},
        "wrong": {"wrong", "unparsed"},
        "refused": {"refused"},
    }
    return [
        (row, status)
        for row, status in zip(rows, found)
        if status not in fine[row.meant] and row.response not in LIMITS
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [pytest.param("math", 900, marks=pytest.mark.long), ("choice", 250)]
)
def test_every_row_of_a_table(name, least, math):
    rows = pairs(name)
    assert len(rows) >= least
    assert min(Counter(row.kind for row in rows).values()) >= 5
    found = statuses(math if name == "math" else Choice(), rows)
    assert mistakes(rows, found) == []


def test_no_limit_is_paid_and_all_are_still_there():
    rows = {row.response: row for row in pairs("math")}
    assert {rows[response].meant for response in LIMITS} <= {"right", "open"}


# 300 golds of which no two say the same.
DIFFERENT = [
    *map(str, range(-40, 60)),
    *(f"\\frac{{{a}}}{{{b}}}" for a in (1, 2, 5) for b in (3, 7, 11, 13, 17)),
    *(f"{a}\\sqrt{{{b}}}" for a in (1, 2, 3) for b in (2, 3, 5, 7)),
    *(f"{a}\\%" for a in (120, 250, 333, 475, 675, 875)),
    *(f"{a}\\pi" for a in (2, 3, 5, 7)),
    *(f"e^{{{a}}}" for a in (1, 2, 3, 5)),
    *(f"\\ln {a}" for a in (2, 3, 5)),
    *(f"({a},{b})" for a in range(1, 5) for b in range(5, 9)),
    *(f"[{a},{b}]" for a in range(1, 4) for b in range(5, 9)),
    *(f"\\{{{a},{b}\\}}" for a in range(1, 5) for b in range(5, 9)),
    *(f"({a},{b},{a})" for a in range(1, 4) for b in range(5, 8)),
    *(f"x^{a}+{b}" for a in (2, 3, 4) for b in range(1, 6)),
    *(f"{a}x+y" for a in range(2, 10)),
    *(f"{a}+{b}i" for a in range(1, 5) for b in range(1, 5)),
    *(f"y={a}x-{b}" for a in range(2, 5) for b in range(1, 4)),
    *(f"{a}<x<{b}" for a in range(11, 14) for b in range(15, 18)),
    *(f"{a}:{b:02}" for a in range(1, 4) for b in (5, 10, 45)),
    *(f"{a}\\text{{ hours }}{b}\\text{{ minutes}}" for a in (2, 3) for b in (10, 20, 30)),
    *(f"f({a})={b}" for a in (1, 2) for b in (101, 102, 103)),
    *("\\infty", "-\\infty", "\\text{undefined}", "\\text{east}", "\\text{west}", "\\text{Monday}"),
    *(f"{a}_{{{b}}}" for a in (1101, 2120) for b in (3, 5, 7)),
    *(f"\\sin {a}x" for a in (2, 3, 5)),
    *("101.5", "2.25", "3.125", "1000000", "1200000", "x", "y", "z", "\\alpha", "n!"),
    *("\\log_{10} 2", "\\binom{n}{2}", "|x|", "x\\ge 100", "x<-100", "\\emptyset", "abc"),
]
OTHERS = [
    r"\infty",
    "0/0",
    r"\frac{1}{0}",
    r"\infty i",
    "1/0-1/0",
    r"\log 0",
    "x=y=z",
    "1,2",
    "()",
    "=",
]


@pytest.mark.long
def test_no_answer_earns_more_than_one_of_300_golds(math):
    """Whoever could be paid for several golds need not solve anything."""
    golds = DIFFERENT[:300]
    assert len(set(golds)) == 300
    answers = [rf"\boxed{{{text}}}" for text in [*OTHERS, *DIFFERENT[:300:20]]]
    # A sample of what the tables have.
    answers += list(dict.fromkeys(row.response for row in pairs("math")))[::120]
    found = {}
    for answer in answers:
        correct = math.score([answer] * len(golds), golds).correct
        found[answer] = [gold for gold, right in zip(golds, correct) if right]
    several = {answer: earned for answer, earned in found.items() if len(earned) > 1}
    # A length of time and a clock time are no two golds of one problem; percents are numbers too.
    assert several == {}
    assert all(found[rf"\boxed{{{gold}}}"] == [gold] for gold in DIFFERENT[:300:20])
