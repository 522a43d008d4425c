"""The audit's page: complete, well-formed, closed in itself, and careful with what it is told and what it says."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.audit.answer import concluded
from fedpriv.audit.membership.member_scores import OFFLINE, USED_BY
from fedpriv.audit.membership.readings import PROBE, STAND_IN
from fedpriv.audit.page.blocks import Block, Bullets, Details, Facts, Section, Table
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.page.sections import sections
from fedpriv.audit.page.words import GLOSSARY
from fedpriv.audit.results.audit import About, Audit, AuditedRun
from fedpriv.audit.results.epsilon import Canaries, EpsilonBounds
from fedpriv.audit.results.images import ImageOutcome, MeanColour
from fedpriv.audit.results.outcome import Interval, Sender
from fedpriv.audit.results.stored import from_json, to_json
from fedpriv.audit.results.wire import ToldBefore, Wire
from fedpriv.audit.rows.attributes import ATTACK as ATTRIBUTE
from fedpriv.errors import FedprivError
from fedpriv.samples import Modality
from tests.audit import built
from tests.audit.sample_findings import findings, pictures
from tests.audit.taken_apart import Page, at

HOSTILE = '<b onclick="x">\'|`*\n[a](b:c)'


def replaced(audit: Audit, change: Callable[[str, Any], Any]) -> Audit:
    """A copy with ``change(key, leaf)`` at every leaf."""

    def altered(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: altered(inner, name) for name, inner in value.items()}
        return [altered(inner, key) for inner in value] if isinstance(value, list) else change(key, value)

    return from_json(Audit, altered(to_json(audit)))


def of_first(audit: Audit, **changes: Any) -> Audit:
    """The audit with its first run changed."""
    return replace(audit, runs=(replace(audit.runs[0], **changes), *audit.runs[1:]))


def tables(markdown: str) -> list[list[str]]:
    """The lines of each table."""
    blocks = re.split(r"\n(?!\|)", markdown)
    return [lines for block in blocks if len(lines := [x for x in block.split("\n") if x.startswith("|")]) > 1]


def columns(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def unescaped(markdown: str) -> str:
    return re.sub(r"\\([^\w\s])", r"\1", markdown)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_html(findings(), pictures()))


@pytest.fixture(scope="module")
def markdown() -> str:
    return render_markdown(findings())


def test_every_verdict_and_every_attempt_appears(page: Page) -> None:
    audit = findings()
    for run in audit.runs:
        assert run.title in page.text and run.run_id in page.text
        assert all(sentence in page.text for sentence in run.verdict)
        for target in run.images:
            assert target.title in page.text
            assert all(name in page.text for name in target.baselines)
            for outcome in target.outcomes:
                assert outcome.attack in page.text and outcome.status.why in page.text
                assert all(sentence in page.text for sentence in outcome.knows)
    assert all(control.sentence in page.text for control in (*audit.controls, *audit.runs[0].membership_controls))


def test_markdown_has_the_page_without_shares_and_drawings(page: Page, markdown: str) -> None:
    results = " ".join(unescaped(markdown).replace("**", "").replace("`", "").split())
    parts = {" ".join(part.split()) for text in page.written for part in text.split("; ")}
    left_out = {part for part in parts if part not in results and not re.fullmatch(r"\(\d+\.\d %\)", part)}
    assert {part.split(": ")[0] for part in left_out} == {
        "Trade-off of leakage, accuracy and traffic",
        "Not drawn",
        "Round 1, client 0",
    }


def nothing_in(block: Block) -> bool:
    """Whether a block shows nothing below its heading."""
    match block:
        case Section() | Details():
            return not block.blocks or all(map(nothing_in, block.blocks))
        case Table() | Bullets():
            return not block.rows and not block.empty
        case Facts():
            return not list(block.entries)
    return False


def headed(blocks: Sequence[Block]) -> list[Section | Details]:
    """All blocks with a heading, or that unfold, at any depth."""
    inside = [block for block in blocks if isinstance(block, Section | Details)]
    return [block for block in inside if isinstance(block, Details) or block.title] + [
        inner for block in inside for inner in headed(block.blocks)
    ]


@pytest.mark.parametrize("modalities", [("image",), ("text",), ("image", "text"), ()])
def test_no_section_is_empty(modalities: tuple[Modality, ...]) -> None:
    audit = findings()
    bare = built.run(modalities=modalities, server_knows=(), outsider_knows=(), conditions=(), wire=Wire(), statistics=())
    bare = concluded(replace(bare, images=(), labels=(), membership=(), centers=(), epsilon=None))
    audits = [audit, *(replace(audit, runs=(run,)) for run in audit.runs), replace(audit, runs=(bare,), controls=(), options={})]
    for some in audits:
        parts = headed(sections(some))
        assert len(parts) > 4
        assert not [part for part in parts if nothing_in(part)]
        assert ("No control" in render_markdown(some)) is False
        with_controls = {part.title for part in parts if isinstance(part, Section)} & {"Controls"}
        assert bool(with_controls) == bool(some.controls)


def test_clients_and_classes_have_their_names_in_every_table() -> None:
    hospitals, classes = ("Basel", "Bern", "Chur", "Genf", "Zug", "Ulm", "Jena", "Kiel"), tuple("abcdefghij")

    def with_names(value: Any) -> Any:
        if isinstance(value, dict):
            named = {"name": hospitals[value["client"]]} if value.keys() == {"client", "clients", "trained", "name"} else {}
            return {key: with_names(inner) for key, inner in value.items()} | named
        return [with_names(inner) for inner in value] if isinstance(value, list) else value

    told = (ToldBefore(client=1, column="", says="70 training samples", bytes=9),)
    colour = MeanColour(round=1, sender=Sender(0), estimate=(0.5,), true=(0.5,), error=0.0, baseline_error=0.1)
    every = {"before": told, "mean_colours": (colour,), "client_names": hospitals, "class_names": classes}
    images, tables_of_rows = findings().runs[0], {"modalities": (), "attributes": (built.attribute(),)}
    runs = (replace(images, **every), replace(images, **every, **tables_of_rows))
    shown = tables(render_markdown(from_json(Audit, with_names(to_json(replace(findings(), runs=runs))))))
    found = dict[str, set[str]]()
    for head, _, *lines in shown:
        for line in lines:
            for name, cell in zip(head.split(" | "), line.split(" | "), strict=True):
                found.setdefault(name.strip("| "), set()).add(cell.strip("| "))
    assert found["client"] <= {*hospitals, "Basel, Bern"} and len(found["client"]) > 2
    held = {name for cell in found["holds"] | found["found"] for name in cell.split(", ")} - {"0.500"}
    assert held and held <= set(classes)


def test_of_many_classes_a_table_has_the_number_and_the_differences() -> None:
    names = tuple(f"intent {number}" for number in range(77))
    some, other = tuple(range(40)), (*range(1, 40), 70)
    labels = (
        built.labels(client=0, round=1, true=some, inferred=some, classes=77),
        built.labels(client=1, round=1, true=some, inferred=other, classes=77),
    )
    text = render_markdown(of_first(findings(), labels=labels, class_names=names))
    assert "| 40 of 77 | the same | exact |" in text
    assert "| 40 of 77 | not intent 0; wrongly intent 70 | not exact |" in text


def test_terms_lead_to_the_glossary_where_they_first_stand(page: Page) -> None:
    links = [link["href"] for link in page.all("a") if link.get("class") == "term"]
    assert "#term-message" in links and "#term-epsilon-delta" in links
    text = render_html(findings(), pictures())
    assert text.count('<a class="term" href="#term-message">') == 1
    before, _, _ = text[text.index("<main>") :].partition('<a class="term" href="#term-message">')
    shown = re.sub(r"<h\d>.*?</h\d>|<summary>.*?</summary>|<a .*?</a>|<figure.*?</figure>|<[^>]*>", " ", before, flags=re.DOTALL)
    assert not re.search(r"\bmessages?\b", shown, re.IGNORECASE)


def test_known_members_and_untried_attacks_are_shown(page: Page) -> None:
    assert "Known from reconstructions:" in page.text and "13 of 72 training images behind client 0" in page.text
    assert "Not tried: row distance, as no linear layer with a bias was shared." in page.text
    assert "Each interval is for that attack alone." in page.text
    assert "0.60 to 0.81, best of 2 reconstructed samples are known members" in page.text


def test_each_rule_for_labels_has_a_row(page: Page, markdown: str) -> None:
    row = "sets | 2 of 3 | 10.0 to 90.0 % | – | what class centres, in clear says | round 15 sent no centres |"
    assert (
        f"| class centres, in clear | {row}" in markdown
        and "| bias gradient | counts | 0 of 3 | 10.0 to 90.0 % | 44.0 % |" in markdown
    )
    assert {"class-wise embeddings", "what bias gradient says", "round 15 sent no centres"} <= set(page.texts)


def test_labels_over_rounds_stand_where_there_are_any(page: Page, markdown: str) -> None:
    assert markdown.count("From all kept messages of a client together") == 1
    assert "| 0 | 2 | 1, 4 | 1, 4 | exact | 1 | 83.0 % | 71.0 % |" in markdown
    assert sum("From all kept messages of a client together" in text for text in page.texts) == 1


def test_figures_are_written_as_they_were_found(page: Page, markdown: str) -> None:
    for figure in ("13 of 72", "10.9 to 28.5 %", "96.4 %", "217.8 MB", "0.71", "2.2e-02", "at most 8", "in 2 of 3 messages"):
        assert figure in page.text, figure
    assert "−2.3 percentage points, upload 0.80 times as large" in page.text
    assert "13 of 72 (by analytic) | 10.9 to 28.5 %" in markdown
    assert "1 to 20, each | 7,260,000 | 7,300,000" in markdown and "21 to 30, each | 7,260,000 | 7,301,000" in markdown


def test_what_was_not_measured_is_said_in_words(page: Page) -> None:
    local = page.text[page.text.rindex("Every client alone") :]
    for sentence in (
        "No attack was mounted on messages of this run",
        "No attack on labels was mounted",
        "No membership inference was mounted on messages of this run: the local update of a shadow client diverged.",
        "each message states: nothing",
        "worst tenth of the clients not measured",
        "A linear probe on 10.0 % of the labels of cifar10: 42.5 %.",
    ):
        assert sentence in local
    assert "Not drawn: local" in page.text
    bare = replace(findings(), runs=(), controls=(), options={})
    for text in (Page(render_html(bare, {})).text, render_markdown(bare)):
        assert "No run was audited." in text and "Controls" not in text and "Options" not in text


FIGURES = {
    "worst_tenth", "accuracy_difference", "bytes_up_ratio", "label_accuracy", "psnr_median_db", "feature_distance_median",
    "count_accuracy", "single_count_accuracy", "single_exact", "epsilon_lower", "distance_of_truth", "distance_of_recovered",
}  # fmt: skip


def test_any_figure_may_be_missing() -> None:
    def missing(run: AuditedRun) -> AuditedRun:
        rules = [replace(rule, exact=None, together=None, count_accuracy=None) for rule in run.label_rules]
        controls = [replace(membership_control, cpu_seconds=None) for membership_control in run.membership_controls]
        cost = replace(run.cost, accuracy=None, bytes_down=None, seconds=None)
        return replace(run, cost=cost, label_rules=tuple(rules), membership_controls=tuple(controls))

    audit = replace(findings(), runs=tuple(map(missing, findings().runs)))
    audit = replaced(audit, lambda key, leaf: None if key in FIGURES else leaf)
    text = Page(render_html(audit, pictures())).text
    assert "None" not in text.replace("None of the 72", "")
    assert "Trade-off" not in text
    assert "None" not in render_markdown(audit).replace("None of the 72", "")


def test_feature_distance_is_a_column_or_a_note() -> None:
    for text in (render_html(findings(), pictures()), render_markdown(findings())):
        assert "EfficientNet-Lite0 feature distance" in text and "Not measured: " not in text

    def without(outcome: ImageOutcome) -> ImageOutcome:
        figures = outcome.figures
        if figures is None:
            return outcome
        return replace(
            outcome, figures=replace(figures, feature_distance_median=None, feature_distance_missing="it needs a package")
        )

    images = tuple(target.only([without(outcome) for outcome in target.outcomes]) for target in findings().runs[0].images)
    audit = replace(of_first(findings(), images=images), runs=of_first(findings(), images=images).runs[:1])
    for text in (render_html(audit, pictures()), render_markdown(audit)):
        assert "EfficientNet-Lite0 feature distance" not in text and "Not measured: it needs a package." in text


def test_the_page_begins_with_an_answer_for_each_run(page: Page, markdown: str) -> None:
    for text in (page.text, markdown):
        first = text[: text.index("uploaded")]
        for sentence in (*(run.concluded.words for run in findings().runs), "What to do", "Not tried"):
            assert sentence in first


def test_what_a_person_says_of_a_run_is_on_its_page() -> None:
    about = About("Readmission <30 days", "A. Owner", "patients of four hospitals")
    audit = of_first(findings(), about=about)
    alone = replace(audit, runs=audit.runs[:1])
    for text in (render_html(alone, pictures()), render_html(audit, pictures())):
        assert "Readmission &lt;30 days" in text and "A. Owner" in text and "patients of four hospitals" in text
    assert render_markdown(alone).startswith("# Privacy audit: Readmission")
    assert "Privacy audit of" in render_markdown(audit).splitlines()[0]


def test_nothing_is_fetched_and_nothing_runs(page: Page) -> None:
    html = render_html(findings(), pictures())
    assert not re.search(r"https?:|url\(|@import|javascript:|<script|<link", html)
    assert page.all("a") and all((link["href"] or "").startswith("#") for link in page.all("a"))
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {(link["href"] or "")[1:] for link in page.all("a")} <= targets


def test_pictures_are_inside_with_words_for_who_cannot_see_them(page: Page) -> None:
    shown = page.all("img")
    result = [base64.b64decode((image["src"] or "").removeprefix("data:image/png;base64,")) for image in shown]
    assert result == [pictures()["mp-r1-c0.png"], *pictures().values()]  # that of the answer, then in the order of the page
    assert "what analytic, multistep, inverting gradients reconstructed" in (shown[1]["alt"] or "")
    with pytest.raises(FedprivError, match=re.escape("mp-single.png")):
        render_html(findings(), {"mp-r1-c0.png": b""})


KEPT = {"metric", "kind", "source", "picture", "created", "modalities", "word", "what", "use", "uses"}


def test_what_others_wrote_stays_text() -> None:
    clean = Page(render_html(findings(), pictures()))
    hostile = replaced(findings(), lambda key, leaf: leaf + HOSTILE if isinstance(leaf, str) and key not in KEPT else leaf)
    page = Page(render_html(hostile, pictures()))
    assert "b" in {tag for tag, _ in clean.tags}  # the page's own, without attributes
    assert not any(attributes for tag, attributes in page.tags if tag == "b")
    entries = {"div", "dt", "dd"}  # a glossary has no entry for an attack whose name was changed
    assert [tag for tag, _ in page.tags if tag not in entries] == [tag for tag, _ in clean.tags if tag not in entries]
    text = render_markdown(hostile)
    assert [len(table) for table in tables(text)] == [len(table) for table in tables(render_markdown(findings()))]
    outside = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    outside = re.sub(r"(?<![\\`])(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)  # code within lines
    assert not re.search(r"(?<!\\)<b|(?<!\\)\[a\]|(?<!\\)`", outside)


def test_rows_of_markdown_tables_are_as_long_as_their_heads() -> None:
    hostile = replaced(findings(), lambda key, leaf: leaf + "|" if isinstance(leaf, str) and key not in KEPT else leaf)
    for audit in (findings(), hostile):
        results = tables(render_markdown(audit))
        assert len(results) >= 15
        for table in results:
            assert len({columns(row) for row in table}) == 1, table[0]
            assert re.fullmatch(r"\|( --- \|)+", table[1])


def test_no_finding_is_called_safe(page: Page, markdown: str) -> None:
    for text in (page.text, markdown):
        assert not re.search(r"\b(safe|secure|private|protected|anonymous)\b", text, re.IGNORECASE)


def test_the_largest_area_is_that_of_conditions() -> None:
    """A reversed attack tells members as one minus its area, as ``--fail-if`` and ``fedpriv compare`` have it."""
    first, second, *_ = findings().runs[0].membership
    rows = (at(first, 0.52, Interval(0.45, 0.58, 3)), at(second, 0.25, Interval(0.18, 0.33, 3)))
    audit = of_first(findings(), membership=rows)
    text = Page(render_html(audit, pictures())).text
    assert "0.75 0.67 to 0.82, best of 3, scores read in reverse" in text
    (row,) = [line for line in render_markdown(audit).splitlines() if line.startswith("| 1 mp |")]
    assert "| 0.75" in row and "0.52" not in row


def bounded(upper: float, by_attacks: float | None, by_canaries: float | None) -> Audit:
    """An audit with bounds of epsilon for a sample."""
    plain, defended, local = findings().runs
    assert defended.epsilon is not None
    attacks = EpsilonBounds(by_attacks or 0.0, (), 0.0, 1e-5, 0.95, 72, None, None, None, "they can be compared")
    best = CanaryBound("a bound", by_canaries or 0.0, 1e-5, 0.95, "nothing")
    epsilon = replace(
        defended.epsilon,
        upper=upper,
        level="sample",
        by_attack=None if by_attacks is None else attacks,
        canaries=None if by_canaries is None else Canaries(8, 4, upper, 1e-5, 0.95, (best,)),
    )
    return replace(findings(), runs=(plain, replace(defended, epsilon=epsilon), local))


@pytest.mark.parametrize("by_attacks", [0.3, None])
def test_the_larger_lower_bound_of_epsilon_is_shown(by_attacks: float | None) -> None:
    audit = bounded(2.0, by_attacks, 9.1)
    text = Page(render_html(audit, pictures())).text
    assert "canaries show at least 9.1 these two contradict each other" in text and "9.1 ≤ epsilon ≤ 2 at delta" in text
    assert "from below: shown by the canaries, with 95 % confidence" in text
    text = Page(render_html(bounded(2.0, 9.2, 9.1), pictures())).text
    assert "membership attacks show at least 9.2" in text and "9.1 ≤" not in text


def test_bounds_of_epsilon_that_contradict_are_pointed_out(page: Page) -> None:
    results = "The lower bound exceeds the upper one."
    assert results not in page.text and results in render_markdown(bounded(8.0, None, 8.1))
    text = Page(render_html(bounded(8.0, 8.1, None), pictures())).text
    assert results in text and "these two contradict each other" in text


def test_what_attackers_of_membership_know_is_said_once() -> None:
    row = replace(findings().runs[0].membership[0], extent="")
    known = ("It knows the labels.", "It has its own samples.", "It sees two rounds.")
    rows = (
        replace(row, round=1, attack="loss threshold", knows=known[:2]),
        replace(row, round=3, attack="LiRA", knows=known),
        replace(row, round=3, attack="FedMIA", knows=(known[0], known[2])),
    )
    audit = of_first(findings(), membership=rows)
    for text in (Page(render_html(audit, pictures())).text.replace(" :", ":"), render_markdown(audit).replace("**", "")):
        assert text.count("It knows the labels.") == 1 and "FedMIA: It knows the labels." not in text
        assert "loss threshold, LiRA: It has its own samples." in text and "In round 3: It sees two rounds." in text


def test_rates_that_no_attack_resolves_are_no_column_but_a_note() -> None:
    why = "50 non-members do not resolve a false-positive rate of 0.1%, which needs 1000"
    row = findings().runs[0].membership[0]
    assert row.points is not None
    some = replace(row, points=replace(row.points, notes=(why,)))
    none = replace(row, points=replace(row.points, at={0.01: None, 0.001: None}, notes=(why,)))
    audit = of_first(findings(), membership=(some, none))
    audit = replace(audit, runs=audit.runs[:1])
    text = Page(render_html(audit, pictures())).text
    assert "TPR at FPR 0.01" in text and "TPR at FPR 0.001" not in text and f"{why}." in text
    assert "TPR at FPR 0.001" not in render_markdown(audit)


def test_pictures_of_class_centres_say_whose_they_are() -> None:
    assert "Round 1, client 0: classes 1, 4, from left to right" in Page(render_html(findings(), pictures())).text


def test_commands_are_code_in_markdown() -> None:
    run = findings().runs[0]

    def markdown_with(command: str) -> str:
        return render_markdown(of_first(findings(), answer=replace(run.concluded, change="Not measured.", command=command)))

    command = "fedpriv frontier --target 'recovered<=0'"
    assert f"**What to do.** Not measured.\n\n    {command}\n" in markdown_with(command)
    assert "Not measured.\n\n    echo `date`\n" in markdown_with("echo `date`")


def test_a_card_says_that_the_finished_model_was_not_measured() -> None:
    """Only messages are attacked, and one update makes no finished model."""
    audit = findings()
    line = "What others can learn from the finished model was not measured."
    assert render_markdown(audit).count(line) == len(audit.runs)
    assert line not in render_markdown(replace(audit, runs=(replace(audit.runs[0], source="update"),)))


def test_the_glossary_has_the_attacks_that_the_page_names(page: Page) -> None:
    """Those of samples that were tried, and every name of which a membership attack's is made."""
    terms = {word for entry in GLOSSARY for word in entry.split(", ")}
    names = {*USED_BY, OFFLINE, STAND_IN, PROBE, ATTRIBUTE}
    assert {name for name in names if not any(name.startswith(term) for term in terms)} == set()
    listed = page.text[page.text.rindex("Terms") :]
    assert "Images read off the first shared linear layer" in listed and "Malicious server" not in listed
