"""Run as a process by test_standby_become: the machinery of a standby around a stand-in for vLLM.

python standby_become_script.py SOCKET DIRECTORY-WITH-A-PACKAGE-CALLED-VLLM [IDENTITY]
"""

from __future__ import annotations

import os
import sys

from engine_ctl.inside.standby_become import Become
from engine_ctl.inside.standby_process import Title, open_descriptors
from engine_ctl.inside.standby_server import Server, listen

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    environment = dict(os.environ)
    title = Title()
    title.prepare(environment)
    become = Become("cpu", open_descriptors(), environment, title)
    identity = sys.argv[3] if sys.argv[3:] else ""
    hello = {"ok": True, "identity": identity, "version": "0.32.0", "pid": os.getpid()}
    Server(listen(sys.argv[1]), {"become": become, "hello": lambda _: hello}).serve()
