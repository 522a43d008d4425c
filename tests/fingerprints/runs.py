"""The runs whose fingerprints are stored: every method, objective, aggregation and defence, and the main variants of a run."""

from __future__ import annotations

from tests.fingerprints.taking import TEXTS, Settings, command

SMALL: Settings = {
    "data.name": "digits",
    "data.limit": 100,
    "data.clients": 5,
    "data.partition.name": "dirichlet",  # ragged: clients differ in classes, steps and last batches
    "data.partition.test": "disjoint",
    "model.name": "lenet_sigmoid",
    "model.projection": 8,
    "train.rounds": 3,  # the client states of round 1 affect all clients from round 3 on
    "train.participation": 0.8,
    "train.local_epochs": 1,
    "train.batch_size": 8,
    "train.lr": 0.1,
    "executor.name": "sequential",
    "tracking.uri": "none",
    "wire.keep_payloads": "all",
}
TOGETHER: Settings = {"executor.name": "vectorized", "executor.group_size": 2}
BATCHNORM: Settings = {"model.name": "resnet9_narrow", "data.limit": 60, "train.rounds": 2}
WITHOUT_LABELS: Settings = {"model.name": "mlp2", "data.limit": 60, "train.rounds": 2, "train.lr": 0.01}
SAMPLE_DP: Settings = {"privacy.level": "sample", "privacy.noise": 1.0}
OF_TEXTS: Settings = {"data.name": TEXTS, "data.limit": None, "data.partition.name": "iid"}
OF_TEXTS |= {"model.name": None, "model.encoder": "tiny"}
OF_PAIRS: Settings = {"data.name": "disaster_synthetic", "data.limit": 60, "data.image_size": 16, "model.name": None}
OF_PAIRS |= {"data.image_only": 0.4, "data.text_only": 0.2, "train.rounds": 2}

OF_A_METHOD: dict[str, Settings] = {
    "fedbn": BATCHNORM,  # without BatchNorm it is FedAvg
    "fedrep": {"method.head_epochs": 1},
    "l-dawa": WITHOUT_LABELS,
    "mpfedcon": {"method.head_epochs": 1},
}
"""Additional settings of a method's run."""

OBJECTIVE_OF = {"feddyn": "feddyn", "scaffold": "scaffold"}
AGGREGATION_OF = {"scaffold": "scaffold"}
"""Partners of objectives and aggregations that do not work with FedAvg's."""

OF_AN_AGGREGATION: dict[str, Settings] = {
    "euc": {"aggregation.start": 1, "train.selection": "all", "train.participation": None},
    "fedu": {"aggregation.fedu_threshold": 0.1},
    "l-dawa-fedu": {"aggregation.fedu_threshold": 0.1},
}
"""Options with which an aggregation has an effect in a short run."""

OF_A_DEFENCE: dict[str, Settings] = {"mask": {"last": 1}, "clip": {"norm": 0.1}, "quantise": {"bits": 6}}
"""Options of transforms whose defaults would change little or nothing."""

