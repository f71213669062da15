"""A user's mistake is one line."""

from pfl.errors import InvalidInput, unknown_name


def test_the_line_names_parameter_value_and_what_is_accepted():
    line = str(InvalidInput("participation", 1.5, "a number in (0, 1]"))
    assert line == "participation: 1.5 is not accepted; expected a number in (0, 1]"


def test_a_value_of_several_lines_is_shown_in_one_and_an_empty_one_is_seen():
    assert str(InvalidInput("name", "a\nb", "a word")) == "name: a b is not accepted; expected a word"
    assert str(InvalidInput("name", "", "a word")) == "name: '' is not accepted; expected a word"


def test_an_unknown_name_brings_the_nearest():
    assert "(did you mean 'pfedsim'?)" in str(unknown_name("method", "pfedsmi", ["fedavg", "pfedsim"]))


def test_nothing_near_brings_no_guess():
    assert "did you mean" not in str(unknown_name("method", "zzz", ["fedavg", "pfedsim"]))
