"""What a sweep runs, in which order and how often."""

from __future__ import annotations

import dataclasses

import pytest

from pfl.core.config import Config
from pfl.engine.metrics import Accuracy, Measured
from pfl.methods import METHODS
from pfl.run.trials import Record, Trial
from pfl.run.validation import stackable
from pipeline.store.ledger import Ledger
from pipeline.store.workspace import checkpoint_folder
from tests.pipeline.conftest import SOURCES, fake_run, finish, row_of, scheduler_of, with_metrics
from tests.pipeline.running import LOCAL


def keys(trials) -> list[str]:
    return [key for trial in trials for key in trial.keys]


def searched(scheduler) -> list[tuple]:
    results = [cell.result(scheduler.outcomes) for cell in scheduler.cells]
    return [
        ([(item.params, item.until, item.seed) for item in result.search], result.selection)
        for result in results
    ]


def test_every_cell_runs_its_search_and_both_configurations_with_all_seeds(ledger):
    trials = finish(scheduler := scheduler_of(ledger))
    # The pinned configuration, two rungs, a comparison with three seeds, the selected configuration.
    better, pins = 2 + 4 + 2 + 2 * 3 + 2, 2 + 4 + 2
    assert len(trials) == 2 * better + 2 * pins
    assert scheduler.ran == scheduler.total == scheduler.done == 48


def test_without_a_search_only_the_pinned_configuration_runs(ledger, edit):
    edit("search: {trials: 4}\n", "")
    assert len(finish(scheduler := scheduler_of(ledger))) == 4 * 2
    assert [cell.result(scheduler.outcomes).selected for cell in scheduler.cells] == [None] * 4


def test_search_trials_see_validation_data_and_final_trials_do_not(ledger):
    for trial in finish(scheduler_of(ledger)):
        assert trial.config["validation"] == (0.2 if trial.phase == "search" else 0)


def test_a_metric_beside_accuracy_runs_the_final_trials_again_and_no_search(ledger, edit):
    before = keys(finish(scheduler_of(ledger)))
    edit("evaluation: {every: 1}", "evaluation: {every: 1, metrics: [auroc]}")
    again = finish(scheduler_of(ledger))
    assert {trial.phase for trial in again} == {"final"}
    assert not set(keys(again)) & set(before)


@pytest.mark.parametrize(("at_once", "last_first"), [(1, False), (4, False), (7, True)])
def test_what_is_tried_depends_neither_on_cores_nor_on_durations(project, at_once, last_first):
    reference = scheduler_of(Ledger(SOURCES))
    finish(reference)
    (project / LOCAL).unlink()
    scheduler = scheduler_of(Ledger(SOURCES))
    finish(scheduler, at_once=at_once, last_first=last_first)
    assert searched(scheduler) == searched(reference)


def test_a_killed_sweep_goes_on_and_tries_what_it_would_have_tried(project):
    whole = scheduler_of(Ledger(SOURCES))
    finish(whole)
    (project / LOCAL).unlink()
    killed = scheduler_of(Ledger(SOURCES))
    for _ in range(19):
        trial = killed.next()
        killed.record(trial, fake_run(trial))
    resumed = scheduler_of(Ledger(SOURCES))
    assert (len(finish(resumed)), resumed.served) == (48 - 19, 19)
    assert searched(resumed) == searched(whole)


def diverging(trial: Trial) -> list[Record]:
    """Records of a space whose upper half diverges."""
    high = trial.config["lr"] > 0.06
    return [row_of(trial, seed, 99.0, diverged_at=1) for seed in trial.seeds] if high else fake_run(trial)


def test_a_search_killed_at_every_rung_with_half_the_space_diverging_tries_the_same(project, edit):
    edit("trials: 4", "trials: 9")
    edit('  two: "pathological:2"\n', "")
    whole = scheduler_of(Ledger(SOURCES))
    finish(whole, diverging)
    (project / LOCAL).unlink()
    kills = 0
    while not (killed := scheduler_of(Ledger(SOURCES))).finished:
        steps = len(killed.cells[0].searched)
        while not killed.finished and len(killed.cells[0].searched) == steps:
            trial = killed.next()
            killed.record(trial, diverging(trial))
        kills += 1
    assert kills >= 4
    assert searched(killed) == searched(whole)


