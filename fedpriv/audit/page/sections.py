"""An audit as the sections of its page, in the order of reading; a section without findings says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from fedpriv.attacks.attack import ATTACKS
from fedpriv.audit.answer import WORDS
from fedpriv.audit.formats import listed, of_score, over_rounds, paired, percent, plain, ranked, size, whole
from fedpriv.audit.page import findings, overview, words
from fedpriv.audit.page.blocks import (
    Block,
    Bullets,
    Content,
    Details,
    Facts,
    Inline,
    Paragraph,
    Row,
    Section,
    Styled,
    Table,
    Verbatim,
)
from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.audit.results.wire import TensorInfo
from fedpriv.audit.sentences.overview import cost_in_sentences
from fedpriv.scores.catalogue import score_named

_FEW = 12
"""Most rows of a table of details that the page shows unfolded."""


def sections(audit: Audit) -> list[Section]:
    """The sections of the page below its heading."""
    controls: list[Block] = [Paragraph(words.CONTROLS), findings.controls(audit.controls, "Controls")]
    options = Paragraph(f"{listed(paired(audit.options, ' = '))}.")
    return [
        overview.answers(audit),
        *([overview.summary(audit.runs)] if audit.runs else []),
        *overview.tradeoff(audit.runs),
        *(_run(number, run) for number, run in enumerate(audit.runs, 1)),
        *([Section("Controls", controls, anchor="controls", link="Controls")] if audit.controls else []),
        *([Section("Options of the audit", [options], anchor="options", link="Options")] if audit.options else []),
        _terms(audit.runs),
    ]


def _terms(runs: Sequence[AuditedRun]) -> Section:
    meant = [words.RULES.format(words=", ".join(WORDS)), *([words.RULES_OF_ROWS] if any(run.rows for run in runs) else [])]
    attempts = {outcome.attack for run in runs for at in (*run.images, *run.texts, *run.rows) for outcome in at.outcomes}
    known = {name: kind for name, kind in ATTACKS.all().items() if name in attempts}
    attacks = {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in known.items()}
    terms = {"answer": " ".join(meant)} | words.GLOSSARY | attacks
    return Section("Terms", [Facts(terms.items(), "terms")], anchor="terms", link="Terms")


def _run(number: int, run: AuditedRun) -> Section:
    method, model = Styled(run.method, "code"), Styled(run.model, "code")
    extent = f"{run.participants} of {run.clients} clients a round, {run.rounds} rounds, seed {run.seed}"
    paper = f" ({run.paper})" if run.paper else ""
    about: tuple[Inline, ...] = (f"{run.title}{paper}, ", method, " with ", model, f" on {run.dataset}: {extent}. ")
    if run.source == "update":
        about = (f"{run.title}: ", model, f" on {run.dataset}, without a run around it. ")
    defence = f"Defence: {listed(run.defence, 'not known' if run.source == 'update' else 'none')}."
    known = {"The server": run.server_knows, "An outsider in transit": run.outsider_knows}
    known["Conditions of this run"] = run.conditions
    sides = [Section(who, [Bullets(facts)]) for who, facts in known.items() if facts]
    blocks: list[Block] = [
        Paragraph((*about, defence), "soft"),
        _sent(run),
        *([Section("What each party knows", [Section("", sides, "sides")])] if sides else []),
        *([_before(run)] if run.before else []),
        *([_statistics(run)] if run.statistics else []),
        *([_noise(run)] if run.snr else []),
        *findings.findings(run),
        *([] if run.source == "update" else [_cost(run)]),
    ]
    return Section(f"{number} {run.name}", blocks, "run", f"run-{number}", f"{number} {run.name}")


def _sent(run: AuditedRun) -> Section:
    by_role, tensors = [], []
    for role in dict.fromkeys(tensor.role for tensor in run.wire.tensors):
        of_role = [tensor for tensor in run.wire.tensors if tensor.role == role]
        sent = [[tensor.bytes * way for way in (*_ways(tensor), not tensor.was_sent)] for tensor in of_role]
        by_role.append(Row((role, len(of_role), *(size(sum(way)) for way in zip(*sent, strict=True)))))
    for tensor in run.wire.tensors:
        about = (tensor.role, tensor.dtype, " × ".join(map(str, tensor.shape)), whole(tensor.bytes))
        ways = ["yes" if way else "no" for way in _ways(tensor)]
        tensors.append(Row((Styled(tensor.name, "code"), *about, *ways), "" if tensor.was_sent else "stays"))
    schemas = [
        Row((Styled(form.hash, "code"), form.tensors, whole(form.bytes), "; ".join(form.messages))) for form in run.wire.schemas
    ]
    parts = ("#tensors", "#in an upload", "#in a download", "#in the broadcast of round 0", "#never sent")
    every = ("tensor", "part", "type", "shape", "#bytes", "up", "down", "round 0")
    traffic = ("round", "#all uploads, bytes", "#all downloads, bytes")
    forms = ("form (hash of names, types and shapes)", "#tensors", "#bytes", "~messages")
    details = {
        f"every tensor ({len(tensors)})": Table("Every tensor", every, tensors),
        "bytes per round": Table("Bytes per round", traffic, list(_traffic(run))),
        f"forms of the messages ({len(schemas)})": Table("Forms of the messages", forms, schemas),
    }
    recorded = {name: table for name, table in details.items() if table.rows}
    summary = listed(list(recorded))
    blocks: list[Block] = [
        Table("Bytes by role", ("part of the model", *parts), by_role),
        Paragraph(f"Besides tensors, each message states: {listed(run.wire.facts, 'nothing')}."),
    ]
    if recorded:
        blocks.append(Details(summary[:1].upper() + summary[1:], list(recorded.values())))
    return Section("What the client sends", blocks)


def _ways(tensor: TensorInfo) -> tuple[bool, bool, bool]:
    return tensor.up, tensor.down, tensor.broadcast


def _traffic(run: AuditedRun) -> Iterator[Row]:
    """Consecutive rounds with equal traffic as one line."""
    for (up, down), group in groupby(run.wire.rounds, lambda traffic: (traffic.bytes_up, traffic.bytes_down)):
        numbers = [traffic.round for traffic in group]
        which = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, each"
        yield Row((which, whole(up), whole(down)))


def _before(run: AuditedRun) -> Section:
    """What the clients told of their samples before round 1, from the messages that were kept."""
    rows, names = [], run.client_names
    for line in run.before:
        who: Content = "all together" if line.client is None else names[line.client] if names else line.client
        rows.append(Row((who, line.column or "all", line.says, whole(line.bytes))))
    table = Table("Statistics of training samples", ("client", "column", "~what it tells", "#bytes of the message"), rows)
    shown: Block = table if len(rows) <= _FEW else Details(f"Every statistic ({len(rows)})", [table])
    return Section("What is told before training", [Paragraph(words.BEFORE), shown])


def _statistics(run: AuditedRun) -> Section:
    heads = ("statistic", "#tensors", "#bytes in a message", "~what it reveals of a client", "attacked")
    rows = []
    for statistic in run.statistics:
        amount = (statistic.tensors, whole(statistic.bytes))
        rows.append(Row((statistic.what, *amount, statistic.says, statistic.attacked or "no")))
    colours = ("#round", "client", "#found", "#true", "#off by", "#the data set's mean is off by")
    means = []
    for mean in run.mean_colours:
        both = [", ".join(plain(value, 3) for value in colour) for colour in (mean.estimate, mean.true)]
        means.append(Row((mean.round, mean.sender.short, *both, plain(mean.error, 3), plain(mean.baseline_error, 3))))
    tables = (Table("Statistics", heads, rows), Table("Mean colour", colours, means, lead=words.MEAN_COLOUR))
    exposed = [Paragraph(words.EXPOSED.format(what=listed(run.exposed)))] if run.exposed else []
    return Section("What is sent besides the model", [*tables, *exposed])


def _noise(run: AuditedRun) -> Section:
    heads = ("layer", "#least, dB", "#median, dB", "#rounds")
    rows = [Row((Styled(snr.layer, "code"), plain(snr.min, 1), plain(snr.median, 1), snr.rounds)) for snr in run.snr]
    table = Table("Signal-to-noise ratio", heads, rows, lead=words.SNR)
    return Section("Signal-to-noise ratio of the defences", [table])


def _cost(run: AuditedRun) -> Section:
    def hashed(value: str | None) -> Content:
        return "not recorded" if value is None else Styled(value, "code")

    cost, score = run.cost, score_named(run.cost.metric)
    of_numbers = score.of_numbers

    def shown(value: float | None) -> str:
        return "not measured" if value is None else of_score(cost, value) if of_numbers else percent(value)

    accuracy, worst = shown(cost.ranked if of_numbers else cost.accuracy), shown(cost.worst_tenth)
    title = score.title if of_numbers else "Accuracy"
    traffic = f"{size(cost.bytes_up)} up, {size(cost.bytes_down)} down, {plain(cost.seconds, 0)} s"
    first = "" if cost.metric == "accuracy" or of_numbers else f"Ranked by {ranked(cost)}{over_rounds(cost)}. "
    rounds = "" if first else over_rounds(cost)
    sentences = [f"{first}{title} {accuracy}{rounds}, in the worst tenth of the clients {worst}; {traffic}."]
    for probe in cost.probes:
        labels = f"{percent(probe.fraction)} of the labels of {probe.dataset}"
        sentences.append(f"A linear probe on {labels}: {percent(probe.accuracy)}.")
    facts: list[tuple[str, Content]] = [
        ("run", (Styled(run.run_id, "code"), " in ", Styled(run.run_dir, "code"))),
        ("seed", run.seed),
        ("git commit", hashed(run.git_commit)),
        ("partition", hashed(run.partition_hash)),
        ("versions", listed(paired(run.versions), "not recorded")),
    ]
    record = Details("Config, versions, commit, seed", [Facts(facts), Verbatim(run.config_yaml)])
    return Section("Cost", [Paragraph(" ".join([*sentences, cost_in_sentences(run)])), record])
