"""Programs that try to get out of the sandbox of `Code`, or to get away with less than is asked.

Each is tried for real, as root and as a user, and looked for from outside where it would show.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from attacks import ATTACKS
from programs import (
    AS_USER,
    BWRAP,
    ROOT,
    as_user,
    asserts,
    io,
    processes,
    sandboxed,
    verifier,
    wait_for,
    with_and_without,
)

pytestmark = pytest.mark.slow

# A program says `held` when its attempt was refused.
ATTEMPT = """
try:
{deed}
    print('free')
except (OSError, ImportError, MemoryError, ValueError):
    print('held')
"""


def attempt(deed: str) -> str:
    """A program that is right only if the deed, one or more lines, raises."""
    return ATTEMPT.format(deed="\n".join("    " + line for line in deed.strip().splitlines()))


@pytest.fixture
def target(tmp_path):
    """What attacks are aimed at: files of the caller, its process, a server of its own."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    tmp_path.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0workbench-{port}")
            abstract.listen()
            yield {
                "secret": str(secret),
                "folder": str(tmp_path),
                "root": str(ROOT),
                "caller": os.getpid(),
                "port": port,
                "inside": "/inside/program.py",
            }


def free(kind: str, names: list[str], target: dict) -> set[str]:
    """The attacks of some kinds that succeed."""
    deeds = {
        f"{name}: {attack}": deed.format(**target)
        for name in names
        for attack, deed in ATTACKS[name].items()
    }
    with verifier(kind, workers=3) as code:
        status = code.score(list(map(attempt, deeds.values())), [io(["", "held"])] * len(deeds))
    return {name for name, held in zip(deeds, status.correct) if not held}


@sandboxed
def test_every_attack_is_held(kind, target):
    assert free(kind, list(ATTACKS), target) == set()


NEEDS_THE_LIST = {
    "writing, changing and deleting files: files in memory",
    "the network: the machine around this one",
    "the network: the kernel's tables",
    "privileges and the kernel: keys",
    "privileges and the kernel: io_uring",
    "resources that last: shared memory of System V",
    "resources that last: a queue of messages",
    "resources that last: namespaces",
}


@pytest.mark.parametrize("kind", [BWRAP])
def test_without_the_list_of_refused_calls_namespaces_hold_all_but_a_few(kind, target, monkeypatch):
    monkeypatch.setattr("workbench.verifiers.sandbox.REFUSED", ())
    succeed = free(kind, list(ATTACKS), target)
    assert "resources that last: shared memory of System V" in succeed
    assert succeed <= NEEDS_THE_LIST


def test_without_a_sandbox_such_attacks_succeed(target):
    succeed = free("none", ["reading the user's files", "starting processes"], target)
    wanted = ("reading the user's files: a file of the caller", "starting processes: fork")
    assert succeed.issuperset(wanted)


# What shows from outside


@sandboxed
def test_the_sandbox_is_alone_with_nobody_s_rights(kind):
    look = """
import ctypes, os, struct
header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
ctypes.CDLL(None).capget(header, data)
def alive(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    except PermissionError: pass
    return True
alone = os.getpid() == 1 or not any(map(alive, range(3, 200)))
print(data[:8] == bytes(8), 0 in (os.getuid(), os.getgid()), os.path.exists("/proc"), alone)
try: os.setuid(0)
except OSError: print("held")
"""
    expected = "True False False True\nheld"
    with verifier(kind) as code:
        assert code.score([look], [io(["", expected])]).correct.all()


@pytest.mark.parametrize("kind", [AS_USER])
def test_a_user_s_program_is_process_1_so_there_is_nobody_to_take_over(kind):
    with verifier(kind) as code:
        assert code.score(["import os\nprint(os.getpid())"], [io(["", "1"])]).correct.all()


