"""The ``fedpriv`` command. Command modules import click alone at the top, so that ``--help`` is instant."""

import importlib

import click

from fedpriv.cli.terminal import SafeGroup


@click.group(cls=SafeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fedpriv")
def main() -> None:
    """Federated learning whose accuracy, cost and privacy leakage are measured on the same run.

    \b
    Example: fedpriv train --method mpfedcon
    """


for _module in (
    "train",
    "sweep",
    "methods",
    "defenses",
    "models",
    "data",
    "config",
    "ui",
    "sync",
    "compare",
    "probe",
    "predict",
    "deploy",
    "deploy_runs",
    "deploy_members",
    "experiment",
    "attack",
    "audit",
    "frontier",
    "record",
    "new_plugin",
    "doctor",
):
    importlib.import_module(f"fedpriv.cli.{_module}")
