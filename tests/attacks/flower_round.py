"""Two clients of Flower's SecAgg+ (``secaggplus_mod``), and what its server receives."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from fedpriv.attacks.inference.masked_sums import CLIP, LEVELS, Array, Words


def played(uploads: Sequence[Array]) -> tuple[list[Words], list[int], int]:
    """The masked uploads, the seeds of the private masks (which the server reconstructs), and the seed of the pairwise mask.

    The last is for the test alone, which searches near it.
    """
    from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    # The package has a function of the module's name.
    library = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    states: list[Any] = [library.SecAggPlusState(nid=number) for number in range(2)]
    setup = {
        Key.SAMPLE_NUMBER: 2,
        Key.SHARE_NUMBER: 2,
        Key.THRESHOLD: 2,
        Key.CLIPPING_RANGE: CLIP,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: 2**32,
        Key.MAX_WEIGHT: 1000.0,
    }
    keys = [library._setup(state, setup) for state in states]
    public = {str(number): (pair[Key.PUBLIC_KEY_1], pair[Key.PUBLIC_KEY_2]) for number, pair in enumerate(keys)}
    sent = [library._share_keys(state, public) for state in states]
    masked = []
    for number, state in enumerate(states):
        forwarded = {Key.CIPHERTEXT_LIST: sent[1 - number][Key.CIPHERTEXT_LIST], Key.SOURCE_LIST: [1 - number]}
        parameters = ndarrays_to_parameters([uploads[number]])
        answer = library._collect_masked_vectors(state, forwarded, 300 + 400 * number, parameters)
        parts = [bytes_to_ndarray(part) for part in answer[Key.MASKED_PARAMETERS]]
        masked.append(np.concatenate(parts).astype(np.uint32))
    shares = [library._unmask(state, {Key.ACTIVE_NODE_ID_LIST: [0, 1], Key.DEAD_NODE_ID_LIST: []}) for state in states]
    private = [combine_shares([share[Key.SHARE_LIST][owner] for share in shares]) for owner in range(2)]
    shared = generate_shared_key(bytes_to_private_key(states[0].sk1), bytes_to_public_key(states[1].pk1))
    return masked, [_folded(secret) for secret in private], _folded(shared)


def _folded(key: bytes) -> int:
    return int(np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4")))
