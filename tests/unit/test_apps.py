"""Modules with job classes are found in the folder a command runs in, and errors tell what to do."""

import sys

import pytest

from scheduler import apps
from scheduler.errors import ConfigurationError
from scheduler.job import KINDS

JOB = "from scheduler import AsyncJob\nclass {name}(AsyncJob):\n    async def run(self, ctx): ...\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; modules, kinds and the path are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    modules, kinds = set(sys.modules), dict(KINDS)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    KINDS.clear()
    KINDS.update(kinds)


def test_a_module_of_the_current_folder_is_imported(folder):
    (folder / "service_one.py").write_text(JOB.format(name="OfServiceOne"))

    apps.load("service_one", {})

    assert KINDS["OfServiceOne"].__module__ == "service_one"


def test_several_modules_are_separated_by_commas(folder):
    (folder / "service_two.py").write_text(JOB.format(name="OfServiceTwo"))
    (folder / "service_three").mkdir()
    (folder / "service_three" / "jobs.py").write_text(JOB.format(name="OfServiceThree"))

    apps.load(" service_two, service_three.jobs,", {})

    assert {"OfServiceTwo", "OfServiceThree"} <= KINDS.keys()


def test_the_environment_names_the_application_when_the_command_does_not(folder):
    (folder / "service_four.py").write_text(JOB.format(name="OfServiceFour"))

    apps.load(None, {"SCHEDULER_APP": "service_four"})

    assert "OfServiceFour" in KINDS


def test_a_file_of_the_folder_does_not_shadow_ours(folder):
    (folder / "scheduler.py").write_text("raise SystemExit('the file of the user')\n")
    (folder / "service_five.py").write_text(JOB.format(name="OfServiceFive"))

    apps.load("service_five", {})

    assert "OfServiceFive" in KINDS


@pytest.mark.parametrize("app", [None, "", " , "])
def test_no_application_is_refused_with_the_ways_to_name_one(app):
    with pytest.raises(ConfigurationError, match="--app") as caught:
        apps.load(app, {})

    assert "SCHEDULER_APP" in str(caught.value)


@pytest.mark.parametrize(("app", "missing"), [("nowhere_at_all", "nowhere_at_all"), ("json.nowhere", "json.nowhere")])
def test_a_module_that_does_not_exist_is_refused_with_where_it_was_looked_for(folder, app, missing):
    with pytest.raises(ConfigurationError) as caught:
        apps.load(app, {})

    assert f"--app {app}: no module '{missing}' in {folder}" in str(caught.value)


def test_a_module_that_imports_what_is_not_installed_is_refused_naming_that(folder):
    (folder / "service_six.py").write_text("import not_installed_anywhere\n")

    with pytest.raises(ConfigurationError) as caught:
        apps.load("service_six", {})

    sentence, *trace = str(caught.value).splitlines()
    assert sentence == (
        "--app service_six: importing it raises ModuleNotFoundError: No module named 'not_installed_anywhere':"
        f" install it with {sys.executable} -m pip"
    )
    assert trace[:2] == [
        "Traceback (most recent call last):",
        f'  File "{folder / "service_six.py"}", line 1, in <module>',
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0", "importing it raises ZeroDivisionError: division by zero"),
        ("def broken(:", "importing it raises SyntaxError"),
        (JOB.format(name="Twice") + JOB.format(name="Once") + "class X(Once, kind='Twice'): pass\n", "kind 'Twice'"),
    ],
)
def test_a_module_that_fails_is_refused_with_its_error(folder, source, words):
    (folder / "service_seven.py").write_text(source)

    with pytest.raises(ConfigurationError, match=r"^--app service_seven: ") as caught:
        apps.load("service_seven", {})

    assert words in str(caught.value)


def test_a_module_without_job_classes_is_refused(folder):
    KINDS.clear()
    (folder / "service_eight.py").write_text("answer = 42\n")

    with pytest.raises(ConfigurationError, match="no job class is defined there"):
        apps.load("service_eight", {})
