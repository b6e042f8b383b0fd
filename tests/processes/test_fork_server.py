"""Programs that a fork server starts do what they do when Python starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.processes.fork_server import ForkServer, ForkServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = 60.0

# Each ends as its name says.
PROGRAMS = {
    "well": "print('done')",
    "with a code": "import sys; print('out', flush=True); sys.exit(3)",
    "with a text": "import sys; sys.exit('why it ended')",
    "with an exception": """
        def inner():
            raise ValueError("no such thing")
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("outer") from error
    """,
    "with a syntax error": "print('never'\n",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "by Ctrl-C": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(7)",
    "after its last thread": """
        import threading
        main = threading.main_thread()
        def work():
            main.join()
            print("the thread has ended", flush=True)
        threading.Thread(target=work).start()
        print("main has ended")
    """,
    "after what it registered": """
        import atexit, sys
        text = "a global that is still there"
        atexit.register(lambda: print(text, sys.modules["__main__"].text))
    """,
    "after what it has written": """
        import ctypes, helper, sys, tempfile
        file = open("unflushed", "w")
        file.write("all of it")
        helper.keep(open("unflushed-too", "w")).write("all of that")
        ctypes.CDLL(None).printf(b"by C\\n")
        class Last:
            def __del__(self):
                print("finalised", file.name)
        last = Last()
        last.itself = last
        if len(sys.argv) > 1:
            raise ValueError("after that")
    """,
}

WHAT_IT_SEES = """
    import os, sys
    import helper
    print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), os.environ["ONLY_HERE"])
    print(sorted(name for name in globals() if name.startswith("__")), __package__)
    print(__spec__ and __spec__.name)
    print(type(__loader__).__name__, sys.stdin.read(), sys.stdout.isatty(), helper.where)
    print(os.getsid(0) == os.getpid(), os.environ.get("OMP_NUM_THREADS"), sys.flags.safe_path)
