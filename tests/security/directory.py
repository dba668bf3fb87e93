"""A directory for tests: OpenLDAP's slapd, with users and groups, on ports of its own."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

DEADLINE_S = 30
SUFFIX = "dc=example,dc=com"
PEOPLE = f"ou=people,{SUFFIX}"
GROUPS = f"ou=groups,{SUFFIX}"
ACCOUNT, ACCOUNT_PASSWORD = f"cn=broker,{SUFFIX}", "read-only"
ROOT, ROOT_PASSWORD = f"cn=root,{SUFFIX}", "root"
# Nobody but the account and the user itself reads an entry; passwords only compare.
CONFIG = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCertificateFile {certs}/server.crt
TLSCertificateKeyFile {certs}/server.key
database mdb
suffix "{suffix}"
rootdn "{root}"
rootpw {root_password}
directory {folder}/db
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{account}" read by self read by anonymous auth by * none
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Directory:
    """slapd, with the TLS certificate `server` of the folder `certs`. `people` are names and passwords, `groups` names
    and members."""

    def __init__(self, folder: Path, certs: Path, people: dict, groups: dict):
        slapd = shutil.which("slapd", path="/usr/sbin:/usr/lib/openldap:/usr/bin")
        assert slapd, "slapd is missing: tests/install"
        self._command = slapd
        (folder / "db").mkdir()
        self._config = folder / "slapd.conf"
        self._config.write_text(CONFIG.format(
            folder=folder, certs=certs, suffix=SUFFIX, root=ROOT, root_password=ROOT_PASSWORD,
            account=ACCOUNT))
        self.port, self.tls_port = free_port(), free_port()
        self.process = None
        self.start()
        self._fill(people, groups)

    def start(self):
        urls = f"ldap://127.0.0.1:{self.port} ldaps://127.0.0.1:{self.tls_port}"
        command = [self._command, "-d", "0", "-f", str(self._config), "-h", urls]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process.poll() is None, "slapd has ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None

    def tool(self, command: str, ldif: str = "", *arguments: str):
        log_in = ["-x", "-H", f"ldap://127.0.0.1:{self.port}", "-D", ROOT, "-w", ROOT_PASSWORD]
        done = subprocess.run([command, *log_in, *arguments], input=ldif, text=True, capture_output=True,
                              timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr

    def change_password(self, user: str, password: str):
        self.tool("ldapmodify", f"dn: uid={user},{PEOPLE}\nchangetype: modify\nreplace: userPassword\n"
                                f"userPassword: {password}\n")

    def _fill(self, people, groups):
        entries = [f"dn: {SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: Example",
                   f"dn: {PEOPLE}\nobjectClass: organizationalUnit\nou: people",
                   f"dn: {GROUPS}\nobjectClass: organizationalUnit\nou: groups",
                   f"dn: {ACCOUNT}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: broker\n"
                   f"userPassword: {ACCOUNT_PASSWORD}"]
        for name, password in people.items():
            secret = f"\nuserPassword: {password}" if password else ""
            entries.append(f"dn: uid={escaped(name)},{PEOPLE}\nobjectClass: inetOrgPerson\nuid: {name}\ncn: {name}\n"
                           f"sn: {name}{secret}")
        for name, members in groups.items():
            members = "\n".join(f"member: uid={escaped(member)},{PEOPLE}" for member in members)
            entries.append(f"dn: cn={name},{GROUPS}\nobjectClass: groupOfNames\ncn: {name}\n{members}")
        self.tool("ldapadd", "\n\n".join(entries) + "\n")


def escaped(name: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in name)
