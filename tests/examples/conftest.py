"""Fixtures of the suite that runs the projects in `examples/`."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from broker import ROOT, binary
from broker_process import BrokerProcess

EXAMPLES = ROOT / "examples"
DEADLINE_S = 30


@pytest.fixture(scope="session")
def broker_process():
    """One broker for all examples."""
    shared = BrokerProcess()
    yield shared
    shared.stop()


class Program:
    """A running program, and its lines of output."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, line):
        """Waits until the program has printed this line."""
        with self._changed:
            assert self._changed.wait_for(lambda: line in self._lines, DEADLINE_S), (line, self._lines)

    def finish(self):
        """Waits for the end of the program, and returns its lines."""
        assert self.process.wait(DEADLINE_S) == 0
        self._reader.join(DEADLINE_S)
        return self._lines

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE_S)


@pytest.fixture
def start():
    """Starts a program; ends it after the test if it still runs."""
    programs = []

    def start(*command):
        command = [str(word) for word in command]
        if command[0].endswith(".py"):
            command.insert(0, sys.executable)
        programs.append(Program(command))
        return programs[-1]

    yield start
    for program in programs:
        program.end()


@pytest.fixture
def mainstem(broker_process):
    """Runs a command of the broker's own tool, and returns its output."""

    def run(*arguments):
        done = subprocess.run(
            [str(binary()), *map(str, arguments)],
            capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, "no_proxy": "*"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