def test_a_changed_hyperparameter_of_one_method_runs_that_methods_trials_only(ledger, edit):
    finish(scheduler_of(ledger))
    edit("mu: 0.1", "mu: 0.2")
    trials = finish(scheduler_of(Ledger(SOURCES)))
    assert {trial.method for trial in trials} == {"fedprox"}
    assert len(finish(scheduler_of(Ledger(SOURCES)))) == 0


def test_the_selected_configuration_is_the_best_of_the_finalists_on_validation_data(ledger):
    finish(scheduler := scheduler_of(ledger))
    for cell in scheduler.cells:
        result = cell.result(scheduler.outcomes)
        best = max((item for item in result.search if item.until == 2), key=lambda item: item.value)
        assert result.selected.number == best.trial
        assert {row.config["lr"] for row in result.selected.successes} == {best.params["lr"]}
        assert {row.phase for row in result.selected.successes} == {"final"}


def test_a_search_that_chooses_the_pinned_configuration_runs_it_once(ledger, edit):
    edit("lr: 0.05", "lr: 0.1")
    finish(scheduler := scheduler_of(ledger))
    fedavg = scheduler.cells[0].result(scheduler.outcomes)
    assert fedavg.selected == fedavg.pinned
    assert scheduler.cells[0].total == 2 + 4 + 2  # no trial is better, so that there is no comparison


def test_cells_with_one_configuration_in_two_rows_are_run_once(ledger, edit):
    edit("- fedavg\n", "- fedavg\n- {method: fedavg, as: again}\n")
    trials = finish(scheduler := scheduler_of(ledger))
    assert len(keys(trials)) == len(set(keys(trials))) == 48
    first, second = (cell.result(scheduler.outcomes) for cell in scheduler.cells[:2])
    assert first.pinned == second.pinned


def test_seeds_are_handed_out_together_where_a_device_runs_them_side_by_side(ledger):
    scheduler = scheduler_of(ledger)
    scheduler.stacks = True
    finals = [trial for trial in finish(scheduler) if trial.phase == "final"]
    assert {trial.seeds for trial in finals} == {(0, 1)}
    assert scheduler.ran == 48


def test_what_differs_in_numbers_alone_is_handed_out_for_one_stack(ledger, edit):
    edit("- fedavg\n", "- {method: fedprox, as: stronger, params: {mu: 1.0}}\n")
    scheduler = scheduler_of(ledger)
    scheduler.stacks = True
    stacks = []
    while first := scheduler.next():
        stacks.append(stack := [first, *scheduler.batch_with(first)])
        for trial in stack:
            scheduler.record(trial, fake_run(trial))
    handed_out = [key for stack in stacks for key in keys(stack)]
    assert len(handed_out) == len(set(handed_out)) == scheduler.total
    assert [len(stack) for stack in stacks if stack[0].phase == "final"][:2] == [2, 2]
    assert {len(stack) for stack in stacks if stack[0].phase == "search"} == {1}
    for stack in stacks:
        assert stackable([Config.from_dict(trial.config) for trial in stack])
        assert len({(trial.phase, trial.setting, trial.seeds) for trial in stack}) == 1


def test_what_differs_in_the_adaptation_alone_is_handed_out_together(ledger, edit):
    rows = "- {method: fedbabu, as: longer, params: {finetune_epochs: 9}}\n- fedbabu\n"
    edit("- fedavg\n", f"{rows}- {{method: fedbabu, as: faster, params: {{finetune_lr: 1.0}}}}\n")
    scheduler = scheduler_of(ledger)
    together = []
    while first := scheduler.next():
        trials = [first, *scheduler.batch_with(first)]
        together.append([(trial.row, trial.setting, trial.seeds) for trial in trials])
        for trial in trials:
            scheduler.record(trial, fake_run(trial))
    assert [(row, "dir", (0,)) for row in ("longer", "fedbabu", "faster")] in together
    assert {len(trials) for trials in together if trials[0][0] == "fedprox"} == {1}


