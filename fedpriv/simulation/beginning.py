"""What a run writes into its folder before its first round: its data, its preprocessing, given weights, and facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig
from fedpriv.data.user_data.owners import owners_of
from fedpriv.files import save_tensors
from fedpriv.methods.build import changed_options
from fedpriv.scores.custom import CustomScores
from fedpriv.simulation.inputs.described import preprocessing_of
from fedpriv.simulation.reopening import hashes
from fedpriv.simulation.setup import Federation
from fedpriv.storage.provenance import first_facts
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import default_uri


def describe(federation: Federation, folder: RunFolder, custom: CustomScores) -> None:
    """Write the partition, the preprocessing, given weights, and the facts that are known before the first round."""
    save_partition(federation, folder)
    save_preprocessing(federation, folder)
    save_given(federation.agreement, folder)
    with folder.writing("the beginning of the run"):
        owners = owners_of(federation.config.data, federation.dataset.owners)
        names = {} if owners is None else {"client_names": list(owners.names)}
        names |= {"custom_scores": list(custom)} if custom else {}
        notes, executor = list(federation.prepared.notes), str(federation.choice)
        note_beginning(folder, federation.config, hashes(federation), notes=notes, executor=executor, **names)


def note_beginning(folder: RunFolder, config: RunConfig, hashes: Mapping[str, str], **facts: Any) -> None:
    """Write the facts of a run before its first round into its folder.

    Args:
        hashes: of its data, by the name of the fact.
        facts: further facts, or replacements.
    """
    tracking = config.tracking
    uri = tracking.uri or (default_uri(folder.path.parent) if tracking.name == "mlflow" else "none")
    folder.update_facts(**first_facts(config, folder, hashes, uri) | {"changed_options": changed_options(config)} | facts)


def save_given(agreement: Agreement, folder: RunFolder) -> None:
    """Write the weights that the run starts from into its folder, if some were given."""
    if agreement.given.tensors:
        with folder.writing("the weights that it starts from"):
            save_tensors(folder.init_file, agreement.given.tensors)


def save_partition(federation: Federation, folder: RunFolder) -> None:
    with folder.writing("the partition"):
        federation.data.partition.save(folder.partition_file)


def save_preprocessing(federation: Federation, folder: RunFolder) -> None:
    with folder.writing("the preprocessing"):
        preprocessing = preprocessing_of(federation.config, federation.dataset, federation.prepared.encoder)
        preprocessing.save(folder.preprocessing_file)
