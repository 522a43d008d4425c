"""Why the accuracies of runs cannot be compared, and by which key or hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MOST = 3
"""Keys that a line names."""


def not_comparable(folders: Sequence[Path], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Reasons for which accuracies of the runs cannot be compared, in a line each.

    Args:
        rows: the :func:`~fedpriv.api.comparing.figures` of the runs.
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
            why = _why(folders, rows, pair, "data_hash")
            yield f"scores on other samples of {Path(dataset).name} are not comparable: {why}"
        for seed in dict.fromkeys(rows[index]["seed"] for index in group):
            of_seed = [index for index in group if rows[index]["seed"] == seed]
            if (pair := _that_differ(rows, of_seed, "partition_hash")) is not None:
                why = _why(folders, rows, pair, "partition_hash")
                yield f"{Path(dataset).name}, seed {seed}: the clients of the runs hold different samples: {why}"


def _that_differ(rows: Sequence[Mapping[str, Any]], group: Sequence[int], name: str) -> tuple[int, int] | None:
    """The first two runs of a group with different hashes; ``None``: all that have one have the same."""
    first = {rows[index][name]: index for index in reversed(group) if rows[index][name] is not None}
    return None if len(first) < 2 else tuple(sorted(first.values())[:2])  # type: ignore[return-value]


def _why(folders: Sequence[Path], rows: Sequence[Mapping[str, Any]], pair: tuple[int, int], name: str) -> str:
    """The options of the data in which two runs differ; if there are none, the hash."""
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.tracking import flatten

    configs = [RunFolder(folders[index]).config_as_data().model_dump(mode="json", include={"data"}) for index in pair]
    here, there = (dict(flatten(config)) for config in configs)
    first, second = (rows[index]["run"] for index in pair)
    keys = [key for key in here | there if here.get(key) != there.get(key) and key != "data.dir"]
    if not keys:
        hashes = [str(rows[index][name])[:12] for index in pair]
        return f"{name} is {hashes[0]} in {first} and {hashes[1]} in {second}, with equal options: the data changed between them"
    shown = [f"{key} is {here.get(key)} in {first} and {there.get(key)} in {second}" for key in keys[:_MOST]]
    return "; ".join(shown) + (f"; and {len(keys) - _MOST} more" if len(keys) > _MOST else "")