def test_a_device_without_a_use_for_stacks_is_given_one_trial_at_a_time(ledger):
    scheduler = scheduler_of(ledger)
    assert scheduler.batch_with(scheduler.next()) == []


def test_a_trial_that_fails_fails_its_cell_and_nothing_else(ledger):
    scheduler = scheduler_of(ledger)
    while trial := scheduler.next():
        if trial.cell == "dir/fedprox":
            scheduler.fail(trial, "ValueError: no")
        else:
            scheduler.record(trial, fake_run(trial))
    status = {cell.cell.id: cell.result(scheduler.outcomes).status for cell in scheduler.cells}
    assert status.pop("dir/fedprox") == "failed"
    assert set(status.values()) == {"done"}
    assert "final, seed 1: ValueError: no" in scheduler.cells[1].result(scheduler.outcomes).errors


def test_a_failed_trial_is_tried_again_by_the_next_sweep(ledger):
    scheduler = scheduler_of(ledger)
    first = scheduler.next()
    scheduler.fail(first, "its process died 3 times")
    finish(scheduler)
    assert keys(finish(scheduler_of(Ledger(SOURCES)))) == first.keys


def test_a_trial_that_diverged_is_a_result_and_the_worst_one(ledger):
    finish(scheduler := scheduler_of(ledger), diverging)
    for cell in scheduler.cells:
        result = cell.result(scheduler.outcomes)
        failed = [item for item in result.search if item.error]
        assert failed
        assert all(item.value is None for item in failed)
        assert all(row.config["lr"] <= 0.06 for row in result.selected.successes)
    assert scheduler_of(Ledger(SOURCES)).finished


def test_a_pinned_configuration_that_diverges_early_costs_the_search_no_trial(ledger, edit):
    edit("rounds: 2,", "rounds: 18,")
    edit("search: {trials: 4}", "search: {budget: 9}")
    edit("lr: 0.05", "lr: 1.0")
    edit('  two: "pathological:2"\n', "")

    def run(trial: Trial) -> list[Record]:
        ends = trial.until or 18
        diverged_at = 1 if trial.config["lr"] == 1 else None
        samples = 1000.0 * (diverged_at or ends)
        measured = Measured(0.5, 1.0, samples_per_second=samples, peak_memory_bytes=1e8)
        records = [row_of(trial, seed, 90 + trial.config["lr"], diverged_at) for seed in trial.seeds]
        return [
            dataclasses.replace(row, result=dataclasses.replace(row.success, measured=measured))
            for row in records
        ]

    scheduler = scheduler_of(ledger)
    planned = len(scheduler.cells[0].steps_to_come)
    finish(scheduler, run)
    for cell in scheduler.cells:
        assert len(cell.searched) >= planned
        assert cell.selection.trial > 0


def test_a_search_with_several_objectives_reports_all_of_them_to_the_sampler(ledger, edit):
    edit("search: {trials: 4}", "search: {trials: 4, objectives: [accuracy, decile]}")
    scheduler = scheduler_of(ledger)
    finish(scheduler)
    study = scheduler.cells[0].proposer._study
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MAXIMIZE"]
    values = [trial.values for trial in study.trials]
    rows = [row for cell in scheduler.cells[:1] for row in cell.result(scheduler.outcomes).searched]
    decile = [row.records[0].metrics.worst_decile for row in rows if row.records[0].seed == 1000]
    assert [own[1] for own in values] == decile


def test_rows_of_other_sources_than_the_drivers_are_refused(ledger):
    scheduler = scheduler_of(ledger)
    trial = scheduler.next()
    scheduler.record(trial, [dataclasses.replace(fake_run(trial)[0], key="0" * 64)])
    assert "different code" in scheduler.outcomes[trial.keys[0]].failure


def test_rows_and_cells_are_announced_once_each(ledger):
    rows, ended = [], []

    def on_record(cell, record, _number):
        rows.append((cell, record.key))

    def on_cell(result):
        ended.append(result.cell)

    finish(scheduler_of(ledger, on_record=on_record, on_cell=on_cell))
    assert len(rows) == len(set(rows)) == 48
    assert sorted(ended) == ["dir/fedavg", "dir/fedprox", "two/fedavg", "two/fedprox"]
    scheduler_of(Ledger(SOURCES), on_record=on_record, on_cell=on_cell)
    assert len(rows) == 96  # those of the ledger are announced as well


