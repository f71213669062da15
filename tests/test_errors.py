"""A user's mistake is one line."""

import pickle

from pfl.core.errors import InvalidInput, unknown_name


def test_a_value_of_any_kind_and_length_is_shown_in_one_line():
    assert str(InvalidInput("name", "", "a name")) == "name: '' is not accepted; expected a name"
    assert str(InvalidInput("name", "a\nb", "a name")) == r"name: 'a\nb' is not accepted; expected a name"
    assert str(InvalidInput("name", "\udcff", "a name")) == r"name: '\udcff' is not accepted; expected a name"
    assert len(str(InvalidInput("name", "9" * 100_000, "a name"))) < 600


def test_a_process_that_fails_says_the_same_line():
    error = InvalidInput("participation", "1.5", "a number in (0, 1]")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_unknown_name_brings_the_nearest():
    assert "(did you mean 'pfedsim'?)" in str(unknown_name("method", "pfedsmi", ["fedavg", "pfedsim"]))
    line = str(unknown_name("table", "tables/digits.yaml", ["digits", "tables"]))
    assert "(did you mean 'digits'?)" in line


def test_where_there_is_nothing_to_choose_the_line_says_so():
    line = str(unknown_name("figure", "one", []))
    assert line == "there is no figure 'one'"
    assert str(unknown_name("hyperparameter of FedAvg", "mu", [])) == "FedAvg has no hyperparameter 'mu'"


def test_nothing_near_brings_no_guess():
    assert "did you mean" not in str(unknown_name("method", "zzz", ["fedavg", "pfedsim"]))
