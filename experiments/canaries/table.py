"""How much of an epsilon canaries show: ideal ones, and those of runs with the right noise and with a tenth of it.

    python experiments/canaries/table.py [--only ROW]
    python experiments/canaries/table.py --report

A row's result is stored as results/ROW.json as soon as it is there; a row whose result has the same config is not run again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch

import fedpriv
from fedpriv.attacks.inference.canaries import canary_bounds
from fedpriv.attacks.inference.gaussian_dp import mu_of
from fedpriv.audit.membership.epsilon import measured
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.experiments.markdown import table
from fedpriv.files import write_atomically
from fedpriv.privacy.client_level import NoisyMean
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
DELTA = 1e-5
RUNS = 20
SMALL = {
    "method.name": "fedavg",
    "data.limit": 200,
    "model.name": "lenet_sigmoid",
    "model.projection": "none",
    "train.local_epochs": 1,
    "eval.every": 1000,
    "privacy.delta": DELTA,
    "tracking.uri": "none",
}
"""Of every run: 200 digits and a small net, since canaries do not depend on either."""
CLIENT = {"privacy.level": "client", "privacy.clip": 0.01, "privacy.accountant": "prv"}
SAMPLE = {
    "privacy.level": "sample",
    "data.clients": 2,
    "data.partition.name": "iid",
    "train.participation": 1.0,
    "train.rounds": 2,
}
SAMPLING: dict[str, dict[str, Any]] = {
    "client, all clients, 2 rounds": {**CLIENT, "train.participation": 1.0, "train.rounds": 2},
    "client, rate 0.3, 20 rounds": {**CLIENT, "train.participation": 0.3, "train.rounds": 20},
    "client, rate 0.3, 2 rounds": {**CLIENT, "train.participation": 0.3, "train.rounds": 2},
    "sample, all samples, 2 steps": {**SAMPLE, "train.batch_size": 100},
    "sample, rate 0.1, 20 steps": {**SAMPLE, "train.batch_size": 10},
}
"""Level and sampling of a run, with the keys of its config. Each of two clients has 100 samples at level sample."""


def ideal_row(epsilon: float, canaries: int, draws: int) -> dict[str, Any]:
    return {"epsilon": epsilon, "canaries": canaries, "draws": draws}


def runs_row(sampling: str, epsilon: float, canaries: int) -> dict[str, Any]:
    keys = {**SMALL, **SAMPLING[sampling], "privacy.target_epsilon": epsilon, "privacy.canaries": canaries}
    return {"sampling": sampling, "epsilon": epsilon, "canaries": canaries, "runs": RUNS, "keys": keys}


ROWS = {
    **{f"ideal-{e:g}-{n}": ideal_row(e, n, 100) for e, n in ((1, 1000), (2, 1000), (4, 1000), (8, 1000), (8, 5000))},
    **{f"ideal-{e:g}-100": ideal_row(e, 100, 2000) for e in (2, 8)},
    **{
        f"{sampling.replace(', ', '-').replace(' ', '-')}-{epsilon}-{canaries}": runs_row(sampling, epsilon, canaries)
        for sampling in SAMPLING
        for canaries in {"client, all clients, 2 rounds": (100, 1000, 5000), "client, rate 0.3, 20 rounds": (1000, 5000)}.get(
            sampling, (1000,)
        )
        for epsilon in (2, 8)
    },
}


def draw_ideal(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bounds from the canaries of a Gaussian mechanism: scores with variance 1, whose mean is mu for canaries that are used."""
    draws = []
    for seed in range(config["draws"]):
        draw = np.random.default_rng(seed)
        used = draw.random(config["canaries"]) < 0.5
        scores = draw.standard_normal(config["canaries"]) + mu_of(config["epsilon"], DELTA) * used
        bounds = canary_bounds(scores, used, config["epsilon"], DELTA)
        draws.append({"seed": seed, "claim": config["epsilon"], "bounds": {bound.name: bound.epsilon for bound in bounds}})
    return draws


@contextmanager
def tenth_of_the_noise() -> Iterator[None]:
    """A block in which server and clients add a tenth of the noise that the accountant assumes."""
    merge, begin = NoisyMean.__call__, ModelLocalUpdate.__init__

    def quieter_mean(self: NoisyMean, *arguments: Any) -> Any:
        return merge(NoisyMean(self.space, self.names, self.clip, self.noise / 10, self.expected), *arguments)

    def quieter_update(self: ModelLocalUpdate, *arguments: Any) -> None:
        begin(self, *arguments)
        if self.config.privacy.level == "sample":
            privacy = self.config.privacy.model_copy(update={"noise": (self.config.privacy.noise or 0.0) / 10})
            self.config = self.config.model_copy(update={"privacy": privacy})

    with patch.object(NoisyMean, "__call__", quieter_mean), patch.object(ModelLocalUpdate, "__init__", quieter_update):
        yield