@sandboxed
def test_nothing_of_the_caller_s_environment_or_descriptors_is_passed_on(kind, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    look = """
import os
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
print('SECRET_TOKEN' in os.environ, list(filter(is_open, range(3, 64))))
"""
    with verifier(kind) as code:
        assert code.score([look], [io(["", "False []"])]).correct.all()


@sandboxed
def test_other_packages_and_the_project_cannot_be_imported(kind):
    modules = ["workbench", "numpy", "pytest", "sandbox"]
    programs = [attempt(f"import {name}") for name in modules]
    with verifier(kind) as code:
        assert code.score(programs, [io(["", "held"])] * len(programs)).correct.all()


@with_and_without
def test_output_and_memory_are_bounded(kind):
    floods = [
        "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
        "import os\nwhile True: os.write(1, b'x' * 10**6)",
        "a = []\nwhile True: a.append(bytes(10**6))",
        "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    ]
    with verifier(kind, deadline=3, workers=4) as code:
        assert code.score(floods, [io(["", ""])] * 4).status.tolist() == ["crash"] * 3 + ["timeout"]


@with_and_without
def test_computing_and_sleeping_end_at_the_deadline(kind):
    loops = ["while True: pass", "import time\ntime.sleep(600)", "import signal\nsignal.pause()"]
    loops.append(
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\nwhile True: pass"
    )
    with verifier(kind, deadline=1, workers=4) as code:
        assert set(code.score(loops, [io(["", ""])] * len(loops)).status) == {"timeout"}


def named(text: str, name: str) -> str:
    """A program that first gives its process a name, PR_SET_NAME."""
    return f"import ctypes\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n{text}"


BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
THREADS = """
import threading, time
started = 0
try:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print(started < 100, flush=True)
import os
os._exit(0)
"""


@sandboxed
def test_a_fork_bomb_stays_one_process_and_leaves_nothing(kind):
    name = f"bomb{os.getpid()}"
    counts = []
    done = threading.Event()

    def watch():
        while not done.wait(0.1):
            counts.append(len(processes(name)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with verifier(kind, deadline=2) as code:
            assert code.score([named(BOMB, name)], [io(["", ""])]).status.tolist() == ["timeout"]
    finally:
        done.set()
        watcher.join()
    assert max(counts) == 1
    wait_for(lambda: not processes(name))


@with_and_without
def test_threads_are_counted_or_run_out_of_memory(kind):
    with verifier(kind) as code:
        assert code.score([THREADS], [io(["", "True"])]).correct.all()


# Threads without stacks of their own, which take memory of the kernel alone; 30,000 took 470 MiB,
# and nearly all process ids of the machine.
CROWD = """
import ctypes
libc = ctypes.CDLL(None)
flags = 0x50F00  # VM FS FILES SIGHAND THREAD SYSVSEM
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
stacks = ctypes.create_string_buffer(2**12 * 1024)
base = ctypes.addressof(stacks) // 1024 * 1024
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
started = sum(libc.clone(pause, base + 1024 * i, flags, None) > 0 for i in range(1, 2**12))
print(0 < started < 64, flush=True)
"""


@sandboxed
def test_threads_that_take_memory_of_the_kernel_are_counted(kind):
    with verifier(kind) as code:
        assert code.score([CROWD], [io(["", "True"])]).correct.all()


KILL = """
import os, signal
for pid in (os.getppid(), {pid}, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
print(3)
"""


@sandboxed
def test_the_caller_cannot_be_killed(kind):
    programs = [
        KILL.format(pid=os.getpid()),
        f"import os, signal\nos.kill({os.getpid()}, signal.SIGKILL)",
        "print(3)",
    ]
    with verifier(kind) as code:
        assert code.score(programs, [io(["", "3"])] * 3).status.tolist()[2] == "ok"


@pytest.fixture
def server():
    """The address of a server on loopback, and a list of who came."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        visits = []

        def serve():
            try:
                while True:
                    visits.append(listening.accept()[1])
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname(), visits
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@sandboxed
def test_nobody_comes_over_the_network(kind, server):
    address, visits = server
    deed = f"import socket\nsocket.create_connection({address!r}, 5)"
    with verifier(kind) as code:
        assert code.score([attempt(deed)], [io(["", "held"])]).correct.all()
    assert visits == []
    socket.create_connection(address, 5).close()  # it does listen
    wait_for(lambda: visits)


CALLER = """
import json, sys
from workbench.verifiers import Code
code = Code(fenced=False, deadline=600)
print("ready", flush=True)
code.score([sys.argv[1]], [json.dumps({"stdin_stdout": [["", ""]]})])
"""


@sandboxed
@pytest.mark.parametrize("text", ["while True: pass", "import time\ntime.sleep(600)"])
def test_a_program_dies_with_the_caller(kind, text):
    name = f"orphan{os.getpid()}"
    command = [sys.executable, "-c", CALLER, named(text, name)]
    if kind == "user":
        command = as_user(command)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
    ) as caller:
        caller.stdout.readline()
        wait_for(lambda: processes(name))
        caller.send_signal(signal.SIGKILL)
    wait_for(lambda: not processes(name))


# Forgeries: none of these programs computes what is asked


GOLD = 8_675_309_123  # in no program below, also not as a constant
EQUAL = """
class E({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
def f(x): return E()
"""
WRITES = """
import os
for n in range({first}, 64):
    try: os.write(n, {what})
    except OSError: pass
def f(x): return 0
"""
PATCHES = """
import builtins, json, operator, sys
builtins.isinstance = builtins.all = operator.eq = lambda *a: True
builtins.AssertionError = ValueError
json.loads = lambda *a: {'value': 1}
runner = sys.modules['inside']
runner.encode = runner.decode = runner.send = lambda *a: True
def f(x): return 0
"""
SEARCHES = """
import gc, sys
def f(x):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    text = repr(seen) + repr(gc.get_objects())
    gold = int('4337654561') * 2 + 1
    return gold if str(gold) in text else 0
"""
FORGERIES = {
    "prints a verdict": "print('R1111'); print('ok'); print('1')\ndef f(x): return 0",
    "writes a verdict to every descriptor": WRITES.format(
        first=0, what=b'R1111\n1\n{"value": 1}\n'
    ),
    "answers in advance": WRITES.format(first=3, what=b'{"value": 1}\n' * 20),
    "answers nonsense": WRITES.format(
        first=3, what=b'[[[[]]]]\n{"value": ["object"]}\n{"value": ["call", 1]}\n\xff\n'
    ),
    "raises what is no exception": WRITES.format(
        first=3, what=b'{"raise": "exit", "text": "0"}\n' * 9
    ),
    "exits 0 at once": "import sys\nsys.exit(0)",
    "exits 0 without cleaning up": "import os\nos._exit(0)",
    "exits 0 when called": "import os\ndef f(x): os._exit(0)",
    "raises SystemExit when called": "def f(x): raise SystemExit(0)",
    "raises AssertionError when called": "def f(x): raise AssertionError",
    "raises StopIteration when called": "def f(x): raise StopIteration",
    "raises StopAsyncIteration when called": "def f(x): raise StopAsyncIteration",
    "raises GeneratorExit when called": "def f(x): raise GeneratorExit",
    "object that equals everything": EQUAL.format(base=""),
    "number that equals everything": EQUAL.format(base="int"),
    "list that equals everything": EQUAL.format(base="list"),
    "patches builtins and its runner": PATCHES,
    "searches its memory": SEARCHES,
    "has no function": "x = 1",
    "returns a container of the input": "def f(x): return (x,)",
    "returns a lot": "def f(x): return [[]] * 10**5",
    "returns what is deep": (
        "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a"
    ),
}
FORMS = [
    io(["4", str(GOLD)]),
    json.dumps({"function": "f", "calls": [[[4], GOLD], [[5], GOLD + 1]]}),
    asserts(f"assert f(4) == {GOLD}\nassert f(5) == {GOLD + 1}"),
    asserts(
        f"def check(g):\n    assert g(4) == {GOLD}\n"
        f"    assert all(map(g, [4])) and {GOLD} == g(4)\ncheck(f)"
    ),
    asserts(
        f"assert {GOLD} == f(4)\nassert [f(4)] == [{GOLD}]\nassert f(4) in ({GOLD}, {GOLD + 1})"
    ),
]


@pytest.mark.long
@with_and_without
def test_a_verdict_cannot_be_forged(kind):
    # What runs inside is the same with and without, so further asserts are tried in one of them.
    forms = FORMS if kind == "none" else FORMS[:3]
    pairs = [(name, form) for name in FORGERIES for form in forms]
    with verifier(kind, workers=3) as code:
        scores = code.score([FORGERIES[name] for name, _ in pairs], [form for _, form in pairs])
        right = f"def f(x): return {GOLD} + x - 4\nprint({GOLD})"
        assert code.score([right] * len(FORMS), FORMS).correct.all()
    verdicts = zip(pairs, scores.status)
    assert [each for each in verdicts if each[1] not in ("wrong", "crash")] == []


@with_and_without
def test_an_exception_that_ends_iteration_passes_no_test(kind):
    """Raised inside the tests' own `map`, StopIteration would end it as if all cases had passed."""
    tests = [
        "assert all(map(f, [2, 3, 5]))",
        "assert not any(map(f, [4, 6]))",
        "assert list(map(f, [4, 6])) == []",
        "for x in map(f, [2, 3]): assert x",
        "assert sum(map(f, [4])) == 0",
    ]
    programs = [f"def f(x): raise {name}" for name in ("StopIteration", "StopAsyncIteration")]
    pairs = [(program, asserts(test)) for program in programs for test in tests]
    with verifier(kind, workers=3) as code:
        status = code.score(*zip(*pairs)).status
    assert set(status) == {"wrong"}
