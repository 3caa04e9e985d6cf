"""The side of the tests: they run here, and what they call is asked of the candidate."""

import ast
import builtins
import json
import math
import os

from . import CANDIDATE_GONE, begin, decode, encode, ready, send, silence

REPLIES = ({"value"}, {"value", "given"}, {"raise", "text"})  # the keys of what a candidate replies


def checker():
    """Run the tests one after another, and write 1 or 0 for each, where the candidate cannot.

    Whatever goes wrong in a test fails that one.
    """
    header = begin()
    verdicts = os.dup(1)
    link = Link(*header["link"])
    ready(header)
    silence(0, 1, 2)
    results = run_calls(header, link) if "calls" in header else run_statements(header, link)
    for passed in results:
        # A test may expect an error, but not the one that the end of the conversation raises.
        passed = passed and not link.gone
        os.write(verdicts, b"1" if passed else b"0")
        # The remaining tests could only fail too, and the caller wants
        # to know why the candidate ended.
        if link.gone:
            os._exit(CANDIDATE_GONE)
        if not passed and header["stop"]:
            break


def run_calls(header, link):
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


def run_statements(header, link):
    """Whether each statement that tests something runs through; the others prepare."""
    namespace = {name: Remote(link, ["name", name]) for name in header["names"]}
    # One at a time in one namespace: a test that fails does not end the others, and all
    # see what was defined before them.
    statements = ast.parse(header["asserts"]).body
    for statement, is_test in zip(statements, header["is_test"]):
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)
            passed = True
        except Exception:
            passed = False
        if is_test:
            yield passed


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


class Link:
    """The two pipes to the candidate.

    `longest` is how many bytes a reply may have. `gone` once the pipes have ended or brought what
    no candidate would write.
    """

    def __init__(self, requests, replies, longest):
        self.requests = requests
        self.replies = os.fdopen(replies, "rb")
        self.longest = longest
        self.gone = False

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

        def resolve(kind, key):
            return Remote(self, [kind, key])

        # What a call has done to the lists that it was given is done to those of the tests.
        for mine, theirs in zip(arguments, reply.get("given", ())):
            if isinstance(mine, list):
                mine[:] = decode(theirs, resolve)
            elif isinstance(mine, (dict, set)):
                theirs = decode(theirs, resolve)
                mine.clear()
                mine.update(theirs)
        return decode(reply["value"], resolve)

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
    """Where a `Remote` lies in the candidate's process, or which of Python's own functions a value
    is; TypeError for any other value that is no plain data.
    """
    if isinstance(value, Remote):
        return value.__dict__["_place"]
    name = getattr(value, "__name__", "")
    if callable(value) and vars(builtins).get(name) is value:
        return ["builtin", name]
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
