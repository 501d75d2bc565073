"""Machines of our own on this one: each with a host name, a network and a boot id (Linux, root).

    with Network(3) as network:         a bridge at `network.address`, and machines m1, m2, m3 on it
        machine = network.machines[0]
        subprocess.Popen(machine.command(["hostname"]))
        machine.cut("silent")           its packets vanish; "down": its cable is out
        machine.mend()
        machine.fall()                  all its processes die at once, unheard; True of those it had
        machine.boot()                  it is on the network again, with another boot id

They share the files, the clock and the process ids of this machine, so that a test can tell whose
process is whose.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount", "hostname")


def missing():
    """Words on why there can be no machines here; empty if there can."""
    if os.getuid():
        return "namespaces need root"
    absent = [name for name in TOOLS if not shutil.which(name)]
    if absent:
        return "no command %s" % ", ".join(absent)
    tried = subprocess.run(["unshare", "--uts", "--net", "--mount", "true"], stderr=subprocess.PIPE)
    return "namespaces are refused" if tried.returncode else ""


def run(*words):
    """Run a command of the system."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


class Machine:
    """One machine: a process that keeps its namespaces, and what is started in them."""

    def __init__(self, name, network, number):
        self.name = name
        self.is_up = True
        self.address = network.address.rpartition(".")[0] + ".%d" % (number + 1)
        self._bridge, self._cable = network.bridge, "%s%d" % (network.bridge, number)
        self._boot_file = network.folder / name
        self._new_boot_id()
        self._keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--uts", "--net", "--mount",
             "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True)     # a signal to all of us is none to it
        self._keeper.stdout.readline()
        run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0",
            "netns", str(self._keeper.pid))
        for words in (["hostname", name], ["ip", "link", "set", "lo", "up"],
                      ["ip", "address", "add", self.address + "/24", "dev", "eth0"],
                      ["ip", "link", "set", "eth0", "up"],
                      ["mount", "--bind", str(self._boot_file), BOOT_ID]):
            run(*self.command(words))
        self.mend()

    def command(self, words, folder="/"):
        """What runs these words on this machine; its process id is theirs."""
        return ["nsenter", "--target", str(self._keeper.pid), "--uts", "--net", "--mount",
                "env", "--chdir", str(folder), *map(str, words)]

    def processes(self):
        """The ids of all that runs on it."""
        own, found = os.readlink("/proc/%d/ns/net" % self._keeper.pid), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink("/proc/%s/ns/net" % pid) == own and int(pid) != self._keeper.pid:
                    found.append(int(pid))
        return found

    def cut(self, how):
        """Take it off the network: it is told ("down"), or nobody is ("silent")."""
        run("ip", "link", "set", self._cable, *(["down"] if how == "down" else ["nomaster"]))

    def mend(self):
        """Put it on the network."""
        run("ip", "link", "set", self._cable, "master", self._bridge, "up")

    def fall(self):
        """Kill all that runs on it, when no word of that can leave it any more; the ids."""
        self.is_up = False
        self.cut("silent")
        killed = set()
        while self.processes():
            for number in (signal.SIGSTOP, signal.SIGKILL):     # none starts others meanwhile
                for pid in self.processes():
                    killed.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        return killed

    def boot(self):
        """Let it be there again, as after a fall."""
        self._new_boot_id()
        self.mend()
        self.is_up = True

    def close(self):
        """End all that is left of it."""
        self.fall()
        run("ip", "link", "delete", self._cable)
        self._keeper.kill()
        self._keeper.wait()
        self._keeper.stdout.close()

    def _new_boot_id(self):
        self._boot_file.write_text("%s\n" % uuid.uuid4())


class Network:
    """A bridge and its machines; this one is on it as well."""

    def __init__(self, count):
        number = os.getpid()
        self.bridge = "jq%x" % (number & 0xffff)
        self.address = "10.%d.%d.1" % (100 + (number >> 8) % 100, number & 0xff)
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue-boot-"))
        self.machines = []
        self._stack = contextlib.ExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        # An address of its own: else it has that of a cable, another one when that is cut.
        run("ip", "link", "add", self.bridge, "address", "02:00:00:00:00:01", "type", "bridge")
        self._stack.callback(run, "ip", "link", "delete", self.bridge)
        try:
            run("ip", "address", "add", self.address + "/24", "dev", self.bridge)
            run("ip", "link", "set", self.bridge, "up")
            for place in range(1, count + 1):
                self.machines.append(Machine("m%d" % place, self, place))
                self._stack.callback(self.machines[-1].close)
        except BaseException:
            self.close()
            raise

    def close(self):
        """End the machines and the network."""
        self._stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
