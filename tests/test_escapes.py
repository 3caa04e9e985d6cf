"""Programs that try to get out of the sandbox of `Code`, or to get away with less than is asked.

Each is tried for real, in every sandbox that promises to hold it, and looked for from outside where it would show.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from programs import BWRAP, NO_BWRAP, ROOT, WEAK, asserts, both, io, processes, verifier, wait_for

from workbench.verifiers import sandbox
from workbench.verifiers.inside import MACHINES, filter_program

pytestmark = pytest.mark.filterwarnings("ignore:sandbox='weak'")

# A program says `held` when its attempt was refused.
ATTEMPT = "try:\n{deed}\n    print('free')\nexcept ({errors}):\n    print('held')\n"


def attempted(kind, deed, errors="OSError, ImportError", **options):
    """The status of a program that is right only if the deed, one or more lines, raises."""
    text = ATTEMPT.format(
        deed="\n".join("    " + line for line in deed.splitlines()), errors=errors
    )
    with verifier(kind, **options) as code:
        return code.score([text], [io(["", "held"])]).status[0]


@pytest.fixture(params=["with the filter", "without"])
def bwrap(request, monkeypatch):
    """Bubblewrap as it is, and without the filter of system calls, so that neither hides a hole in the other."""
    if NO_BWRAP:
        pytest.skip(NO_BWRAP)
    if request.param == "without":
        monkeypatch.setattr(sandbox, "MACHINES", {})
    return "bwrap"


def test_the_user_s_files_are_not_there(bwrap, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in (
        secret,
        ROOT / "README.md",
        "/etc/passwd",
        "/etc/hostname",
        Path.home() / ".profile",
        "/proc/1/root/etc/shadow",
    ):
        assert attempted(bwrap, f"open({str(path)!r})") == "ok", path
    hidden = [str(ROOT / "workbench"), str(tmp_path), __file__]
    seen = f"import os\nprint(*[os.path.exists(path) for path in {hidden}])"
    with verifier(bwrap) as code:
        assert code.score([seen], [io(["", "False False False"])]).correct.all()


def test_nothing_can_be_written_outside_its_tmp(bwrap, tmp_path):
    tmp_path.chmod(0o777)
    for folder in (
        tmp_path,
        "/",
        "/usr/lib",
        "/dev",
        "/dev/shm",
        "/etc",
        "/proc/sys/kernel",
        os.path.dirname(os.__file__),
    ):
        assert attempted(bwrap, f"open({str(Path(folder) / 'x')!r}, 'w').write('x')") == "ok", (
            folder
        )
    assert attempted(bwrap, "open('/inside.py', 'a')") == "ok"
    assert not list(tmp_path.iterdir())
    assert not Path("/tmp/wb-escaped").exists()
    with verifier(bwrap) as code:
        code.score(["open('/tmp/wb-escaped', 'w').write('x')"], [io(["", ""])])
    assert not Path("/tmp/wb-escaped").exists()


def test_tmp_has_a_size(bwrap):
    assert (
        attempted(bwrap, "for i in range(40): open(f'/tmp/{i}', 'wb').write(bytes(2**20))") == "ok"
    )
    assert attempted(bwrap, "open('/tmp/x', 'wb').write(bytes(2**25))") == "ok"


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


CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"


def test_no_network(bwrap, server):
    address, visits = server
    assert attempted(bwrap, CONNECT.format(port=address[1])) == "ok"
    assert attempted(bwrap, "import socket\nsocket.create_connection(('1.1.1.1', 53), 5)") == "ok"
    assert visits == []
    socket.create_connection(address, 5).close()  # it does listen
    wait_for(lambda: visits)


@pytest.mark.parametrize("kind", [WEAK])
def test_no_network_in_the_weak_sandbox(kind, server):
    address, visits = server
    assert attempted(kind, CONNECT.format(port=address[1])) == "ok"
    assert visits == []


def named(text: str, name: str) -> str:
    """A program that first gives its process a name, PR_SET_NAME."""
    return f"import ctypes\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n{text}"


BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"


def test_a_fork_bomb_stays_small_and_leaves_nothing(bwrap):
    name, counts, done = f"bomb{os.getpid()}", [], threading.Event()

    def watch():
        while not done.wait(0.1):
            counts.append(len(processes(name)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with verifier(bwrap, deadline=3) as code:
            assert code.score([named(BOMB, name)], [io(["", ""])]).status.tolist() == ["timeout"]
    finally:
        done.set()
        watcher.join()
    assert 0 < max(counts) <= code.sandbox.limits.threads
    wait_for(lambda: not processes(name))


BACKGROUND = """
import os, time
if os.fork() == 0:
    os.setsid()
    for n in range(3): os.close(n)
    time.sleep(600)
