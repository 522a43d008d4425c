"""The results of an audit as typed records; ``audit.py`` has all of them, and ``audit.json`` is their JSON form."""