def test_rows_that_share_a_simulation_count_it_once(ledger, edit):
    edit("- fedavg\n", "- fedavg\n- {method: fedavg, as: mean, evaluation: {metric: client_mean}}\n")
    edit("search: {trials: 4}\n", "")
    scheduler = scheduler_of(ledger)
    assert len(scheduler.cells) == 6
    assert (scheduler.done, scheduler.total) == (0, 8)  # two settings, two configurations, two seeds


def run_at_its_moments(trial: Trial) -> list[dict]:
    """Rows as a simulation gives them: before the last evaluation, only the trial's moments."""
    return [with_a_first_round(record, trial.moments) for record in fake_run(trial)]


def with_a_first_round(record, moments):
    """``record`` with an evaluation of round 1, at ``moments`` alone."""
    (last,) = record.metrics.rounds
    others = dict.fromkeys(last.moments.keys() - set(moments))
    first = dataclasses.replace(last, round=1, **others)
    return with_metrics(record, rounds=(first, last))


def test_the_best_of_a_moment_that_was_evaluated_in_the_end_only_is_run_again(ledger, edit):
    edit("search: {trials: 4}\n", "")
    finish(scheduler_of(ledger), run_at_its_moments)
    edit("every: 1", "every: 1, moment: post_local")
    assert scheduler_of(Ledger(SOURCES)).finished  # the last evaluation has every moment
    edit("moment: post_local", "moment: post_local, which: best")
    again = finish(scheduler_of(Ledger(SOURCES)), run_at_its_moments)
    assert [trial.moments for trial in again] == [("post_local",)] * 8
    assert scheduler_of(Ledger(SOURCES)).finished


def run_with_pauses(trial: Trial) -> list[Record]:
    """Records as a simulation gives them: one that pauses has the trial's moments only."""
    wanted = trial.moments if trial.until else ("post_aggregation", "post_local", "adapted")
    headline = METHODS[trial.method].headline

    def evaluated(record: Record) -> Record:
        (last,) = record.metrics.rounds
        both = {"post_aggregation": None, "post_local": None}
        rounds = (dataclasses.replace(last, **both | dict.fromkeys(wanted, last.post_local)),)
        return with_metrics(record, headline=headline, rounds=rounds)

    return list(map(evaluated, fake_run(trial)))


def test_rungs_that_lack_a_moment_are_run_again(ledger, edit):
    finish(whole := scheduler_of(ledger), run_with_pauses)
    edit("every: 1", "every: 1, moment: post_local")
    again = finish(scheduler := scheduler_of(Ledger(SOURCES)), run_with_pauses)
    assert {(trial.until, trial.moments) for trial in again} == {(1, ("post_aggregation", "post_local"))}
    assert searched(scheduler) == searched(whole)
    assert scheduler_of(Ledger(SOURCES)).finished


def test_a_rung_of_two_rows_is_run_again_if_no_record_has_the_moments_of_both(ledger, edit):
    edit('  two: "pathological:2"\n', "")
    local = "- {method: fedbabu, evaluation: {moment: post_local}}\n"
    edit("- fedavg\n- {method: fedprox, params: {mu: 0.1}}\n", local)
    finish(scheduler_of(ledger), run_with_pauses)
    server = "- {method: fedbabu, as: again, evaluation: {moment: post_aggregation}}\n"
    edit(local, server)
    finish(scheduler_of(Ledger(SOURCES)), run_with_pauses)
    edit(server, local + server)
    again = finish(scheduler := scheduler_of(Ledger(SOURCES)), run_with_pauses)
    assert {trial.moments for trial in again} == {("adapted", "post_aggregation", "post_local")}
    first, second = searched(scheduler)
    assert first == second


def test_a_simulation_that_two_cells_share_is_evaluated_at_the_moments_of_both(ledger, edit):
    edit("search: {trials: 4}\n", "")
    edit(
        "- {method: fedprox, params: {mu: 0.1}}",
        "- {method: fedavg, as: local, evaluation: {moment: post_local}}",
    )
    trials = finish(scheduler_of(ledger), run_at_its_moments)
    assert [trial.moments for trial in trials] == [("post_aggregation", "post_local")] * 4


