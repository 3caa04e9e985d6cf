"""Verifiers: verdicts, hostile answers, and worker processes that die, hang or outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.verifiers import STATUSES, Math, Scores
from workbench.verifiers.math import last_box, only_box
from workbench.verifiers.pool import Pool

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 1.2

HOSTILE = {
    "tower": r"\boxed{9^{9^{9}}}",
    "factorial": r"\boxed{(10^9)!}",
    "factorials": r"\boxed{((9!)!)!}",
    "fractions": r"\boxed{" + r"\frac{1}{1+" * 1000 + "1" + "}" * 1000 + "}",
    "parentheses": r"\boxed{" + "(" * 300 + "5" + ")" * 300 + "}",
}

CASES = [
    (r"\boxed{\frac{1}{2}}", "0.5", "ok"),
    (r"so $x = \boxed{\dfrac{3}{4}}$.", "3/4", "ok"),
    (r"\boxed{0.75}", r"$\frac{3}{4}$", "ok"),
    (r"\boxed{1,000}", "1000", "ok"),
    (r"\boxed{50\%}", "0.5", "ok"),
    (r"\boxed{2, 1}", r"\{1, 2\}", "ok"),
    (r"\boxed{(3, \frac{\pi}{2})}", r"\left( 3, \frac{\pi}{2} \right)", "ok"),
    (r"\boxed{x^2 + 2x + 1}", r"(x+1)^2", "ok"),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", "ok"),
    (r"\boxed{[1, 2)}", r"[1,2)", "ok"),
    (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", "ok"),
    (r"\boxed{-7}", "-7", "ok"),
    (r"\boxed{007}", "7", "ok"),
    (r"first \boxed{3}, later \boxed{0.25}" + " because " * 20, r"\frac14", "wrong"),
    (r"first I thought it was \boxed{3}. After a long look at it I now say: the result must be \boxed{4}.", "4", "ok"),
    (r"\boxed{\frac{1}{3}}", "0.5", "wrong"),
    (r"\boxed{8}", "7", "wrong"),
    (r"\boxed{1, 2, 3}", r"\{1, 2\}", "wrong"),
    (r"\boxed{x + 1}", "x", "wrong"),
    ("The final answer is $12$. I hope it is correct.", "12", "ok"),
    ("I get 1/2", "0.5", "ok"),
    ("I get 1/2", "0.6", "wrong"),
    ("", "1", "unparsed"),
    ("I do not know.", "1", "unparsed"),
    (r"\boxed{}", "1", "unparsed"),
    (r"\boxed{???}", "1", "unparsed"),
    (r"lone surrogate \ud800 \boxed{0.5}" + "\ud800", "1/2", "ok"),
]


@pytest.fixture(scope="module")
def math():
    with Math() as verifier:
        yield verifier


@pytest.fixture(scope="module")
def impatient():
    with Math(deadline=DEADLINE) as verifier:
        yield verifier


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has collected yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def python(code: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, **options)


# --- verdicts


def test_hand_cases(math):
    responses, answers, expected = zip(*CASES)
    scores = math.score(responses, answers)
    assert scores.status.tolist() == list(expected)
    assert scores.reward.tolist() == [float(status == "ok") for status in expected]


def test_scores():
    scores = Scores.of(["ok", "crash", "ok", "wrong"])
    assert scores.reward.dtype == np.float64 and scores.status.dtype.kind == "U"
    assert scores.correct.tolist() == [True, False, True, False]
    assert scores.counts() == {"ok": 2, "wrong": 1, "unparsed": 0, "timeout": 0, "crash": 1}
    assert Scores.of([]).reward.shape == (0,)


def test_boxed_reads_only_the_last_complete_box():
    with Math(boxed=True, workers=1) as verifier:
        responses = ["the answer is 5", r"\boxed{5", r"\boxed{4} \boxed{5}", r"\boxed{5} then \boxed{4}", r"\boxed{5} \boxed{4", r"\boxed{5.}"]
        assert verifier.score(responses, ["5"] * 6).status.tolist() == ["unparsed", "unparsed", "ok", "wrong", "ok", "ok"]
        assert verifier.pool.processes == []  # integers and missing boxes need no worker
        assert verifier.score([r"\boxed{\frac{1}{2}}"], ["0.5"]).correct.all()


def test_boxes():
    assert last_box(r"\boxed{\frac{1}{2}} \boxed{a{b}c}") == r"\boxed{a{b}c}"
    assert last_box(r"\boxed{1 \boxed{2") is None
    assert only_box(r"then $x=\boxed{\frac12}$ holds") == r"\boxed{\frac12}"
    assert only_box(r"The final answer is $\boxed{7}$. I hope it is correct.") == r"\boxed{7}"
    for other in (r"\boxed{1}\boxed{2}", r"\boxed{5} \%", r"\boxed{$5$}", r"\boxed{5", r"final answer is 4, or \boxed{5}"):
        assert only_box(other) is None


def test_the_tail_of_a_long_response_counts():
    with Math(max_chars=100, workers=1) as verifier:
        responses = ["x" * 10**6 + r" \boxed{0.5}", r"\boxed{0.5}" + "x" * 10**6]
        assert verifier.score(responses, ["1/2"] * 2).status.tolist() == ["ok", "unparsed"]


def test_asking_about_the_box_alone_changes_no_verdict(math):
    contents = ["12", "-3", "0.5", r"\frac{1}{2}", "1,2", "x=5", r"50\%", "???", r"\text{no}", "[1,2]", "5.", r"\sqrt{2}"]
    around = [
        r"\boxed{%s}", r"We get $x = \boxed{%s}$.", r"The answer is $$\boxed{%s}$$", r"\[ 3 + 4 = \boxed{%s} \]", r"$a$ and $b=\boxed{%s}$, so $7$.",
        r"**Final Answer:** \boxed{%s}", r"The final answer is $\boxed{%s}$. I hope it is correct.", r"The final answer is \boxed{%s}.",
        r"The final answer is \boxed{%s}. That is 5.", r"The answer is 5. \boxed{%s}", r"\(\boxed{%s}\) and then \frac{3}{4}", r"$\boxed{%s}$ %%",
        r"final answer is $\boxed{%s}$ and $5$", r"\boxed{%s} since {3} = 4", r"We get [ \boxed{%s} ] here", r"The answer is \boxed{%s}" + "\n\nDone: 9/10",
    ]  # fmt: skip
    pairs = [(form % content, gold) for content in contents for form in around for gold in (content, "5") if content != "???" or gold == "5"]
    pairs = [(response, gold) for response, gold in pairs if gold != "5."]
    whole = math.pool.run([{"response": response, "answer": gold} for response, gold in pairs])
    found = math.score(*zip(*pairs)).status.tolist()
    assert [pair for pair, a, b in zip(pairs, found, whole) if a != b["status"]] == []
    assert sum(only_box(response) is not None for response, _ in pairs) > len(pairs) / 2


@settings(max_examples=60, deadline=None)
@given(st.integers())
def test_integers(math, n):
    boxed, said = rf"so \boxed{{{n}}}", f"The answer is ${n}$."
    assert math.score([boxed, said] * 2, [str(n)] * 2 + [str(n + 1)] * 2).status.tolist() == ["ok", "ok", "wrong", "wrong"]


def test_integers_agree_with_math_verify(math):
    numbers = [0, 1, 9, 10**6, 10**11, 10**12 - 2]
    pairs = [(a, b) for n in numbers for a, b in [(n, n), (n, n + 1), (-n, n), (-n, -n), (-n - 1, -n)]]
    replies = math.pool.run([{"response": rf"\boxed{{{a}}}", "answer": str(b)} for a, b in pairs])
    assert [reply["status"] == "ok" for reply in replies] == [a == b for a, b in pairs]


# --- what is refused


@pytest.mark.parametrize(
    "argument",
    [{"workers": 0}, {"workers": 1.5}, {"deadline": 0}, {"deadline": float("nan")}, {"deadline": "5"}, {"memory_mb": 0},
     {"max_chars": 0}, {"cache": -1}, {"boxed": 1}, {"workers": True}],
)  # fmt: skip
def test_constructor_arguments(argument):
    with pytest.raises(ValueError, match=f"{next(iter(argument))} is .*allowed"):
        Math(**argument)


@pytest.mark.parametrize(
    ("responses", "answers", "named"),
    [(["a"], [], "length 0"), (["a"], [5], r"answers\[0\] is 5"), ([None], ["5"], r"responses\[0\] is None"), ("a", "5", "responses"),
     (["a"], [" "], r"answers\[0\] is ' '"), ([r"\boxed{1/2}"], [r"\frac{"], r"\\\\frac{")],
)  # fmt: skip
def test_score_arguments(math, responses, answers, named):
    with pytest.raises(ValueError, match=named):
        math.score(responses, answers)


def test_an_unusable_gold_answer_leaves_the_verifier_working(math):
    with pytest.raises(ValueError, match="allowed: mathematics"):
        math.score([r"\boxed{1/3}"] * 2, ["???", "1/3"])
    assert math.score([r"\boxed{1/3}"], ["1/3"]).correct.all()


def test_config_and_import():
    assert Math(deadline=2.0).config == {"boxed": False, "workers": 2, "deadline": 2.0, "memory_mb": 1024, "max_chars": 20_000, "cache": 65_536}
    code = "import sys, workbench.verifiers; print({'math_verify', 'sympy', 'pandas', 'torch'} & set(sys.modules))"
    assert python(code).communicate()[0].strip() == "set()"


# --- the cache


def test_equal_pairs_are_asked_once():
    with Math(workers=1, cache=3) as verifier:
        asked = []
        run, verifier.pool.run = verifier.pool.run, lambda items: asked.append(len(items)) or run(items)
        responses = [rf"thought {i}: \boxed{{0.{i % 2 + 1}}}" for i in range(10)]
        for _ in range(2):
            assert verifier.score(responses, ["0.1"] * 10).counts()["ok"] == 5
        assert [n for n in asked if n] == [2]
        verifier.score([r"\boxed{0.5}", r"\boxed{0.6}", r"\boxed{0.7}"], ["1"] * 3)
        verifier.score([r"\boxed{0.1}"], ["0.1"])  # was dropped
        assert [n for n in asked if n] == [2, 3, 1]
        assert verifier.counts == dict(zip(STATUSES, [11, 13, 0, 0, 0]))


def test_no_cache():
    with Math(workers=1, cache=0) as verifier:
        for _ in range(2):
            assert verifier.score([r"\boxed{0.5}"] * 2, ["1/2", "1/3"]).status.tolist() == ["ok", "wrong"]


# --- hostile answers


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_cost_a_deadline_and_spare_their_neighbours(impatient, name):
    impatient.score([rf"\boxed{{1.{len(name)}}}", f"{name}: 0.5"], ["1", "0.5"])  # workers are up
    start = time.monotonic()
    scores = impatient.score([HOSTILE[name]], ["5"])
    assert time.monotonic() - start < DEADLINE + 0.5
    assert scores.status[0] in ("timeout", "crash", "unparsed") and scores.reward[0] == 0
    again = time.monotonic()
    responses = [f"{name} {i}: \\boxed{{{i}.5}}" for i in range(8)]
    scores = impatient.score([*responses[:4], HOSTILE[name], *responses[4:]], [*[f"{i}.5" for i in range(4)], "5", *["1"] * 4])
    assert scores.correct.tolist() == [True] * 4 + [False] * 5
    assert scores.counts()["wrong"] == 4
    assert time.monotonic() - again < DEADLINE + 3


def test_all_hostile_answers_at_once():
    neighbours = [rf"\boxed{{\frac{{{i}}}{{7}}}}" for i in range(1, 7)]
    with Math(deadline=DEADLINE) as verifier:
        scores = verifier.score([*neighbours[:3], *HOSTILE.values(), *neighbours[3:]], [f"{i}/7" for i in (1, 2, 3)] + ["5"] * 5 + [f"{i}/7" for i in (4, 5, 6)])
    assert scores.correct.tolist() == [True] * 3 + [False] * 5 + [True] * 3
    assert not np.isin(scores.status, ["wrong"]).any()


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is Linux's")
def test_running_out_of_memory_is_a_crash():
    with Math(memory_mb=32, workers=1, deadline=20) as verifier:
        scores = verifier.score([r"\boxed{0.5}", r"\boxed{2^{2^{33}}}", r"\boxed{1.5}"], ["1/2", "5", "3/2"])
    assert scores.status.tolist() == ["ok", "crash", "ok"]


# --- processes


JUDGE = """
import os, subprocess, time
def make():
    def judge(item):
        exec(item.get("do", ""))
        return {"status": "ok", "text": item.get("text", ""), "pid": os.getpid()}
    return judge
