"""The verifier of mathematics under attack, and the gold answers of the project's own problems.

The deadline is a contract, so it is measured: by the pool, from the moment a worker has nothing
before the item until its answer is in. On a busy machine anything may be late: a batch in which
something was is tried again under a longer deadline, and the same half second beyond it. A fault is
late every time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
from hostile import FAMILIES, gold, slowest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from examples.base_model.corpus import solution
from workbench.datasets.arithmetic import LEVELS
from workbench.verifiers import STATUSES, Math
from workbench.verifiers.boxes import BOX, closings, last_box, stated, without_mark
from workbench.verifiers.forms import readable
from workbench.verifiers.pool import Pool

ROOT = Path(__file__).resolve().parents[1]
DEADLINES = 0.4, 1.0, 3.0, 9.0  # seconds; the first is enough on an idle machine
LATE = 0.5  # seconds beyond the deadline
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory limits and /proc are Linux's")

NEIGHBOURS = [
    (r"\boxed{\frac{3}{4}}", "0.75", "ok"),
    (r"so $x = \boxed{2\sqrt{3}}$.", r"\sqrt{12}", "ok"),
    (r"\boxed{\frac{1}{3}}", "0.5", "wrong"),
    (r"The answer is $12$.", "12", "ok"),
    ("I do not know.", "1", "unparsed"),
    (r"\boxed{(3, \frac{\pi}{2})}", r"\left( 3, \frac{\pi}{2} \right)", "ok"),
    (r"\boxed{x + 1}", "x", "wrong"),
    (r"\boxed{???}", "1", "unparsed"),
]


@pytest.fixture(scope="module")
def verifiers():
    found = [Math(deadline=deadline, workers=4, cache=0) for deadline in DEADLINES]
    yield found
    for verifier in found:
        verifier.close()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_answers_cost_their_deadline_and_change_nothing_for_others(verifiers, family):
    hostile = [(response, gold(family), None) for response in FAMILIES[family]]
    batch = [case for pair in zip(hostile, itertools.cycle(NEIGHBOURS)) for case in pair]
    scores = in_time(verifiers, *zip(*batch))
    assert set(scores.status) <= set(STATUSES)
    assert scores.reward.tolist() == [float(status == "ok") for status in scores.status]
    assert "ok" not in scores.status[::2], "a hostile answer was found right"


def in_time(verifiers, responses, answers, expected):
    """The scores under the first deadline that every answer kept.

    No answer with an expected status may have run into it either.
    """
    for verifier in verifiers:
        with slowest(verifier.pool) as seconds:
            scores = verifier.score(responses, answers)
        late = max(seconds) - verifier.pool.deadline
        others = [(wanted, found) for wanted, found in zip(expected, scores.status) if wanted]
        if late <= LATE and all(found != "timeout" for _, found in others):
            break
    assert late <= LATE
    assert [found for _, found in others] == [wanted for wanted, _ in others]
    return scores


# What the worker does about it


JUDGE = """
import os, time
kept = []
def make():
    def judge(item):
        kept.append(bytearray(item.get("megabytes", 0) * 2**20))
        time.sleep(item.get("sleep", 0))
        return {"status": "ok", "pid": os.getpid(), "parent": os.getppid()}
    return judge
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "hoarder.py").write_text(JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "hoarder:make"


@pytest.mark.slow
@LINUX
def test_what_earlier_items_leave_behind_costs_later_ones_nothing(judge):
    with Pool(judge, workers=1, memory_mb=100, deadline=20) as pool:
        replies = pool.run([{"megabytes": 60}] * 6 + [{"megabytes": 200}] + [{"megabytes": 10}] * 4)
    assert [reply["status"] for reply in replies] == ["ok"] * 6 + ["crash"] + ["ok"] * 4
    assert (
        len({reply["pid"] for reply in replies[:6]}) == 6
    )  # each left more than a quarter: six forks
    assert len({reply["pid"] for reply in replies[7:]}) < 4
    assert len({reply["parent"] for reply in replies if "parent" in reply}) == 1  # and one worker


@pytest.mark.slow
@LINUX
def test_a_fork_past_its_deadline_is_gone_and_its_worker_goes_on(judge):
    with Pool(judge, workers=1, deadline=0.5) as pool:
        before = pool.run([{}])[0]
        assert pool.run([{"sleep": 600}])[0]["status"] == "timeout"
        after = pool.run([{}])[0]
        listing = Path(f"/proc/{after['parent']}/task/{after['parent']}/children")
        assert after["parent"] == before["parent"] == pool.server.process.pid
        assert after["pid"] != before["pid"]
        assert not listing.exists() or listing.read_text().split() == [str(after["pid"])]


@LINUX
def test_memory_of_a_fork_is_bounded_by_the_kernel(judge):
    with Pool(judge, workers=1, memory_mb=100) as pool:
        pid = pool.run([{}])[0]["pid"]
        limits = Path(f"/proc/{pid}/limits").read_text()
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    limit = int(re.search(r"Max address space +(\d+) +\1 ", limits)[1])
    assert size < limit <= size + 100 * 2**20


# What is read in the caller's own process, where nothing could stop it


@pytest.mark.long
@pytest.mark.parametrize("n", [2_000, 200_000])
def test_looking_for_boxes_takes_few_steps_per_character(n):
    """Quadratic work at the larger size, 10^10 steps, would not end within the test run."""
    text = r"\boxed{" * n
    assert last_box(text) is None
    assert last_box(box := r"\boxed{" + "{" * n + "}" * n + "}") == box
    assert last_box(r"\boxed{4}" + " " * n + r"\boxed{5}") == r"\boxed{4,5}"
    assert last_box(r"\boxed{5}" * (n // 10)) == r"\boxed{5}"
    assert last_box(r"\boxed{4}" + "x" * n + r" \boxed{5}") == r"\boxed{5}"
    for piece in (
        " ",
        "1 ",
        r"\sin(",
        "1e",
        r"\text{1",
        "~",
        "answer is ",
        "the ",
        "\n",
        "* ",
        "$",
        "$$ ",
        r"\[ ",
        r"\\ x",
        "(",
    ):
        text = piece * (n // 4)
        readable(text)
        stated(text)
        without_mark(text)


@given(st.text("{}a\\", max_size=30))
def test_closings_are_found_as_by_counting(text):
    def by_counting(start):
        depth = 1
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return place
        return None

    starts = [i + 1 for i, character in enumerate(text) if character == "{"]
    assert closings(text) == {
        start: end for start in starts if (end := by_counting(start)) is not None
    }


# Gold answers


def test_gold_answers_of_the_arithmetic_family_score_1():
    with Math(deadline=20) as verifier:
        for split in ("train", "heldout"):
            pool = wb.problems.arithmetic(400, levels=tuple(LEVELS), seed=3, split=split)
            answers = [problem.answer for problem in pool]
            for responses in (
                [rf"\boxed{{{answer}}}" for answer in answers],
                [f"The answer is ${answer}$." for answer in answers[:40]],
                [solution(problem.prompt) for problem in pool],
            ):
                assert verifier.score(responses, answers[: len(responses)]).correct.all()


def test_recorded_verdicts_are_given_again():
    record = wb.load(ROOT / "data/runs/tiny-grpo/seed-0")
    rollouts = record.rollouts(columns=["problem", "text", "correct", "status"])
    answers = [
        last_box(solution(problem.partition("/")[2]))[len(BOX) : -1]
        for problem in rollouts["problem"]
    ]
    with Math(boxed=True, deadline=20) as verifier:
        scores = verifier.score(rollouts["text"].tolist(), answers)
    assert 0 < scores.correct.sum() < len(rollouts)
    assert scores.correct.tolist() == rollouts["correct"].tolist()
    assert scores.status.tolist() == rollouts["status"].tolist()


SAMPLES = sorted((ROOT / "tests/data/hub").glob("*.jsonl"))


@pytest.mark.skipif(not SAMPLES, reason="no samples of hub data sets in tests/data/hub")
@pytest.mark.slow
def test_gold_answers_of_hub_samples_score_1():
    golds = [
        answer
        for sample in SAMPLES
        for line in sample.read_text().splitlines()
        for answer in golds_of(json.loads(line))
    ]
    assert golds
    with Math(deadline=20) as verifier:
        scores = verifier.score([BOX + answer + "}" for answer in golds], golds)
    assert [answer for answer, right in zip(golds, scores.correct) if not right] == []


def golds_of(row: dict) -> list[str]:
    """The gold answers in a row as its data set writes them.

    They are in `answer`, in GSM8K after ####, or in the box of the solution.
    """
    found = row.get("answer", row.get("final_answer", row.get("solution")))
    texts = found if isinstance(found, list) else [str(found)] * (found is not None)
    return [
        (last_box(text) or BOX + text.rpartition("####")[2].strip() + "}")[len(BOX) : -1]
        for text in texts
    ]
