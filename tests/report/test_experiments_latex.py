"""LaTeX tables parsed again: balanced environments, equal numbers of columns, escaped names."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.chapters import GAINS, ODD, PRINTED, example_chapters
from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Column, Row, Table, Value
from zeroshift.report.experiments.tables import formatted_table, write_latex
from zeroshift.report.formatting import one_line

NAMED = {
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
    "textquotedbl": '"',
    "textasciigrave": "`",
    "textmu": "µ",
}
TOKEN = re.compile(
    r"\\(?P<name>[a-zA-Z]+)(?:\{\}| ?)|\\(?P<symbol>[{}#$%&_])|(?P<minus>\$-\$)|(?P<brace>[{}])|(?P<letter>.)",
    re.DOTALL,
)


def letters(tex):
    """What is printed for `tex`; what TeX would not print as a letter is an error."""
    text, depth = "", 0
    for token in TOKEN.finditer(tex):
        kind, found = token.lastgroup, token[0]
        if kind == "name":
            text += NAMED.get(token["name"], "") if found.endswith("{}") else ""
        elif kind == "symbol":
            text += token["symbol"]
        elif kind == "minus":
            text += "-"
        elif kind == "brace":
            depth += 1 if found == "{" else -1
            assert depth >= 0
        else:
            assert found not in "\\#$%&_~^", tex
            text += found
    assert depth == 0
    return text


def body(tex):
    """Lines between the rules at the top and the bottom."""
    return tex.split("\\toprule\n")[1].split("\\bottomrule")[0].splitlines()


def fields(line):
    assert line.endswith(r" \\")
    return [letters(field).strip() for field in re.split(r"(?<!\\)&", line.removesuffix(r" \\"))]


def test_tables_are_read_back_whole():
    made = formatted_table(GAINS)
    tex = formatted_table(GAINS).latex("every-kind-gains")
    lines = body(tex)
    assert fields(lines[0]) == [column.title for column in made.columns]
    rows = [fields(line) for line in lines[1:] if "midrule" not in line and "multicolumn" not in line]
    lost = str.maketrans("\N{REPLACEMENT CHARACTER}", "?")
    assert rows == [[str(cell).translate(lost) for cell in row.cells] for row in made.rows]
    assert r"\begin{tabular}{lrrrrrrrl}" in tex
    assert [line.startswith(r"\midrule") for line in lines].count(True) == 3
    groups = [line for line in lines if "multicolumn" in line]
    assert all(line.startswith(rf"\multicolumn{{{len(made.columns)}}}{{l}}{{\textit{{") for line in groups)
    assert len(groups) == 2
    assert one_line(ODD) in letters(groups[1].removesuffix(r" \\"))


def test_caption_label_notes_the_best_in_bold_and_the_packages():
    tex = formatted_table(GAINS).latex("every-kind-gains")
    assert r"\caption{Accuracy, gain, time and memory: " in tex
    assert r"\label{tab:every-kind-gains}" in tex
    assert r"\textbf{78.51} {\scriptsize (77.93 to 79.05)}" in tex
    assert r"\textbf{online ADAPT}" in tex
    assert "$-$5.0" in tex
    assert f"Three random orders. On {ODD}.".replace("`", "") in letters(tex.split("\\smallskip")[1].splitlines()[0])
    used = {"booktabs": "toprule", "adjustbox": "adjustbox", "fontenc": "textquotedbl"}
    for package, command in used.items():
        assert command in tex
        assert re.search(rf"^%.*\\usepackage.*\{{{package}\}}", tex, re.MULTILINE)


def test_environments_are_closed_in_turn():
    for table in (GAINS, PRINTED):
        open_now = []
        for line in formatted_table(table).latex("t").splitlines():
            if line.startswith("%"):
                continue
            for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", line):
                if what == "begin":
                    open_now.append(name)
                else:
                    assert open_now.pop() == name
        assert not open_now


def test_the_paper_prints_two_decimals():
    assert r"all & \textbf{65.04} & \textbf{28.56} \\" in formatted_table(PRINTED).latex("t")
    assert "50.00 & 68.73" in formatted_table(GAINS).latex("t")


@given(name=st.text(st.characters(), max_size=30))
def test_any_name_is_read_as_its_letters(name):
    table = Table("t", name, (Column("x", "text"), Column("y")), (Row((name, Value(0.5))), Row((name, None), name)))
    lines = body(formatted_table(table).latex("t"))
    wanted = one_line(name).replace("\N{REPLACEMENT CHARACTER}", "?").replace("\N{MINUS SIGN}", "-")
    rows = [fields(line) for line in lines if not line.startswith((r"\midrule", r"\multicolumn"))]
    assert rows == [["x", "y"], [wanted, "50.0"], [wanted, ""]]
    # Nothing at the beginning of a row may be taken for an argument of the end of the one before.
    assert not any(line.startswith(("[", "*")) for line in lines)


def test_letters_that_would_run_together_do_not():
    table = Table("t", "a--b ''c'' ,,d", (Column("x", "text"),), ())
    (caption,) = re.findall(r"\\caption\{(.*)\}", formatted_table(table).latex("t"))
    assert caption == "a-{}-b '{}'c'{}' ,{},d"


def test_a_file_for_each_table(tmp_path):
    paths = write_latex(tmp_path / "new" / "tex", example_chapters())
    assert [path.name for path in paths] == ["every-kind-gains.tex", "every-kind-printed.tex"]
    assert paths[0].read_text(encoding="utf-8") == formatted_table(GAINS).latex("every-kind-gains")
    assert len(list(paths[0].parent.iterdir())) == 2


def test_a_file_where_a_folder_should_be_is_refused(tmp_path):
    (tmp_path / "tables").write_text("mine")
    with pytest.raises(NotADirectoryError, match="Fix"):
        write_latex(tmp_path / "tables", example_chapters())


@pytest.mark.parametrize("name", ["../up", "Upper", "a b", "", "a--b"])
def test_names_that_cannot_be_file_names_are_refused(tmp_path, name):
    table = Table(name, "T", (Column("x", "text"),), ())
    chapter = Chapter(example_chapters()[0].experiment, (table,))
    with pytest.raises(ValueError, match=r"called.*Fix"):
        write_latex(tmp_path, [chapter])
    assert not list(tmp_path.iterdir())


def test_two_tables_of_one_name_are_refused(tmp_path):
    chapter = Chapter(example_chapters()[0].experiment, (GAINS, GAINS))
    with pytest.raises(ValueError, match="two findings are called 'every-kind-gains'"):
        write_latex(tmp_path, [chapter])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles_them(tmp_path):
    paths = write_latex(tmp_path, example_chapters())
    packages = re.findall(r"^%\s+(\\usepackage.*)$", paths[0].read_text(encoding="utf-8"), re.MULTILINE)
    inputs = [rf"\input{{{path.name}}}" for path in paths]
    whole = [r"\documentclass{article}", *packages, r"\begin{document}", *inputs, r"\end{document}"]
    (tmp_path / "all.tex").write_text("\n".join(whole), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
