"""Attacks on messages of federated learning. They take tensors and nets, and import nothing of :mod:`fedpriv`.

* :mod:`attacks.core`: the input and the result of an attack, and the registry of attacks.
* :mod:`attacks.gradients`: closed forms on gradients, and distances between them.
* :mod:`attacks.optimise`: minimisers of many independent problems at once.
* :mod:`attacks.image`, :mod:`attacks.text`, :mod:`attacks.inference`: the attacks, by what they recover.
* :mod:`attacks.malicious`: those of a server that alters what it sends.
* :mod:`attacks.scoring`: scores of reconstructions, and of baselines without a message.
* :mod:`attacks.lab`: reference victims, and the controls that are run with every attack.
"""
