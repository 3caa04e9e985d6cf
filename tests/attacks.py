"""Programs that try to get out of the sandbox of `Code`, each with what is to hold it.

An attack is a few lines that fail with an exception when it is held. `holds` names every part that
holds it alone, so that the tests can take one part away and see the others:

    namespaces   bubblewrap: what is not there, is read-only, or belongs to another user
    filter       the system calls that are refused
    files        no reading but the interpreter's files (Landlock, in the weak sandbox)
    limits       resource limits
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    kind: str
    name: str
    deed: str
    holds: frozenset[str]


def attacks(kind: str, *cases: tuple[str, str, str]) -> list[Attack]:
    return [Attack(kind, name, deed, frozenset(holds.split())) for name, holds, deed in cases]


SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0: raise OSError(ctypes.get_errno(), "refused")
    return result
x86 = os.uname().machine == "x86_64"
def number(on_x86, on_arm): return on_x86 if x86 else on_arm
"""

ATTACKS = [
    *attacks(
        "reading the user's files",
        ("a file of the caller", "namespaces files", "open({secret!r}).read()"),
        ("the project", "namespaces files", "open({root!r} + '/README.md')"),
        ("the list of users", "namespaces files", "open('/etc/passwd')"),
        ("the host's name", "namespaces files", "open('/etc/hostname')"),
        ("a way around by ..", "namespaces files", "open('/lib/../etc/passwd')"),
        ("the root of process 1", "namespaces files", "open('/proc/1/root/etc/passwd')"),
        ("the caller's folder", "namespaces files", "import os\nos.listdir({folder!r})"),
        ("the project's folder", "namespaces files", "import os\nos.listdir({root!r})"),
        ("the machine's memory", "namespaces files", "open('/dev/mem')"),
        ("the file of the sandbox's mounts", "namespaces files", "open('/proc/self/mountinfo')"),
        ("the caller's environment", "namespaces files", "open('/proc/{caller}/environ').read()"),
        ("whether a file exists", "namespaces", "import os\nos.stat({secret!r})"),
    ),
    *attacks(
        "writing, changing and deleting files",
        ("a new file in /tmp", "namespaces filter", "open('/tmp/workbench-escaped', 'w')"),
        ("a new file in /", "namespaces filter", "open('/workbench-escaped', 'w')"),
        ("a new file beside the caller's", "namespaces filter", "open({folder!r} + '/x', 'w')"),
        ("shared memory", "namespaces filter", "open('/dev/shm/workbench-escaped', 'w')"),
        ("the standard library", "namespaces filter", "import os\nopen(os.__file__, 'a')"),
        ("its own runner", "namespaces filter", "open({inside!r}, 'a')"),
        ("overwriting", "namespaces filter", "open({secret!r}, 'w')"),
        ("truncating", "namespaces filter", "import os\nos.truncate({secret!r}, 0)"),
        ("deleting", "namespaces filter", "import os\nos.remove({secret!r})"),
        ("renaming", "namespaces filter", "import os\nos.rename({secret!r}, {secret!r} + '2')"),
        ("permissions", "namespaces filter", "import os\nos.chmod({secret!r}, 0o777)"),
        ("times", "namespaces filter", "import os\nos.utime({secret!r})"),
        ("folders", "namespaces filter", "import os\nos.mkdir('/tmp/workbench-escaped')"),
        ("symbolic links", "namespaces filter",
         "import os\nos.symlink('x', '/tmp/workbench-escaped')"),
        ("temporary files", "namespaces filter", "import tempfile\ntempfile.TemporaryFile()"),
        ("inodes", "namespaces filter",
         "for i in range(100_000): open(f'/tmp/{{i}}', 'w').close()"),
        ("pipes with names", "namespaces filter", "import os\nos.mkfifo('/tmp/workbench-escaped')"),
        ("files in memory", "filter", "import os\nos.memfd_create('x')"),
    ),
    *attacks(
        "starting processes",
        ("fork", "filter", "import os\nif os.fork() == 0: os._exit(0)"),
        ("a shell", "namespaces filter",
         "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])"),
        ("exec", "namespaces filter", "import os\nos.execv('/bin/true', ['true'])"),
        ("exec of the interpreter", "filter",
         "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(\"free\")'])"),
        ("spawn", "namespaces filter", "import os\nos.posix_spawn('/bin/true', ['true'], {{}})"),
        ("clone", "filter", SYSCALL + "if call(number(56, 220), 17, 0, 0, 0, 0) == 0: os._exit(0)"),
        ("clone3", "filter",
         SYSCALL + "if call(435, bytes(32) + b'\\x11' + bytes(31), 64) == 0: os._exit(0)"),
        ("multiprocessing", "filter",
         "import multiprocessing as m\nm.get_context('fork').Process(target=int).start()"),
    ),
    *attacks(
        "signals",
        ("to the parent", "namespaces filter", "import os\nos.kill(os.getppid() or {caller}, 0)"),
        ("to the caller", "namespaces filter", "import os\nos.kill({caller}, 0)"),
        ("to a group", "namespaces filter", "import os\nos.killpg({caller}, 0)"),
        ("by descriptor", "namespaces filter", "import os\nos.pidfd_open({caller})"),
        ("by a descriptor's owner", "filter",
         "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())"),
        ("by a queue", "namespaces filter",
         SYSCALL + "call(number(129, 138), {caller}, 0, bytes(128))"),
        ("by a socket that is the caller's", "filter",
         "import ctypes, fcntl, socket, struct\na, b = socket.socketpair()\n"
         "fcntl.ioctl(a, 0x8901, struct.pack('i', {caller}))\n"
         "fcntl.ioctl(a, 0x5452, struct.pack('i', 0))"),
        ("by a pipe that is its own", "filter",
         "import fcntl, os, struct\na, b = os.pipe()\n"
         "fcntl.ioctl(a, 0x8901, struct.pack('i', os.getpid()))"),
        ("when something can be read", "filter",
         "import fcntl, os\na, b = os.pipe()\nfcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)"),
        ("to a thread", "filter", SYSCALL + "call(number(234, 131), os.getpid(), os.getpid(), 0)"),
        ("none at the caller's death", "filter",
         "import ctypes\nif ctypes.CDLL(None).prctl(1, 0, 0, 0, 0): raise OSError"),
    ),
    *attacks(
        "taking over other processes",
        ("the memory of process 1", "namespaces filter", "open('/proc/1/mem', 'r+b')"),
        ("reading the memory of process 1", "namespaces files",
         "open('/proc/1/mem', 'rb').read(1)"),
        ("the memory of the caller", "namespaces filter", "open('/proc/{caller}/mem', 'r+b')"),
        ("reading the memory of the caller", "namespaces files",
         "import os\nos.open('/proc/{caller}/mem', os.O_RDONLY)"),
        ("tracing", "namespaces filter", SYSCALL + "call(number(101, 117), 16, {caller}, 0, 0)"),
        ("copying its memory", "namespaces filter",
         SYSCALL + "b = bytes(8)\nv = (ctypes.c_uint64 * 2)(id(b), 8)\n"
         "call(number(310, 270), {caller}, v, 1, v, 1, 0)"),
        ("its limits", "namespaces filter",
         "import resource\nresource.prlimit({caller}, resource.RLIMIT_CORE, (0, 0))"),
        ("its processors", "namespaces filter", "import os\nos.sched_setaffinity({caller}, [0])"),
        ("its priority", "namespaces filter",
         "import os\nos.setpriority(os.PRIO_PROCESS, {caller}, 19)"),
    ),
    *attacks(
        "the network",
        ("this machine", "namespaces filter",
         "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)"),
        ("another machine", "namespaces filter",
         "import socket\nsocket.create_connection(('192.0.2.1', 53), 1)"),
        ("a name", "namespaces filter", "import socket\nsocket.getaddrinfo('example.org', 80)"),
        ("an abstract socket", "namespaces filter",
         "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0workbench-{port}')"),
        ("a pair that writes elsewhere", "filter",
         "import socket\na, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
         "a.sendto(b'x', '\\0workbench-{port}')"),
        ("descriptors in a message", "filter",
         "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])"),
        ("raw packets", "namespaces filter",
         "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
        ("the kernel's tables", "filter",
         "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    ),
    *attacks(
        "privileges and the kernel",
        ("a new root", "namespaces filter", "import os\nos.chroot('/')"),
        ("mounting", "namespaces filter",
         "import ctypes\nif ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0): raise OSError"),
        ("keys", "filter", SYSCALL + "call(number(250, 219), 0, -3, 1)"),
        ("io_uring", "filter", SYSCALL + "call(425, 1, bytes(120))"),
        ("programs in the kernel", "namespaces filter",
         SYSCALL + "call(number(321, 280), 0, bytes(128), 128)"),
        ("page faults", "namespaces filter", SYSCALL + "call(number(323, 282), 0)"),
    ),
    *attacks(
        "resources that last",
        ("locks without end", "filter",
         "import fcntl, os\nf = os.open(os.__file__, 0)\nfcntl.lockf(f, fcntl.LOCK_SH, 1, 5)"),
        ("shared memory of System V", "filter", SYSCALL + "call(number(29, 194), 0, 4096, 0o1600)"),
        ("a queue of messages", "filter", SYSCALL + "call(number(68, 186), 0, 0o1600)"),
        ("rules for files", "filter", SYSCALL + "call(444, (1).to_bytes(8, 'little'), 8, 0)"),
        ("timers", "filter", SYSCALL + "call(number(222, 107), 0, None, bytes(8))"),
        ("descriptors of timers", "filter", SYSCALL + "call(number(283, 85), 0, 0)"),
        ("filters of system calls", "filter",
         SYSCALL + "call(number(317, 277), 1, 0, (1).to_bytes(8, 'little') + "
         "id(bytes(8)).to_bytes(8, 'little'))"),
        ("namespaces", "filter", SYSCALL + "call(number(272, 97), 0x10000000)"),
        ("watches of files", "filter", SYSCALL + "call(number(294, 26), 0)"),
        ("raising a limit", "limits filter",
         "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (999, 999))"),
        ("descriptors", "limits", "import os\nkept = [os.dup(0) for _ in range(100)]"),
        ("one large array", "limits", "bytearray(2**30)"),
    ),
]  # fmt: skip
