"""Notebooks in kernels that are forked from a process which has imported the large packages.

Each notebook has a fresh kernel, as under nbval alone, without the seconds that imports take.
"""

import os
import signal
import sys

from conftest import SERVER
from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from nbval.kernel import RunningKernel

from workbench.trials.engine import PRELOAD
from workbench.utils.processes import die_with_parent

SERVER.set_forkserver_preload([*PRELOAD, "ipykernel.kernelapp", "matplotlib.pyplot"])


class ForkedKernel(RunningKernel):
    """What nbval asks of a kernel, with a process of `SERVER`."""

    def __init__(self, kernel_name, cwd=None, startup_timeout=60):
        file, _ = write_connection_file(key=os.urandom(16).hex().encode())
        self.process = SERVER.Process(target=serve, args=(file, cwd))
        self.process.start()
        self.kc = BlockingKernelClient()
        self.kc.load_connection_file(file)
        # A heartbeat would count a kernel as dead that a busy machine has not started yet.
        self.kc.start_channels(hb=False)
        try:
            self.kc.kernel_info(reply=True, timeout=startup_timeout)
            self._ensure_iopub_up()
        except BaseException:
            self.stop()
            raise

    def is_alive(self):
        return self.process.is_alive()

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self):
        self.kc.stop_channels()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()


def serve(file, folder):
    """The process of a kernel, which ends with the tests."""
    import matplotlib
    import pandas as pd
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    die_with_parent(os.getppid())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(folder)
    sys.path = [path for path in sys.path if path != os.path.dirname(__file__)]
    # What these packages choose by themselves when a kernel imports them.
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    pd.set_option("display.max_columns", 20)
    IPKernelApp.launch_instance(["-f", file])
