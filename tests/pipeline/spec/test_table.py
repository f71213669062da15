"""Tables: what their files may say, and what they mean."""

from __future__ import annotations

import pytest

from pipeline.spec.cells import cells
from pipeline.spec.table import load_table
from tests.refusal import refusal

pytestmark = pytest.mark.usefixtures("project")


def message(name: str = "small") -> str:
    """The error that the table's file gives."""
    return refusal(lambda: cells(name, load_table(name)))


def test_a_table_has_a_cell_for_every_setting_and_row():
    expanded = cells("small", load_table("small"))
    assert [cell.id for cell in expanded] == ["dir/fedavg", "dir/fedprox", "two/fedavg", "two/fedprox"]


def test_a_cells_configuration_has_the_methods_defaults_and_the_rows_parameters(edit):
    edit("params: {mu: 0.1}", "params: {mu: 1}, schedule: {rounds: 3}")
    fedprox = cells("small", load_table("small"))[1].config
    assert (fedprox.hyperparameters, fedprox.rounds, fedprox.lr) == ({"mu": 1.0}, 3, 0.05)


def test_a_setting_overrides_the_table_and_a_row_overrides_the_setting(edit):
    edit(
        'two: "pathological:2"',
        'two: {partition: "pathological:2", clients: 6, schedule: {lr: 0.2, rounds: 5}, '
        "evaluation: {metric: client_mean, moment: post_local}}",
    )
    edit("params: {mu: 0.1}", "schedule: {rounds: 3}, evaluation: {moment: post_aggregation}")
    fedavg, fedprox = cells("small", load_table("small"))[2:]
    assert (fedavg.clients, fedavg.config.lr, fedavg.config.rounds) == (6, 0.2, 5)
    assert (fedprox.clients, fedprox.config.lr, fedprox.config.rounds) == (6, 0.2, 3)
    assert [(cell.evaluation.metric, cell.evaluation.moment) for cell in (fedavg, fedprox)] == [
        ("client_mean", "post_local"),
        ("client_mean", "post_aggregation"),
    ]


def test_one_method_may_have_two_rows_under_two_names(edit):
    edit("- fedavg\n", "- fedavg\n- {method: fedprox, as: fedprox-0, params: {mu: 0}}\n")
    rows = [cell.row for cell in cells("small", load_table("small"))][:3]
    assert rows == ["fedavg", "fedprox-0", "fedprox"]


def test_numbers_in_exponent_notation_are_numbers(edit):
    edit("params: {mu: 0.1}", "params: {mu: 1e-3}")
    assert cells("small", load_table("small"))[1].config.hyperparameters == {"mu": 0.001}


@pytest.mark.parametrize("word", ["no", "on", "yes"])
def test_words_are_words(edit, word):
    edit("params: {mu: 0.1}", f"label: {word}")
    assert load_table("small").row_labels["fedprox"] == word