"""

SPAWNS = """
    import multiprocessing

    class Result:
        pass

    def square(number):
        result = Result()
        result.number = number * number
        return result

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(square, [7])[0].number)
"""


@dataclass
class Ending:
    code: int
    out: str
    err: str


@dataclass
class Programs:
    """Starts programs from one server, in `folder`."""

    server: ForkServer
    folder: Path

    def write(self, text: str, name: str = "program.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    def fork(self, *arguments: str, stdin: str = "", **variables: str) -> Ending:
        (self.folder / "in").write_text(stdin, encoding="utf-8")
        out, err = self.folder / "out", self.folder / "err"
        with (self.folder / "in").open() as i, out.open("w") as o, err.open("w") as e:
            streams = (i.fileno(), o.fileno(), e.fileno())
            process = self.server.start(arguments, {**os.environ, **variables}, streams=streams)
            code = process.wait(limit_s(LIMIT_S))
        return Ending(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def exec(self, *arguments: str, stdin: str = "", **variables: str) -> Ending:
        """The interpreter's behaviour."""
        ended = subprocess.run(
            [sys.executable, "-u", *arguments],
            env={**os.environ, **variables},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s(LIMIT_S),
            start_new_session=True,
        )
        return Ending(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as started:
        yield started


@pytest.fixture
def programs(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.chdir(tmp_path)
    return Programs(server, tmp_path)


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_program_ends_and_prints_as_under_the_interpreter(programs: Programs, how: str):
    programs.write(
        "def keep(file):\n    global kept\n    kept = file\n    return file", "helper.py"
    )
    path = programs.write(PROGRAMS[how])
    files = [programs.folder / "unflushed", programs.folder / "unflushed-too"]
    for arguments in ([], ["x"]):
        forked = programs.fork(path, *arguments)
        written = [file.read_text() for file in files if file.exists()]
        assert forked == programs.exec(path, *arguments)
        assert written == [file.read_text() for file in files if file.exists()]


def test_a_script_sees_the_same_of_itself(programs: Programs):
    programs.write("where = __file__", "helper.py")
    path = programs.write(WHAT_IT_SEES)
    seen = programs.fork(path, "-x", "y z", stdin="what it reads", ONLY_HERE="1")
    assert seen.code == 0, seen.err
    assert seen == programs.exec(path, "-x", "y z", stdin="what it reads", ONLY_HERE="1")


def test_a_module_sees_the_same_of_itself(programs: Programs):
    programs.write("where = __file__", "helper.py")
    (programs.folder / "package").mkdir()
    programs.write("", "package/__init__.py")
    programs.write(WHAT_IT_SEES, "package/main.py")
    seen = programs.fork("-m", "package.main", "-x", stdin="text", ONLY_HERE="1")
    assert seen.code == 0, seen.err
    assert seen == programs.exec("-m", "package.main", "-x", stdin="text", ONLY_HERE="1")


def test_a_script_that_is_not_there(programs: Programs):
    forked, executed = programs.fork("nowhere.py"), programs.exec("nowhere.py")
    assert (forked.code, executed.code) == (1, 2)
    assert forked.err.startswith(f"{sys.executable}: can't open file 'nowhere.py': [Errno 2] ")


def test_what_it_spawns_finds_its_functions(programs: Programs):
    assert programs.fork(programs.write(SPAWNS)) == Ending(0, "49\n", "")


def test_torch_is_there_and_its_threads_are_those_of_the_environment(programs: Programs):
    path = programs.write(
        "import sys; print('torch' in sys.modules); import torch; print(torch.get_num_threads())"
    )
    assert programs.fork(path, OMP_NUM_THREADS="3").out == "True\n3\n"


def test_programs_may_fork_and_their_forks_train(programs: Programs):
    path = programs.write("""
        import os, torch

        def work():
            layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
            layers(torch.ones(256, 64)).sum().backward()
            os._exit(0)

        forks = [os.fork() or work() for _ in range(8)]
        print([os.waitpid(fork, 0)[1] for fork in forks])
    """)
    assert programs.fork(path, OMP_NUM_THREADS="1") == Ending(0, f"{[0] * 8}\n", "")


def test_random_numbers_differ_between_forks(programs: Programs):
    path = programs.write("""
        import random, uuid, numpy.random
        print(numpy.random.rand(), random.random(), uuid.uuid4())
    """)
    first, second = programs.fork(path).out.split(), programs.fork(path).out.split()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_its_command_line_is_what_ps_shows(programs: Programs):
    path = programs.write("print(open('/proc/self/cmdline').read().rstrip('\\0'), end='')")
    long = "x" * 5000
    assert programs.fork(path, "a", "b c").out.split("\0") == [sys.executable, path, "a", "b c"]
    assert programs.fork(path, long).out.startswith(f"{sys.executable}\0{path}\0xxx")
    assert programs.exec(path).code == 0  # whose environment was not overwritten


def test_no_descriptor_of_the_server_reaches_a_program(programs: Programs):
    path = programs.write("import os; print(sorted(os.listdir('/proc/self/fd')))")
    forked, executed = programs.fork(path), programs.exec(path)
    assert forked == executed


def test_a_program_is_a_child_of_who_asked_and_its_orphans_are_not(programs: Programs):
    path = programs.write("""
        import os, sys
        print(os.getppid(), flush=True)
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                os.read(0, 1)  # until the test has looked
            os._exit(0)
        os.waitpid(between, 0)
    """)
    reader, writer = os.pipe()
    out = programs.folder / "out"
    with out.open("w") as file:
        process = programs.server.start([path], os.environ, streams=(reader, file.fileno(), 2))
    assert process.wait(limit_s(LIMIT_S)) == 0
    assert int(out.read_text()) == os.getpid()
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PGID, process.pid, os.WEXITED | os.WNOHANG)
    os.close(writer)
    os.close(reader)


def test_waiting_has_a_limit_and_a_group_is_killed_whole(programs: Programs):
    reader, writer = os.pipe()
    path = programs.write("""
        import os, subprocess, sys
        subprocess.Popen(["sleep", "600"])
        print("started", flush=True)
        sys.stdin.read()
    """)
    output, its_output = os.pipe()
    process = programs.server.start([path], os.environ, streams=(reader, its_output, 2))
    os.close(its_output)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    with os.fdopen(output, "rb") as lines:
        assert lines.readline() == b"started\n"  # which an unbuffered program writes in two parts
        process.kill_group()
        assert process.wait() == process.poll() == -signal.SIGKILL
        assert lines.read() == b""  # `sleep` had it, too
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_programs_end_with_the_process_that_asked_for_them(tmp_path: Path):
    asks = tmp_path / "asks.py"
    asks.write_text(
        "import os\n"
        "from torch_topoopt.processes.fork_server import ForkServer\n"
        "with ForkServer() as server:\n"
        f"    process = server.start([{str(tmp_path / 'waits.py')!r}], os.environ)\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "waits.py").write_text("import time; time.sleep(600)")
    ended = subprocess.run(
        [sys.executable, str(asks)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s(LIMIT_S),
        stdin=subprocess.DEVNULL,
    )  # whose output ends when the program, which has it too, does
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) > 0


def test_programs_stay_when_the_server_is_closed(tmp_path: Path):
    reader, writer = os.pipe()
    path = tmp_path / "reads.py"
    path.write_text("import sys; sys.exit(len(sys.stdin.read()))")
    with ForkServer() as server:
        process = server.start([str(path)], os.environ, streams=(reader, 1, 2))
    os.close(reader)
    os.write(writer, b"four")
    os.close(writer)
    assert process.wait(limit_s(LIMIT_S)) == 4


def test_a_server_that_cannot_import_torch_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libfoo.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with ForkServer() as server, pytest.raises(ForkServerError) as error:
        server.start(["-c", ""], os.environ)
    assert str(error.value) == (
        "the process that imports PyTorch ended: ImportError: libfoo.so is missing"
    )


def test_a_server_that_was_killed_says_so(programs: Programs):
    with ForkServer() as server:
        server._process.kill()
        server._process.wait()
        with refused(ForkServerError, "PyTorch"):
            server.start([programs.write("")], os.environ)
