"""What runs inside the sandbox of `Code`: scripts of the standard library alone, started anew for
every program.

    program.script      executes a program as `__main__`
    program.candidate   executes a program, and then calls its functions as it is asked to
    checker.checker     never sees the program: it runs the tests, and asks the candidate

Each begins with `begin`, says `ready` when it is about to touch a program, and exchanges values as
plain data (`encode`, `decode`).
"""

import json
import os
import resource
import sys
from collections import Counter

READY = b"R"

# Exit codes.
OUT_OF_MEMORY = 77
CANDIDATE_GONE = 78


def begin():
    """The header of this process, once the process has the user and the limits that it names.

    The command's last argument is the descriptor of the header, a JSON text.
    """
    with open(int(sys.argv.pop())) as file:
        header = json.load(file)
    if header["user"]:
        # The user comes last, since only root may change the groups.
        os.setgroups([])
        os.setresgid(*[header["user"]] * 3)
        os.setresuid(*[header["user"]] * 3)
    for name, limit in header["limits"].items():
        resource.setrlimit(vars(resource)[f"RLIMIT_{name}"], (limit, limit))
    sys.set_int_max_str_digits(0)  # what long numbers may cost, the deadline says
    return header


def ready(header):
    """Say that the deadline begins."""
    os.write(header["ready"], READY)
    os.close(header["ready"])


def silence(*descriptors):
    """Point file descriptors at /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def send(descriptor, data):
    """Write all of it: a pipe may take less at once."""
    while data:
        data = data[os.write(descriptor, data) :]


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
        return ["counter" if isinstance(value, Counter) else "dict", *items]
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
    if kind in ("dict", "counter"):
        pairs = {decode(key, resolve): decode(item, resolve) for key, item in rest}
        return pairs if kind == "dict" else Counter(pairs)
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "complex":
        return complex(*rest)
    return resolve(kind, rest[0])
