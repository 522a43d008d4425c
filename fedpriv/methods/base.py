"""The base class of federated methods: what is shared, what each side keeps, and the steps of a round.

A method combines a client part (:class:`Objective`) and a server part (:class:`Aggregation`), each of which a user may replace by
another one. A subclass names its two parts, and overrides what its paper changes besides them; the defaults are FedAvg
(McMahan et al., AISTATS 2017). A method has no access to the round loop, the wire or other clients: on the client's side it gets
a :class:`LocalUpdate`, on the server's side the received tensors.

Tensors "by name" are a mapping from a tensor's name to the tensor; a row ``(p,)`` holds all p entries of the net's tensors
(:class:`fedpriv.parameters.ParameterSpace`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedpriv.aggregation import Aggregation
from fedpriv.aggregation.mean import Mean
from fedpriv.errors import UsageError
from fedpriv.interfaces import Context, LocalUpdate, Loss, NoParams, Phase, Private, params, phase
from fedpriv.models.net import ROLES
from fedpriv.objectives import Objective
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.wire import Form, Payload, tensor_of

__all__ = ["Context", "LocalUpdate", "Method", "Phase", "Private", "ServerState", "options_of", "params", "phase"]


@dataclass
class ServerState:
    """The server's state: the model as a row ``(p,)``, and further tensors of the method by name."""

    row: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last merge for the round's record; not part of the state."""


