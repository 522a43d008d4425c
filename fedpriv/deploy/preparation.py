"""What the server of a deployment knows of how the clients' samples become inputs of the net."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.agreement import Agreement
from fedpriv.data.encoding import Encoding
from fedpriv.data.preprocessing.stored import Preprocessing, ScaledForm, TextForm
from fedpriv.data.sources import known_scaling
from fedpriv.deploy.facts import Facts
from fedpriv.server.statistics import Gathered


def preprocessing_of(agreement: Agreement, facts: Sequence[Facts], statistics: Gathered | None) -> Preprocessing | None:
    """How the clients' samples become inputs; ``None``: they alone know by what their images are scaled.

    Args:
        statistics: of the clients' training rows; ``None``: they were not asked for any.
    """
    first, config = facts[0], agreement.config
    shape, encoding = first.form.shape, Encoding() if statistics is None else statistics.encoding
    image = array = text = None
    if first.form.words is not None:
        assert config.data.max_tokens is not None
        text = TextForm(config.data.max_tokens, first.form.words)
    if shape is not None and first.unscaled is not None and not first.unscaled.images:
        array = ScaledForm(shape, encoding.mean, encoding.std)
    elif shape is not None:
        mean, std = encoding.mean, encoding.std
        if not mean:
            mean, std = known_scaling(config.data, shape[0], named=first.partition is not None)
        if not mean:
            return None
        image = ScaledForm(shape, mean, std)
    return Preprocessing(agreement.declared.class_names or first.classes, encoding.columns, image, text, array, encoding.target)
