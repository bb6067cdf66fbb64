"""`vllm preload` with its seed token out of sight.

vLLM takes the token of daemon-to-daemon seeding on the command line only, where every user of the
machine can read it in `ps`. It is handed to this script in the environment and moves to the
arguments inside the process: `weight_cache_preload.py preload --model …`.
"""

from __future__ import annotations

import os
import sys

TOKEN_ENV = "STOKER_SEED_TOKEN"


def main() -> None:
    token = os.environ.pop(TOKEN_ENV, None)
    sys.argv = ["vllm", *sys.argv[1:]]
    if token:
        sys.argv.append(f"--seed-token={token}")
    # The directory of this script holds modules of ours, none of which vLLM should find.
    sys.path.pop(0)
    from vllm.entrypoints.cli.main import main as vllm

    vllm()


if __name__ == "__main__":
    main()
