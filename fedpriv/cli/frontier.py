"""``fedpriv frontier``: which defence to choose."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.audit import extent_options
from fedpriv.cli.common import command, console, loading
from fedpriv.cli.terminal import FilePath


@command(main, "frontier")
@click.option("--config", "config_file", type=FilePath(), help="YAML file of the run, as `fedpriv train` takes it.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any config key; repeatable.")
@click.option("--methods", help="Names of `fedpriv methods`, separated by spaces. Default: the config's method.")
@click.option(
    "--defenses",
    multiple=True,
    metavar="DEFENCE[ DEFENCE…]",
    help="As --defense of train, several joined by +; also dp-client, dp-sample:noise=1, secure-aggregation. An option that is "
    "a range, such as gaussian:variance=1e-7..1e-2, is searched. Separated by spaces; repeatable.",
)
@click.option(
    "--target",
    help="What must hold: recovered, words, cells, membership_auc, epsilon, labels, such as 'recovered<=0.05,epsilon<=8'.",
)
@click.option(
    "--output", type=FilePath(file_okay=False), default=Path("frontier"), show_default=True, help="Folder of all files."
)
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time. Default: one for each core.")
@extent_options
def frontier(
    config_file: Path | None,
    assignments: tuple[str, ...],
    methods: str | None,
    defenses: tuple[str, ...],
    target: str | None,
    output: Path,
    jobs: int | None,
    **extent: int,
) -> dict[str, Any]:
    """Find the most accurate method and defence that meet a target.

    Trains and audits every method with every defence, and draws accuracy against leakage against bytes. The strength of a defence
    with a range is searched first without training: the clients repeat their local training from the downloads that the run kept.
    The point that is chosen is trained and audited again on a fresh seed. Called again, it continues where it was interrupted.

    \b
    Example: fedpriv frontier --methods "mpfedcon fedavg" --defenses "mask:last=2 gaussian:variance=1e-7..1e-3" \\
               --target "recovered<=0.05,membership_auc<=0.7"
    """
    loading()
    from fedpriv.audit.conditions import conditions
    from fedpriv.audit.results.stored import to_json
    from fedpriv.audit.run_audit import AuditOptions
    from fedpriv.config import RunConfig, lay_over, parse, parse_assignment, read_yaml
    from fedpriv.frontier.grid import Defence
    from fedpriv.frontier.plan import Plan
    from fedpriv.frontier.run import frontier
    from fedpriv.frontier.show import answer
    from fedpriv.plugins import load_plugins
    from fedpriv.processes import usable_cores

    base = read_yaml(config_file) if config_file else {}
    lay_over(base, dict(map(parse_assignment, assignments)))
    base.pop("run_dir", None)  # of a run's own config.yaml
    where = f"config {config_file}" if config_file else "the config"
    named = parse(RunConfig, {"plugins": base.get("plugins") or ()}, where).plugins
    load_plugins(named, of=where.removeprefix("config "))
    given = click.get_current_context().meta.get("fedpriv.plugins", ())
    base["plugins"] = list(dict.fromkeys(str(file.absolute()) for file in (*named, *given)))  # the runs' processes need them, too
    chosen = {part: base[part] for part in ("method", "objective", "aggregation") if part in base}
    plan = Plan(
        base,
        where,
        (methods or parse(RunConfig, chosen, where).method.name).replace(",", " ").split(),
        [Defence.read(defence) for text in defenses for defence in text.split()],
        conditions(target, "--target") if target else (),
        AuditOptions(**extent),
        jobs or usable_cores(),
        f"fedpriv frontier {shlex.join(sys.argv[2:])}",
    )
    out = console()
    result = frontier(plan, output, lambda text: out.print(text, soft_wrap=True))
    out.print(f"\n{answer(result)}\n\nall points: {output / 'frontier.md'}, {output / 'frontier.png'}", soft_wrap=True)
    out.print(f"all audits: {output / 'report' / 'audit.html'}", soft_wrap=True)
    return to_json(result)
