"""The filter of system calls that a program of `Code` runs under (seccomp, Linux on x86-64 and
ARM64).

A program computes, reads files, prints and starts threads. What it has no use for is refused:
`system_calls.csv` names each system call with its numbers on the two machines, how it is answered,
and why. A call answered by EPERM fails, and the program goes on. Where the answer is ENOSYS,
libraries take it that the kernel has no such call, and use an older one.

The numbers are the kernel's: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h. Where a machine does not have the call its number is left out.
"""

from __future__ import annotations

import csv
import platform
import struct
import sys
from pathlib import Path

# The machine's name in Python, which is its column in the table, and the kernel's name for it.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE_THREAD = 0x10000
PR_SET_PDEATHSIG = 1  # would let a program outlive its caller
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. Others send signals
# (F_SETOWN) or have the kernel keep locks without a limit (F_SETLK).
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
WRITING = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC

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


def _read_calls() -> dict[str, dict[str, dict[str, int]]]:
    """The table: answer -> name of the call -> machine -> number there."""
    calls: dict[str, dict[str, dict[str, int]]] = {}
    with Path(__file__).with_name("system_calls.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = {machine: int(row[machine]) for machine in MACHINES if row[machine]}
            calls.setdefault(row["answer"], {})[row["call"]] = numbers
    return calls


CALLS = _read_calls()


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
    for numbers in CALLS["EPERM"].values():
        code += _when(numbers.get(machine), [(RETURN, 0, 0, EPERM)])
    for numbers in CALLS["ENOSYS"].values():
        code += _when(numbers.get(machine), [(RETURN, 0, 0, ENOSYS)])
    # Calls that are judged by one argument, counted from 0: the flags of clone, the option of
    # prctl, the command of fcntl, the flags of open and openat.
    by_argument = {name: numbers.get(machine) for name, numbers in CALLS["argument"].items()}
    code += _when(by_argument["clone"], _if(0, JUMP_IF_ANY_BIT, CLONE_THREAD, ALLOW, EPERM))
    code += _when(by_argument["prctl"], _if(0, JUMP_IF_EQUAL, PR_SET_PDEATHSIG, EPERM, ALLOW))
    code += _when(by_argument["fcntl"], _one_of(1, FCNTL_COMMANDS))
    if not writing:
        code += _when(by_argument["open"], _if(1, JUMP_IF_ANY_BIT, WRITING, EPERM, ALLOW))
        code += _when(by_argument["openat"], _if(2, JUMP_IF_ANY_BIT, WRITING, EPERM, ALLOW))
    code.append((RETURN, 0, 0, ALLOW))
    # struct sock_filter: operation, steps to skip if true, steps to skip if false, operand.
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """Run `body`, which returns in any case, for the system call of that number."""
    if number is None:
        return []
    # Goes on into the body where the number is equal, and skips it otherwise.
    return [(JUMP_IF_EQUAL, 0, len(body), number), *body]


def _if(argument: int, jump: int, operand: int, then: int, otherwise: int) -> list[Instruction]:
    """Answer `then` where the argument passes the comparison, and `otherwise` where it does not."""
    return [
        _load(argument),
        (jump, 0, 1, operand),
        (RETURN, 0, 0, then),
        (RETURN, 0, 0, otherwise),
    ]


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow the call where the argument is one of the values."""
    body = [_load(argument)]
    for value in values:
        body += [(JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [*body, (RETURN, 0, 0, EPERM)]


def _load(argument: int) -> Instruction:
    """The lower half of an argument, which is all of a flag or a command."""
    # Arguments follow the number, the machine and the instruction pointer, 8 bytes each. Both
    # machines store the lower half first.
    return (LOAD, 0, 0, 16 + 8 * argument)
