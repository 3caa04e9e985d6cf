"""The filter of system calls that a program of `Code` runs under (seccomp, Linux on x86-64 and
ARM64).

A program computes, reads files, prints and starts threads. `system_calls.csv` lists the calls that
this takes, with their numbers on the two machines and what they are for. Every other call gets the
answer ENOSYS, that the kernel has no such call, and libraries then use an older one. So a call that
nobody has thought of is closed, and one that a future kernel adds.

Of a few calls one argument decides. The column `allowed` has the values that it may have (`0 1 2`),
or bits that it must have (`has 65536`) or must not have (`lacks 579`). Otherwise the call fails
with EPERM.

The numbers are the kernel's: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h. Where a machine does not have the call its number is left out.
"""

import csv
import platform
import struct
import sys
from pathlib import Path

# The machine's name in Python, which is its column in the table, and the kernel's name for it.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Instructions of classic BPF, and what a filter can return.
LOAD = 0x20
JUMP_IF_EQUAL = 0x15
JUMP_IF_AT_LEAST = 0x35
JUMP_IF_ANY_BIT = 0x45
RETURN = 0x06
ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM = 0x00050001
ENOSYS = 0x00050026

# Places in the data that a filter reads (struct seccomp_data).
NUMBER = 0
MACHINE = 4
X32 = 0x40000000  # numbers from here on are x86-64's second set of the same calls

Instruction = tuple[int, int, int, int]

with Path(__file__).with_name("system_calls.csv").open(newline="") as _file:
    CALLS = {row["call"]: row for row in csv.DictReader(_file)}


def available() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def program(machine: str, writing: bool) -> bytes:
    """The filter as the kernel takes it.

    Parameters
    ----------
    machine : str
        A key of `MACHINES`.
    writing : bool
        Whether a program may open files to write. It may where nothing can be written anyway and
        only devices such as /dev/null remain.

    Returns
    -------
    bytes
        Instructions of 8 bytes each.
    """
    # The numbers mean other calls on other machines, so a call made as another one ends the
    # process.
    code: list[Instruction] = [
        (LOAD, 0, 0, MACHINE),
        (JUMP_IF_EQUAL, 1, 0, MACHINES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        code += [(JUMP_IF_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for name, call in CALLS.items():
        if not call[machine]:
            continue
        body: list[Instruction] = [(RETURN, 0, 0, ALLOW)]
        if call["argument"] and not (writing and name in ("open", "openat")):
            body = _judged(int(call["argument"]), call["allowed"])
        # Goes on into the body, which returns in any case, where the number is equal.
        code += [(JUMP_IF_EQUAL, 0, len(body), int(call[machine])), *body]
    code.append((RETURN, 0, 0, ENOSYS))
    # struct sock_filter: operation, steps to skip if true, steps to skip if false, operand.
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _judged(argument: int, allowed: str) -> list[Instruction]:
    """Allow a call where its argument, counted from 0, is as the table says."""
    # Arguments follow the number, the machine and the instruction pointer, 8 bytes each. The lower
    # half is all of a flag or a command, and both machines store it first.
    code: list[Instruction] = [(LOAD, 0, 0, 16 + 8 * argument)]
    rule, *values = allowed.split()
    if rule == "has":
        code += [(JUMP_IF_ANY_BIT, 0, 1, int(values[0])), (RETURN, 0, 0, ALLOW)]
    elif rule == "lacks":
        code += [(JUMP_IF_ANY_BIT, 1, 0, int(values[0])), (RETURN, 0, 0, ALLOW)]
    else:
        for value in (rule, *values):
            code += [(JUMP_IF_EQUAL, 0, 1, int(value)), (RETURN, 0, 0, ALLOW)]
    return [*code, (RETURN, 0, 0, EPERM)]
