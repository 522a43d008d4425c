"""The base class of methods: the shared roles, the state of each side, and the four steps of a round.

A method has no access to the loop, the wire or another client: it gets a :class:`LocalUpdate` on the client's side and sealed
payloads on the server's. Its two halves, ``Objective`` and ``Aggregation``, can each be replaced by another one by name; a
method overrides what its paper changes besides the two halves. The defaults are FedAvg's.
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
    """The server's state: the model as a row ``(p,)``, and the tables that a method declares."""

    row: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the last merge for the round's record; not part of the state."""


class Method:
    """A federated method; see the module's docstring. Subclasses are registered with :func:`fedpriv.methods.register`."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    Params: ClassVar[type[Any]] = NoParams
    """The method's own options; :func:`options_of` adds those of its halves."""
    objective_class: ClassVar[type[Objective]] = CrossEntropy
    """The client's half."""
    aggregation_class: ClassVar[type[Aggregation]] = Mean
    """The server's half."""
    fixed_objective: ClassVar[str] = ""
    """Why its objective cannot be replaced; empty: it can."""
    needs_labels: ClassVar[str] = ""
    """Why its objective must learn from labels; empty: it need not."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Options of its own halves whose defaults the method changes."""
    suggests: ClassVar[Mapping[str, Any]] = {}
    """As :attr:`fedpriv.interfaces.Part.suggests`, before those of its halves."""
    shared: ClassVar[frozenset[str]] = frozenset(ROLES)
    """The roles that are sent; the others stay with the client."""
    sends: ClassVar[str] = ""
    keeps: ClassVar[str] = ""
    """As :attr:`fedpriv.interfaces.Part.sends` and ``keeps``, without those of the halves and without private roles."""
    no_dp: ClassVar[str] = ""
    """As :attr:`fedpriv.interfaces.Part.no_dp`, for the method itself."""
    buffers: ClassVar[Literal["average", "local"]] = "average"
    """Whether the floating-point buffers of shared roles are averaged like weights, or kept by each client."""
    replaced_keys: ClassVar[Mapping[str, str]] = {}
    """Config keys without effect under this method -> the option to use instead; a run that sets such a key warns."""
    partial_downloads: ClassVar[bool] = False
    """Whether a download may lack tensors that the method shares; of other methods, clients refuse one that does."""
    round_zero: ClassVar[bool] = False
    """Whether the initial model is sent to every client before the first round."""

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
        learnt = space.select(self.objective.trained_roles)  # the rest keeps its initial values, on every side
        self.private_names = tuple(name for name in learnt if name not in set(self.shared_names))
        tests_own = self.private_names and context.config.eval.state == "local_encoder"
        self.tested_names = space.names if tests_own else self.private_names
        """Names of the tensors that a test takes from the client; the others are the server's."""
        self.kept_names = self.tested_names
        """Names of the net's tensors that a client keeps between rounds; may be more than :attr:`tested_names`."""
        self._unpacked: tuple[Tensor, dict[str, Tensor]] | None = None

    @classmethod
    def suggested(cls, params: Any) -> Mapping[str, Any]:
        """As :meth:`fedpriv.interfaces.Part.suggested`."""
        return cls.suggests

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        """As :meth:`fedpriv.interfaces.Part.idle`; also keys of the config, such as ``train.local_epochs``."""
        silent = f"method {cls.name}, which sends nothing"
        return {} if cls.shared else dict.fromkeys(("train.min_uploads", "train.max_update_norm"), silent)

    @property
    def notes(self) -> Sequence[str]:
        """As :attr:`fedpriv.interfaces.Part.notes`; by default those of both parts."""
        return [note for part in self.parts for note in part.notes]

    @property
    def parts(self) -> tuple[Objective, Aggregation]:
        """Both halves, in the order in which the client's steps use them."""
        return self.objective, self.aggregation

    def select_shared(self) -> tuple[str, ...]:
        """The names of the tensors that are sent, in row order: by default those of the shared roles that are trained.

        Raises:
            UsageError: the method shares a role that no net has.
        """
        if strange := sorted(self.shared - set(ROLES)):
            raise UsageError(f"method {self.name} shares the role {strange[0]!r}; nets have the roles {', '.join(ROLES)}")
        return self.context.space.select(self.shared & self.objective.trained_roles, buffers=self.buffers == "average")

    # --- the server's side -------------------------------------------------------------------------------------------

    def start(self, row: Tensor) -> ServerState:
        """The server's state before the first round, from the initial model ``(p,)``."""
        return ServerState(row, self.aggregation.start(row))

    def broadcast(self, server: ServerState) -> Payload | None:
        """The broadcast of round 0 to every client, before the first round."""
        return Payload(self.context.space.unpack(server.row), round=0) if self.round_zero else None

    def participants(self, round: int, sampled: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
        """The clients of a round (1-based): by default those that the loop sampled."""
        return sampled

    def download(self, server: ServerState, round: int) -> Payload | None:
        """The download of each participant. ``None``: the method shares nothing."""
        if not self.shared_names:
            return None
        names = self.aggregation.download_names(self.shared_names, server.memory, round)
        return Payload(
            {**self.context.space.unpack(server.row, names), **self.aggregation.server_statistics(server.memory)}, round
        )

    def forms(
        self, received: Mapping[str, Tensor], round: int, examples: int, unused: frozenset[str] = frozenset()
    ) -> dict[str, Form]:
        """The form of each tensor of an upload (:meth:`upload`), by full name, as the server knows it before it arrives.

        Args:
            received: what the client was sent, by name.
            round: 1-based.
            examples: the most training samples that a client may have.
            unused: tensors of the net that the client's data never reach.
        """
        space = self.context.space
        found = {name: Form(space[name].shape) for name in self.aggregation.upload_names(self.shared_names, received, round)}
        steps = sum(max(stretch.steps or 0, stretch.epochs * examples) for stretch in self.phases(round))
        for half in self.parts:
            found |= {
                name: form for name, form in half.forms(received, steps).items() if tensor_of(name) not in self.private_names
            }
        return {name: form for name, form in found.items() if tensor_of(name) not in unused}

    def remember(
        self, before: ServerState, merged: ServerState, statistics: Sequence[Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """The server's state after a merge, without the model, by name; by default the aggregation's.

        Args:
            before, merged: the server's state before and after the merge.
            statistics: what each client of the round sent besides the model, by full name.
        """
        return merged.memory

    # --- from a sum over the clients, where no single upload reaches the server ------------------------------------------

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """What a client adds to the sum; by default the aggregation's (:meth:`fedpriv.aggregation.Aggregation.addend`)."""
        return self.aggregation.addend(upload, received, weight)

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        """The upload of which ``count`` copies merge as the uploads behind the sums do; by default the aggregation's."""
        return self.aggregation.mean_upload(sums, received, weight, count)

    def mean_forms(self, forms: Mapping[str, Form], count: int) -> Mapping[str, Form]:
        """The forms of :meth:`mean_upload`, given those of an upload; by default the same."""
        return forms

    # --- the client's side -------------------------------------------------------------------------------------------

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        """The private state of a client before its first local update, given the initial model ``(p,)``."""
        kept = self.context.space.unpack(initial, self.kept_names)
        for half in self.parts:
            kept |= half.initial_private(initial)
        return kept

    def phases(self, round: int) -> Sequence[Phase]:
        """The schedule of local training."""
        return [phase(*self.objective.trained_roles, epochs=self.train.local_epochs, steps=self.train.local_steps)]

    @property
    def local_loss(self) -> Loss:
        """The scalar that a client minimises; by default the objective's. A subclass may define a method ``local_loss(step)``."""
        return self.objective.loss

    def begin(self, update: LocalUpdate) -> None:
        """Called before local training."""
        self.aggregation.set_start(update)
        for half in self.parts:
            half.begin(update)

    def local_update(self, update: LocalUpdate) -> None:
        """A client's training in one round. Under sample-level DP it takes the steps of :meth:`phases`, which are booked."""
        self.begin(update)
        for stretch in self.phases(update.round):
            update.train(stretch, self.local_loss, self.objective)

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        """The statistics of the upload, by full name; without those of tensors that stay on the client."""
        private = {*self.private_names, *update.unused}
        found = {name: tensor for half in self.parts for name, tensor in half.statistics(update).items()}
        return {name: tensor for name, tensor in found.items() if tensor_of(name) not in private}

    def upload(self, update: LocalUpdate) -> Payload | None:
        """The upload, before transforms. ``None``: the method shares nothing."""
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
        """The client's private state for its next local update."""
        kept = update.state(self.kept_names)
        for half in self.parts:
            kept |= half.keep(update)
        return kept

    # --- evaluation --------------------------------------------------------------------------------------------------

    def client_state(self, row: Tensor, private: Private) -> dict[str, Tensor]:
        """The model with which a client is tested: the server's ``(p,)`` with the client's private tensors."""
        own = {name: private[name] for name in self.tested_names}
        if self._unpacked is None or self._unpacked[0] is not row:  # every client uses the same server state
            self._unpacked = row, self.context.space.unpack(row)
        return {**self._unpacked[1], **own}

    def adaptation(self, round: int) -> Sequence[Phase]:
        """Phases of training on a copy before a client's test in this round; they change no state. By default none."""
        return ()

    @property
    def averaged_rounds(self) -> int:
        """The number of last rounds over which the reported accuracy is averaged."""
        config = self.context.config
        return min(config.eval.last, config.train.rounds)

    @property
    def tested_from(self) -> int:
        """The first round whose test follows the method's complete protocol; before, fine-tuning may be left out."""
        return 1

    @property
    def has_global_model(self) -> bool:
        """Whether the server holds a complete model, which can be tested on the server's test set."""
        return not self.private_names


_OPTIONS: dict[tuple[type[Method], bool, bool], type[Any]] = {}
"""What :func:`options_of` has made: a dataclass takes a tenth of the time of a small run."""


def options_of(method: type[Method], own_objective: bool = True, own_aggregation: bool = True) -> type[Any]:
    """The dataclass of a method's options: its own, and those of its halves that are not replaced."""
    asked = method, own_objective, own_aggregation
    if asked not in _OPTIONS:
        _OPTIONS[asked] = _composed(*asked)
    return _OPTIONS[asked]


def _composed(method: type[Method], own_objective: bool, own_aggregation: bool) -> type[Any]:
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
    # The fields of the last base come first.
    composed: type[Any] = params(type(f"{method.__name__}Options", tuple(reversed(bases)), body))
    return composed
