"""The one config of a run: typed, validated, read from YAML and written back to YAML."""

from fedpriv.config.data import DataConfig, LabelKind, PartitionConfig
from fedpriv.config.machinery import ExecutorConfig, TrackingConfig
from fedpriv.config.model import ModelConfig
from fedpriv.config.reading import assign, filled, laid_over, lay_over, load_config, lookup, parse, parse_assignment, read_yaml
from fedpriv.config.run import RunConfig
from fedpriv.config.sections import NamedOptions
from fedpriv.config.shares import part_of, usual_share
from fedpriv.config.training import EvalConfig, TrainConfig
from fedpriv.config.wire import PrivacyConfig, WireConfig

__all__ = [
    "DataConfig",
    "EvalConfig",
    "ExecutorConfig",
    "LabelKind",
    "ModelConfig",
    "NamedOptions",
    "PartitionConfig",
    "PrivacyConfig",
    "RunConfig",
    "TrackingConfig",
    "TrainConfig",
    "WireConfig",
    "assign",
    "filled",
    "laid_over",
    "lay_over",
    "load_config",
    "lookup",
    "parse",
    "parse_assignment",
    "part_of",
    "read_yaml",
    "usual_share",
]
