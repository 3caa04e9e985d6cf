"""Programs that try to get out of the sandbox of `Code`, or to get away with less than is asked.

Each is tried for real, in every sandbox that promises to hold it, as root and as a user, and looked
for from outside where it would show.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from attacks import ATTACKS
from programs import (
    AS_USER,
    ROOT,
    WEAK,
    all_kinds,
    as_user,
    asserts,
    io,
    namespaced,
    processes,
    verifier,
    wait_for,
)

from workbench.verifiers import seccomp
from workbench.verifiers.sandbox import INSIDE, has_landlock

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:sandbox='weak'")]

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


# The attacks, with and without the filter


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
            }


def outcomes(kind: str, filtered: bool, target: dict) -> dict[str, bool]:
    """Whether each attack was held."""
    target = target | {"inside": str(INSIDE) if kind == "weak" else "/inside.py"}
    programs = [attempt(attack.deed.format(**target)) for attack in ATTACKS]
    with verifier(kind, filtered, workers=3) as code:
        status = code.score(programs, [io(["", "held"])] * len(programs)).status
    return {
        f"{attack.kind}: {attack.name}": verdict == "ok" for attack, verdict in zip(ATTACKS, status)
    }


def promised(*parts: str) -> set[str]:
    """The attacks that one of these parts holds alone."""
    return {f"{attack.kind}: {attack.name}" for attack in ATTACKS if attack.holds & {*parts}}


def names(held: dict[str, bool], wanted: bool) -> set[str]:
    return {name for name, value in held.items() if value is wanted}


@namespaced
def test_bubblewrap_with_the_filter_holds_every_attack(kind, target):
    assert names(outcomes(kind, True, target), False) == set()


@namespaced
def test_bubblewrap_without_the_filter_holds_what_namespaces_and_limits_hold(kind, target):
    free = names(outcomes(kind, False, target), False)
    assert free.isdisjoint(promised("namespaces", "limits"))
    # So the attacks are real: nothing but the filter holds these.
    assert {"starting processes: fork", "starting processes: exec of the interpreter"} <= free


@pytest.mark.parametrize("kind", [WEAK])
def test_the_weak_sandbox_holds_what_the_filter_the_limits_and_landlock_hold(kind, target):
    free = names(outcomes(kind, True, target), False)
    parts = ["filter", "limits", *(["files"] if has_landlock() else [])]
    assert free.isdisjoint(promised(*parts))
    assert "reading the user's files: whether a file exists" in free
    assert Path(target["secret"]).read_text() == "x"
    assert [path.name for path in Path(target["folder"]).iterdir()] == ["secret"]


@pytest.mark.parametrize("kind", [WEAK])
def test_without_landlock_the_weak_sandbox_reads_but_changes_nothing(kind, target, monkeypatch):
    monkeypatch.setattr("workbench.verifiers.sandbox.has_landlock", lambda: False)
    free = names(outcomes(kind, True, target), False)
    assert free.isdisjoint(promised("filter", "limits"))
    assert "reading the user's files: a file of the caller" in free


# What shows from outside


@namespaced
@pytest.mark.parametrize("filtered", [True, False], ids=["with the filter", "without"])
def test_the_sandbox_is_alone_with_nobody_s_rights(kind, filtered):
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
print(data == bytes(24), 0 in (os.getuid(), os.getgid()), os.path.exists("/proc"), alone)
try: os.setuid(0)
except OSError: print("held")
"""
    expected = "True False False True\nheld"
    if filtered:
        # The filter answers EPERM whether or not there is such a process.
        look = look.replace(
            "alone = os.getpid() == 1 or not any(map(alive, range(3, 200)))", "alone = True"
        )
    with verifier(kind, filtered) as code:
        assert code.score([look], [io(["", expected])]).correct.all()


@pytest.mark.parametrize("kind", [AS_USER])
def test_a_user_s_program_is_process_1_so_there_is_nobody_to_take_over(kind):
    with verifier(kind) as code:
        assert code.score(["import os\nprint(os.getpid())"], [io(["", "1"])]).correct.all()


@pytest.mark.parametrize("kind", [WEAK])
def test_in_the_weak_sandbox_root_has_no_capabilities(kind):
    look = """
import ctypes, struct
header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
ctypes.CDLL(None).capget(header, data)
print(data == bytes(24))
"""
    with verifier(kind) as code:
        assert code.score([look], [io(["", "True"])]).correct.all()


@all_kinds
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


@all_kinds
def test_other_packages_and_the_project_cannot_be_imported(kind):
    modules = ["workbench", "numpy", "pytest", "inside", "sandbox"]
    programs = [attempt(f"import {name}") for name in modules]
    with verifier(kind) as code:
        assert code.score(programs, [io(["", "held"])] * len(programs)).correct.all()


