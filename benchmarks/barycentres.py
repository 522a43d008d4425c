"""The barycentre of the same uploads under each interpretation of FedDUAL, and its cost.

The uploads are those of the first round of FedAvg with ten clients of two classes of digits each, the tensor is the weight of the
output layer (10 neurons), and the vectors are the clients' changes. Reported for each reading: the norm of its centre relative to
that of the plain mean, the cosine of the two, the effective number of clients where there are weights, and the CPU time of a
merge of that tensor (``time.process_time``, one thread; readings take turns).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from machine import facts, parser_of, report, spread

CLIENTS = 10


def changes(folder: Path) -> tuple[Any, int]:
    """The clients' changes of the output layer's weight ``(K, d)`` in the first round, and its number of neurons."""
    import torch

    import fedpriv

    run = fedpriv.train(
        method="fedavg",
        dataset="digits",
        clients=CLIENTS,
        participation=1.0,
        rounds=1,
        keep_payloads="all",
        run_dir=folder / "run",
        **{"tracking.uri": "none"},
    )
    down = run.download(1)
    assert down is not None
    start = down.tensors()["head.weight"]
    moved = [start - run.payload(round, client).tensors()["head.weight"] for round, client in run.payloads]
    return torch.stack(moved).flatten(1), len(start)


def readings(vectors: Any, neurons: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Centre ``(d,)`` and weights ``(K,)`` (or ``None``) by reading."""
    import torch

    from fedpriv.aggregation import barycentre, transport

    base = torch.full((len(vectors),), 1 / len(vectors), dtype=torch.float64)

    def shifted(distances: Callable[[], Any], eps: float, relative: bool, normaliser: Any) -> tuple[Any, Any]:
        result = barycentre.mean_shift(vectors, base, distances(), eps, relative, normaliser)
        return result.center, result.weights

    def w1() -> Any:
        return barycentre.wasserstein(vectors, 1)

    return {
        "mean": lambda: (barycentre.combination(vectors, base), base),
        "ms_w1, eps relative (scale_free)": lambda: shifted(w1, 1.0, True, "softmax"),
        "ms_w1, eps 1e-5 (paper)": lambda: shifted(w1, 1e-5, False, "softmax"),
        "ms_w1, eps 1e-5, additive (code)": lambda: shifted(w1, 1e-5, False, "additive"),
        "ms_w2, eps relative": lambda: shifted(lambda: barycentre.wasserstein(vectors, 2), 1.0, True, "softmax"),
        "ms_pos, eps relative": lambda: shifted(lambda: barycentre.positional(vectors), 1.0, True, "softmax"),
        "wb_quantile": lambda: (barycentre.quantile_barycenter(vectors, base), None),
        "wb_gauss": lambda: (barycentre.gaussian_barycenter(vectors, base), None),
        "wb_neurons (POT)": lambda: (transport.neuron_barycenter(vectors, base, neurons, 150), None),
        "wb_sinkhorn, reg 0.01 (POT)": lambda: (transport.sinkhorn_barycenter(vectors, base, 0.01, 150), None),
        "wb_sinkhorn, reg 0.002 (POT)": lambda: (transport.sinkhorn_barycenter(vectors, base, 0.002, 150), None),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        vectors, neurons = changes(Path(folder))
    named = readings(vectors, neurons)
    centres = {name: compute() for name, compute in named.items()}  # the first imports what is needed
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(options.repeats):
        for name, compute in named.items():
            began = time.process_time()
            compute()
            seconds[name].append(1000 * (time.process_time() - began))
    mean, _ = centres["mean"]
    rows: dict[str, Any] = {}
    for name, (centre, weights) in centres.items():
        rows[name] = {
            "norm_to_mean": round(float(centre.norm() / mean.norm()), 3),
            "cosine_with_mean": round(float(F.cosine_similarity(centre, mean, 0)), 3),
            "effective_clients": None
            if weights is None or not weights.sum()
            else round(float(weights.sum() ** 2 / weights.square().sum()), 2),
            "cpu_ms": spread(seconds[name], 2),
        }
        row = rows[name]
        clients = "–" if row["effective_clients"] is None else row["effective_clients"]
        print(
            f"{name:34} norm {row['norm_to_mean']:.3f}, cosine {row['cosine_with_mean']:+.3f}, effective clients {clients}, "
            f"{row['cpu_ms']['median']:.2f} CPU ms"
        )
    results = {"benchmark": "barycentres", **facts(("fedpriv", "torch", "POT")), "repeats": options.repeats}
    shape = {"clients": len(vectors), "entries": vectors.shape[1], "neurons": neurons}
    report(results | {"tensor": shape, "readings": rows}, options.json)


if __name__ == "__main__":
    main()