print(3)
"""


def test_no_background_process_survives(bwrap):
    name = f"back{os.getpid()}"
    with verifier(bwrap) as code:
        status = code.score(
            [named(BACKGROUND, name), named(BACKGROUND + "\nos._exit(0)", name)],
            [io(["", "3"])] * 2,
        ).status
    assert set(status) <= {"ok", "wrong"}
    wait_for(lambda: not processes(name))


@pytest.mark.parametrize("kind", [WEAK])
def test_no_processes_in_the_weak_sandbox(kind):
    assert attempted(kind, "import os\nos.fork()") == "ok"
    assert attempted(kind, "import subprocess\nsubprocess.run(['/bin/true'])") == "ok"
    assert attempted(kind, "import os\nos.execv('/bin/true', ['true'])") == "ok"
    assert attempted(kind, "import os\nos.posix_spawn('/bin/true', ['true'], {})") == "ok"


KILL = """
import os, signal
for pid in (os.getppid(), {pid}, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
print(3)
"""


def test_the_parent_cannot_be_killed(bwrap):
    with verifier(bwrap) as code:
        responses = [
            KILL.format(pid=os.getpid()),
            f"import os, signal\nos.kill({os.getpid()}, signal.SIGKILL)",
            "print(3)",
        ]
        assert code.score(responses, [io(["", "3"])] * 3).status.tolist()[2] == "ok"


@pytest.mark.parametrize("kind", [WEAK])
def test_the_weak_sandbox_s_parent_cannot_be_killed(kind):
    for call in (
        "os.kill({pid}, 9)",
        "os.killpg(os.getpgid({pid}), 9)",
        "signal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    ):
        assert attempted(kind, "import os, signal\n" + call.format(pid=os.getpid())) == "ok", call
    assert (
        attempted(
            kind, f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_CORE, (0, 0))"
        )
        == "ok"
    )


@both
def test_the_project_cannot_be_imported(kind):
    for name in ("workbench", "numpy", "pytest", "inside"):
        assert attempted(kind, f"import {name}") == "ok", name


@both
def test_output_and_memory_are_bounded(kind):
    floods = [
        "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
        "import os\nwhile True: os.write(1, b'x' * 10**6)",
        "a = []\nwhile True: a.append(bytes(10**6))",
        "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    ]
    with verifier(kind, deadline=6) as code:
        assert code.score(floods, [io(["", ""])] * 4).status.tolist() == ["crash"] * 3 + ["timeout"]


@both
def test_nothing_of_the_caller_s_environment_or_descriptors_is_passed_on(kind, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    look = "import os\nprint('SECRET_TOKEN' in os.environ, [n for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}')])"
    with verifier(kind) as code:
        assert code.score([look], [io(["", "False []"])]).correct.all()


@pytest.mark.parametrize("kind", [BWRAP])
def test_it_is_nobody_with_no_capabilities(kind):
    look = "print([line.split()[1] for line in open('/proc/self/status') if line[:7] in ('CapEff:', 'CapPrm:', 'NoNewPr')])"
    with verifier(kind) as code:
        assert code.score([look], [io(["", str(["0" * 16] * 2 + ["1"])])]).correct.all()
    assert attempted(kind, "import os\nos.setuid(0)") == "ok"
    assert attempted(kind, "import os\nos.chroot('/tmp')") == "ok"


CALLER = """
import json, sys, threading
from workbench.verifiers import Code
code = Code(sandbox=sys.argv[1], fenced=False, deadline=600)
print("ready", flush=True)
code.score([sys.argv[2]], [json.dumps({"stdin_stdout": [["", ""]]})])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
@both
def test_a_program_dies_with_the_caller(kind):
    name = f"orphan{os.getpid()}"
    command = [sys.executable, "-c", CALLER, kind, named("while True: pass", name)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as caller:
        caller.stdout.readline()
        wait_for(lambda: processes(name))
        caller.send_signal(signal.SIGKILL)
    wait_for(lambda: not processes(name))


# --- forgeries: none of these programs computes what is asked


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
    "object that equals everything": EQUAL.format(base=""),
    "number that equals everything": EQUAL.format(base="int"),
    "list that equals everything": EQUAL.format(base="list"),
    "patches builtins and its runner": PATCHES,
    "searches its memory": SEARCHES,
    "has no function": "x = 1",
    "returns a container of the input": "def f(x): return (x,)",
    "returns a lot": "def f(x): return [[]] * 10**5",
    "returns what is deep": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
}


@both
def test_a_verdict_cannot_be_forged(kind):
    forms = [
        io(["4", str(GOLD)]),
        json.dumps({"function": "f", "calls": [[[4], GOLD], [[5], GOLD + 1]]}),
        asserts(f"assert f(4) == {GOLD}\nassert f(5) == {GOLD + 1}"),
        asserts(f"def check(g):\n    assert g(4) == {GOLD}\ncheck(f)"),
        asserts(
            f"assert {GOLD} == f(4)\nassert [f(4)] == [{GOLD}]\nassert f(4) in ({GOLD}, {GOLD + 1})"
        ),
    ]
    pairs = [(name, form) for name in FORGERIES for form in forms]
    with verifier(kind, workers=4) as code:
        scores = code.score([FORGERIES[name] for name, _ in pairs], [form for _, form in pairs])
        right = f"def f(x): return {GOLD} + x - 4\nprint({GOLD})"
        assert code.score([right] * len(forms), forms).correct.all()
    assert [
        (pair, status)
        for pair, status in zip(pairs, scores.status)
        if status not in ("wrong", "crash")
    ] == []


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_whole_instructions_with_no_jump_out(machine):
    code = np.frombuffer(
        filter_program(machine), dtype=[("code", "<u2"), ("jt", "u1"), ("jf", "u1"), ("k", "<u4")]
    )
    jumps = (code["code"] & 7) == 5
    places = np.arange(len(code))
    assert (
        places + 1 + np.where(jumps, np.maximum(code["jt"], code["jf"]), 0)
        <= len(code) - 1 + ~jumps
    ).all()
    assert code["code"][-1] == 6
    assert len(code) < 4096
