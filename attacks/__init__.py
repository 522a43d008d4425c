"""Attacks on what crosses the wire. They know tensors and functions, and nothing of :mod:`fedpriv`.

* :mod:`attacks.core`: what an attacker gets and gives back, and attacks by name.
* :mod:`attacks.gradients`: what a gradient says in closed form, and how far a guess's is from it.
* :mod:`attacks.optimise`: minimisers of many independent problems at once.
* :mod:`attacks.image`, :mod:`attacks.text`, :mod:`attacks.inference`: the attacks, by what they find.
* :mod:`attacks.scoring`: how good a find is, and what guesses score.
* :mod:`attacks.lab`: reference victims, and the controls that are run with every attack.
"""
