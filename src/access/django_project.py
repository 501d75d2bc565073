"""Django's tasks as functions: the names of Django's interface, and django_project() for tasks.py.

django_project() sets Django up and declares the tasks of the installed apps, each as a DjangoFunction. The
backend of the site is in access/django_backend.

Rules: importing jobqueue imports no Django. The arguments of Django's tasks are JSON values, as Django
stores them: they are neither converted nor checked against type hints. Only the form of the page uses the
hints.
"""
from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ..base.head import TYPE_CHECKING
from ..base.types import NamedTuple
from ..base.limits import HOME, TASKS_FILE
from ..base.values import POSITIONAL_COUNT, TASK_DEFAULTS, TASK_OPTIONS
from .python_interface import CodePlace, Function, declared

if TYPE_CHECKING:
    import inspect
    from typing import Any

    from ..base.types import JsonObject
    from .python_interface import Who

if TYPE_CHECKING:
    DjangoTask = Any                    # a Task of Django; no Django is installed beside the type checker

project_folders: list[str] = []         # folders of the projects that tasks.py names
project_settings: list[str] = []        # the settings of each


class DjangoNames(NamedTuple):
    """The classes and modules of Django's task interface, by one set of names for all its versions."""

    package: str                        # django.tasks or django_tasks
    backend: type
    task: type
    result: Any
    error: Any
    context: Any
    statuses: Mapping[str, Any]         # by our words of statuses
    invalid: type[Exception]
    missing: type[Exception]            # there is no such result
    backends: Any                       # the handler of the setting TASKS
    signals: Any
    normalize: Callable[[Any], Any]     # returns a value as JSON has it, or raises TypeError


@functools.lru_cache(maxsize=None)
def django_module(name: str) -> Any:
    """Return a module of Django, such as "conf"."""
    return importlib.import_module("django." + name)


@functools.lru_cache(maxsize=None)
def django_names() -> DjangoNames:
    """Import Django's task interface; ImportError if this Python has none."""
    for package in ("django.tasks", "django_tasks"):
        try:
            importlib.import_module(package)
            break
        except ModuleNotFoundError as error:
            if error.name not in ("django", package):
                raise
    else:
        raise ImportError("jobqueue.DjangoBackend needs Django 6.0 or newer, or the package django-tasks "
                          "(pip install django-tasks). The Python %s has neither." % sys.executable)
    modules = []
    for name in (package, package + ".base", package + ".task", package + ".backends.base",
                 package + ".exceptions", package + ".utils", "django.utils.json"):
        try:
            modules.append(importlib.import_module(name))
        except ModuleNotFoundError:     # each version has some of them
            continue

    def find(*names: str) -> Any:
        return next(getattr(module, name) for name in names for module in modules
                    if hasattr(module, name))
    status = find("TaskResultStatus", "ResultStatus")
    ready, successful = status.READY, getattr(status, "SUCCESSFUL", None) or status.SUCCEEDED
    return DjangoNames(
        package, find("BaseTaskBackend"), find("Task"), find("TaskResult"), find("TaskError"),
        find("TaskContext"),
        {"pending": ready, "scheduled": ready, "waiting": ready, "running": status.RUNNING,
         "succeeded": successful, "failed": status.FAILED, "cancelled": status.FAILED},
        find("InvalidTask", "InvalidTaskError"), find("TaskResultDoesNotExist", "ResultDoesNotExist"),
        find("task_backends", "tasks"), importlib.import_module(package + ".signals"),
        find("normalize_json", "json_normalize"))


class DjangoFunction(Function[..., "Any"]):
    """A Function that runs a task of Django. Its name is the path of the task: blog.tasks.send_mail."""

    def __init__(self, task: DjangoTask, who: Who) -> None:
        options = {name: getattr(task, name, None) for name in TASK_OPTIONS}
        options["queue"] = task.queue_name
        chosen = {name: value for name, value in options.items() if value is not None}
        super().__init__(task.module_path, "django", task.func, {**TASK_DEFAULTS, **chosen}, who, None)
        self.task = task
        code = getattr(task.func, "__code__", None)
        if code:
            self.place = CodePlace(code.co_filename, code.co_firstlineno)


class CallArguments(NamedTuple):
    """The arguments of a call in Python."""

    args: list[Any]
    kwargs: JsonObject


@functools.lru_cache(maxsize=None)
def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    """Return the signature of a task's function, without the context, which Django adds to each call."""
    import inspect
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:] if takes_context else parameters)


def signature_of(task: DjangoTask) -> inspect.Signature:
    """Return the signature with which a task of Django is enqueued."""
    return _signature(task.func, task.takes_context)


def join_arguments(task: DjangoTask, args: list[Any], kwargs: JsonObject) -> JsonObject:
    """Return the arguments of a call by name, and how many of them are positional.

    Raise TypeError if the function cannot be called with them.
    """
    by_name: JsonObject = {}
    bound = signature_of(task).bind(*args, **kwargs)
    taken = {parameter.name for parameter in bound.signature.parameters.values()
             if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)}
    clashing = kwargs.keys() & {POSITIONAL_COUNT, *taken}
    if clashing:
        raise TypeError("%s: the argument %s cannot be kept, because a positional one has this name"
                        % (task.module_path, ", ".join(sorted(clashing))))
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name.update(value)
        else:
            by_name[name] = list(value) if parameter.kind is parameter.VAR_POSITIONAL else value
    if args:
        by_name[POSITIONAL_COUNT] = len(args)
    return by_name


