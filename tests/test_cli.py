"""The command line: one simulation, lists, and one clear line for a mistake."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import pfl as package
from pfl import __version__, simulate
from pfl.cli.doctor import doctor
from pfl.cli.options import texts
from pfl.core.config import CHECKPOINT_EVERY, Config, Execution
from pfl.core.errors import OptionWarning
from pfl.data.partitions import PARTITIONS
from pfl.methods import METHODS
from pfl.run.validation import execution_warnings
from pipeline.cli.stage import matching_tables
from tests.command import pfl, python, refused

ROOT = Path(__file__).parent.parent
QUICK = ["--rounds", "4", "--epochs", "1", "--clients", "8", "--eval-every", "2"]


def test_a_run_prints_its_accuracy_and_writes_json(tmp_path):
    file = tmp_path / "result.json"
    done = pfl("run", "--method", "pfedsim", "--set", "rho=0.25", *QUICK, "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert f"{result['accuracy']['pooled']['last']:.2f} %" in done.stdout
    assert result["config"]["hyperparameters"]["rho"] == 0.25
    assert [entry["round"] for entry in result["rounds"]] == [2, 4]
    assert len(result["per_client"]) == 8
    measured = ("samples_per_second", "wall_seconds", "bytes_up", "bytes_down", "peak_memory_bytes")
    assert all(result[name] for name in (*measured, "versions"))
    assert {"last", "best"} <= set(result["accuracy"]["client_mean"])


@pytest.mark.parametrize(
    ("asked", "measured"),
    [
        ([], {"post_local"}),
        (["--moments", "post_aggregation"], {"post_local", "post_aggregation"}),
        (["--moments", "all"], {"post_local", "post_aggregation"}),
    ],
)
def test_an_evaluation_before_the_last_measures_the_reported_moment_and_those_asked_for(
    asked, measured, tmp_path
):
    file = tmp_path / "result.json"
    done = pfl("run", "--method", "ditto", *QUICK, *asked, "--json", str(file))
    assert done.returncode == 0, done.stderr
    first, last = json.loads(file.read_text())["rounds"]
    moments = {"post_local", "post_aggregation", "adapted"}
    assert first.keys() & moments == measured
    assert last.keys() & moments == {"post_local", "post_aggregation"}


def test_the_help_says_how_often_a_checkpoint_is_written():
    text = " ".join(pfl("run", "--help").stdout.split())
    assert f"every {CHECKPOINT_EVERY} rounds" in re.sub(r"[^\w ]+", "", text).replace("  ", " ")


def test_the_options_of_a_run_are_the_fields_of_the_configuration_with_their_texts():
    def joined(text):
        return re.sub(r"[\s-]+", "", text)  # lines also break after hyphens

    shown = joined(pfl("run", "--help").stdout)
    described = texts(Config)
    for declared in dataclasses.fields(Config):
        if declared.name not in ("method", "hyperparameters", "model"):
            default = f"[default: {declared.default}]" if declared.default != () else ""
            expected = f"{described[declared.name]} {default}"
            assert joined(expected) in shown, declared.name
    assert joined("--lr-schedule [constant|step|cosine] Learning rate over the rounds.") in shown


def test_metrics_are_printed_and_in_the_json(tmp_path):
    file = tmp_path / "result.json"
    options = ["--clients", "4", "--rounds", "2", "--epochs", "1", "--json", str(file)]
    said = pfl("run", *options, "--metrics", "macro_f1,confusion", "--metrics", "recall").stdout
    metrics = json.loads(file.read_text())["client_metrics"]
    assert f"macro_f1 {metrics['macro_f1']['pooled']:.4f} pooled" in said
    assert len(metrics["recall"]["client_mean"]) == 10
    assert "seed 0: confusion is not a single number; --json FILE writes it" in said


def test_a_checkpoint_of_a_run_is_one_of_simulate(tmp_path):
    assert pfl("run", *QUICK, "--checkpoint", str(tmp_path)).returncode == 0
    rounds = []

    @contextmanager
    def display(config, data, split):
        assert (config.rounds, data.name, split.clients) == (4, "digits", 8)
        yield lambda number, *_: rounds.append(number)

    options = {"rounds": 4, "epochs": 1, "clients": 8, "eval_every": 2, "progress": display}
    same = Execution(checkpoint_dir=str(tmp_path), moments=("post_aggregation",))
    assert [run.metrics.rounds[-1].round for run in simulate(**options, execution=same)] == [4]
    assert rounds == []


def test_a_tilde_that_the_shell_left_is_the_home_folder(home):
    files = ("--json=~/result.json", "--save=~/models.pt", "--checkpoint=~/state")
    done = pfl("run", *QUICK, *files)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in home.iterdir()} == {"result.json", "models.pt", "state"}
    assert pfl("partition", "dirichlet:1", "--clients", "4", "--plot=~/clients.svg").returncode == 0
    assert (home / "clients.svg").is_file()
    assert not any(Path.cwd().iterdir())


def test_a_run_goes_on_from_its_checkpoint_only_when_told(tmp_path):
    folder = str(tmp_path / "checkpoint")
    assert pfl("run", *QUICK, "--checkpoint", folder).returncode == 0
    assert "--resume" in refused("run", *QUICK, "--checkpoint", folder)
    assert pfl("run", *QUICK, "--checkpoint", folder, "--resume").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["--method", "fedprxo"],
            ["method: fedprxo is not", "expected one of fedprox, ", "other names (did you mean 'fedprox'?)"],
        ),
        (["--dataset", "digit"], ["dataset", "digit", "did you mean 'digits'"]),
        (["--model", "lenet"], ["model", "lenet", "lenet5"]),
        (["--partition", "dirichlt:0.1"], ["partition", "dirichlt", "did you mean 'dirichlet'"]),
        (["--partition", "pathological:11"], ["11", "10"]),
        (["--participation", "1.5"], ["participation", "1.5", "(0, 1]"]),
        (["--participation", "0"], ["participation", "0", "(0, 1]"]),
        (["--precision", "tf32", "--device", "cpu"], ["precision", "tf32", "fp32, as this CPU has no tf32"]),
        (["--precision", "bf16", "--dtype", "float64"], ["precision", "bf16", "fp32 with dtype float64"]),
        (["--precision", "fp16"], ["precision", "fp16", "fp32 or tf32 or bf16"]),
        (["--rounds", "0"], ["rounds", "0", "a positive integer"]),
        (["--rounds", "many"], ["rounds: many is not accepted", "integer"]),
        (["--lr", "-1"], ["lr", "-1", "above 0"]),
        (["--rounds", "9999999999"], ["rounds", "9999999999", "up to 1e+09"]),
        (["--lr", "1e39"], ["lr", "1e+39", "up to 1e+18"]),
        (["--weight-decay", "1e300"], ["weight_decay", "1e+300", "up to 1e+18"]),
        (["--method", "pfedsim", "--set", "rho=7"], ["rho", "7", "[0, 1]"]),
        (["--method", "pfedsim", "--set", "cosine_cap=1"], ["cosine_cap", "[1e-06, 0.999999999999]"]),
        (["--method", "fedprox", "--set", "mu=1e39"], ["mu", "1e+39", "a non-negative number, up to 1e+18"]),
        (["--method", "fedprox", "--set", f"mu={'9' * 401}"], ["mu", "9999", "up to 1e+18"]),
        (["--method", "fedavg", "--set", "mu=1"], ["FedAvg has no hyperparameter 'mu'"]),
        (["--method", "pfedsim", "--set", "tau=7"], ["hyperparameter", "tau", "rho"]),
        (["--method", "fedcac", "--set", "beta=Infinity"], ["beta", "inf", "a non-negative number"]),
        (["--set", "rho"], ["--set", "rho", "NAME=VALUE"]),
        (["--device", "gpu"], ["device", "gpu", "cuda"]),
        (["--device", "cuda:77"], ["device: cuda:77 is not accepted"]),
        (["--backend", "fast"], ["backend", "fast", "loop, stacked or auto"]),
        (["--seeds", "0,x"], ["seeds", "0,x"]),
        (["--resume"], ["--resume", "--checkpoint"]),
        (["--seed", "-1"], ["seeds", "-1", "non-negative"]),
        (["--seeds", "0,-1"], ["seeds", "-1", "non-negative"]),
        (["--seeds", ""], ["seeds", "integers"]),
        (["--threads", "100000000"], ["threads", "100000000", "[1, 1024]"]),
        (["--seed", "1", "--seeds", "1,2"], ["--seed: given with --seeds; use one of the two"]),
        (
            ["--partition", "domain", "--partition-file", "p.json"],
            ["--partition: given with --partition-file; use one of the two"],
        ),
        (["--set", "mu=1", "--set", "mu=2"], ["--set", "mu=2", "one value of mu"]),
        (["--method", "fedprox", "--set", f"mu={'9' * 5000}"], ["mu", "9999", "number"]),
        (["--dataset", "nowhere/at/all"], ["dataset", "nowhere/at/all"]),
        (["--partition-file", "nowhere.json"], ["nowhere.json"]),
        (["--clients", "1000"], ["clients", "1000"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--moments", "end"], ["moments: end", "some of post_aggregation, post_local"]),
        (["--method", "spfl", "--moments", "adapted"], ["moments: adapted", "as spfl has with these"]),
        (
            ["--method", "fedper", "--moments", "adapted"],
            ["moments: adapted", "post_aggregation, post_local"],
        ),
        (["--json", ""], ["json: . is not accepted", "a file that can be written"]),
        (["--save", "/dev/null/a.pt"], ["save: /dev/null/a.pt is not accepted"]),
        (["--learning-rate", "1"], ["--learning-rate (here it is --lr)"]),
    ],
)
def test_a_mistake_is_one_line_that_names_parameter_value_and_what_is_accepted(arguments, named):
    line = refused("run", *arguments)
    for part in named:
        assert part in line


def test_more_threads_than_cores_are_warned_of_with_the_number_of_cores(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    several = execution_warnings(Execution(threads=3))
    assert several == ("threads is 3, more than the 2 cores here: training is slower",)
    assert execution_warnings(Execution(threads=2)) == ()
    with pytest.warns(OptionWarning, match=several[0]):
        assert pfl("run", "--rounds", "1", "--clients", "4", "--threads", "3").returncode == 0


def test_an_option_that_is_probably_unintended_is_one_line_before_the_run():
    unintended = ["--method", "pfedme", "--set", "lam=30"]
    done = python("-m", "pfl", "run", "--rounds", "1", "--clients", "4", *unintended)
    (line,) = done.stderr.splitlines()
    assert line == "pfl: warning: pfedme: lr * lam = 1.5 is above 1, so w overshoots theta"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EEXIST])
def test_a_file_that_may_not_be_used_is_one_line(number, monkeypatch):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number), "data/mine")

    monkeypatch.setattr("pfl.cli.entry_points", lambda **_: ())  # they add commands to the app
    monkeypatch.setattr("pfl.cli.app", fails)
    assert refused("run") == f"pfl: error: data/mine cannot be used ({os.strerror(number)})"


def test_the_result_and_the_models_are_two_files(tmp_path):
    line = refused("run", "--json", str(tmp_path / "one"), "--save", f"{tmp_path}/../{tmp_path.name}/one")
    assert "expected a file different from that of json" in line
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_interrupted_says_so():
    command = [sys.executable, "-m", "pfl", "run", "--rounds", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()  # it has begun
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert (process.returncode, said) == (130, "pfl: interrupted\n")


def test_an_interruption_in_a_finaliser_ends_the_command(tmp_path):
    file = tmp_path / "plugins" / "methods" / "finalised.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, signal\n"
        "from pfl import Method\n"
        "class _Finalised:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "class Leaving(Method):\n"
        "    'A method that leaves something to finalise.'\n"
        "    def aggregate(self, server):\n"
        "        if server.round == 2:\n"
        "            _Finalised()\n"
        "        return {}\n"
    )
    command = [sys.executable, "-m", "pfl", "run", "--method", "finalised", "--rounds", "100000"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "pfl: interrupted\n")


WITHOUT_TORCH = """
import sys
from pfl.cli import main
importing = []
for command in sys.argv[1:]:
    sys.argv = ["pfl", *command.split()]
    try:
        main()
    except SystemExit:
        importing += [command] * ("torch" in sys.modules)