def broken():
    raise OSError("no such table")
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "house.py").write_text(JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "house:make"


def test_statuses_are_charged_to_the_exact_item(judge):
    deeds = ["", "os._exit(3)", "", "os.abort()", "time.sleep(60)", "", "raise MemoryError", "print('noise')", "os.write(1, b'noise')"]
    with Pool(judge, workers=1, deadline=0.5) as pool:
        replies = pool.run([{"do": deed} for deed in deeds])
    assert [reply["status"] for reply in replies] == ["ok", "crash", "ok", "crash", "timeout", "ok", "crash", "ok", "ok"]


def test_each_item_has_the_whole_deadline(judge):
    with Pool(judge, workers=1, deadline=0.6) as pool:
        assert {reply["status"] for reply in pool.run([{"do": "time.sleep(0.3)"}] * 4)} == {"ok"}


def test_long_texts_both_ways(judge):
    texts = [str(i) * 3_000_000 for i in range(8)]
    with Pool(judge, deadline=20) as pool:
        replies = pool.run([{"text": text} for text in texts])
    assert [reply["text"] for reply in replies] == texts


def test_grandchildren_die_with_a_killed_worker(judge, tmp_path):
    note = tmp_path / "pid"
    deed = f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(60)"
    with Pool(judge, workers=1, deadline=0.5) as pool:
        assert pool.run([{"do": deed}]) == [{"status": "timeout"}]
        wait_for(lambda: not alive(int(note.read_text())))


def test_a_start_that_fails_names_the_cause(judge):
    for name, cause in (("house:broken", "no such table"), ("nowhere:make", "nowhere"), ("house:missing", "missing")):
        with pytest.raises(RuntimeError, match=f"did not start.*{cause}"):
            Pool(name).run([{}])


def test_killed_from_outside_while_idle_and_while_starting(judge):
    with Pool(judge, workers=2) as pool:
        pids = {reply["pid"] for reply in pool.run([{}] * 8)}
        for process in pool.processes:
            os.kill(process.pid, signal.SIGKILL)
        replies = pool.run([{}] * 8)
        assert {reply["status"] for reply in replies} == {"ok"} and not pids & {reply["pid"] for reply in replies}


def test_killed_from_outside_in_the_middle():
    responses = [rf"\boxed{{\frac{{{i}}}{{1009}}}}" for i in range(1, 601)]
    answers = [f"{i + i % 2}/1009" for i in range(1, 601)]
    with Math() as verifier:
        verifier.score([r"\boxed{0.5}"] * 2, ["1", "2"])
        result = []
        thread = threading.Thread(target=lambda: result.append(verifier.score(responses, answers)))
        thread.start()
        for _ in range(2):
            time.sleep(0.05)
            os.kill(verifier.pool.processes[0].pid, signal.SIGKILL)
            wait_for(lambda: not thread.is_alive() or verifier.pool._workers[0].ready)
        thread.join()
    assert result[0].status.tolist() == ["wrong" if i % 2 else "ok" for i in range(1, 601)]


def test_an_item_whose_worker_is_killed_twice_is_a_crash(judge):
    with Pool(judge, workers=1, deadline=30) as pool:
        pool.run([{}])
        result = []
        thread = threading.Thread(target=lambda: result.append(pool.run([{"do": "time.sleep(60)"}, {}])))
        thread.start()
        for _ in range(2):
            wait_for(lambda: pool._workers[0].jobs and pool.processes[0].returncode is None)
            victim = pool.processes[0].pid
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: pool.processes[0].pid != victim)
        thread.join()
    assert [reply["status"] for reply in result[0]] == ["crash", "ok"]


