"""What is drawn while something takes long."""

import pytest

from pfl.core.terminal import bar


@pytest.mark.parametrize(("watched", "drawn"), [(True, 60), (False, 2)])
def test_a_bar_is_drawn_at_each_update_for_a_person_and_twice_a_minute_in_a_log_file(
    watched, drawn, monkeypatch, capsys
):
    monkeypatch.setattr("pfl.core.terminal.live", lambda: watched)
    reading = bar("reading", " images", total=600, shown=True)
    began = reading.start_t
    for second in range(1, 61):
        reading._time = lambda now=began + second: now
        reading.update(10)
    assert capsys.readouterr().err.count("reading") == drawn
    reading.close()


def test_a_bar_that_is_not_to_be_shown_prints_nothing(capsys):
    with bar("reading", " images", total=10, shown=False) as reading:
        reading.update(10)
    assert capsys.readouterr().err == ""
