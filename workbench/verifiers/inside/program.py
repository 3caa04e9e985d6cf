"""The side of the program: it is executed, and its functions are called."""

import builtins
import json
import operator
import os
import sys

from . import OUT_OF_MEMORY, begin, decode, encode, ready, send, silence

OPERATIONS: dict = {
    "call": lambda value, *arguments, **named: value(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "iterate": list,
    "len": len,
    "str": str,
    "item": operator.getitem,
}


def script():
    """Run the program as `__main__`. What it reads and prints is its own business, and its errors
    are nobody's.
    """
    header = begin()
    ready(header)
    # What it writes to stderr would only fill the file that is read when a start has failed.
    silence(2)
    execute(header["source"], "__main__")


def candidate():
    """Run the program as a module, and then call its functions as the lines of standard input ask,
    answering on standard output.
    """
    header = begin()
    # The conversation moves to other descriptors, so that what the program reads
    # and prints does not mix with it.
    replies = os.dup(1)
    requests = os.fdopen(os.dup(0), "rb")
    ready(header)
    silence(0, 1, 2)
    namespace = execute(header["source"], "answer")
    objects: dict[int, object] = {}
    for line in requests:
        reply = answer(json.loads(line), namespace, objects)
        send(replies, json.dumps(reply).encode() + b"\n")


def execute(source, name):
    """Run the program in a module of its own. Running out of memory has an exit code."""
    # Registered like an imported module, since dataclasses and pickle look up the
    # module of a class by its name.
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    # Without the module `site` they are missing, and programs of contests end by them.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    try:
        exec(compile(source, "answer.py", "exec"), module.__dict__)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    return module.__dict__


def answer(request, namespace, objects):
    """The reply to one request: the value of an operation, or the name of its exception."""

    def resolve(kind, key):
        if kind == "builtin":
            return vars(builtins)[key]
        return objects[key] if kind == "object" else find(key, namespace)

    def refer(value):
        # Kept alive from here on, so that no other object gets the same id.
        objects[id(value)] = value
        return ["object", id(value)]

    try:
        target, arguments, keywords = (decode(part, resolve) for part in request["operands"])
        operation = OPERATIONS[request["do"]]
        value = encode(operation(target, *arguments, **keywords), refer)
        if not any(isinstance(each, (list, dict, set)) for each in arguments):
            return {"value": value}
        return {"value": value, "given": [encode(each, refer) for each in arguments]}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:
        # A program may raise anything, also SystemExit, and the next test is still to be asked. The
        # text is cut, since a reply that is too long ends the conversation.
        return {"raise": type(error).__name__, "text": str(error)[:200]}


def find(name, namespace):
    """A global of the program, or a method of its `Solution`, where LeetCode's problems want their
    functions.
    """
    if name in namespace:
        return namespace[name]
    if "Solution" not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return getattr(namespace["Solution"](), name)