def split_arguments(task: DjangoTask, by_name: Mapping[str, Any]) -> CallArguments:
    """Return stored arguments as the call had them. Those of the page's form are all passed by name.

    A form also has parameters that a call cannot name. Then these and all before them are positional.
    """
    kwargs, count = dict(by_name), by_name.get(POSITIONAL_COUNT, 0)
    kwargs.pop(POSITIONAL_COUNT, None)
    named: list[inspect.Parameter] = []
    args: list[Any] = []
    rest: list[Any] = []
    for place, parameter in enumerate(signature_of(task).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = kwargs.pop(parameter.name, None) or []
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named.append(parameter)
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in kwargs:
                count = max(count, place + 1)
    for parameter in named if rest else named[:count]:
        if parameter.name in kwargs or parameter.default is not parameter.empty:
            args.append(kwargs.pop(parameter.name, parameter.default))
    return CallArguments(args + rest, kwargs)


def django_project(settings: str, path: Path | str | None = None, *, who: Who = "admin") -> None:
    """Declare the tasks of a Django project. This is for tasks.py.

    `settings` is the module of its settings, such as "mysite.settings". `path` is the folder of the
    project, which has manage.py; without it that is the folder of tasks.py. Only admins can add these
    tasks on the page, unless `who` is "user". Tasks are found in the module `tasks` of each installed app.
    """
    folder = os.path.abspath(TASKS_FILE.parent / (path or ""))
    if not os.path.isdir(folder):
        raise ValueError("django_project: %s is no folder: path must be the folder that has manage.py"
                         % folder)
    if project_settings and project_settings != [settings]:
        raise ValueError("django_project: one process can run one project only, and %s is set up already"
                         % project_settings[0])
    project_settings[:], project_folders[:] = [settings], [folder]
    if folder not in sys.path:
        sys.path.insert(sys.path.index(str(HOME)) if str(HOME) in sys.path else 0, folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    try:
        django = importlib.import_module("django")
    except ImportError:
        raise ImportError("django_project: %s has no Django: let jobqueue's setting `python` name the "
                          "Python of the site's virtual environment" % sys.executable) from None
    _make_room(folder)
    django.setup()
    django_module("utils.module_loading").autodiscover_modules("tasks")
    for task in seen_tasks.values():
        declare_django(task, who)
    drop_connections()


def drop_connections() -> None:
    """Close all connections to the databases of the project. The next query opens a fresh one."""
    connections = django_module("db").connections
    for connection in connections.all(initialized_only=True):
        connection.close()
        del connections[connection.alias]       # it may be inside of atomic() for ever


def _make_room(folder: str) -> None:
    """Give the module of tasks.py another name if the project has a package `tasks`."""
    module = sys.modules.get("tasks")
    if os.path.isfile(os.path.join(folder, "tasks", "__init__.py")) and (
            getattr(module, "__file__", None) == str(TASKS_FILE)):
        sys.modules["jobqueue_tasks"] = sys.modules.pop("tasks")


def settings_digest() -> str:
    """Return a digest of the databases that the settings name. Its key is SECRET_KEY."""
    databases = django_module("db").connections.settings
    text = repr([(alias, sorted((name, str(value)) for name, value in databases[alias].items()))
                 for alias in sorted(databases)])
    digest: str = django_module("utils.crypto").salted_hmac(
        "jobqueue.settings", text, algorithm="sha256").hexdigest()
    return digest


def project_summary() -> JsonObject | None:
    """Return the project of this process for the announcement; None if tasks.py names none."""
    if not project_settings:
        return None
    return {"settings": project_settings[0], "folder": os.path.realpath(project_folders[0]),
            "digest": settings_digest()}


seen_tasks: dict[str, DjangoTask] = {}  # {path: the first Task of our backend with it}


def declare_django(task: DjangoTask, who: Who) -> DjangoFunction:
    """Declare a task of Django as a Function; return it."""
    function = DjangoFunction(task, who)
    declared[function.name] = function
    return function


def find_django(name: str) -> DjangoFunction | None:
    """Return the function of a task's path, also if its module was not imported before; None if none."""
    if not project_settings or "." not in name:
        return None
    task = find_task(name)
    return None if task is None else declare_django(task, "nobody")


def find_task(path: str) -> DjangoTask | None:
    """Return the Django task with this path; None if there is none.

    The path is that of the function. A task may have another name, as in `mail = task(send)`.
    """
    module_name, _, name = path.rpartition(".")
    if path not in seen_tasks and module_name:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not (module_name + ".").startswith("%s." % error.name):
                raise                   # the module is there, and imports another one that is missing
    task = getattr(sys.modules.get(module_name), name, None)
    return task if isinstance(task, django_names().task) else seen_tasks.get(path)
