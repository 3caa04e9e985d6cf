"""What runs inside the sandbox of `Code`: a script of the standard library alone, started anew for
every program.

    python -s -S -P -B inside.py < SIZE HEADER REST

Standard input opens with eight digits and as many bytes of JSON: the role, its material, and what
to give up. First the process gives that up (`confine`), then it says `READY`, and only then does it
touch a program:

- `script` executes a program as `__main__`. REST is the program's standard input, and what it
  prints is read outside.
- `candidate` executes a program and then calls its functions as the lines of REST ask, answering in
  JSON.
- `checker` never sees the program. It runs the tests; a name that they do not define is a `Remote`,
  whose calls go to the candidate through two pipes and come back as plain data. It writes 1 or 0
  for every test, where the candidate cannot.
"""

import ast
import builtins
import ctypes
import json
import math
import operator
import os
import resource
import struct
import sys

READY = b"R"

# Exit codes.
OUT_OF_MEMORY = 77
CANDIDATE_GONE = 78

# Options of prctl(2), and other constants of Linux.
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SIGKILL = 9
CAPABILITY_VERSION_3 = 0x20080522
LANDLOCK_CREATE_RULESET = 444  # system calls, with the same numbers on every machine
LANDLOCK_ADD_RULE = 445
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_RULE_PATH_BENEATH = 1
READ_FILE = 4
READ_DIRECTORY = 8
EXECUTE = 1


def main():
    """Read the header, confine this process, and play its role."""
    header = json.loads(read_exactly(int(read_exactly(8))))
    # Opened first: once confined, the process may not be allowed to open anything for writing.
    nowhere = os.open(os.devnull, os.O_RDWR)
    confine(header["confine"])
    sys.set_int_max_str_digits(0)  # what long numbers may cost, the deadline says
    roles = {"script": script, "candidate": candidate, "checker": checker}
    roles[header["role"]](header, nowhere)


def read_exactly(size):
    """That many bytes of standard input, and not one more: the rest belongs to the program."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit("standard input ended early")
        data += chunk
    return data


# Giving things up


def confine(what):
    """Give up what the header names; any error ends the process, since nothing may run less
    confined.

    In this order: another user, capabilities, life after the caller's, resources, new privileges,
    files, system calls.
    """
    # The user last of the three: without root there is no right to change the groups.
    if what["user"]:
        os.setgroups([])
        os.setresgid(*[what["user"]] * 3)
        os.setresuid(*[what["user"]] * 3)
    if what["capabilities"]:
        drop_capabilities()
    if what["parent"]:
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != what["parent"]:
            sys.exit("the parent is gone")
    # Before the filter, which refuses to set limits. Other systems than Linux lack some of them.
    for name, limit in what["limits"].items():
        number = vars(resource).get(f"RLIMIT_{name}")
        if number is not None:
            resource.setrlimit(number, (limit, limit))
    # Without this promise the kernel lets no ordinary process restrict itself.
    if what["files"] is not None or what["filter"] is not None:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if what["files"] is not None:
        read_only_beneath(what["files"])
    # Last, since the filter refuses calls that the steps above need.
    if what["filter"] is not None:
        filter_system_calls(bytes.fromhex(what["filter"]))


def drop_capabilities():
    """Be root in name only (capset(2))."""
    # Three sets of capabilities in two halves of 32 bits each, all empty.
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    checked(library().capset(header, bytes(24)), "capset")


def read_only_beneath(paths):
    """Open no file and list no directory but those beneath the paths, for reading (landlock(7))."""
    call = library().syscall
    # What the rule set governs: these rights are gone everywhere, except where a rule grants them.
    rights = struct.pack("=Q", READ_FILE | READ_DIRECTORY | EXECUTE)
    ruleset = checked(call(LANDLOCK_CREATE_RULESET, rights, 8, 0), "landlock_create_ruleset")
    for path in paths:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = READ_FILE | EXECUTE
        # The kernel refuses rights for directories on a path that is a file.
        if os.path.isdir(path):
            allowed |= READ_DIRECTORY
        rule = struct.pack("=Qi", allowed, place)
        checked(
            call(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0),
            "landlock_add_rule",
        )
        os.close(place)
    checked(call(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def filter_system_calls(program):
    """Install a filter (seccomp(2)), made by `workbench.verifiers.seccomp`."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    # The kernel counts instructions, of 8 bytes each.
    described = Program(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described))


def prctl(option, value, pointer=None):
    """Call prctl(2); OSError when the kernel refuses."""
    # The kernel wants unused arguments to be zero in all 64 bits, and a plain int sets 32 of them.
    zero = ctypes.c_ulong(0)
    result = library().prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero)
    checked(result, f"prctl {option}")


