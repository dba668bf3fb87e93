"""schemathesis: requests generated from the OpenAPI description, valid ones and slightly invalid ones.

No response may differ from the description: a valid request is accepted, an invalid one is rejected, and every response
has a described status, content type and body. The seed is fixed, so that a failure can be repeated.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SEED = 1
# Generated requests per operation; with those for boundaries of each parameter about 2,300 in all.
EXAMPLES = 40
# The requests create users, so they need one that the rules they create do not restrict.
USER, PASSWORD = "the-fuzzer-itself", "secret"  # As in fuzz_hooks.py.
DEADLINE_S = 300


@pytest.mark.timeout(DEADLINE_S + 30)
def test_responses_match_the_description(own_broker_process, tmp_path):
    own_broker_process.kill()
    own_broker_process.configure(f'[security]\nsuper_users = ["{USER}"]\n')
    own_broker_process.start()
    body, json_type = json.dumps({"password": PASSWORD}).encode(), {"content-type": "application/json"}
    url = f"{own_broker_process.url}/v1/users/{USER}"
    with urllib.request.urlopen(urllib.request.Request(url, body, json_type, method="PUT"), timeout=30) as added:
        assert added.status == 201
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(HERE / "fuzz.toml"), "run"]
    command += [f"{own_broker_process.url}/openapi.json", "--phases", "coverage,fuzzing"]
    command += ["--seed", str(SEED), "--max-examples", str(EXAMPLES), "--generation-database", "none"]
    command += ["--auth", f"{USER}:{PASSWORD}"]
    command += ["--continue-on-failure", "--no-color", "--warnings", "off"]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "fuzz_hooks"}
    fuzzing = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, cwd=tmp_path)
    assert fuzzing.returncode == 0, fuzzing.stdout + fuzzing.stderr
    own_broker_process.stop()
