"""NVFlare jobs, recorded for an audit: :func:`record` adds filters to a recipe, which write what is sent and change nothing."""

from fedpriv.nvflare.recorder import RecordFilter, record

__all__ = ["RecordFilter", "record"]