def library():
    """The C library of this process, with the error numbers of its calls."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result, name):
    """The result of a call to the C library; when it is an error, the process ends."""
    if result < 0:
        sys.exit(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


# The roles


def script(header, nowhere):
    """The program as `__main__`. Its output is its own business, and its errors are nobody's."""
    tell_ready(header)
    # What it writes to stderr would only fill the file that is read when a start has failed.
    silence(nowhere, 2)
    execute(header["source"], "__main__")


def candidate(header, nowhere):
    """The program as a module, then its functions as they are asked for."""
    # The conversation moves to other descriptors, so that what the program reads
    # and prints does not mix with it.
    out = os.dup(1)
    requests = os.fdopen(os.dup(0), "rb")
    os.write(out, READY)
    silence(nowhere, 0, 1, 2)
    namespace = execute(header["source"], "answer")
    objects: dict[int, object] = {}
    for line in requests:
        send(out, json.dumps(answered(json.loads(line), namespace, objects)).encode() + b"\n")


def checker(header, nowhere):
    """The tests, one after another; whatever goes wrong in one fails that one."""
    out = os.dup(1)
    to_candidate, from_candidate, longest = header["link"]
    link = Link(to_candidate, from_candidate, longest, header["first"])
    tell_ready(header)
    silence(nowhere, 0, 1, 2)
    results = called(header, link) if "calls" in header else asserted(header, link)
    for passed in results:
        # A test may expect an error, but not the one that the end of the conversation raises.
        passed = passed and not link.gone
        os.write(out, b"1" if passed else b"0")
        # The remaining tests could only fail too, and the caller wants
        # to know why the candidate ended.
        if link.gone:
            os._exit(CANDIDATE_GONE)
        if not passed and header["stop"]:
            break


def tell_ready(header):
    """Say that the deadline begins."""
    os.write(header["ready"], READY)
    os.close(header["ready"])


def send(descriptor, data):
    """Write all of it: a pipe may take less at once."""
    while data:
        data = data[os.write(descriptor, data) :]


def silence(nowhere, *descriptors):
    """Point file descriptors at /dev/null."""
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def execute(source, name):
    """Run the program in a module of its own. Running out of memory has an exit code."""
    # Registered like an imported module, since dataclasses and pickle look up the
    # module of a class by its name.
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    # Without the module `site` they are missing, and programs of contests end by them.
    builtins.exit = builtins.quit = sys.exit
    try:
        exec(compile(source, "answer.py", "exec"), module.__dict__)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    return module.__dict__


# Plain data between candidate and checker


SHAPES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value, refer):
    """Plain data as JSON: scalars as they are, the rest as [kind, ...], and anything else as what
    `refer` makes of it.
    """
    # Everything but scalars becomes a list that begins with its kind, so that `decode` cannot take
    # a list of the program for something else.
    if value is None or isinstance(value, (int, float, str)):
        return value
    for kind, base in SHAPES.items():
        if isinstance(value, base):
            return [kind, *(encode(item, refer) for item in value)]
    if isinstance(value, dict):
        # Pairs instead of a JSON object, whose keys could only be texts.
        items = ([encode(key, refer), encode(item, refer)] for key, item in value.items())
        return ["dict", *items]
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


# The candidate's side


