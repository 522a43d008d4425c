"""What tells runs apart: their labels, which runs repeat others, and why scores cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.api.comparison.stored import StoredRun

_MOST = 3
"""Keys that a line names."""
_LEVELS = {"none": "no DP", "sample": "sample-level DP", "client": "client-level DP"}


def labels(runs: Sequence[StoredRun], rows: Sequence[dict[str, Any]]) -> list[str]:
    """The method of each run; for runs of one method with different configs, also keys in which they differ, in words.

    Runs have one label only if their configs differ in nothing but the seeds, and in who runs the clients; and if they had the
    same samples, plug-ins and net of the user's own. Where only these differ, a label has the beginning of their hash.

    Args:
        rows: the :meth:`~fedpriv.api.comparison.stored.StoredRun.figures` of each.
    """
    configs = [dict(run.compared_keys) for run in runs]
    for name in ("code", "data_hash"):
        _tell_apart(name, configs, rows)
    labels = []
    for row, config in zip(rows, configs, strict=True):
        peers = [other for other_row, other in zip(rows, configs, strict=True) if other_row["method"] == row["method"]]
        keys = sorted({key for peer in peers for key in peer if len({other.get(key) for other in peers}) > 1})
        shown = keys[: _enough(keys, peers)]
        names = [key.rpartition(".")[2] for key in shown]
        names = [name if names.count(name) == 1 else key for name, key in zip(names, shown, strict=True)]
        differs = [words for name, key in zip(names, shown, strict=True) if (words := _in_words(name, key, config))]
        labels.append(", ".join([row["method"], *differs]))
    return labels


def _in_words(name: str, key: str, config: Mapping[str, str]) -> str:
    """What a config says of a key, such as ``lr 0.1`` or ``no momentum``; nothing of a key of privacy in a run without it.

    Args:
        name: that of the key in a label.
    """
    value, shown = str(config.get(key)), name.replace("_", " ")
    if key == "privacy.level":
        return _LEVELS.get(value, value)
    if key.startswith("privacy.") and config.get("privacy.level") == "none":
        return ""
    if value in ("True", "False"):
        return f"{shown} {'on' if value == 'True' else 'off'}"
    return f"no {shown}" if value == "None" else f"{shown} {value}"


def repeated(named: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether each run repeats one before it: with its label, its seed and the same samples at the clients.

    Such a run adds nothing to a mean or a spread. Runs that are not finished repeat only each other.

    Args:
        named: the :func:`labels` of the runs.
        rows: the :meth:`~fedpriv.api.comparison.stored.StoredRun.figures` of each.
    """
    keys = list(map(_draw, named, rows))
    return [key in keys[:index] for index, key in enumerate(keys)]


def _draw(label: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    """What a run and its repetition have in common."""
    return label, row["seed"], row["partition_hash"], row["status"] == "finished"


def contradictions(named: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of each label with runs that :func:`repeated` another and have other results, a line that names both, by label.

    Such runs differ in something that the label does not say, such as the commit, so they have no common mean.
    """
    first: dict[tuple[object, ...], Mapping[str, Any]] = {}
    notes: dict[str, str] = {}
    for label, row in zip(named, rows, strict=True):
        if row["status"] == "finished":
            earlier = first.setdefault(_draw(label, row), row)
            if any(earlier[key] != row[key] for key in ("accuracy", "score", "worst_tenth", "bytes_up", "bytes_down")):
                notes.setdefault(
                    label,
                    f"{earlier['run']} and {row['run']} have the same config and seed, and other results: another version of "
                    "or another machine may have made one of them; leave one out",
                )
    return notes


def _tell_apart(name: str, configs: Sequence[dict[str, str]], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the hash ``name`` to the configs of each method of which runs with equal configs have different ones."""
    for method in {row["method"] for row in rows}:
        of_method = [(config, row[name]) for config, row in zip(configs, rows, strict=True) if row["method"] == method]
        if any(method == other and a and b and a != b for method, a in of_method for other, b in of_method):
            for config, value in of_method:
                config[name] = value[:8] if value else "unknown"


def _enough(keys: Sequence[str], configs: Sequence[Mapping[str, str]]) -> int:
    """How many keys, from the first on, tell the configs apart as well as all keys do; at least three."""

    def told_apart(number: int) -> int:
        return len({tuple(config.get(key) for key in keys[:number]) for config in configs})

    return next((number for number in range(3, len(keys)) if told_apart(number) == told_apart(len(keys))), len(keys))


def not_comparable(runs: Sequence[StoredRun], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Reasons for which accuracies of the runs cannot be compared, in a line each.

    Args:
        rows: the :meth:`~fedpriv.api.comparison.stored.StoredRun.figures` of each.
    """
    if len(metrics := dict.fromkeys(row["metric"] for row in rows)) > 1:
        yield f"the runs are ranked by different scores ({', '.join(metrics)}), so accuracy is compared (--set eval.metric)"
    if len({row["split"] for row in rows}) > 1:
        validated = ", ".join(row["run"] for row in rows if row["split"] == "validation")
        yield f"scores on validation data ({validated}) and on test data are not comparable"
    if len(datasets := sorted({row["dataset"] for row in rows})) > 1:
        yield f"scores on different data sets ({', '.join(datasets)}) are not comparable"
    if len(lengths := sorted({row["rounds_allowed"] for row in rows if row["status"] == "finished"})) > 1:
        yield f"runs of different lengths ({', '.join(map(str, lengths))} rounds)"
    for dataset in datasets:
        group = [index for index, row in enumerate(rows) if row["dataset"] == dataset]
        if (pair := _that_differ(rows, group, "data_hash")) is not None:
            why = _why(runs, rows, pair, "data_hash")
            yield f"scores on other samples of {Path(dataset).name} are not comparable: {why}"
        for seed in dict.fromkeys(rows[index]["seed"] for index in group):
            of_seed = [index for index in group if rows[index]["seed"] == seed]
            if (pair := _that_differ(rows, of_seed, "partition_hash")) is not None:
                why = _why(runs, rows, pair, "partition_hash")
                yield f"{Path(dataset).name}, seed {seed}: the clients of the runs hold different samples: {why}"


def _that_differ(rows: Sequence[Mapping[str, Any]], group: Sequence[int], name: str) -> tuple[int, int] | None:
    """The first two runs of a group with different hashes; ``None``: all that have one have the same."""
    first = {rows[index][name]: index for index in reversed(group) if rows[index][name] is not None}
    return None if len(first) < 2 else tuple(sorted(first.values())[:2])  # type: ignore[return-value]


def _why(runs: Sequence[StoredRun], rows: Sequence[Mapping[str, Any]], pair: tuple[int, int], name: str) -> str:
    """The options of the data in which two runs differ; if there are none, the hash."""
    from fedpriv.tracking import flatten

    here, there = (dict(flatten({"data": runs[index].values["data"]})) for index in pair)
    first, second = (rows[index]["run"] for index in pair)
    keys = [key for key in here | there if here.get(key) != there.get(key) and key != "data.dir"]
    if not keys:
        hashes = [str(rows[index][name])[:12] for index in pair]
        return f"{name} is {hashes[0]} in {first} and {hashes[1]} in {second}, with equal options: the data changed between them"
    shown = [f"{key} is {here.get(key)} in {first} and {there.get(key)} in {second}" for key in keys[:_MOST]]
    return "; ".join(shown) + (f"; and {len(keys) - _MOST} more" if len(keys) > _MOST else "")