print(importing)
"""


def test_lists_help_and_errors_do_not_import_torch():
    lists = ("methods", "datasets", "models", "partitions", "tables", "figures")
    errors = ("run --method pfedsim --set rho=7", "run --method nothing")
    done = python("-c", WITHOUT_TORCH, "--help", "run --help", *lists, *errors)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [(), ("ledger",)])
def test_without_a_command_the_help_is_printed(arguments):
    done = pfl(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_the_version_is_that_of_the_package():
    assert pfl("--version").stdout == f"pfl {__version__}\n"


def test_a_library_that_is_not_there_is_one_line_that_names_the_extra():
    hidden = "import sys; sys.modules['ruamel.yaml'] = None; from pfl.cli import main; main()"
    done = python("-c", hidden, "check", check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "ruamel.yaml is not installed; this command needs the extra 'pipeline' of pfl-repro's" in line


def test_a_method_is_shown_by_its_name():
    first, *others = pfl("methods", "fedprox").stdout.splitlines()
    assert first.startswith("fedprox ")
    assert all(line.startswith(" ") for line in others)
    assert "did you mean 'fedprox'" in pfl("methods", "fedpro").stderr


def test_methods_list_hyperparameters_with_their_ranges():
    listed = pfl("methods").stdout
    assert "rho=0.5" in listed
    assert "a number in [0, 1]" in listed


def test_partitions_list_arguments_and_options_with_their_ranges():
    listed = pfl("partitions").stdout
    assert "dirichlet:ALPHA " in listed
    assert "fewer classes per client; a number in [0.001, 1000000])" in listed
    for rule in PARTITIONS.values():
        for option in rule.options():
            assert f"  {option}" in listed


def test_a_partition_is_described_and_drawn(tmp_path):
    plot = tmp_path / "partition.svg"
    done = pfl("partition", "pathological:2", "--clients", "10", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    assert "pathological:2" in done.stdout
    assert re.search(r"samples +1,797\n", done.stdout)
    assert re.search(r"test samples of untrained classes +0\n", done.stdout)
    assert plot.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("plot", ["p", "p.xyz", "/dev/null/p.svg"])
def test_a_picture_that_cannot_be_drawn_is_one_line_before_the_partition_is_made(plot, tmp_path):
    line = refused("partition", "pathological:2", "--plot", str(tmp_path / plot))
    assert f"{plot} is not accepted" in line
    assert not list(tmp_path.iterdir())


def test_a_partition_can_follow_the_seeds_of_a_run(tmp_path):
    arguments = "--seeds", "0,2", "--partition", "dirichlet:0.5,seed=run", "--json", str(tmp_path / "r.json")
    done = pfl("run", *QUICK, *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    assert [result["config"]["seed"] for result in results] == [0, 2]
    specs = [f"dirichlet:0.5,min=10,test=0.25,seed={seed}" for seed in (0, 2)]
    assert [result["config"]["partition"] for result in results] == specs
    assert len({json.dumps(result["per_client"][0]) for result in results}) == 2


def test_models_that_cannot_be_saved_cost_no_result(tmp_path, fill_disk):
    models, file = tmp_path / "models.pt", tmp_path / "result.json"
    fill_disk(models)
    done = pfl("run", *QUICK, "--save", str(models), "--json", str(file))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"pfl: error: save: {models} is not accepted; expected a file that can be written "
        "(No space left on device)"
    )
    last = json.loads(file.read_text())["accuracy"]["pooled"]["last"]
    assert f"seed 0: accuracy {last:.2f} % pooled" in done.stdout


def test_a_run_that_diverges_says_so():
    done = pfl("run", *QUICK, "--lr", "1e8")
    assert "seed 0: diverged in round 1" in done.stdout


def test_a_run_told_to_go_on_where_there_is_no_checkpoint_says_so_and_begins(tmp_path):
    done = pfl("run", *QUICK, "--checkpoint", str(tmp_path / "typo"), "--resume")
    assert done.returncode == 0
    assert f"no checkpoint in {tmp_path / 'typo'}; starting from the beginning" in done.stderr


@pytest.mark.parametrize(
    ("option", "warned"),
    [
        ("--threads=2", "threads 2: the fused kernels are single-threaded; workers use several cores faster"),
        ("--backend=stacked", "backend is stacked, which is for GPUs: on a CPU, loop is faster"),
    ],
)
def test_an_option_that_makes_training_slower_is_warned_of(option, warned, caplog, recwarn):
    assert pfl("run", *QUICK, "--device", "cpu", option).returncode == 0
    said = [*caplog.messages, *(str(warning.message) for warning in recwarn)]
    assert [line for line in said if "faster" in line] == [warned]


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("fedgen", "generated=1000000000"),
        pytest.param("fesem", "clusters=1000000000", marks=pytest.mark.slow),
    ],
)
def test_memory_that_does_not_suffice_is_one_line(method, setting):
    command = [sys.executable, "-m", "pfl", "run", *QUICK, "--method", method, "--set", setting]
    limit = ["bash", "-c", f"ulimit -v 6000000; exec {shlex.join(command)}"]
    done = subprocess.run(limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("pfl: error: out of memory (")
    assert len(done.stderr.splitlines()) == 1


def test_nothing_is_said_at_the_end_where_torch_has_loaded_its_compiler():
    code = "import sys, torchvision; from pfl.cli import main; sys.argv = ['pfl', 'methods']; main()"
    assert python("-c", code).stderr == ""


@pytest.mark.parametrize("file", ["/home/user/broken.py", f"{ROOT}/pfl_mine/broken.py"])
def test_a_mistake_in_a_method_of_one_s_own_begins_its_traceback_in_that_file(file, monkeypatch):
    code = (
        "from pfl import Method\n\n\nclass Broken(Method):\n"
        "    def aggregate(self, server):\n        return server.averaeg()\n"
    )
    scope = {"__name__": "broken"}
    exec(compile(code, file, "exec"), scope)
    monkeypatch.setitem(METHODS._added, "broken", scope["Broken"])
    done = pfl("run", "--method", "broken", *QUICK)
    assert done.returncode == 1
    first, place, *_, last = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert place.strip() == f'File "{file}", line 6, in aggregate'
    assert last.startswith("AttributeError: 'Server' object has no attribute 'averaeg'")


@pytest.mark.parametrize(
    "line", ["return loss if loss > 1 else 2 * loss", "return loss * (batch.y[batch.y > 3].numel() > 2)"]
)
def test_code_that_only_runs_client_by_client_is_named_in_one_line(line, tmp_path, monkeypatch):
    file = tmp_path / "branches.py"
    file.write_text(
        "from pfl import Method\n\n\nclass Branches(Method):\n    def loss(self, client, batch):\n"
        f"        loss = super().loss(client, batch)\n        {line}\n"
    )
    scope = runpy.run_path(str(file), run_name="branches")
    monkeypatch.setitem(METHODS._added, "branches", scope["Branches"])
    done = pfl("run", "--method", "branches", *QUICK, "--backend", "stacked")
    assert done.returncode == 2
    expected = f"pfl: error: {file}:7: the stacked backend cannot run '{line}': "
    assert (done.stderr.startswith(expected), len(done.stderr.splitlines())) == (True, 1)
    assert pfl("run", "--method", "branches", *QUICK, "--backend", "loop").returncode == 0


def test_a_mistake_in_a_method_in_the_package_begins_its_traceback_in_that_file(monkeypatch):
    fedper = METHODS["fedper"]
    monkeypatch.setattr(fedper.__module__ + ".FedPer.warm_up", lambda *_: 0)
    monkeypatch.setattr("pfl.engine.server.Server.average", lambda _: 1 / 0)
    done = pfl("run", "--method", "fedper", *QUICK)
    assert done.returncode == 1
    place = done.stderr.splitlines()[1]
    assert re.search(r'File ".*/pfl/methods/fedper.py", line \d+, in aggregate', place)


def test_a_syntax_error_in_a_method_is_shown_without_the_files_that_import_it(tmp_path, monkeypatch):
    file = tmp_path / "unfinished.py"
    file.write_text("class Unfinished(\n")
    monkeypatch.setattr("pfl.cli.run.prepared", lambda *_, **__: runpy.run_path(str(file)))
    done = pfl("run", *QUICK)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].strip() == f'File "{file}", line 1'


@pytest.mark.parametrize("command", ["methods", ""])
def test_output_whose_reader_has_ended_is_no_error(command):
    code = f"import sys; from pfl.cli import main; sys.argv = ['pfl', *{command.split()}]; main()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("pfl partition", "partition partitions"),
        ("pfl run --met", "--method --metrics"),
        ("pfl run --method pfedsi", "pfedsim"),
        ("pfl ledger why digits", "digits digits-search"),
    ],
)
def test_tab_completes_commands_options_and_names(words, completions, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("_PFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    code = "import sys; from pfl.cli import main; sys.argv = ['pfl']; main()"
    done = python("-c", code)
    assert sorted(done.stdout.split()) == completions.split()
    assert done.stderr == ""


def test_outside_of_a_project_tab_completes_no_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert matching_tables("d") == []


def test_tab_completion_lists_the_public_names():
    plugged = {"results", "compare"}  # by the pipeline
    public = {*package.__all__, *plugged}
    assert public <= set(dir(package)) < {*public, *vars(package)}


def test_doctor_prints_what_a_bug_report_needs_and_no_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@tracking.example:5000")
    done = pfl("doctor")
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert facts["pfl-repro"].startswith(__version__)
    assert {"Python", "processor", "GPUs", "compiler", "fused kernels", "cache", "torch"} <= facts.keys()
    assert facts["MLFLOW_TRACKING_URI"] == "https://tracking.example:5000"
    assert "secret" not in done.stdout


@pytest.mark.parametrize(
    ("instructions", "compiled", "shown"),
    [
        ("AVX2", object(), "conv_block, im2col, read_rows"),
        ("DEFAULT", object(), "im2col, read_rows; not used: conv_block"),
        ("AVX2", None, "not used: conv_block, im2col, read_rows"),
    ],
)
def test_doctor_names_the_kernels_that_are_used(monkeypatch, capsys, instructions, compiled, shown):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: instructions)
    monkeypatch.setattr("pfl.kernels.conv_block._library", lambda _: compiled)
    monkeypatch.setattr("pfl.kernels.compiled", lambda _: compiled)
    doctor()
    assert re.search(rf"^fused kernels +{shown}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_command_does_without_a_closed_stream(closed):
    command = f"{shlex.quote(sys.executable)} -m pfl run {shlex.join(QUICK)} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