OPERATIONS = {
    "call": lambda value, *arguments, **named: value(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "iterate": list,
    "len": len,
    "str": str,
    "item": operator.getitem,
}


def answered(request, namespace, objects):
    """The reply to one request: the value of an operation, or the name of its exception."""

    def resolve(kind, key):
        return objects[key] if kind == "object" else named(key, namespace)

    def refer(value):
        # Kept alive from here on, so that no other object gets the same id.
        objects[id(value)] = value
        return ["object", id(value)]

    try:
        target, arguments, keywords = (decode(part, resolve) for part in request["operands"])
        operation = OPERATIONS[request["do"]]
        return {"value": encode(operation(target, *arguments, **keywords), refer)}  # type: ignore
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:
        # A program may raise anything, also SystemExit, and the next test is still to be asked. The
        # text is cut, since a reply that is too long ends the conversation.
        return {"raise": type(error).__name__, "text": str(error)[:200]}


def named(name, namespace):
    """A global of the program, or a method of its `Solution`, where LeetCode's problems want their
    functions.
    """
    if name not in namespace and hasattr(namespace.get("Solution"), name):
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


# The checker's side


REPLIES = ({"value"}, {"raise", "text"})  # the keys of what `answered` returns


class Link:
    """The two pipes to the candidate.

    `longest` is how many bytes a reply may have, `first` what the candidate's process reads before
    it is ready. `gone` once the pipes have ended or brought what no `candidate` would write.
    """

    def __init__(self, to_candidate, from_candidate, longest, first):
        self.requests = to_candidate
        self.replies = os.fdopen(from_candidate, "rb")
        self.longest = longest
        self.gone = False
        send(self.requests, first.encode())
        if self.replies.read(1) != READY:
            sys.exit("the answer's side did not start")

    def ask(self, operation, target, *arguments, **keywords):
        """The value of an operation in the candidate. Raises its exception, if it raised one of
        Python's own.
        """
        # What the tests hand over is their own business: where it cannot be written, only this one
        # question fails.
        operands = [encode(part, reference) for part in (target, arguments, keywords)]
        request = json.dumps({"do": operation, "operands": operands}).encode() + b"\n"
        reply = self.exchange(request)
        if "raise" in reply:
            raise exception_of(reply["raise"])(reply["text"])
        return decode(reply["value"], lambda kind, key: Remote(self, [kind, key]))

    def exchange(self, request):
        """Send a request and read its reply. `gone` stays set: behind a reply that was cut off, its
        rest would be read as the reply to the next request.
        """
        if self.gone:
            raise EOFError("the answer's side is gone")
        self.gone = True
        send(self.requests, request)
        line = self.replies.readline(self.longest)
        if not line.endswith(b"\n"):
            raise EOFError("the answer's side ended in the middle of a reply, or wrote too much")
        reply = json.loads(line)
        if not isinstance(reply, dict) or reply.keys() not in REPLIES:
            raise ValueError("this is no reply")
        self.gone = False
        return reply


def asking(operation):
    """A method of `Remote` that asks the candidate for an operation."""
    return lambda self, *operands, **named: self._link.ask(operation, self, *operands, **named)


class Remote:
    """A function, class or object in the candidate. It equals nothing but itself, whatever the
    candidate says.
    """

    _link: Link

    __call__ = asking("call")
    __getattr__ = asking("get")
    __setattr__ = asking("set")
    __len__ = asking("len")
    __str__ = asking("str")
    __getitem__ = asking("item")

    def __init__(self, link, place):
        # Past `__setattr__`, which would send the names to the candidate.
        self.__dict__.update(_link=link, _place=place)

    def __iter__(self):
        return iter(self._link.ask("iterate", self))


def reference(value):
    """Where a `Remote` lies in the candidate's process; TypeError for any other value that is no
    plain data.
    """
    if isinstance(value, Remote):
        return value.__dict__["_place"]
    raise TypeError(f"a {type(value).__name__} cannot be handed to the answer")


def exception_of(name):
    """The exception of Python's own by that name, else RuntimeError.

    StopIteration is RuntimeError too, as it is in a generator. Raised inside the tests' `map` or
    `all`, it would end them early, as if every case had passed.
    """
    kind = vars(builtins).get(str(name))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return RuntimeError if issubclass(kind, (StopIteration, StopAsyncIteration)) else kind
    return RuntimeError


def called(header, link):
    """Whether each call returns what is expected."""
    function = Remote(link, ["name", header["function"]])
    for arguments, expected in header["calls"]:
        try:
            value = function(*arguments)
            # Some data sets write the one value that is expected as a list of it.
            is_one = isinstance(expected, list) and len(expected) == 1
            yield same(value, expected) or (is_one and same(value, expected[0]))
        except Exception:
            yield False


def same(value, expected):
    """Equality in which tuples are lists and an expected float is met within 1e-6, relative or
    absolute.
    """
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(expected, list):
        if not isinstance(value, list) or len(value) != len(expected):
            return False
        return all(map(same, value, expected))
    if isinstance(expected, dict):
        if not isinstance(value, dict) or value.keys() != expected.keys():
            return False
        return all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)
    return value == expected


def asserted(header, link):
    """Whether each statement that tests something runs through; the others prepare."""
    tree = ast.parse(header["asserts"])
    # A function of the answer may be called like one of Python's own.
    names = free_names(tree) | set(header["names"])
    namespace = {name: Remote(link, ["name", name]) for name in names}
    # One at a time in one namespace: a test that fails does not end the others, and all
    # see what was defined before them.
    for statement in tree.body:
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)
            passed = True
        except Exception:
            passed = False
        if is_test(statement):
            yield passed


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def free_names(tree):
    """The names that the tests read and do not define, except Python's own: they must come from the
    answer.
    """
    read: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, DEFINITIONS):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def is_test(statement):
    """Whether a statement of the tests is a test: not a definition, an import, an assignment or a
    bare text.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    assignments = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    return not isinstance(
        statement, (*DEFINITIONS, *assignments, ast.Import, ast.ImportFrom, ast.Pass)
    )


if __name__ == "__main__":
    main()
