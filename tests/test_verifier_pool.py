"""Worker processes: charged exactly, replaced when they hang or die, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from workbench.verifiers import Math
from workbench.verifiers.pool import Pool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
HANGING = r"\boxed{9^{9^{9}}}"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has collected yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def python(code: str, **options) -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, **options
    )


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
    deeds = [
        "",
        "os._exit(3)",
        "",
        "os.abort()",
        "time.sleep(60)",
        "",
        "raise MemoryError",
        "print('noise')",
        "os.write(1, b'noise')",
    ]
    with Pool(judge, workers=1, deadline=0.5) as pool:
        replies = pool.run([{"do": deed} for deed in deeds])
    assert [reply["status"] for reply in replies] == [
        "ok",
        "crash",
        "ok",
        "crash",
        "timeout",
        "ok",
        "crash",
        "ok",
        "ok",
    ]


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processor clocks and /proc are Linux's")


@pytest.mark.long
@LINUX
def test_a_timeout_says_whether_the_item_computed_that_long(judge):
    stops = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with Pool(judge, workers=1, deadline=1.5) as pool:
        replies = pool.run([{"do": "time.sleep(60)"}, {"do": stops}, {}])
        assert replies[:2] == [{"status": "timeout", "certain": False}] * 2
        assert replies[2]["status"] == "ok"
        # How much of the processor an endless loop gets depends on what else runs here.
        for _ in range(20):
            reply = pool.run([{"do": "while True: pass"}])[0]
            if reply["certain"]:
                break
        assert reply == {"status": "timeout", "certain": True}


def only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@LINUX
@pytest.mark.parametrize("victim", ["worker", "both"])
@pytest.mark.long
def test_a_paused_worker_s_timeout_is_not_kept(victim, monkeypatch):
    monkeypatch.setattr("workbench.verifiers.pool.REPLY_SECONDS", 0.5)
    with Math(workers=1, deadline=1.0) as math:
        assert math.score([r"\boxed{0.5}"], ["1/2"]).correct.all()
        server = math.pool.server.process.pid
        os.kill(only_child(server), signal.SIGSTOP)
        if victim == "both":
            os.kill(server, signal.SIGSTOP)
        paused = math.score([r"\boxed{0.25}"], ["1/4"])
        assert paused.status.tolist() == ["timeout"]
        math.pool.deadline = 20.0
        math.pool.close()
        assert math.score([r"\boxed{0.25}"], ["1/4"]).status.tolist() == ["ok"]


@pytest.mark.long
@LINUX
def test_an_answer_that_hangs_is_asked_about_once(monkeypatch):
    with Math(workers=1, deadline=1.5) as math:
        asked = []
        run = math.pool.run
        monkeypatch.setattr(math.pool, "run", lambda items: asked.extend(items) or run(items))
        for _ in range(20):
            assert math.score([HANGING], ["5"]).status.tolist() == ["timeout"]
        # Under load a timeout may be uncertain a few times, and then it is kept.
        assert len(asked) < 20


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
    deed = (
        f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); "
        "time.sleep(60)"
    )
    with Pool(judge, workers=1, deadline=0.5) as pool:
        assert pool.run([{"do": deed}])[0]["status"] == "timeout"
        wait_for(lambda: not alive(int(note.read_text())))


def test_a_start_that_fails_names_the_cause(judge):
    for name, cause in (
        ("house:broken", "no such table"),
        ("nowhere:make", "nowhere"),
        ("house:missing", "missing"),
    ):
        with pytest.raises(ChildProcessError, match=cause):
            Pool(name).run([{}])


def test_killed_from_outside_while_idle(judge):
    with Pool(judge, workers=2) as pool:
        pids = {reply["pid"] for reply in pool.run([{}] * 8)}
        for victims in (pids, [pool.server.process.pid]):
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            replies = pool.run([{}] * 8)
            assert {reply["status"] for reply in replies} == {"ok"}
            assert not pids & {reply["pid"] for reply in replies}


def test_an_item_is_not_tried_again_by_a_worker_that_was_killed_as_well(judge):
    with Pool(judge, workers=2) as pool:
        for victim in {reply["pid"] for reply in pool.run([{}] * 8)}:
            os.kill(victim, signal.SIGKILL)
        [reply] = pool.run([{}])
        assert reply["status"] == "ok"


@LINUX
@pytest.mark.parametrize("victim", ["worker", "server"])
def test_killed_from_outside_in_the_middle(judge, victim):
    items = [{"text": str(i), "do": "time.sleep(0.002)"} for i in range(600)]
    with Pool(judge) as pool:
        pool.run([{}] * 2)
        server = pool.server.process.pid
        children = Path(f"/proc/{server}/task/{server}/children")
        result = []
        thread = threading.Thread(target=lambda: result.append(pool.run(items)))
        thread.start()
        time.sleep(0.05)
        os.kill(server if victim == "server" else int(children.read_text().split()[0]), 9)
        thread.join()
    assert [reply["text"] for reply in result[0]] == [item["text"] for item in items]
    assert {reply["status"] for reply in result[0]} == {"ok"}


def test_an_item_whose_worker_is_killed_twice_is_a_crash(judge, tmp_path):
    note = tmp_path / "tries"
    note.touch()
    deed = f"open({str(note)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(60)"
    with Pool(judge, workers=1, deadline=30) as pool:
        pool.run([{}])
        result = []
        thread = threading.Thread(target=lambda: result.append(pool.run([{"do": deed}, {}])))
        thread.start()
        for tries in (1, 2):
            wait_for(lambda tries=tries: note.read_text().count(" ") == tries)
            os.kill(int(note.read_text().split()[-1]), signal.SIGKILL)
        thread.join()
    assert [reply["status"] for reply in result[0]] == ["crash", "ok"]


@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(3)", "os.abort()"])
def test_an_item_that_ends_its_worker_is_not_tried_again(judge, tmp_path, end):
    note = tmp_path / "tries"
    with Pool(judge, workers=1, deadline=30) as pool:
        [reply] = pool.run([{"do": f"open({str(note)!r}, 'a').write('once '); {end}"}])
    assert reply["status"] == "crash"
    assert note.read_text() == "once "


def test_workers_outlive_the_thread_that_first_needed_them(judge):
    with Pool(judge, workers=1) as pool:
        first = []
        thread = threading.Thread(target=lambda: first.extend(pool.run([{}])))
        thread.start()
        thread.join()
        time.sleep(0.1)
        assert pool.run([{}])[0]["pid"] == first[0]["pid"]


def test_two_threads_at_once():
    found, math = {}, Math()

    def score(offset: int) -> None:
        for i in range(offset, offset + 20):
            found[i] = math.score(
                [rf"\boxed{{{i}.25}}", rf"\boxed{{{i}.75}}"], [f"{i}.25"] * 2
            ).status.tolist()

    threads = [threading.Thread(target=score, args=(offset,)) for offset in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    math.close()
    assert len(found) == 40
    assert all(status == ["ok", "wrong"] for status in found.values())


def test_close_leaves_nothing_and_a_later_run_starts_again(judge):
    pool = Pool(judge, deadline=0.5)
    pool.run([{"do": "time.sleep(60)"}, {}])
    pids = [pool.server.process.pid, *(reply["pid"] for reply in pool.run([{}] * 2))]
    pool.close()
    pool.close()
    assert not any(map(alive, pids))
    assert pool.run([{}])[0]["status"] == "ok"
    process = pool.server.process
    del pool
    assert process.returncode is not None


def test_an_interrupt_ends_the_workers(judge, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with Pool(judge, workers=1, deadline=600) as pool:
        pid = pool.run([{}])[0]["pid"]
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("workbench.verifiers.pool.wait", interrupted)
            pool.run([{"do": "time.sleep(600)"}])
        assert not alive(pid)
        assert pool.run([{}])[0]["status"] == "ok"


PARENT = """
import threading, time
from workbench.verifiers.pool import Pool
pool = Pool("house:make", deadline=600)
pool.run([{}] * 2)
threading.Thread(target=pool.run, args=([{"do": "while True: pass"}],), daemon=True).start()
time.sleep(0.3)
server = pool.server.process.pid
workers = open(f"/proc/{server}/task/{server}/children").read().split()
print(server, *workers, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a busy worker notices at once on Linux only")
@pytest.mark.parametrize("end", ["time.sleep(600)", "raise SystemExit"])
def test_workers_die_with_their_parent(judge, end):
    parent = python(PARENT + end)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    if end.startswith("time"):
        assert all(map(alive, pids))
        parent.kill()
    parent.communicate(timeout=30)
    wait_for(lambda: not any(map(alive, pids)), seconds=5)


FORK = """
import os
from workbench.verifiers.pool import Pool
pool = Pool("house:make", workers=1)
ask = lambda text: pool.run([{"text": text}])[0]["text"] == text
assert ask("1")
before = pool.server.process.pid
if (child := os.fork()) == 0:
    assert ask("2") and pool.server.process.pid != before
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask("3") and pool.server.process.pid == before
print("both")
"""


def test_a_forked_child_starts_its_own_workers(judge):
    assert python(FORK).communicate(timeout=240)[0].strip() == "both"
