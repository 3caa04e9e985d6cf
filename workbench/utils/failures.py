"""What errors leave in memory, and how it is given back."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from types import CodeType, FunctionType, TracebackType
from typing import Any


def import_apart(module: str, name: str) -> Any:
    """What a module has under a name, imported in a thread of its own.

    vLLM keeps the exception of a package that it did not find. The traceback leads back through all
    functions that were at work in the thread, and so to the model and the run that they held.
    """
    context = copy_context()
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(context.run, lambda: getattr(import_module(module), name)).result()
    # Settings of torch's compiler hold in the context that they are made in.
    for variable, value in context.items():
        variable.set(value)
    return found


def release(error: BaseException) -> None:
    """Drop what the functions that an error came from hold, and give unused GPU memory back.

    A notebook keeps the traceback of its last error, and with it every local variable of these
    functions: the model, the gradients and what a forward pass has kept. Functions that are still
    at work keep their variables.
    """
    each: BaseException | None = error
    while each is not None:
        _empty(each.__traceback__)
        each = each.__cause__ or each.__context__
    # Models and their layers refer to one another in circles.
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _empty(traceback: TracebackType | None) -> None:
    """Clear the variables of all functions of a traceback that have ended."""
    inner: dict[CodeType, tuple[str, ...]] = {}  # functions within these, and what they share
    while traceback is not None:
        frame, below = traceback.tb_frame, traceback.tb_next
        # A layer that is computed again in a backward pass hangs on functions of torch that are
        # not in the traceback. Nothing below that is of use to a reader.
        if below is not None and below.tb_frame.f_code.co_name == "unpack_hook":
            traceback.tb_next = below = None
        traceback = below
        with suppress(RuntimeError):  # it is still at work
            frame.clear()
            for code in frame.f_code.co_consts:
                if isinstance(code, CodeType):
                    inner[code] = frame.f_code.co_cellvars
        # A function within another one, such as a comprehension, keeps what the two share.
        for function in gc.get_referents(frame):
            if isinstance(function, FunctionType) and function.__code__ in inner:
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
                    if name in inner[function.__code__]:
                        with suppress(ValueError):  # it is empty
                            del cell.cell_contents