def test_a_partition_needs_no_quotes(edit):
    edit('two: "pathological:2"', "two: {partition: pathological:2}")
    assert cells("small", load_table("small"))[2].partition == "pathological:2"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epochs: 1", "ephocs: 1", "schedule: key: ephocs is not accepted; * (did you mean 'epochs'?)"),
        ("title:", "tilte:", "key: tilte is not accepted; expected one of * (did you mean 'title'?)"),
        ("rounds: 2", "rounds: many", "schedule.rounds: 'many' is not accepted; expected a valid integer"),
        ("- fedavg", "- fedvag", "cell dir/fedvag: method: fedvag * (did you mean 'fedavg'?)"),
        ("mu: 0.1", "mu: -1", "cell dir/fedprox: mu: -1 is not accepted; expected a non-negative number"),
        ("seeds: [0, 1]", "seeds: ['0']", "seeds.0: '0' is not accepted; expected a valid integer"),
        ("trials: 4}", "trials: 4, space: {mu: []}}", "search.space.mu: a range: [] * [lowest, *"),
        ("trials: 4}", "trials: 4, space: {mu: fixed}}", "search.space.mu: a range: fixed * or pinned"),
        ("trials: 4}", "trials: 1}", "search.trials: 1 is not accepted; expected greater than or equal to 2"),
        ("trials: 4}", "trials: 1000000}", "search.trials: 1000000 * expected less than or equal to 1000"),
        ("trials: 4}", "budget: .inf}", "search.budget: inf * expected less than or equal to 300"),
        ("trials: 4}", "trials: 4, space: {lr: [0.1, high]}}", "search.space.lr: * two numbers"),
        ("trials: 4}", "trials: 4, budget: 3}", "search: budget and trials: both * expected one of them"),
        ("trials: 4}", "seed: 4}", "search: budget and trials: neither * expected one of them"),
        ("seeds: [0, 1]", "seeds: []", "seeds: [] is not accepted; expected at least one"),
        ("seeds: [0, 1]", "seeds: [1, 1]", "seeds: 1 is not accepted; expected each seed once"),
        ("- fedavg", "- fedprox", "methods: fedprox is not accepted; expected each row once *"),
        ("  two:", "  two/classes:", "settings.two/classes: two/classes is not accepted; expected a name"),
        ("  two:", f"  {'two' * 40}:", "expected a name * of at most 100 *"),
        ("every: 1", "every: 1, metric: mean", "evaluation.metric: mean * expected 'pooled', 'client_mean'"),
        ("every: 1", "every: 1, metrics: [aurco]", "metrics: aurco * (did you mean 'auroc'?)"),
        ("every: 1", "every: 1, metrics: auroc", "evaluation.metrics: 'auroc' * expected a *list"),
        ("every: 1", "every: 1, which: best, clients: [0, 1]", "evaluation: best, headline, None *"),
        ("clients: 5", "resources: {gpus: two}", "resources.gpus: * auto or a non-negative number"),
        ("dataset: digits", "", "dataset: nothing is not accepted; expected a value"),
        ("- fedavg", "- [fedavg]", "methods.0: ['fedavg'] is not accepted; expected a mapping"),
        (
            '  two: "pathological:2"',
            '  average: "pathological:2"\naverage: {label: Mean}',
            "settings: average is not accepted; expected another name; this one belongs to the average "
            "column",
        ),
        ("clients: 5", "clients: 5\nclients: 6", "found duplicate key *"),
        ("clients: 5", "clients: [5", "is not accepted; expected YAML"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_key_and_value(edit, old, new, said):
    edit(old, new)
    text = message()
    assert text.startswith("tables/small.yaml:")
    for part in said.split("*"):
        assert part.strip() in text


def test_an_unknown_table_is_answered_with_the_nearest():
    assert "did you mean 'small'?" in message("smal")


def test_a_row_may_depart_from_itself_in_one_setting(edit):
    edit("params: {mu: 0.1}", "params: {mu: 0.1}, settings: {two: {params: {mu: 1}, schedule: {rounds: 3}}}")
    in_dir, in_two = (cell.config for cell in cells("small", load_table("small")) if cell.row == "fedprox")
    assert (in_dir.hyperparameters, in_dir.rounds) == ({"mu": 0.1}, 2)
    assert (in_two.hyperparameters, in_two.rounds) == ({"mu": 1.0}, 3)


def test_a_row_may_divide_the_data_its_own_way(edit):
    edit("params: {mu: 0.1}", 'clients: 6, settings: {two: {partition: "pathological:3"}}')
    partitions = {
        cell.id: (cell.partition, cell.clients, cell.partition_name)
        for cell in cells("small", load_table("small"))
    }
    assert partitions["two/fedavg"] == ("pathological:2", 5, "two")
    assert partitions["two/fedprox"] == ("pathological:3", 6, "two.fedprox")
    assert partitions["dir/fedprox"] == ("dirichlet:0.5", 6, "dir.fedprox")
