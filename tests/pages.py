"""Runs the commands of a page of docs/ as a reader would: in order, in one shell, in an empty directory.

A `console` block has commands, which begin with `$ ` and may continue on further lines that are indented, and under each
what it prints: a line that ends with `…` stands for every line that begins with what precedes it, and `…` alone for
any lines. Without such lines, the output is not compared. A `toml` block is the file `mainstem.toml`.
"""

import os
import re
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from broker import ROOT, binary

DEADLINE_S = 90
# Precedes the exit status of a command in the output of the script.
MARK = "\x1e"


@dataclass
class Step:
    """A command of the page, and the lines that it prints."""

    command: str
    prints: list[str] = field(default_factory=list)


def steps_of(page: str, replace) -> list[Step]:
    """The steps of a page. `replace` changes its text first: ports, addresses."""
    text = replace((ROOT / "docs" / page).read_text())
    steps: list[Step] = []
    for kind, block in re.findall(r"^```(console|toml)\n(.*?)^```", text, re.S | re.M):
        if kind == "toml":
            steps.append(Step(f"cat > mainstem.toml <<'END'\n{block}END"))
            continue
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:]))
            elif steps[-1].command.endswith("\\"):
                steps[-1].command += "\n" + line
            else:
                steps[-1].prints.append(line)
    assert steps, f"{page} has no commands"
    return steps


def script_of(steps: list[Step], prelude: str) -> str:
    """A script that prints the output of each step, and then MARK and its exit status, up to the first that fails.
    Programs that the page starts in the background print to `background.log`; they are ended last, and must exit
    with 0."""
    ended = "for started in $(jobs -p); do kill $started; wait $started; echo background $?; done"
    lines = [f"trap '{ended}' EXIT", prelude]
    for step in steps:
        command = step.command
        if command.endswith("&"):
            command = command[:-1] + "> background.log 2>&1 < /dev/null &"
        lines += [command, f"status=$?; printf '{MARK}%d\\n' $status; [ $status = 0 ] || exit 1"]
    return "\n".join(lines)


def matches(printed: list[str], expected: list[str]) -> bool:
    """Whether lines are those that the page shows."""
    if not expected:
        return not printed
    first, rest = expected[0], expected[1:]
    if first == "…":
        return any(matches(printed[at:], rest) for at in range(len(printed) + 1))
    if not printed:
        return False
    is_it = printed[0].startswith(first[:-1].rstrip()) if first.endswith("…") else printed[0] == first
    return is_it and matches(printed[1:], rest)


def run_page(page: str, folder: Path, replace=lambda text: text, prelude: str = ""):
    """Runs a page in `folder`; every command must succeed, and print what the page says."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "mainstem").symlink_to(binary().resolve())
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    steps = steps_of(page, replace)
    script = script_of(steps, prelude)
    done = subprocess.run(["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True,
                          timeout=DEADLINE_S)
    log = work / "background.log"
    context = "\n".join([done.stdout, done.stderr, log.read_text() if log.exists() else ""])
    outputs = re.findall(rf"(.*?){MARK}(\d+)\n", done.stdout, re.S)
    for step, (output, status) in zip(steps, outputs):
        assert status == "0", f"{step.command}: exit status {status}\n{context}"
        if step.prints:
            lines = output.splitlines()
            assert matches(lines, step.prints), f"{step.command}: {lines} is not {step.prints}\n{context}"
    assert len(outputs) == len(steps), context
    ended = re.findall(r"^background (\d+)$", done.stdout, re.M)
    assert all(status == "0" for status in ended), context


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def with_free_ports(*ports: str):
    """Replaces the ports of a page by free ones, and listens on loopback only."""
    pairs = dict(zip(ports, map(str, free_ports(len(ports)))))

    def replace(text: str) -> str:
        text = text.replace('listen = "0.0.0.0:', 'listen = "127.0.0.1:')
        return re.sub(rf"\b({'|'.join(ports)})\b", lambda found: pairs[found[0]], text)

    return replace