def test_a_search_trial_is_evaluated_at_the_headline_too(ledger, edit):
    edit("every: 1", "every: 1, moment: post_local")
    trials = finish(scheduler_of(ledger))
    assert {(trial.phase, trial.moments) for trial in trials} == {
        ("search", ("post_aggregation", "post_local")),
        ("final", ("post_local",)),
    }


def test_a_trial_that_fails_at_a_rung_keeps_its_checkpoint_and_those_that_are_stopped_do_not(ledger, edit):
    edit('  two: "pathological:2"\n', "")
    edit("- {method: fedprox, params: {mu: 0.1}}\n", "")
    scheduler = scheduler_of(ledger)
    rung = [trial for trial in iter(scheduler.next, None) if trial.until]
    folders = list(map(checkpoint_folder, rung))
    for folder in folders:
        folder.mkdir(parents=True)
    for trial in rung[:-1]:
        scheduler.record(trial, fake_run(trial))
    scheduler.fail(rung[-1], "out of memory")
    going_on = {checkpoint_folder(trial) for trial in iter(scheduler.next, None)}
    assert {folder for folder in folders if folder.exists()} == {*going_on, folders[-1]}


def worse_locally(trial: Trial) -> list[Record]:
    """Records of configurations that are the worse after local training, the better they are before it."""

    def changed(record: Record) -> Record:
        (last,) = record.metrics.rounds
        pooled = 100 - last.post_local.pooled
        return with_metrics(
            record, rounds=(dataclasses.replace(last, post_local=Accuracy(pooled, pooled, pooled, 1.0)),)
        )

    return list(map(changed, fake_run(trial)))


TWICE = "- {method: fedasync, search: {trials: 10, space: {staleness: [constant, hinge], others: pinned}}}\n"
LOCALLY = "- fedavg\n- {method: fedavg, as: local, evaluation: {moment: post_local}}\n"


@pytest.mark.parametrize("rows", [TWICE, LOCALLY], ids=["one search", "two rows"])
def test_a_stopped_trial_keeps_the_checkpoint_of_an_equal_one_that_goes_on(ledger, edit, rows):
    edit('  two: "pathological:2"\n', "")
    edit("- fedavg\n- {method: fedprox, params: {mu: 0.1}}\n", rows)
    scheduler = scheduler_of(ledger)
    rung = [trial for trial in iter(scheduler.next, None) if trial.until]
    for trial in rung:
        checkpoint_folder(trial).mkdir(parents=True)
    for trial in rung:
        scheduler.record(trial, worse_locally(trial))
    going_on = [candidate for cell in scheduler.cells for candidate in cell.rung if candidate.after]
    assert len(going_on) == 2 * len(scheduler.cells)
    assert all(checkpoint_folder(candidate.trial).exists() for candidate in going_on)


@pytest.mark.parametrize("search", ["search: {trials: 4}\n", ""])
def test_a_cell_whose_group_is_empty_in_one_seed_is_partial(ledger, edit, search):
    edit('  two: "pathological:2"\n', "")
    edit("search: {trials: 4}\n", search)
    edit("every: 1", "every: 1, group: L")
    edit("lr: 0.05", "lr: 0.01")

    def run(trial: Trial) -> list[Record]:
        def grouped(record: Record) -> Record:
            (last,) = record.metrics.rounds
            groups = {} if record.seed in (1, 1002) else {"L": last.moments}
            return with_metrics(record, rounds=(dataclasses.replace(last, groups=groups),))

        return list(map(grouped, fake_run(trial)))

    finish(scheduler := scheduler_of(ledger), run)
    cell = scheduler.cells[0].result(scheduler.outcomes)
    assert (cell.status, [row.seed for row in cell.pinned.successes]) == ("partial", [0])
    assert "final, seed 1: no client with test samples in group L" in cell.errors
    if search:  # a seed of the comparison has no number
        assert cell.selection.trial == 0
        assert {step.value for step in cell.search if step.seed == 1002} == {None}
