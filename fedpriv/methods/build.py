"""Builds the method of a config: validates and completes its options, and combines its two parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fedpriv.aggregation import Aggregation, find_aggregation
from fedpriv.aggregation.mean import Mean
from fedpriv.config import NamedOptions, RunConfig, filled, parse
from fedpriv.errors import UsageError
from fedpriv.interfaces import ROLE_OPTIONS
from fedpriv.methods import find_method
from fedpriv.methods.base import Context, Method, options_of
from fedpriv.objectives import Objective, find_objective


def with_options(config: RunConfig) -> RunConfig:
    """The config with all options of its method, objective and aggregation, and with the values that these suggest.

    Raises:
        UsageError: an option is unknown or invalid.
    """
    method = find_method(config.method.name)
    aggregation_class = method.aggregation_class if config.aggregation is None else find_aggregation(config.aggregation.name)
    # Client-level DP weighs all clients equally (a sum of changes over a constant), so there the default of `weights` is uniform.
    averages = aggregation_class is Mean and bool(method.shared)
    default = {"weights": "uniform"} if config.privacy.level == "client" and averages else {}
    parts: dict[str, NamedOptions | None] = {}
    if (objective := config.objective) is not None:
        objective_class = find_objective(objective.name)
        parts["objective"] = _with_defaults(objective, objective_class.name, objective_class.Params, "objective")
    if (aggregation := config.aggregation) is not None:
        schema = aggregation_class.Params
        parts["aggregation"] = _with_defaults(aggregation, aggregation_class.name, schema, "aggregation", default)
    schema = options_of(method, config.objective is None, config.aggregation is None)
    parts["method"] = _with_defaults(config.method, method.name, schema, "method", default if aggregation is None else {})
    config = config.model_copy(update=parts)
    if config.data.task == "regression":
        check_numbers(parts_of(config))
    suggestions = dict[str, Any]()
    for part in reversed(parts_of(config)):  # the method's own take precedence
        suggestions |= part.kind.suggested(part.params)
    _check_participation(config, suggestions)
    return filled(config, suggestions)


class NamedPart(NamedTuple):
    """The method of a config, or one of its two parts.

    Attributes:
        section: the config section with its options; a part that is not replaced has its options under ``method``.
        params: the options of that section.
    """

    section: Literal["method", "objective", "aggregation"]
    kind: type[Method] | type[Objective] | type[Aggregation]
    params: Any


def parts_of(config: RunConfig) -> list[NamedPart]:
    """The method, its objective, and, if it sends something, its aggregation.

    Raises:
        UsageError: an option is unknown or invalid.
    """
    method = find_method(config.method.name)
    schema = options_of(method, config.objective is None, config.aggregation is None)
    params = parse(schema, config.method.params, f"method {method.name}")
    parts = [NamedPart("method", method, params)]
    if config.objective is None:
        parts.append(NamedPart("method", method.objective_class, params))
    else:
        objective = find_objective(config.objective.name)
        options = parse(objective.Params, config.objective.params, f"objective {objective.name}")
        parts.append(NamedPart("objective", objective, options))
    if config.aggregation is not None:
        aggregation = find_aggregation(config.aggregation.name)
        options = parse(aggregation.Params, config.aggregation.params, f"aggregation {aggregation.name}")
        parts.append(NamedPart("aggregation", aggregation, options))
    elif method.shared:
        parts.append(NamedPart("method", method.aggregation_class, params))
    return parts


def check_numbers(parts: Sequence[NamedPart]) -> None:
    """Raise :class:`UsageError` if a part of a run cannot be used where labels are numbers."""
    for section, kind, _ in parts:
        if why := kind.why_classes() if issubclass(kind, Objective) else kind.needs_classes:
            what = "objective" if issubclass(kind, Objective) else section
            raise UsageError(
                f"{what} {kind.name} needs labels that are classes, as {why}, and these are numbers; use another one, such as "
                f"--{'objective cross-entropy' if what == 'objective' else 'method fedavg'}, or data.task=classification"
            )


def changed_options(config: RunConfig) -> dict[str, Any]:
    """The options of the method and its parts that differ from their defaults."""
    changed: dict[str, Any] = {}
    for part in parts_of(config):
        defaults = {name: field.get_default(call_default_factory=True) for name, field in part.params.__pydantic_fields__.items()}
        changed |= {name: value for name, value in asdict(part.params).items() if value != defaults[name]}
    return changed


def _check_participation(config: RunConfig, suggestions: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if the method needs all clients in each round, and the config asks for a share of them."""
    train = config.train
    needs_all = train.selection is None and suggestions.get("train.selection") == "all"
    if needs_all and train.participation is not None and train.participation < 1:
        raise UsageError(
            f"train.participation {train.participation:g}: with {config.called} all clients take part each round; leave it out"
        )


