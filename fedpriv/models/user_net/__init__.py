"""Nets of the user, given as a class or function, or by its name ``package.module:Name``."""

from fedpriv.models.user_net.importing import find_user_net, hash_user_net, is_user_net, name_of, unimportable_note
from fedpriv.models.user_net.roles import build_user_net

__all__ = ["build_user_net", "find_user_net", "hash_user_net", "is_user_net", "name_of", "unimportable_note"]
