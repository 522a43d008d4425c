"""The merge of a round that is too large for a matrix: 100 uploads of ResNet-18 (4.2 GiB), from their messages.

Each cell is a fresh process that holds the sealed uploads and merges them once, as the server does: from the K x p matrix, or by
blocks of columns copied from the messages. Reports the merge's peak memory beside the messages (GiB), its CPU seconds, and the
difference between the two models. Limit: at most 1 GiB by columns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, parser_of, peak_bytes, report

METHODS = {"mean": "fedavg", "l-dawa": "l-dawa", "simprox": "simprox"}
MOST_GIB = 1.0


def merged(name: str, clients: int, by_columns: bool, out: str) -> dict[str, float]:
    """One merge in this process; writes the model to ``out``."""
    import math

    import torch

    from fedpriv.config import load_config
    from fedpriv.server import merging
    from fedpriv.simulation.setup import build
    from fedpriv.wire import Payload, seal
    from fedpriv.wire.coding import Upload

    torch.set_num_threads(1)
    settings = {"data.name": "digits", "data.clients": 2, "method.name": name, "tracking.uri": "none"}
    federation = build(load_config(None, {**settings, "model.name": "resnet18", "executor.name": "sequential"}))
    method, server, space = federation.method, federation.method.start(federation.initial), federation.agreement.space
    torch.manual_seed(0)
    change = 0.01 * server.row.std() * torch.randn(space.size)
    uploads = []
    for client in range(clients):
        tensors = space.unpack(server.row + torch.roll(change, 7919 * client))
        uploads.append(Upload(seal(Payload(tensors, 1, client, num_examples=100 + client))))
    del change, tensors
    if not by_columns:
        merging.MAX_MATRIX = math.inf  # type: ignore[assignment]

    before, began = peak_bytes() / 2**30, time.process_time()
    state = merging.merge(method, server, uploads)
    seconds = time.process_time() - began
    torch.save(state.row, out)
    return {"more_gib": round(peak_bytes() / 2**30 - before, 2), "before_gib": round(before, 2), "cpu_seconds": round(seconds, 2)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--here", nargs=3, metavar=("METHOD", "BY_COLUMNS", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(merged(options.here[0], options.clients, options.here[1] == "yes", options.here[2])))
        return
    import tempfile

    import torch

    results: dict[str, Any] = {
        "benchmark": "large_round",
        **facts(("fedpriv", "torch")),
        "clients": options.clients,
        "merges": {},
    }
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, method in METHODS.items():
            cells = {}
            for how, word in (("matrix", "no"), ("columns", "yes")):
                command = [sys.executable, __file__, "--clients", str(options.clients), "--here", method, word, f"{folder}/{how}"]
                cells[how] = json.loads(
                    subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, encoding="utf-8").stdout
                )
            whole, by_columns = (torch.load(f"{folder}/{how}").double() for how in ("matrix", "columns"))
            cells["difference"] = float((whole - by_columns).norm() / whole.norm())
            results["merges"][name] = cells
            figures = ", ".join(
                f"{how} {cells[how]['more_gib']:.2f} GiB, {cells[how]['cpu_seconds']} CPU s" for how in ("matrix", "columns")
            )
            print(f"{name}: {figures}; relative difference {cells['difference']:.1e}", flush=True)
            if cells["columns"]["more_gib"] > MOST_GIB:
                failed.append(f"{name}: {cells['columns']['more_gib']} GiB")
    report(results, options.json, failed)


if __name__ == "__main__":
    main()
