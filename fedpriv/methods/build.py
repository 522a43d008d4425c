"""Builds the method of a config: checks and fills in options, and combines the halves."""

from __future__ import annotations

from collections.abc import Mapping
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
    """The config with all options of its method, objective and aggregation, checked; :class:`UsageError` where one is wrong.

    Keys that the config leaves open get the values that the method suggests.
    """
    method = find_method(config.method.name)
    aggregation_class = method.aggregation_class if config.aggregation is None else find_aggregation(config.aggregation.name)
    # Under client-level DP the server adds up changes and divides by a constant, so that all clients weigh the same.
    usual = {"weights": "uniform"} if config.privacy.level == "client" and aggregation_class is Mean else {}
    halves: dict[str, NamedOptions | None] = {}
    if (objective := config.objective) is not None:
        half = find_objective(objective.name)
        halves["objective"] = _filled(objective, half.name, half.Params, "objective")
    if (aggregation := config.aggregation) is not None:
        other = find_aggregation(aggregation.name)
        halves["aggregation"] = _filled(aggregation, other.name, other.Params, "aggregation", usual)
    schema = options_of(method, config.objective is None, config.aggregation is None)
    filled_in = _filled(config.method, method.name, schema, "method", usual if aggregation is None else {})
    config = config.model_copy(update={"method": filled_in, **halves})
    suggestions = dict[str, Any]()
    for part in reversed(parts_of(config)):  # the method's own count first
        suggestions |= part.kind.suggested(part.params)
    _check_participation(config, suggestions)
    return filled(config, suggestions)


class NamedPart(NamedTuple):
    """The method of a config, or a half of it.

    Attributes:
        section: of the config, with its options: ``method``, or that of a half that is another one.
        params: its options; of the method and its own halves those of all of them.
    """

    section: Literal["method", "objective", "aggregation"]
    kind: type[Method] | type[Objective] | type[Aggregation]
    params: Any


def parts_of(config: RunConfig) -> list[NamedPart]:
    """The method, its objective, and its aggregation if it sends something; :class:`UsageError` where an option is wrong."""
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


def changed_options(config: RunConfig) -> dict[str, Any]:
    """The options of the method and its halves that differ from their defaults: they tell runs of one method apart."""
    changed: dict[str, Any] = {}
    for part in parts_of(config):
        defaults = {name: field.get_default(call_default_factory=True) for name, field in part.params.__pydantic_fields__.items()}
        changed |= {name: value for name, value in asdict(part.params).items() if value != defaults[name]}
    return changed


def _check_participation(config: RunConfig, suggestions: Mapping[str, Any]) -> None:
    """Refuse a share of the clients, where what the config names wants them all in every round."""
    train = config.train
    wants_all = train.selection is None and suggestions.get("train.selection") == "all"
    if wants_all and train.participation is not None and train.participation < 1:
        raise UsageError(
            f"train.participation {train.participation:g}: with {config.called} all clients take part each round; leave it out"
        )


def objective_of(config: RunConfig) -> type[Objective]:
    """The client's half that a config names: its own, or its method's."""
    return find_method(config.method.name).objective_class if config.objective is None else find_objective(config.objective.name)


def _filled(named: NamedOptions, name: str, schema: type[Any], kind: str, usual: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The options with all others of their schema: as ``usual`` says, or their defaults."""
    return type(named)(name=name, **asdict(parse(schema, {**usual, **named.params}, f"{kind} {name}")))


def build_method(config: RunConfig, context: Context) -> Method:
    """The method of a config with all options (:func:`with_options`), with its halves.

    Raises:
        UsageError: the halves do not fit each other, or the net.
    """
    kind = find_method(config.method.name)
    schema = options_of(kind, config.objective is None, config.aggregation is None)
    objective: Objective | None = None
    aggregation: Aggregation | None = None
    if config.objective is not None:
        half = find_objective(config.objective.name)
        objective = half(parse(half.Params, config.objective.params, f"objective {half.name}"), context)
    if config.aggregation is not None:
        other = find_aggregation(config.aggregation.name)
        aggregation = other(parse(other.Params, config.aggregation.params, f"aggregation {other.name}"), context)
    method = kind(parse(schema, config.method.params, f"method {kind.name}"), context, objective, aggregation)
    _check(method, config)
    return method


def _check(method: Method, config: RunConfig) -> None:
    objective, aggregation = method.parts
    if method.fixed_objective and not isinstance(objective, method.objective_class):
        raise UsageError(f"objective {objective.name}: method {method.name} needs its own, as {method.fixed_objective}")
    if method.needs_labels and not objective.labels:
        raise UsageError(f"objective {objective.name} uses no labels, which method {method.name} needs, as {method.needs_labels}")
    if config.aggregation is not None and not method.shared_names:
        raise UsageError(f"aggregation {aggregation.name}: method {method.name} sends nothing, so there is nothing to merge")
    pairs = (("objective", objective, "aggregation", aggregation), ("aggregation", aggregation, "objective", objective))
    for kind, half, what, other in pairs:
        if missing := sorted(half.reads - other.writes):
            raise UsageError(
                f"{kind} {half.name} needs {', '.join(missing)}, which {what} {other.name} does not send;"
                f" use --{what} {half.name}"
            )
    roles = {name.split(".")[0] for name in method.context.space.names}
    if not method.context.space.parameters(objective.trained_roles):
        where = " and ".join(sorted(objective.trained_roles))
        raise UsageError(f"objective {objective.name} trains {where}, where the net has no parameter with requires_grad=True")
    if missing := sorted(objective.required_roles - roles):
        option = ROLE_OPTIONS.get(missing[0], "another net")
        raise UsageError(f"objective {objective.name} needs a {missing[0]}, but the net has none; --set {option}")
