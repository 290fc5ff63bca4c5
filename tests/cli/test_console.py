"""Messages for the terminal: one line each, and nothing in them steers it."""

import pytest

from zeroshift.cli.console import print_warning, strip_control


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("photos/cat.jpg: is empty", "photos/cat.jpg: is empty"),
        ("Köln/猫.jpg", "Köln/猫.jpg"),
        ("\x1b[2Jgone.jpg", "�[2Jgone.jpg"),
        ("two\nlines", "two lines"),
        ("caf\udce9.jpg", "caf�.jpg"),  # a name that is not UTF-8, as Python holds it
    ],
)
def test_names_of_files_cannot_steer_the_terminal(given, shown, capsys):
    assert strip_control(given) == shown
    print_warning(given)
    assert capsys.readouterr().err == f"warning: {shown}\n"