def test_workers_outlive_the_thread_that_first_needed_them(judge):
    with Pool(judge, workers=1) as pool:
        first = []
        thread = threading.Thread(target=lambda: first.extend(pool.run([{}])))
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert pool.run([{}])[0]["pid"] == first[0]["pid"]


def test_two_threads_at_once(math):
    found = {}

    def score(offset: int) -> None:
        for i in range(offset, offset + 20):
            found[i] = math.score([rf"\boxed{{{i}.25}}", rf"\boxed{{{i}.75}}"], [f"{i}.25"] * 2).status.tolist()

    threads = [threading.Thread(target=score, args=(offset,)) for offset in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(status == ["ok", "wrong"] for status in found.values())


def test_close_leaves_nothing_and_a_later_score_starts_again():
    verifier = Math(deadline=DEADLINE)
    verifier.score([HOSTILE["tower"], r"\boxed{0.5}"], ["5", "1/2"])
    processes = verifier.pool.processes
    assert len(processes) == 2
    verifier.close()
    verifier.close()
    assert all(process.returncode is not None and not alive(process.pid) for process in processes)
    assert verifier.score([r"\boxed{0.25}"], ["1/4"]).correct.all()
    processes = verifier.pool.processes
    del verifier
    assert all(process.returncode is not None for process in processes)


PARENT = """
import threading, time
from workbench.verifiers import Math
verifier = Math(deadline=600)
verifier.score([r"\\boxed{0.5}", r"\\boxed{0.25}"], ["1", "2"])
threading.Thread(target=verifier.score, args=([r"\\boxed{9^{9^{9}}}"], ["5"]), daemon=True).start()
time.sleep(0.3)
print(*[process.pid for process in verifier.pool.processes], flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a busy worker notices at once on Linux only")
@pytest.mark.parametrize("end", ["time.sleep(600)", "raise SystemExit"])
def test_workers_die_with_their_parent(end):
    parent = python(PARENT + end)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if end.startswith("time"):
        assert all(map(alive, pids))
        parent.kill()
    parent.communicate(timeout=30)
    wait_for(lambda: not any(map(alive, pids)), seconds=5)


FORK = r"""
import os
from workbench.verifiers import Math
verifier = Math(workers=1)
ask = lambda n: verifier.score([rf"\boxed{{{n}.5}}"], [f"{n}.5"]).correct.all()
assert ask(1)
before = verifier.pool.processes[0].pid
if (child := os.fork()) == 0:
    assert ask(2) and verifier.pool.processes[0].pid != before
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask(3) and verifier.pool.processes[0].pid == before
print("both")
"""


def test_a_forked_child_starts_its_own_workers():
    assert python(FORK).communicate(timeout=60)[0].strip() == "both"
