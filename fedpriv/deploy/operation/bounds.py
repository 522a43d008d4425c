"""Bounds on what a peer can make a server hold in memory, before and after its login."""

from fedpriv.deploy.stream import MAX_HEAD_BYTES

MAX_ANONYMOUS = 2**16
"""Bytes of a request's body without a valid login, and of its headers."""
MAX_BODY = MAX_HEAD_BYTES + 2**20
"""Bytes of any body: a frame's head and its frame. The parts of a message arrive in chunks of 5 MiB, however large a model is."""
MAX_IN_FLIGHT, MAX_OF_A_KEY = 2**28, 2**26
"""Bytes of all bodies that are being received, and of those of one key. Further bodies wait; TCP holds their senders back."""
MAX_OBJECTS = 2**10
"""Objects of a reply: a few, two for each part, and one more for each further 5 MiB. An upload of 4 GiB has about 830."""
DATABASE_CACHE = 2**22
"""Bytes of its database that each of the SuperLink's connections to it keeps in memory; there are at most 15."""
PAUSE, RATE = 30.0, 2**14
"""A body has ``PAUSE`` seconds, and one more for each ``RATE`` bytes."""
HEADER = 10.0
"""Seconds that a connection may take for the headers of a request, and that it may be idle."""
MAX_CONNECTIONS, MAX_OF_AN_ADDRESS = 4096, 64
"""Connections at once, and those of one address other than loopback, from which the reverse proxy comes."""
