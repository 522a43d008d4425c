"""Logistic regression on the heart disease data of four hospitals: alone, federated, and pooled.

    python experiments/heart-disease/table.py FILE     # the runs, then REPORT.md
    python experiments/heart-disease/table.py          # REPORT.md alone, from the stored results

FILE is a CSV of the 920 patients of UCI's Heart Disease data with the columns ``hospital``, 13 features and ``disease``.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import click
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import fedpriv
from fedpriv.experiments.markdown import table
from fedpriv.files import write_atomically
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
SPLITS = range(5)
GAPS = ["slope", "ca", "thal"]
"""Columns that most hospitals lack; FLamby leaves them out, too."""
CATEGORIES = ["cp", "restecg"]
TEST = 0.34
"""Share of each hospital's patients that is tested on, about FLamby's (254 of 740)."""
KEYS: dict[str, Any] = {
    "data.label": "disease",
    "data.partition.name": "by_column",
    "data.partition.column": "hospital",
    "model.name": "linear",
    "train.rounds": 20,
    "train.lr": 0.02,
    "train.batch_size": 16,
    "eval.last": 1,
    "eval.metric": "accuracy",
    "wire.keep_payloads": "none",
    "tracking.uri": "none",
}
RUNS: dict[str, dict[str, Any]] = {
    "local": {"method.name": "local", "method.epochs": 2},
    "fedavg": {"method.name": "fedavg", "train.local_epochs": 2},
    "pooled": {"method.name": "pooled", "method.epochs": 2},
}
"""By method; all of them train on each patient equally often."""
PUBLISHED = {"fedavg": 0.776, "pooled": 0.791}
"""FLamby's (Ogier du Terrail et al., NeurIPS 2022), logistic regression."""


def complete_rows(file: Path) -> pd.DataFrame:
    """The 740 patients without gaps, numbers of categories as texts."""
    patients = pd.read_csv(file).drop(columns=GAPS).dropna().reset_index(drop=True)
    return patients.assign(**{name: "level " + patients[name].astype(int).astype(str) for name in CATEGORIES})


def split(patients: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test patients; each hospital's, with the same share of the sick."""
    strata = patients["hospital"] + patients["disease"]
    rare = strata.map(strata.value_counts()) < 2
    train, test = train_test_split(patients[~rare], test_size=TEST, stratify=strata[~rare], random_state=seed)
    return pd.concat([train, patients[rare]]), test


def by_sklearn(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Accuracy by hospital of scikit-learn's logistic regression on all training patients, as an independent check."""
    columns = [pd.get_dummies(part.drop(columns=["hospital", "disease"]), dtype=float) for part in (train, test)]
    here, there = columns[0], columns[1].reindex(columns=columns[0].columns, fill_value=0.0)
    scaler = StandardScaler().fit(here)
    fitted = LogisticRegression(max_iter=1000).fit(scaler.transform(here), train["disease"])
    right = fitted.predict(scaler.transform(there)) == test["disease"].to_numpy()
    return {str(name): float(right[(test["hospital"] == name).to_numpy()].mean()) for name in sorted(set(test["hospital"]))}


def measure(file: Path) -> dict[str, Any]:
    """Train all methods on all splits."""
    patients, began = complete_rows(file), time.process_time()
    accuracies: dict[str, list[dict[str, float]]] = {name: [] for name in (*RUNS, "scikit-learn, pooled")}
    with TemporaryDirectory() as temporary:
        folder, runs = Path(temporary), list[fedpriv.Run]()
        for seed in SPLITS:
            train, test = split(patients, seed)
            data = folder / f"heart-{seed}"
            data.mkdir()
            train.to_csv(data / "train.csv", index=False)
            test.to_csv(data / "test.csv", index=False)
            hospitals = sorted(set(patients["hospital"]))
            for name, keys in RUNS.items():
                run = fedpriv.train(runs_dir=folder / "runs", **KEYS, **keys, seed=seed, **{"data.name": str(data)})
                runs.append(run)
                accuracies[name].append(dict(zip(hospitals, run.per_client, strict=True)))
            accuracies["scikit-learn, pooled"].append(by_sklearn(train, test))
        gains = [fedpriv.gains(runs[place : place + len(RUNS)]) for place in range(0, len(runs), len(RUNS))]
    return {
        "patients": len(patients),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "keys": KEYS,
        "runs": RUNS,
        "accuracies": accuracies,
        "gains": {name: [float(split.set_index("baseline").difference[name]) for split in gains] for name in ("local", "pooled")},
        "cpu_seconds": round(time.process_time() - began, 1),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def render(results: dict[str, Any]) -> str:
    """The report."""
    from fedpriv.evaluation.intervals import mean_interval

    rows = []
    for name, splits in results["accuracies"].items():
        means = [fmean(by_hospital.values()) for by_hospital in splits]
        low, high = mean_interval(means)
        hospitals = [f"{fmean(by_hospital[hospital] for by_hospital in splits):.3f}" for hospital in splits[0]]
        published = PUBLISHED.get(name)
        rows.append([name, f"{fmean(means):.3f} ({low:.3f} to {high:.3f})", *hospitals, f"{published:.3f}" if published else "–"])
    hospitals = " | ".join(next(iter(results["accuracies"].values()))[0])
    lines = []
    for baseline, differences in results["gains"].items():
        low, high = mean_interval(differences)
        lines.append(
            f"* FedAvg {'over' if baseline == 'local' else 'against'} `{baseline}`: {100 * fmean(differences):+.1f} points "
            f"({100 * low:+.1f} to {100 * high:+.1f})"
        )
    return "\n\n".join(
        [
            "# Heart disease of four hospitals, by logistic regression",
            "Written by `python experiments/heart-disease/table.py`. The patients are those of FLamby's Fed-Heart-Disease (Ogier "
            f"du Terrail et al., NeurIPS 2022): the {results['patients']} of UCI's Heart Disease data without gaps, once "
            "`slope`, `ca` and `thal` are left out. Every hospital is a client. A third of each hospital's patients are tested "
            f"on, drawn anew in {len(SPLITS)} splits; FLamby has one split. Numbers are standardised by all training patients, "
            "at FLamby by each hospital's own.",
            table(f"method | accuracy (95 %, over splits) | {hospitals} | published", rows),
            "Accuracy is the mean over the hospitals. Intervals are over the splits, which share patients, so they say how much "
            "a split matters, not how another set of patients would come out. Paired by split:",
            "\n".join(lines),
            f"{results['cpu_seconds']:.0f} CPU seconds. Commit: {results['git_commit']}.",
        ]
    ) + "\n"  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
def main(file: Path | None) -> None:
    """Run all methods on FILE, if it is given, then write REPORT.md."""
    stored = HERE / "results" / "heart-disease.json"
    if file is not None:
        stored.parent.mkdir(exist_ok=True)
        write_atomically(stored, (json.dumps(measure(file), indent=1) + "\n").encode())
    write_atomically(HERE / "REPORT.md", render(json.loads(stored.read_text(encoding="utf-8"))).encode())


if __name__ == "__main__":
    main()
