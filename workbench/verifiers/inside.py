"""What runs inside the sandbox of `Code`: a script of the standard library alone, started anew for every program.

    python -s -S -P -B inside.py < SIZE HEADER REST

Standard input opens with eight digits and as many bytes of JSON: the role, its material and the limits. First the
process gives up what it does not need (`confine`), then it writes `READY`, and only then does it touch a program:

- `script` executes a program as `__main__`; REST is the program's standard input, what it prints is read outside.
- `candidate` executes a program and then calls its functions as the lines of REST ask, answering in JSON.
- `checker` never sees the program. It runs the tests; a name that they do not define is a `Remote`, whose calls go to the
  candidate through two pipes and come back as plain data. It writes 1 or 0 for every test, where the candidate cannot.
"""

import ast
import builtins
import ctypes
import json
import math
import operator
import os
import platform
import resource
import struct
import sys

READY = b"R"
OUT_OF_MEMORY, CANDIDATE_GONE = 77, 78  # exit codes
SYSTEM_CALLS = {  # name: (x86-64, ARM64); None where there is none. All are refused with EPERM.
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prlimit64": (302, 261), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "socket": (41, 198), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), (435, 435)
MACHINES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column above, the kernel's name of the machine
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
CLONE_THREAD = 0x10000


def main():
    """Reads the header, confines this process, and plays its role: script, candidate or checker."""
    header = json.loads(read_exactly(int(read_exactly(8))))
    confine(header)
    sys.set_int_max_str_digits(0)  # what long numbers may cost, the deadline says
    {"script": script, "candidate": candidate, "checker": checker}[header["role"]](header)


def read_exactly(size):
    """That many bytes of standard input, and not one more: the rest belongs to the program."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit("standard input ended early")
        data += chunk
    return data


# --- giving things up


def confine(header):
    """Another user if asked, resource limits, no new privileges, a filter of system calls; errors end the process."""
    if header["uid"]:
        os.setgroups([])
        os.setresgid(*[header["uid"]] * 3)
        os.setresuid(*[header["uid"]] * 3)
    if sys.platform == "linux" and header["parent"]:
        prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        if os.getppid() != header["parent"]:
            sys.exit("the parent is gone")
    for name, limit in header["limits"].items():
        if name == "AS":
            limit += address_space()
        if hasattr(resource, f"RLIMIT_{name}"):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    if header["filter"]:
        refuse_system_calls()


def address_space():
    """Bytes this process takes already; 0 where /proc does not tell."""
    if not os.path.exists("/proc/self/statm"):
        return 0
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def refuse_system_calls():
    """Install the filter (seccomp(2)): no processes but threads, no signals, sockets, mounts, shared memory, ..."""
    program = filter_program(platform.machine())

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    prctl(
        22, 2, ctypes.byref(Program(len(program) // 8, program))
    )  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def filter_program(machine):
    """The filter as classic BPF: a load, a comparison, a return are (0x20, ., ., k), (0x15, jt, jf, k), (0x06, ., ., k)."""
    column, audit = MACHINES[machine]
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, audit), (0x06, 0, 0, KILL), (0x20, 0, 0, 0)]
    if column == 0:
        code += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, KILL)]  # the x32 calls have other numbers
    for numbers in SYSTEM_CALLS.values():
        if numbers[column] is not None:
            code += [(0x15, 0, 1, numbers[column]), (0x06, 0, 0, EPERM)]
    code += [
        (0x15, 0, 1, CLONE3[column]),
        (0x06, 0, 0, ENOSYS),
    ]  # its flags cannot be read here; libraries fall back to clone
    code += [
        (0x15, 0, 3, CLONE[column]),
        (0x20, 0, 0, 16),
        (0x45, 1, 0, CLONE_THREAD),
        (0x06, 0, 0, EPERM),
    ]
    code += [(0x06, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def prctl(option, value, pointer=None):
    """The system call of that name; ends the process when it is refused, since nothing may run less confined."""
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero):
        sys.exit(f"prctl {option}: {os.strerror(ctypes.get_errno())}")


# --- the roles


def script(header):
    """The program as `__main__`: its output is its own business, its errors are nobody's."""
    os.write(1, READY)
    silence(2)
    execute(header["source"], "__main__")


def candidate(header):
    """The program as a module, then its functions as they are asked for."""
    out = os.dup(1)
    requests = os.fdopen(os.dup(0), "rb")
    os.write(out, READY)
    silence(0, 1, 2)
    namespace, objects = execute(header["source"], "answer"), {}
    for line in requests:
        reply = json.dumps(answered(json.loads(line), namespace, objects)).encode() + b"\n"
        while reply:
            reply = reply[os.write(out, reply) :]


def checker(header):
    """The tests, one after another; whatever goes wrong in one fails that one."""
    out = os.dup(1)
    link = Link(*header["link"], header["first"])
    os.write(out, READY)
    silence(0, 1, 2)
    for passed in (called if "calls" in header else asserted)(header, link):
        os.write(out, b"1" if passed else b"0")
        if link.gone:
            os._exit(CANDIDATE_GONE)
        if not passed and header["stop"]:
            break


def silence(*descriptors):
    """Points file descriptors at /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def execute(source, name):
    """Run the program in a module of its own; out of memory has an exit code."""
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    try:
        exec(compile(source, "answer.py", "exec"), module.__dict__)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    return module.__dict__


# --- plain data between candidate and checker


SHAPES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value, refer):
    """Plain data as JSON: scalars as they are, the rest as [kind, ...]; anything else as what `refer` makes of it."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    for kind, base in SHAPES.items():
        if isinstance(value, base):
            return [kind, *(encode(item, refer) for item in value)]
    if isinstance(value, dict):
        return ["dict", *([encode(key, refer), encode(item, refer)] for key, item in value.items())]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    return refer(value)


def decode(data, resolve):
    """What `encode` wrote; names and objects are what `resolve` makes of them."""
    if not isinstance(data, list):
        return data
    kind, *rest = data
    if kind in SHAPES:
        return SHAPES[kind](decode(item, resolve) for item in rest)
    if kind == "dict":
        return {decode(key, resolve): decode(item, resolve) for key, item in rest}
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "complex":
        return complex(*rest)
    return resolve(kind, rest[0])


# --- the candidate's side


OPERATIONS = {"call": lambda value, *args, **named: value(*args, **named), "get": getattr, "iterate": lambda value: list(value),
              "len": len, "str": str, "item": operator.getitem}  # fmt: skip


def answered(request, namespace, objects):
    """The reply to one request: the value of an operation, or the name of the exception it raised."""

    def resolve(kind, key):
        return objects[key] if kind == "object" else named(key, namespace)

    def refer(value):
        objects[id(value)] = value
        return ["object", id(value)]

    try:
        target, args, named_args = (decode(part, resolve) for part in request["operands"])
        return {"value": encode(OPERATIONS[request["do"]](target, *args, **named_args), refer)}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:
        return {"raise": type(error).__name__, "text": str(error)[:200]}


def named(name, namespace):
    """A global of the program, or a method of its `Solution`, where LeetCode's problems want their functions."""
    if name not in namespace and hasattr(namespace.get("Solution"), name):
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


# --- the checker's side


class Link:
    """The two pipes to the candidate; `gone` once they have ended or brought what no `candidate` would write.

    longest: bytes a reply may have; first: what the candidate's process reads before it is ready.
    """

    def __init__(self, to_candidate, from_candidate, longest, first):
        self.requests, self.replies, self.longest, self.gone = (
            to_candidate,
            os.fdopen(from_candidate, "rb"),
            longest,
            False,
        )
        self.send(first.encode())
        if self.replies.read(1) != READY:
            sys.exit("the answer's side did not start")

    def send(self, data):
        while data:
            data = data[os.write(self.requests, data) :]

    def ask(self, operation, target, *args, **named_args):
        """The value of an operation in the candidate; its exception, if it raised one of Python's own."""
        operands = [encode(part, reference) for part in (target, args, named_args)]
        try:
            self.send(json.dumps({"do": operation, "operands": operands}).encode() + b"\n")
            reply = self.replies.readline(self.longest)
            self.gone = not reply.endswith(b"\n")
            reply = json.loads(reply)
        except (OSError, ValueError, RecursionError):
            self.gone = True
            raise
        if "raise" in reply:
            raise exception_of(reply["raise"])(reply["text"])
        return decode(reply["value"], lambda kind, key: Remote(self, [kind, key]))


class Remote:
    """A function, class or object in the candidate. Equal to nothing but itself, whatever the candidate says."""

    def __init__(self, link, place):
        self.__dict__.update(_link=link, _place=place)

    def __call__(self, *args, **named_args):
        return self._link.ask("call", self, *args, **named_args)

    def __getattr__(self, name):
        return self._link.ask("get", self, name)

    def __iter__(self):
        return iter(self._link.ask("iterate", self))

    def __len__(self):
        return self._link.ask("len", self)

    def __str__(self):
        return self._link.ask("str", self)

    def __getitem__(self, key):
        return self._link.ask("item", self, key)


def reference(value):
    """Where a `Remote` lies in the candidate's process; TypeError for any other value that is no plain data."""
    if isinstance(value, Remote):
        return value.__dict__["_place"]
    raise TypeError(f"a {type(value).__name__} cannot be handed to the answer")


def exception_of(name):
    """The exception of Python's own by that name, else RuntimeError."""
    found = getattr(builtins, str(name), None)
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def called(header, link):
    """Whether each call returns what is expected."""
    function = Remote(link, ["name", header["function"]])
    for args, expected in header["calls"]:
        try:
            value = function(*args)
            yield same(value, expected) or (
                isinstance(expected, list) and len(expected) == 1 and same(value, expected[0])
            )
        except Exception:
            yield False


def same(value, expected):
    """Equality in which tuples are lists and an expected float is met within 1e-6, relative or absolute."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(map(same, value, expected))
        )
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)
    return value == expected


def asserted(header, link):
    """Whether each statement that tests something runs through; the others prepare."""
    tree = ast.parse(header["asserts"])
    namespace = {name: Remote(link, ["name", name]) for name in free_names(tree)}
    for statement in tree.body:
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)
            passed = True
        except Exception:
            passed = False
        if is_test(statement):
            yield passed


def free_names(tree):
    """The names that the tests read and do not define, except Python's own: they must come from the answer."""
    nodes = list(ast.walk(tree))
    read = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    bound = {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    bound |= {
        node.name
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {
        (node.asname or node.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.alias)
    }
    bound |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    return read - bound - set(dir(builtins))


def is_test(statement):
    """Whether a statement of the tests is a test: not a definition, an import, an assignment or a bare text."""
    prepares = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign,
                ast.AugAssign, ast.Pass)  # fmt: skip
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not (text or isinstance(statement, prepares))


if __name__ == "__main__":
    main()
