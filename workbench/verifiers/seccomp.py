"""The filter of system calls that a program of `Code` runs under (seccomp, Linux on x86-64 and
ARM64).

A program computes, reads files, prints and starts threads. What it has no use for is refused: the
tables below name each system call with its numbers on the two machines. A refused call fails with
EPERM, and the program goes on.

The numbers are the kernel's: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h. None stands where a machine does not have the call.
"""

from __future__ import annotations

import platform
import struct
import sys

Numbers = tuple[int | None, int | None]

# The machine's name in Python: its column in the tables, and the kernel's name for it.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Both machines can also make processes by clone, which `program` allows for threads alone.
PROCESSES: dict[str, Numbers] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}
SIGNALS: dict[str, Numbers] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
OTHER_PROCESSES: dict[str, Numbers] = {
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
}
# Everything else that reaches a network needs a socket first.
NETWORK: dict[str, Numbers] = {
    "socket": (41, 198),
}
# A new namespace of users would make a program root inside of it, and root may mount.
NAMESPACES: dict[str, Numbers] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
# Memory, queues and watches that the kernel keeps and no resource limit counts.
KERNEL_OBJECTS: dict[str, Numbers] = {
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_setup": (206, 0),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "flock": (73, 32),
}
# Large interfaces of the kernel, in which mistakes are found time and again.
INTERFACES: dict[str, Numbers] = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "modify_ldt": (154, None),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
# Changes by path, and to what is not content. Opening to write is judged in `program`.
CHANGES_TO_FILES: dict[str, Numbers] = {
    "creat": (85, None),
    "truncate": (76, 45),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "open_by_handle_at": (304, 265),
}
REFUSED = (
    PROCESSES
    | SIGNALS
    | OTHER_PROCESSES
    | NETWORK
    | NAMESPACES
    | KERNEL_OBJECTS
    | INTERFACES
    | CHANGES_TO_FILES
)
# Their arguments lie in memory, where a filter cannot read them. Libraries that hear that there is
# no such call use an older one.
UNKNOWN: dict[str, Numbers] = {
    "clone3": (435, 435),
    "openat2": (437, 437),
}
# Allowed with some arguments.
CLONE: Numbers = (56, 220)
PRCTL: Numbers = (157, 167)
FCNTL: Numbers = (72, 25)
OPEN: Numbers = (2, None)
OPENAT: Numbers = (257, 56)

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
    column, name = MACHINES[machine]
    # The numbers mean other calls on other machines, so a call made as another one ends the
    # process.
    code: list[Instruction] = [
        (LOAD, 0, 0, MACHINE),
        (JUMP_IF_EQUAL, 1, 0, name),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        code += [(JUMP_IF_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for numbers in REFUSED.values():
        code += _when(numbers[column], [(RETURN, 0, 0, EPERM)])
    for numbers in UNKNOWN.values():
        code += _when(numbers[column], [(RETURN, 0, 0, ENOSYS)])
    # Calls that are judged by one argument, counted from 0: the flags of clone, the option of
    # prctl, the command of fcntl, the flags of open and openat.
    code += _when(CLONE[column], _only_with(0, CLONE_THREAD))
    code += _when(PRCTL[column], _not_equal(0, PR_SET_PDEATHSIG))
    code += _when(FCNTL[column], _one_of(1, FCNTL_COMMANDS))
    if not writing:
        code += _when(OPEN[column], _without(1, WRITING))
        code += _when(OPENAT[column], _without(2, WRITING))
    code.append((RETURN, 0, 0, ALLOW))
    # struct sock_filter: operation, steps to skip if true, steps to skip if false, operand.
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """Run `body`, which returns in any case, for the system call of that number."""
    if number is None:
        return []
    # Goes on into the body where the number is equal, and skips it otherwise.
    return [(JUMP_IF_EQUAL, 0, len(body), number), *body]


def _only_with(argument: int, bits: int) -> list[Instruction]:
    return [
        _load(argument),
        (JUMP_IF_ANY_BIT, 0, 1, bits),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, EPERM),
    ]


def _without(argument: int, bits: int) -> list[Instruction]:
    return [
        _load(argument),
        (JUMP_IF_ANY_BIT, 0, 1, bits),
        (RETURN, 0, 0, EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _not_equal(argument: int, value: int) -> list[Instruction]:
    return [
        _load(argument),
        (JUMP_IF_EQUAL, 0, 1, value),
        (RETURN, 0, 0, EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    body = [_load(argument)]
    for value in values:
        body += [(JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [*body, (RETURN, 0, 0, EPERM)]


def _load(argument: int) -> Instruction:
    """The lower half of an argument, which is all of a flag or a command."""
    # Arguments follow the number, the machine and the instruction pointer, 8 bytes each. Both
    # machines store the lower half first.
    return (LOAD, 0, 0, 16 + 8 * argument)