def measure_runs(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bounds from the canaries of runs, seed by seed."""
    runs = []
    for seed in range(config["runs"]):
        with TemporaryDirectory() as folder:
            run = fedpriv.train(runs_dir=folder, **config["keys"], seed=seed)
            shown = measured(run.folder, run.summary["privacy"])
            assert shown is not None, "the run has canaries"
        runs.append({"seed": seed, "claim": shown.claim, "bounds": {bound.name: bound.epsilon for bound in shown.bounds}})
    return runs


def run_row(name: str, folder: Path) -> str:
    """Measure a row and store its result; returns a line on it."""
    config, began = ROWS[name], time.process_time()
    if "keys" in config:
        right = measure_runs(config)
        with tenth_of_the_noise():
            tenth = measure_runs(config)
    else:
        right, tenth = draw_ideal(config), []
    result = {
        "row": name, "config": config, "right": right, "tenth": tenth, "cpu_seconds": round(time.process_time() - began, 2),
        "versions": versions(), "git_commit": git_commit(),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.json", (json.dumps(result, indent=1) + "\n").encode())
    quieter = f", with a tenth of the noise {share(tenth)}" if tenth else ""
    return f"{name}: {share(right)} above the claim{quieter}"


def is_done(path: Path, name: str) -> bool:
    """Whether a result of the row's present config is stored."""
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["config"] == ROWS[name]


def exceeded(runs: Sequence[Mapping[str, Any]], bound: str | None = None) -> int:
    """In how many runs a bound is above the claim: this one, or any."""
    return sum((max(run["bounds"].values()) if bound is None else run["bounds"][bound]) > run["claim"] for run in runs)


def share(runs: Sequence[Mapping[str, Any]]) -> str:
    return f"{exceeded(runs)} of {len(runs)}"


def claim_cells(row: Mapping[str, Any]) -> list[str]:
    """The claimed epsilon, and how many canaries measure it."""
    return [f"{row['config']['epsilon']:g}", f"{row['config']['canaries']:,}"]


def medians(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{statistics.median(run['bounds'][name] for run in runs):.2f}" for name in runs[0]["bounds"]]


def above_the_claim(runs: Sequence[Mapping[str, Any]]) -> str:
    """The bounds that are above the claim, and in how many runs."""
    counts = {name: exceeded(runs, name) for name in runs[0]["bounds"]}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def render(folder: Path) -> str:
    """The report of the stored results whose config is that of a row."""
    paths = {name: folder / f"{name}.json" for name in ROWS}
    rows = [json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if is_done(path, name)]
    bounds = "one run | Clopper-Pearson | f-DP, one run | Gaussian fit"
    ideals = [
        [*claim_cells(row), *medians(row["right"]), above_the_claim(row["right"]), len(row["right"])]
        for row in rows
        if row["row"].startswith("ideal")
    ]
    runs = [
        [row["config"]["sampling"], *claim_cells(row), *medians(row["right"]), above_the_claim(row["right"]), share(row["tenth"])]
        for row in rows
        if not row["row"].startswith("ideal")
    ]  # fmt: skip
    parts = [
        "# How much of an epsilon canaries show",
        "Written by `python experiments/canaries/table.py --report`. The bounds are explained in "
        "[An epsilon that is measured](../../docs/measured-epsilon.md). Each number is a median. `above the claim`: in how many "
        f"draws or runs which bound exceeded the claimed epsilon. Delta is {DELTA:g}.",
        "## Ideal canaries",
        "Scores of a Gaussian mechanism whose epsilon is the claimed one.",
        table(f"epsilon | canaries | {bounds} | above the claim | draws", ideals),
        "## Runs",
        f"FedAvg on digits: {RUNS} runs of each row with the right noise, and {RUNS} with a tenth of it. The last column says "
        "in how many of the latter any bound exceeded the accountant's epsilon, as it should. At level client the accountant is "
        "PRV, at level sample RDP. A run's epsilon is at most 0.01 below its target.",
        table(f"level, sampling | epsilon | canaries | {bounds} | above the claim | a tenth of the noise", runs),
    ]
    if missing := [name for name in ROWS if name not in {row["row"] for row in rows}]:
        parts.append(f"Rows without a result: {', '.join(missing)}.")
    commits = sorted({str(row["git_commit"]) for row in rows})
    seconds = sum(row["cpu_seconds"] for row in rows)
    parts.append(f"{len(rows)} results, {seconds / 60:.0f} CPU minutes in all. Commits: {', '.join(commits) or '–'}.")
    return "\n\n".join(parts) + "\n"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="A row; may be repeated. Default: all.")
@click.option("--report", "only_report", is_flag=True, help="Run nothing; write REPORT.md from the stored results.")
@click.option("--folder", type=click.Path(path_type=Path), default=HERE, help="Where results/ and REPORT.md lie.")
def main(only: tuple[str, ...], only_report: bool, folder: Path) -> None:
    """Run the rows that have no result yet, in one thread, then write REPORT.md."""
    torch.set_num_threads(1)
    results = folder / "results"
    try:
        for name in [] if only_report else only or ROWS:
            if not is_done(results / f"{name}.json", name):
                click.echo(run_row(name, results))
    finally:
        write_atomically(folder / "REPORT.md", render(results).encode())


if __name__ == "__main__":
    main()