VARIANTS: dict[str, tuple[str, Settings]] = {
    "defences one after another": (
        "mpfedcon",
        {"wire.transforms": [{"name": "clip", "norm": 0.1}, {"name": "gaussian"}, {"name": "prune"}, {"name": "quantise"}]},
    ),
    "client-level DP": ("fedavg", {"privacy.level": "client", "privacy.noise": 0.2, "privacy.clip": 0.1, "privacy.delta": 1e-3}),
    "sample-level DP": ("fedrep", {"method.head_epochs": 1, **SAMPLE_DP}),
    "sample-level DP, ghost clipping": ("fedavg", {**SAMPLE_DP, "privacy.clipping": "ghost"}),
    "two workers": ("moon", {"executor.workers": 2}),
    "two workers, together": ("scaffold", {**TOGETHER, "executor.workers": 2}),
    "texts": ("moon", {**OF_TEXTS, "train.rounds": 2}),
    "texts, LoRA": ("fedavg", {**OF_TEXTS, "model.tune": "lora", "model.lora_rank": 2}),
    "texts, frozen encoder": ("mpfedcon", {**OF_TEXTS, "model.tune": "head"}),
    "pairs": ("fedavg", OF_PAIRS),
    "pairs, statistics of both halves": ("scaffold", OF_PAIRS),
    "Adam": ("fedavg", {"train.optimizer": "adam", "train.lr": 0.003}),
    "AdamW, warm-up and decay": (
        "fedrep",
        {"train.optimizer": "adamw", "train.lr": 0.003, "train.warmup_steps": 2, "train.lr_decay": 0.5},
    ),
    "RMSprop that goes on, schedules": (
        "fedrep",
        {
            "train.optimizer": "rmsprop",
            "train.optimizer_options": {"alpha": 0.9},
            "train.lr": 0.001,
            "train.keep_optimizer": True,
            "train.lr_schedule": "cosine",
            "train.local_lr_schedule": "linear:start_factor=1,end_factor=0.1",
        },
    ),
    "two epochs": ("fedavg", {"train.local_epochs": 2}),
    "two epochs of two phases, together": ("mpfedcon", {"method.head_epochs": 2, "train.local_epochs": 2, **TOGETHER}),
    "accumulate": ("fedavg", {"train.accumulate": 2}),
    "bfloat16 and a bound on gradients": (
        "fedavg",
        {"train.precision": "bfloat16", "train.clip_grad_norm": 0.5, "train.rounds": 2},
    ),
    "steps and batches left out": ("fednova", {"train.local_steps": 3, "train.min_batch": 4, "train.momentum": 0.9}),
    "window": ("fedavg", {"train.selection": "window", "train.participation": 0.4}),
    "schedule": (
        "ditto",
        {"train.selection": "schedule", "train.schedule": [[0, 1], [1, 2, 3], [0, 4]], "train.participation": None},
    ),
    "one class a client": (
        "fedper",
        {"data.partition.name": "one_class", "data.clients": 10, "train.participation": 0.3, "train.lr": 0.02},
    ),
    "shards": ("fedavg", {"data.partition.name": "shards"}),
    "classes, validated": (
        "local",
        {"data.partition.name": "classes", "data.validation_fraction": 0.2, "eval.split": "validation"},
    ),
    "fully connected": ("fedprox", {"model.name": "mlp2"}),
    "fully connected, together": ("fedprox", {"model.name": "mlp2", **TOGETHER}),
    "BatchNorm and augmentation": ("fedavg", {**BATCHNORM, "data.augment": "crop_flip"}),
    "local encoders": ("mpfedcon", {"method.head_epochs": 1, "eval.state": "local_encoder"}),
    "no labels, probed": ("l-dawa", {**WITHOUT_LABELS, "eval.probe": "linear"}),
}
"""By name, the method and additional settings."""


def runs() -> dict[str, Settings]:
    """Name -> settings of every run: what is registered, found by itself, and :data:`VARIANTS`."""
    known = command("methods")
    methods = {row["name"]: (row["objective"], row["aggregation"]) for row in known["methods"]}
    # The others have no more to keep apart than FedAvg (test_vectorized.py has them all).
    stateful = {row["name"] for row in known["methods"] if row["keeps"] or row["sends_besides"]}
    objectives, aggregations = ([row["name"] for row in known[kind]] for kind in ("objectives", "aggregations"))
    pairs = {(objective, AGGREGATION_OF.get(objective, "mean")) for objective in objectives}
    pairs |= {(OBJECTIVE_OF.get(aggregation, "cross-entropy"), aggregation) for aggregation in aggregations}
    settings: dict[str, Settings] = {}
    for method in methods:
        settings[f"method {method}"] = {"method.name": method, **OF_A_METHOD.get(method, {})}
        if method in stateful | {"fedavg"}:
            settings[f"method {method}, together"] = {"method.name": method, **OF_A_METHOD.get(method, {}), **TOGETHER}
    for objective, aggregation in sorted(pairs - set(methods.values())):
        views = WITHOUT_LABELS if objective in ("barlow-twins", "simclr") else {}
        parts = {"objective.name": objective, "aggregation.name": aggregation, **OF_AN_AGGREGATION.get(aggregation, {})}
        settings[f"halves {objective} and {aggregation}"] = {"method.name": "fedavg", **parts, **views}
    for defence in command("defenses")["defenses"]:
        name = defence["name"]
        transforms = [{"name": name, **OF_A_DEFENCE.get(name, {})}]
        settings[f"defence {name}"] = {"method.name": "fedavg", "wire.transforms": transforms}
    settings |= {name: {"method.name": method, **besides} for name, (method, besides) in VARIANTS.items()}
    without_epochs = {key: value for key, value in SMALL.items() if key != "train.local_epochs"}
    return {
        name: {**(without_epochs if "train.local_steps" in settings else SMALL), **settings}
        for name, settings in settings.items()
    }
