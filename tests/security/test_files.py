"""What the broker writes is for its own user only, whatever the umask of whoever starts it."""

import os
import stat
import tempfile
from pathlib import Path

from confluent_kafka.admin import NewTopic

from secure_broker import DEADLINE_S, SecureBroker

SOCKET = """
[[listener]]
name = "local"
protocol = "mqtt"
listen = "unix:{path}"
"""


def test_files_and_directories_are_private(unique):
    with tempfile.TemporaryDirectory(prefix="mainstem-secure-") as folder:
        folder = Path(folder)
        path = folder / "socket"
        umask = os.umask(0)
        try:
            secure = SecureBroker(folder, extra=SOCKET.format(path=path))
        finally:
            os.umask(umask)
        admin = secure.admin_client()
        admin.create_topics([NewTopic(unique, 2, 1)])[unique].result(DEADLINE_S)
        with secure.api() as http:
            http.put(f"/v1/queues/{unique}-q", json={}).raise_for_status()
            http.post(f"/v1/queues/{unique}-q/messages", json={"messages": [{"body": "x"}]}).raise_for_status()
        with secure.peer("admin", unique, session_expiry=300) as client:
            client.subscribe(f"{unique}/#", 1)
            client.publish(f"{unique}/a", b"kept", 1, retain=True)
        made = [secure.data, *secure.data.rglob("*"), secure.audit_log, folder / "socket.lock"]
        assert len(made) > 10
        modes = {str(each): oct(stat.S_IMODE(each.lstat().st_mode)) for each in made if each.exists()}
        readable = {name: mode for name, mode in modes.items() if int(mode, 8) & 0o077}
        assert readable == {}
        assert stat.S_IMODE(path.lstat().st_mode) == 0o660, "a socket has its configured mode"
        secure.restart()
        assert all(stat.S_IMODE(each.lstat().st_mode) & 0o077 == 0 for each in secure.data.rglob("*"))
        secure.stop()
