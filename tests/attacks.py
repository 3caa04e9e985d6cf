"""Programs that try to get out of the sandbox of `Code`, by what they are after.

An attack is a few lines that fail with an exception when it is held.
"""

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

ATTACKS = {
    "reading the user's files": {
        "a file of the caller": "open({secret!r}).read()",
        "the project": "open({root!r} + '/README.md')",
        "the list of users": "open('/etc/passwd')",
        "the host's name": "open('/etc/hostname')",
        "a way around by ..": "open('/lib/../etc/passwd')",
        "the root of process 1": "open('/proc/1/root/etc/passwd')",
        "the caller's folder": "import os\nos.listdir({folder!r})",
        "the project's folder": "import os\nos.listdir({root!r})",
        "the machine's memory": "open('/dev/mem')",
        "the file of the sandbox's mounts": "open('/proc/self/mountinfo')",
        "the caller's environment": "open('/proc/{caller}/environ').read()",
        "whether a file exists": "import os\nos.stat({secret!r})",
    },
    "writing, changing and deleting files": {
        "a new file in /tmp": "open('/tmp/workbench-escaped', 'w')",
        "a new file in /": "open('/workbench-escaped', 'w')",
        "a new file beside the caller's": "open({folder!r} + '/x', 'w')",
        "shared memory": "open('/dev/shm/workbench-escaped', 'w')",
        "the standard library": "import os\nopen(os.__file__, 'a')",
        "its own runner": "open({inside!r}, 'a')",
        "overwriting": "open({secret!r}, 'w')",
        "truncating": "import os\nos.truncate({secret!r}, 0)",
        "deleting": "import os\nos.remove({secret!r})",
        "renaming": "import os\nos.rename({secret!r}, {secret!r} + '2')",
        "permissions": "import os\nos.chmod({secret!r}, 0o777)",
        "times": "import os\nos.utime({secret!r})",
        "permissions of a device": "import os\nos.chmod('/dev/null', 0o666)",
        "folders": "import os\nos.mkdir('/tmp/workbench-escaped')",
        "symbolic links": "import os\nos.symlink('x', '/tmp/workbench-escaped')",
        "temporary files": "import tempfile\ntempfile.TemporaryFile()",
        "inodes": "for i in range(100_000): open(f'/tmp/{{i}}', 'w').close()",
        "pipes with names": "import os\nos.mkfifo('/tmp/workbench-escaped')",
        "files in memory": "import os\nos.memfd_create('x')",
    },
    "starting processes": {
        "fork": "import os\nif os.fork() == 0: os._exit(0)",
        "a shell": "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])",
        "exec": "import os\nos.execv('/bin/true', ['true'])",
        "spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {{}})",
        "clone": SYSCALL + "if call(number(56, 220), 17, 0, 0, 0, 0) == 0: os._exit(0)",
        "clone3": SYSCALL + "if call(435, bytes(32) + b'\\x11' + bytes(31), 64) == 0: os._exit(0)",
        "multiprocessing": (
            "import multiprocessing as m\nm.get_context('fork').Process(target=int).start()"
        ),
    },
    "signals": {
        "to the parent": "import os\nos.kill(os.getppid() or {caller}, 0)",
        "to the caller": "import os\nos.kill({caller}, 0)",
        "to a group": "import os\nos.killpg({caller}, 0)",
        "by descriptor": "import os\nos.pidfd_open({caller})",
        "by a queue": SYSCALL + "call(number(129, 138), {caller}, 0, bytes(128))",
        "by a socket that is the caller's": (
            "import ctypes, fcntl, socket, struct\na, b = socket.socketpair()\n"
            "fcntl.ioctl(a, 0x8901, struct.pack('i', {caller}))\n"
            "fcntl.ioctl(a, 0x5452, struct.pack('i', 0))"
        ),
        "by a pipe that is its own": (
            "import fcntl, os, struct\na, b = os.pipe()\n"
            "fcntl.ioctl(a, 0x8901, struct.pack('i', os.getpid()))"
        ),
        "none at the caller's death": (
            "import ctypes\nif ctypes.CDLL(None).prctl(1, 0, 0, 0, 0): raise OSError"
        ),
    },
    "taking over other processes": {
        "the memory of process 1": "open('/proc/1/mem', 'r+b')",
        "reading the memory of process 1": "open('/proc/1/mem', 'rb').read(1)",
        "the memory of the caller": "open('/proc/{caller}/mem', 'r+b')",
        "reading the memory of the caller": "import os\nos.open('/proc/{caller}/mem', os.O_RDONLY)",
        "tracing": SYSCALL + "call(number(101, 117), 16, {caller}, 0, 0)",
        "copying its memory": (
            SYSCALL + "b = bytes(8)\nv = (ctypes.c_uint64 * 2)(id(b), 8)\n"
            "call(number(310, 270), {caller}, v, 1, v, 1, 0)"
        ),
        "its limits": "import resource\nresource.prlimit({caller}, resource.RLIMIT_CORE, (0, 0))",
        "its processors": "import os\nos.sched_setaffinity({caller}, [0])",
        "its priority": "import os\nos.setpriority(os.PRIO_PROCESS, {caller}, 19)",
    },
    "the network": {
        "this machine": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)",
        "another machine": "import socket\nsocket.create_connection(('192.0.2.1', 53), 1)",
        "a name": "import socket\nsocket.getaddrinfo('example.org', 80)",
        "an abstract socket": (
            "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0workbench-{port}')"
        ),
        "a pair that writes elsewhere": (
            "import socket\na, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
            "a.sendto(b'x', '\\0workbench-{port}')"
        ),
        "the machine around this one": "import socket\nsocket.socket(40, socket.SOCK_STREAM)",
        "raw packets": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "the kernel's tables": (
            "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"
        ),
    },
    "privileges and the kernel": {
        "a new root": "import os\nos.chroot('/')",
        "mounting": (
            "import ctypes\nif ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, 0): raise OSError"
        ),
        "keys": SYSCALL + "call(number(250, 219), 0, -3, 1)",
        "io_uring": SYSCALL + "call(425, 1, bytes(120))",
        "programs in the kernel": SYSCALL + "call(number(321, 280), 0, bytes(128), 128)",
        "page faults": SYSCALL + "call(number(323, 282), 0)",
    },
    "resources that last": {
        "shared memory of System V": SYSCALL + "call(number(29, 194), 0, 4096, 0o1600)",
        "a queue of messages": SYSCALL + "call(number(68, 186), 0, 0o1600)",
        "namespaces": SYSCALL + "call(number(272, 97), 0x10000000)",
        "raising a limit": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (999, 999))",
        "descriptors": "import os\nkept = [os.dup(0) for _ in range(100)]",
        "one large array": "bytearray(2**30)",
    },
}