@all_kinds
def test_output_and_memory_are_bounded(kind):
    floods = [
        "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
        "import os\nwhile True: os.write(1, b'x' * 10**6)",
        "a = []\nwhile True: a.append(bytes(10**6))",
        "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    ]
    with verifier(kind, deadline=3, workers=4) as code:
        assert code.score(floods, [io(["", ""])] * 4).status.tolist() == ["crash"] * 3 + ["timeout"]


@all_kinds
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


@namespaced
@pytest.mark.parametrize("filtered", [True, False], ids=["with the filter", "without"])
def test_a_fork_bomb_stays_small_and_leaves_nothing(kind, filtered):
    name = f"bomb{os.getpid()}"
    counts = []
    done = threading.Event()

    def watch():
        while not done.wait(0.1):
            counts.append(len(processes(name)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with verifier(kind, filtered, deadline=2) as code:
            assert code.score([named(BOMB, name)], [io(["", ""])]).status.tolist() == ["timeout"]
    finally:
        done.set()
        watcher.join()
    assert 0 < max(counts) <= (1 if filtered else 64)
    wait_for(lambda: not processes(name))


@all_kinds
def test_threads_are_counted_or_run_out_of_memory(kind):
    with verifier(kind, memory_mb=256) as code:
        assert code.score([THREADS], [io(["", "True"])]).correct.all()


# Threads without stacks of their own, which take memory of the kernel alone; 30,000 took 470 MiB,
# and nearly all process ids of the machine.
CROWD = """
import ctypes, time
libc = ctypes.CDLL(None)
flags = 0x50F00  # VM FS FILES SIGHAND THREAD SYSVSEM
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
stacks = ctypes.create_string_buffer(2**12 * 1024)
base = ctypes.addressof(stacks) // 1024 * 1024
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
started = sum(libc.clone(pause, base + 1024 * i, flags, None) > 0 for i in range(1, 2**12))
time.sleep(1)
f = lambda: started
print(started, flush=True)
"""


@all_kinds
def test_threads_that_take_memory_of_the_kernel_are_counted(kind):
    tests = [io(["", "4095"]), asserts("assert f() == 4095")]
    with verifier(kind) as code:
        status = code.score([CROWD] * 2, tests).status.tolist()
    # With bubblewrap the kernel counts, and the program goes on with fewer.
    assert status == (["crash"] * 2 if kind == "weak" else ["wrong"] * 2)


BACKGROUND = """
import os, time
if os.fork() == 0:
    os.setsid()
    for n in range(3): os.close(n)
    time.sleep(600)
print(3)
"""


@namespaced
def test_no_background_process_survives(kind):
    name = f"back{os.getpid()}"
    programs = [named(BACKGROUND, name), named(BACKGROUND + "\nos._exit(0)", name)]
    with verifier(kind, filtered=False) as code:
        status = code.score(programs, [io(["", "3"])] * 2).status
    assert set(status) <= {"ok", "wrong"}
    wait_for(lambda: not processes(name))


KILL = """
import os, signal
for pid in (os.getppid(), {pid}, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
print(3)
"""


@namespaced
@pytest.mark.parametrize("filtered", [True, False], ids=["with the filter", "without"])
def test_the_caller_cannot_be_killed(kind, filtered):
    programs = [
        KILL.format(pid=os.getpid()),
        f"import os, signal\nos.kill({os.getpid()}, signal.SIGKILL)",
        "print(3)",
    ]
    with verifier(kind, filtered) as code:
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


@all_kinds
def test_nobody_comes_over_the_network(kind, server):
    address, visits = server
    deed = f"import socket\nsocket.create_connection({address!r}, 5)"
    with verifier(kind, filtered=kind == "weak") as code:
        assert code.score([attempt(deed)], [io(["", "held"])]).correct.all()
    assert visits == []
    socket.create_connection(address, 5).close()  # it does listen
    wait_for(lambda: visits)


CALLER = """
import json, sys
from workbench.verifiers import Code
code = Code(sandbox=sys.argv[1], fenced=False, deadline=600)
print("ready", flush=True)
code.score([sys.argv[2]], [json.dumps({"stdin_stdout": [["", ""]]})])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
@all_kinds
@pytest.mark.parametrize("text", ["while True: pass", "import time\ntime.sleep(600)"])
def test_a_program_dies_with_the_caller(kind, text):
    name = f"orphan{os.getpid()}"
    sandbox = "bwrap" if kind == "user" else kind
    command = [sys.executable, "-c", CALLER, sandbox, named(text, name)]
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
runner = sys.modules['__main__']
runner.same = runner.encode = lambda *a: True
runner.checker = runner.asserted = None
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


@all_kinds
def test_a_verdict_cannot_be_forged(kind):
    # What runs inside is the same in every sandbox, so further asserts are tried in one of them.
    forms = FORMS if kind == "weak" else FORMS[:3]
    pairs = [(name, form) for name in FORGERIES for form in forms]
    with verifier(kind, workers=3) as code:
        scores = code.score([FORGERIES[name] for name, _ in pairs], [form for _, form in pairs])
        right = f"def f(x): return {GOLD} + x - 4\nprint({GOLD})"
        assert code.score([right] * len(FORMS), FORMS).correct.all()
    verdicts = zip(pairs, scores.status)
    assert [each for each in verdicts if each[1] not in ("wrong", "crash")] == []


@all_kinds
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


# The filter as a program


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_is_whole_instructions_with_no_jump_out(machine, writing):
    code = np.frombuffer(
        seccomp.program(machine, writing),
        dtype=[("code", "<u2"), ("jt", "u1"), ("jf", "u1"), ("k", "<u4")],
    )
    jumps = (code["code"] & 7) == 5
    places = np.arange(len(code))
    furthest = places + 1 + np.where(jumps, np.maximum(code["jt"], code["jf"]), 0)
    assert (furthest <= len(code) - 1 + ~jumps).all()
    assert code["code"][-1] == seccomp.RETURN
    assert len(code) < 4096


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_allows_what_its_table_lists_and_no_other_number(machine):
    name = seccomp.MACHINES[machine]
    program = seccomp.program(machine, writing=False)
    numbers = {int(call[machine]): call for call in seccomp.CALLS.values() if call[machine]}
    for number in range(1024):
        call = numbers.get(number)
        if call is None:
            assert decided(program, name, number) == seccomp.ENOSYS
        elif not call["argument"]:
            assert decided(program, name, number) == seccomp.ALLOW
    assert decided(program, name ^ 1, int(seccomp.CALLS["read"][machine])) == seccomp.KILL


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_the_kernel_s(machine):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    known = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", text)}
    known.setdefault("newfstatat", known.get("fstatat"))
    found = {call: int(row[machine]) for call, row in seccomp.CALLS.items() if row[machine]}
    assert found == {call: known[call] for call in found}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
@pytest.mark.parametrize(
    ("call", "allowed", "refused"),
    [
        ("clone", [[0x10000 | 0x100]], [[17]]),
        ("prctl", [[15]], [[1], [22], [38]]),
        ("fcntl", [[0, 3], [0, 1030]], [[0, 4], [0, 5], [0, 8], [0, 1031]]),
        ("ioctl", [[0, 0x5401], [0, 0x5421]], [[0, 0x5412], [0, 0x5452], [0, 0x8901], [0, 0x8902]]),
        ("socketpair", [[1, 1], [1, 0x80001]], [[1, 2], [1, 5], [1, 0x80002]]),
        ("openat", [[0, 0, os.O_RDONLY | os.O_CLOEXEC]], [[0, 0, os.O_RDWR], [0, 0, 0o100]]),
    ],
)
def test_an_argument_decides(machine, call, allowed, refused):
    number = int(seccomp.CALLS[call][machine])
    program = seccomp.program(machine, writing=False)
    decide = partial(decided, program, seccomp.MACHINES[machine], number)
    assert {decide(arguments) for arguments in allowed} == {seccomp.ALLOW}
    assert {decide(arguments) for arguments in refused} == {seccomp.EPERM}
    writing = seccomp.program(machine, writing=True)
    assert (decided(writing, seccomp.MACHINES[machine], number, refused[0]) == seccomp.ALLOW) == (
        call == "openat"
    )


def decided(program: bytes, machine: int, number: int, arguments=()) -> int:
    """What a filter returns for a system call, by running its instructions one by one."""
    data = np.zeros(16, np.uint32)
    data[0], data[1] = number, machine
    data[4 : 4 + 2 * len(arguments) : 2] = arguments
    code = np.frombuffer(program, dtype=[("code", "<u2"), ("jt", "u1"), ("jf", "u1"), ("k", "<u4")])
    place = loaded = 0
    while True:
        operation, jump_true, jump_false, k = (int(part) for part in code[place])
        place += 1
        if operation == seccomp.RETURN:
            return k
        if operation == seccomp.LOAD:
            loaded = int(data[k // 4])
            continue
        met = {
            seccomp.JUMP_IF_EQUAL: loaded == k,
            seccomp.JUMP_IF_AT_LEAST: loaded >= k,
            seccomp.JUMP_IF_ANY_BIT: bool(loaded & k),
        }[operation]
        place += jump_true if met else jump_false
