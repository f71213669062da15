"""What is found out about tables before anything is run."""

from __future__ import annotations

import pytest

import pfl
from pfl.client_metrics import CLIENT_METRICS
from pipeline.columns import COLUMNS
from pipeline.sweep.check import check_tables
from tests.command import python
from tests.refusal import refusal
from tests.repository import copy_numbers

pytestmark = pytest.mark.usefixtures("project")


def test_a_simulation_that_rows_share_is_counted_once(edit):
    edit("- {method: fedprox, params: {mu: 0.1}}", "- {method: fedavg, as: again}")
    edit("search: {trials: 4}\n", "")
    assert check_tables() == ["small: 4 cells, 4 runs"]


def test_a_metric_that_fails_is_found_out(edit, monkeypatch):
    def failing(*_):
        return {}["accuracy"]

    monkeypatch.setitem(CLIENT_METRICS._added, "failing", failing)
    edit("evaluation: {every: 1}", "evaluation: {every: 1, metrics: [failing]}")
    line = refusal(check_tables)
    assert line.endswith("a function of scores and labels that returns numbers (KeyError: 'accuracy')")


def test_a_report_column_that_is_none_is_found_out(monkeypatch):
    monkeypatch.setitem(COLUMNS._added, "seed", len)
    line = refusal(check_tables)
    assert line == f"report column: seed is not accepted; expected a Column of that name, not {len!r}"


def test_the_tables_are_those_of_params_yaml_unless_named(project):
    (project / "params.yaml").write_text("tables: [missing]\n")
    assert check_tables(["small"])
    assert "table: missing" in refusal(check_tables)


def test_all_selected_tables_are_checked(project):
    (project / "tables/other.yaml").write_text("title: Unfinished\n")
    (project / "params.yaml").write_text("tables: [small, other]\n")
    assert refusal(check_tables).startswith("tables/other.yaml: dataset: nothing")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dataset: digits", "dataset: digitz", "setting dir: dataset: digitz * (did you mean 'digits'?)"),
        ("dataset: digits", "dataset: nowhere/photos.zip", "setting dir: dataset: nowhere/photos.zip"),
        ("dirichlet:0.5", "dirichlte:0.5", "setting dir: partition: dirichlte * (did you mean 'dirichlet'?)"),
        ("dirichlet:0.5", "dirichlet:-1", "setting dir: alpha: -1"),
        ("pathological:2", "pathological:12", "setting two: classes: 12 * at most 10"),
        ("clients: 5", "clients: 400", "setting dir: clients: 400 is not accepted; expected at most 179"),
        ("trials: 4}", "trials: 4, space: {nu: [0, 1]}}", "search.space: parameter: nu * one of *"),
        ("mu: 0.1}", "mu: 0.1}, search: {trials: 4, space: {nu: [0, 1]}}", "row fedprox: search.space: * nu"),
        ("model: cnn_digits", "model: lenet5_bn", "cell dir/fedavg: lenet5_bn on digits: * 8x8 * 16x16"),
        ("every: 1", "every: 1, moment: adapted", "cell dir/fedavg: evaluation.moment: adapted * post_local"),
        ("every: 1", "every: 1, group: small", "cell dir/fedavg: there is no evaluation.group 'small'"),
        ("every: 1", "every: 1, clients: [3, 1]", "clients: [3, 1] * the first client before the last"),
        ("every: 1", "every: 1, clients: [3, 9]", "evaluation.clients: [3, 9] * clients from 0 to 4"),
        ("every: 1", "every: 1, metric: seconds_per_sample", "metric: seconds_per_sample * an accuracy"),
        ("every: 1", "every: 1, metric: similarity", "schedule.observe: accuracy * similarities"),
        ("clients: 5", "resources: {cpus: 9999}\nclients: 5", "resources.cpus: 9999 * at most * cores"),
        ("clients: 5", "resources: {gpus: 1}\nclients: 5", "resources.gpus: 1 * auto or 0"),
        ("lr: 0.05}", "lr: 0.05, precision: bf16}", "precision: bf16 * fp32, as this CPU has no bf16"),
        ("mu: 0.1}", "mu: 0.1}, schedule: {precision: tf32}", "precision: tf32 * fp32, as this CPU"),
        ("lr: 0.05}", "lr: 0.05, precision: fp8}", "schedule.precision: fp8 * 'fp32', 'tf32' or 'bf16'"),
        ("mu: 0.1}", "mu: 0.1}, settings: {too: {}}", "setting of fedprox: too * (did you mean 'two'?)"),
        ("clients: 5", "published: {paper: nobody, table: '1'}\nclients: 5", "no published.paper 'nobody'"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_setting_and_value(edit, monkeypatch, old, new, said):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    edit(old, new)
    text = refusal(check_tables)
    assert text.startswith("tables/small.yaml: ")
    for part in said.split("*"):
        assert part.strip() in text


def test_reported_clients_are_the_same_in_each_seed(edit):
    edit("every: 1", "every: 1, clients: [0, 3]")
    edit("lr: 0.05}", "lr: 0.05, unseen: 0.2}")
    said = "schedule.unseen: 0.2 is not accepted; expected 0 with evaluation.clients"
    assert said in refusal(check_tables)


def test_partitions_of_two_columns_do_not_share_a_name(edit):
    edit("- fedavg", "- {method: fedavg, clients: 4}")
    edit("  two:", "  dir.fedavg:")
    said = "settings: dir.fedavg is not accepted; expected another name, because dir/fedavg has its own"
    assert said in refusal(check_tables)


@pytest.mark.parametrize(
    ("edited", "said"),
    [("moment: adapted", "evaluation.moment: adapted"), ("group: small", "no evaluation.group 'small'")],
)
def test_the_moment_and_the_group_are_checked_on_the_users_own_data_too(project, edit, edited, said):
    pfl.load("digits").save(project / "own.npz")
    edit("dataset: digits", "dataset: own.npz")
    assert check_tables()
    edit("every: 1", f"every: 1, {edited}")
    assert said in refusal(check_tables)


def test_the_precision_of_a_cluster_is_not_checked_on_this_machine(edit, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr("pipeline.sweep.environment.check_cluster", lambda _: None)
    edit("lr: 0.05}", "lr: 0.05, precision: bf16}")
    assert check_tables()


@pytest.mark.parametrize(
    ("observed", "reading", "said"),
    [
        ("", ", pair: [0, 5]", "evaluation.pair: [0, 5] is not accepted; expected two clients from 0 to 4"),
        ("", ", measure: wdb", "model: cnn_digits is not accepted; expected a network with batch norm"),
        ("", ", measure: mdb", "schedule.participation: 0.5 is not accepted; expected 1"),
        (", unseen: 0.2", "", "schedule.unseen: 0.2 is not accepted; expected 0 for"),
    ],
)
def test_a_similarity_is_of_two_clients_that_train_and_of_what_the_network_has(edit, observed, reading, said):
    edit("lr: 0.05}", f"lr: 0.05, observe: similarities{observed}}}")
    edit("every: 1}", f"every: 1, metric: similarity{reading}}}")
    edit("search: {trials: 4}\n", "")
    assert said in refusal(check_tables)


CLAIM = "claims: [{says: it, place: here, row: fedavg, KIND}]"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("average: {label: Mean}", "average"),
        (CLAIM.replace("KIND", "kind: margin, at_least: 1, over: mean"), "claims"),
        (CLAIM.replace("KIND", "kind: margin, at_least: 1, over: average"), "claims"),
        (CLAIM.replace("KIND", "kind: margin, at_least: 1"), ""),
        (CLAIM.replace("KIND", "kind: trend, higher: [dir], lower: [two]"), "claims"),
    ],
)
def test_numbers_of_several_quantities_are_neither_averaged_nor_compared(edit, keys, said):
    edit("search: {trials: 4}\n", f"{keys}\n")
    assert check_tables()
    edit('"pathological:2"', '{partition: "pathological:2", evaluation: {metric: seconds_per_sample}}')
    if said:
        assert f"{said}: accuracy and seconds_per_sample is not accepted" in refusal(check_tables)
    else:
        assert check_tables()