def objective_of(config: RunConfig) -> type[Objective]:
    """The objective of a config: the one it names, or its method's."""
    return find_method(config.method.name).objective_class if config.objective is None else find_objective(config.objective.name)


def _with_defaults(
    named: NamedOptions, name: str, schema: type[Any], kind: str, default: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """All options of the schema; those that are not given have the value in ``default``, or else the schema's."""
    return type(named)(name=name, **asdict(parse(schema, {**default, **named.params}, f"{kind} {name}")))


def build_method(config: RunConfig, context: Context) -> Method:
    """The method of a config that has all options (:func:`with_options`).

    Raises:
        UsageError: the two parts do not fit each other, or the net.
    """
    kind = find_method(config.method.name)
    schema = options_of(kind, config.objective is None, config.aggregation is None)
    objective: Objective | None = None
    aggregation: Aggregation | None = None
    if config.objective is not None:
        objective_class = find_objective(config.objective.name)
        params = parse(objective_class.Params, config.objective.params, f"objective {objective_class.name}")
        objective = objective_class(params, context)
    if config.aggregation is not None:
        aggregation_class = find_aggregation(config.aggregation.name)
        params = parse(aggregation_class.Params, config.aggregation.params, f"aggregation {aggregation_class.name}")
        aggregation = aggregation_class(params, context)
    method = kind(parse(schema, config.method.params, f"method {kind.name}"), context, objective, aggregation)
    _check(method, config)
    return method


def _check(method: Method, config: RunConfig) -> None:
    objective, aggregation = method.parts
    if method.context.numbers:
        check_numbers(parts_of(config))
    if method.fixed_objective and not isinstance(objective, method.objective_class):
        raise UsageError(f"objective {objective.name}: method {method.name} needs its own, as {method.fixed_objective}")
    if method.needs_labels and not objective.labels:
        raise UsageError(
            f"method {method.name} needs an objective that uses labels, as {method.needs_labels}; objective {objective.name} "
            "uses none"
        )
    if config.aggregation is not None and not method.shared_names:
        raise UsageError(f"aggregation {aggregation.name}: method {method.name} sends nothing, so there is nothing to merge")
    pairs = (("objective", objective, "aggregation", aggregation), ("aggregation", aggregation, "objective", objective))
    for kind, part, other_kind, other in pairs:
        if missing := sorted(part.reads - other.writes):
            raise UsageError(
                f"{kind} {part.name} needs {', '.join(missing)}, which {other_kind} {other.name} does not send; "
                f"use --{other_kind} {part.name}"
            )
    roles = {name.split(".")[0] for name in method.context.space.names}
    if not method.context.space.parameters(objective.trained_roles):
        where = " and ".join(sorted(objective.trained_roles))
        raise UsageError(f"objective {objective.name} trains {where}, where the net has no parameter with requires_grad=True")
    if method.shared and not method.shared_names:
        raise UsageError(
            f"method {method.name} sends the {' and the '.join(sorted(method.shared & objective.trained_roles))}, where the net "
            f"{config.model.name} has no parameters; use another net, or a method that sends all layers, such as fedavg"
        )
    if missing := sorted(objective.required_roles - roles):
        option = ROLE_OPTIONS.get(missing[0], "another net")
        raise UsageError(f"objective {objective.name} needs a {missing[0]}, but the net has none; --set {option}")