class Method:
    """A federated method; register subclasses with :func:`fedpriv.methods.register`."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Any]] = NoParams
    """The method's own options; :func:`options_of` adds those of its two parts."""
    objective_class: ClassVar[type[Objective]] = CrossEntropy
    """The client part."""
    aggregation_class: ClassVar[type[Aggregation]] = Mean
    """The server part."""
    fixed_objective: ClassVar[str] = ""
    """Why the objective cannot be replaced; empty: it can."""
    needs_labels: ClassVar[str] = ""
    """Why the objective must use labels; empty: it need not."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """New default values for options of its two parts, by option."""
    suggests: ClassVar[Mapping[str, Any]] = {}
    """As :attr:`fedpriv.interfaces.Part.suggests`; these values take precedence over those of the two parts."""
    shared: ClassVar[frozenset[str]] = frozenset(ROLES)
    """The roles that are sent; the others are private to the client."""
    sends: ClassVar[str] = ""
    keeps: ClassVar[str] = ""
    """As :attr:`fedpriv.interfaces.Part.sends` and ``keeps``, for the method itself. Do not name private roles here: the listing
    adds them itself."""
    no_dp: ClassVar[str] = ""
    """As :attr:`fedpriv.interfaces.Part.no_dp`, for the method itself."""
    needs_classes: ClassVar[str] = ""
    """As :attr:`fedpriv.interfaces.Part.needs_classes`, for the method itself."""
    buffers: ClassVar[Literal["average", "local"]] = "average"
    """Whether the running statistics of shared roles are averaged like weights, or private to the client."""
    replaced_keys: ClassVar[Mapping[str, str]] = {}
    """Config key without effect under this method -> the option that replaces it; a run warns if the key is set."""
    partial_downloads: ClassVar[bool] = False
    """Whether a download may lack shared tensors; if not, clients refuse such a download."""
    round_zero: ClassVar[bool] = False
    """Whether the initial model is broadcast to all clients before the first round."""
    pools: ClassVar[bool] = False
    """Whether client 0 has the training samples of all clients, and its model is the server's: one place, within which nothing is
    sent. For simulations only."""

    def __init__(
        self, params: Any, context: Context, objective: Objective | None = None, aggregation: Aggregation | None = None
    ) -> None:
        self.params = params
        self.context = context
        self.objective = objective or self.objective_class(params, context)
        self.aggregation = aggregation or self.aggregation_class(params, context)
        self.train = context.config.train
        space = context.space
        self.shared_names = self.select_shared()
        # Untrained tensors keep their initial values, on the server and on the clients.
        trained = space.select(self.objective.trained_roles)
        self.private_names = tuple(name for name in trained if name not in set(self.shared_names))
        tests_local_net = self.private_names and context.config.eval.state == "local_encoder"
        self.tested_names = space.names if tests_local_net else self.private_names
        """Names of the tensors for which a client's test uses the client's own values; for the others it uses the server's."""
        self.kept_names = self.tested_names
        """Names of the net's tensors that a client keeps between rounds. They include :attr:`tested_names`, unless the method
        overrides :meth:`client_state` (Ditto and APFL keep whole models under names of their own)."""
        self._unpacked: tuple[Tensor, dict[str, Tensor]] | None = None

    @classmethod
    def suggested(cls, params: Any) -> Mapping[str, Any]:
        """As :meth:`fedpriv.interfaces.Part.suggested`."""
        return cls.suggests

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        """As :meth:`fedpriv.interfaces.Part.unused_options`; may contain config keys, such as ``train.local_epochs``."""
        reason = f"method {cls.name}, which sends nothing"
        return {} if cls.shared else dict.fromkeys(("train.min_uploads", "train.max_update_norm"), reason)

    @property
    def notes(self) -> Sequence[str]:
        """As :attr:`fedpriv.interfaces.Part.notes`; by default those of both parts."""
        return [note for part in self.parts for note in part.notes]

    @property
    def parts(self) -> tuple[Objective, Aggregation]:
        """The client part and the server part, in the order in which their hooks are called."""
        return self.objective, self.aggregation

    def select_shared(self) -> tuple[str, ...]:
        """The names of the tensors that are sent, in row order; by default those of the shared roles that are trained.

        Raises:
            UsageError: a shared role does not exist.
        """
        if unknown := sorted(self.shared - set(ROLES)):
            raise UsageError(f"method {self.name} shares the role {unknown[0]!r}; nets have the roles {', '.join(ROLES)}")
        return self.context.space.select(self.shared & self.objective.trained_roles, buffers=self.buffers == "average")

    # --- the server's side -------------------------------------------------------------------------------------------

    def start(self, row: Tensor) -> ServerState:
        """The server's state before the first round, from the initial model ``(p,)``."""
        return ServerState(row, self.aggregation.start(row))

    def broadcast(self, server: ServerState) -> Payload | None:
        """The message to all clients before the first round (round 0); ``None``: there is none."""
        return Payload(self.context.space.unpack(server.row), round=0) if self.round_zero else None

    def participants(self, round: int, sampled: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
        """The clients that train in a round (counted from 1); by default those that were sampled."""
        return sampled

    def download(self, server: ServerState, round: int) -> Payload | None:
        """The message to every client of a round; ``None``: the method shares nothing."""
        if not self.shared_names:
            return None
        names = self.aggregation.download_names(self.shared_names, server.memory, round)
        model = self.context.space.unpack(server.row, names)
        return Payload({**model, **self.aggregation.server_statistics(server.memory)}, round)

    def forms(
        self, received: Mapping[str, Tensor], round: int, examples: int, unused: frozenset[str] = frozenset()
    ) -> dict[str, Form]:
        """The dtype, shape and range that the server requires of each tensor of an upload (:meth:`upload`), by full name.

        Args:
            received: the client's download, by name.
            round: counted from 1.
            examples: the largest number of training samples that a client may have.
            unused: names of the net's tensors that the client's data do not affect.
        """
        space = self.context.space
        forms = {name: Form(space[name].shape) for name in self.aggregation.upload_names(self.shared_names, received, round)}
        steps = sum(max(phase.steps or 0, phase.epochs * examples) for phase in self.phases(round))
        for part in self.parts:
            statistics = part.forms(received, steps)
            forms |= {name: form for name, form in statistics.items() if tensor_of(name) not in self.private_names}
        return {name: form for name, form in forms.items() if tensor_of(name) not in unused}

    def remember(
        self, before: ServerState, merged: ServerState, statistics: Sequence[Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """The server's memory after a merge, by name; by default the aggregation's.

        Args:
            before, merged: the server's state before and after the merge.
            statistics: what each client sent besides the model, by full name.
        """
        return merged.memory

    # --- secure aggregation: the server sees a sum over the clients, and no single upload --------------------------------

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """What a client adds to the sum; by default :meth:`fedpriv.aggregation.Aggregation.addend`."""
        return self.aggregation.addend(upload, received, weight)

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        """A stand-in upload: merging ``count`` copies of it gives the same model as merging the clients' uploads.

        By default that of the aggregation.
        """
        return self.aggregation.mean_upload(sums, received, weight, count)

    def mean_forms(self, forms: Mapping[str, Form], count: int) -> Mapping[str, Form]:
        """The forms of :meth:`mean_upload`, given those of one client's upload; by default the same."""
        return forms

    # --- the client's side -------------------------------------------------------------------------------------------

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        """The private state of a client before its first local update, given the initial model ``(p,)``."""
        private = self.context.space.unpack(initial, self.kept_names)
        for part in self.parts:
            private |= part.initial_private(initial)
        return private

    def phases(self, round: int) -> Sequence[Phase]:
        """The phases of local training in a round; by default one, which trains all that the objective trains."""
        return [phase(*self.objective.trained_roles, epochs=self.train.local_epochs, steps=self.train.local_steps)]

    @property
    def local_loss(self) -> Loss:
        """The loss that clients minimise; by default the objective's. A subclass may define a method ``local_loss(step)``."""
        return self.objective.loss

    def begin(self, update: LocalUpdate) -> None:
        """Called on the client before training."""
        self.aggregation.set_start(update)
        for part in self.parts:
            part.begin(update)

    def local_update(self, update: LocalUpdate) -> None:
        """Train a client for one round.

        Under sample-level DP this must train exactly the phases that :meth:`phases` returns, as epsilon is computed from them.
        """
        self.begin(update)
        for planned in self.phases(update.round):
            update.train(planned, self.local_loss, self.objective)

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        """What the upload contains besides the model, by full name; without statistics about private tensors."""
        private = {*self.private_names, *update.unused}
        statistics = {name: tensor for part in self.parts for name, tensor in part.statistics(update).items()}
        return {name: tensor for name, tensor in statistics.items() if tensor_of(name) not in private}

    def upload(self, update: LocalUpdate) -> Payload | None:
        """The client's upload, before transforms; ``None``: the method shares nothing."""
        if not self.shared_names:
            return None
        names = [
            name
            for name in self.aggregation.upload_names(self.shared_names, update.received, update.round)
            if name not in update.unused
        ]
        tensors = {**update.state(names), **self.statistics(update)}
        return Payload(tensors, update.round, update.client, num_examples=update.num_examples)

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        """The client's private state until its next local update."""
        private = update.state(self.kept_names)
        for part in self.parts:
            private |= part.keep(update)
        return private

    # --- evaluation --------------------------------------------------------------------------------------------------

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        """The model that a client is tested with: the server's ``(p,)`` with the client's private tensors, by name."""
        own = {name: private[name] for name in self.tested_names}
        if self._unpacked is None or self._unpacked[0] is not row:  # all clients use the same row
            self._unpacked = row, self.context.space.unpack(row)
        return {**self._unpacked[1], **own}

    def adaptation(self, round: int) -> Sequence[Phase]:
        """Phases in which a client trains a copy of its model before it is tested; by default none. They change no state."""
        return ()

    @property
    def averaged_rounds(self) -> int:
        """The number of final rounds over which the reported accuracy is averaged."""
        config = self.context.config
        return min(config.eval.last, config.train.rounds)

    @property
    def tested_from(self) -> int:
        """The first round whose test follows the method's whole protocol; earlier tests may leave out fine-tuning."""
        return 1

    @property
    def server_names(self) -> tuple[str, ...]:
        """The names of the net's tensors whose trained values the server has, in row order."""
        return self.private_names if self.pools else self.shared_names

    @property
    def has_global_model(self) -> bool:
        """Whether the server's model is complete, so that it can be tested on the server's test set."""
        return not self.private_names


_OPTIONS: dict[tuple[type[Method], bool, bool], type[Any]] = {}
"""Cache of :func:`options_of`: making a dataclass takes a tenth of the time of a small run."""


def options_of(method: type[Method], own_objective: bool = True, own_aggregation: bool = True) -> type[Any]:
    """The dataclass of a method's options: its own, and those of its parts that are not replaced."""
    key = method, own_objective, own_aggregation
    if key not in _OPTIONS:
        _OPTIONS[key] = _compose_options(*key)
    return _OPTIONS[key]


def _compose_options(method: type[Method], own_objective: bool, own_aggregation: bool) -> type[Any]:
    parts = [method.Params]
    parts += [method.objective_class.Params] if own_objective else []
    parts += [method.aggregation_class.Params] if own_aggregation and method.shared else []
    bases: list[type[Any]] = []
    for part in parts:
        if fields(part) and not any(issubclass(base, part) for base in bases):
            bases.append(part)
    if not bases:
        return NoParams
    known = {name: info for base in bases for name, info in base.__pydantic_fields__.items()}
    changed: dict[str, Any] = {}
    for name in method.defaults.keys() & known.keys():
        changed[name] = copy(known[name])
        changed[name].default = method.defaults[name]
    if len(bases) == 1 and not changed:
        return bases[0]
    body = {**changed, "__annotations__": {name: info.annotation for name, info in changed.items()}}
    # A dataclass lists its last base's fields first; the bases are reversed so that the method's own options come first.
    composed: type[Any] = params(type(f"{method.__name__}Options", tuple(reversed(bases)), body))
    return composed