def test_what_cannot_be_set_up_for_whatever_reason_is_one_line(monkeypatch):
    def failing(*_):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr("pipeline.sweep.check.DryRun", failing)
    line = refusal(check_tables)
    assert line.endswith("hyperparameters and a network that go together (RuntimeError: no memory)")


def test_a_moment_that_a_method_has_can_be_reported(edit):
    edit("- fedavg\n- {method: fedprox, params: {mu: 0.1}}", "- fedbabu")
    edit("every: 1", "every: 1, moment: adapted")
    assert check_tables()


def test_a_data_source_that_is_not_there_is_named(edit, monkeypatch):
    edit("dataset: digits", "dataset: cifar10")
    monkeypatch.setenv("DATA_SOURCE", "no/such/folder")
    assert "DATA_SOURCE: no/such/folder is not accepted" in refusal(check_tables)


def test_a_folder_that_cannot_be_written_is_named(project):
    (project / "results").write_text("a file in the place of the folder")
    expected = "results/small: results/small is not accepted; expected a folder that can be written "
    assert refusal(check_tables) == expected + "(Not a directory)"


def test_the_cache_is_checked_too(project, monkeypatch):
    (project / "file").touch()
    monkeypatch.setenv("PFL_CACHE", str(project / "file/cache"))
    assert refusal(check_tables).startswith(f"PFL_CACHE: {project}/file/cache is not accepted")


def test_a_cell_that_fits_several_printed_ones_is_named(project, edit):
    copy_numbers(project)
    edit("clients: 5", "published: {paper: fedsimsup, table: '1'}\nclients: 5")
    edit(
        '"dirichlet:0.5"', '{partition: "dirichlet:0.5", published: {dataset: cifar10, partition: dirichlet}}'
    )
    assert "give 'partition_arg', one of " in refusal(check_tables)


@pytest.mark.parametrize(
    ("metric", "printed", "said"),
    [
        ("seconds_per_sample", "", "accuracy is not accepted; expected seconds_per_sample, as"),
        (
            "pooled",
            ", metric: seconds_per_sample",
            "seconds_per_sample is not accepted; expected an accuracy, as",
        ),
    ],
)
def test_a_cell_is_not_compared_with_another_quantity(project, edit, metric, printed, said):
    copy_numbers(project)
    table = "3" if metric == "seconds_per_sample" else "7"
    edit("clients: 5", f"published: {{paper: pfedsim, table: '{table}'}}\nclients: 5")
    target = f"{{dataset: cifar10, partition: dirichlet, partition_arg: alpha=0.1{printed}}}"
    edit('"dirichlet:0.5"', f'{{partition: "dirichlet:0.5", published: {target}}}')
    edit("every: 1", f"every: 1, metric: {metric}")
    edit("search: {trials: 4}\n", "")
    expected = f"cell dir/fedavg: published.metric: {said} evaluation.metric is {metric}"
    assert expected in refusal(check_tables)


def test_a_check_imports_neither_ray_nor_a_sampler_nor_what_draws():
    code = (
        "import sys; from pipeline.sweep.check import check_tables; check_tables();"
        "print({'ray', 'optuna', 'matplotlib', 'mlflow'} & set(sys.modules))"
    )
    assert python("-c", code).stdout == "set()\n"
