"""Nets as encoder, projector, predictor and head: the structure, the registry, and the architectures."""

from fedpriv.models.net import ROLES, Net, Outputs, RoleSize, describe
from fedpriv.models.registry import ModelSpec, build_model, list_models, model_names, model_spec, register_model

__all__ = [
    "ROLES",
    "ModelSpec",
    "Net",
    "Outputs",
    "RoleSize",
    "build_model",
    "describe",
    "list_models",
    "model_names",
    "model_spec",
    "register_model",
]
