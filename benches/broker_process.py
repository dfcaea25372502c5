"""Brokers that a script starts and stops, and brokers that run already."""

import argparse
import copy
import functools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIST = HERE.parent / os.environ.get("CARGO_TARGET_DIR", "target") / "dist"

# Programs known by their file name: command, configuration in benches/brokers, and the configuration that stores
# sessions and messages on disk.
PROGRAMS = {
    "tenbin": ("{program} broker --listen 127.0.0.1:{port} --config {conf} --log warn", "tenbin.toml", "tenbin-persist.toml"),
    "tenbin-relay": ("{program} 127.0.0.1:{port}", None, None),
    "mosquitto": ("{program} -c {conf}", "mosquitto.conf", "mosquitto-persist.conf"),
    "flashmq": ("{program} --config-file {conf}", "flashmq.conf", "flashmq-persist.conf"),
}

# The same programs with TLS: command, and the end of the configuration.
TLS_PROGRAMS = {
    "tenbin": ("{program} broker --config {conf} --log warn", """
[[listeners]]
name = "tls"
address = "127.0.0.1:{port}"
anonymous = true
[listeners.tls]
certificate = "{certificates}/broker.pem"
key = "{certificates}/broker.key"
"""),
    # Started as root, it would switch to a user that cannot read the key.
    "mosquitto": ("{program} -c {conf}", """
user root
certfile {certificates}/broker.pem
keyfile {certificates}/broker.key
"""),
}

# The same programs with WebSocket.
WEBSOCKET_PROGRAMS = {
    "tenbin": ("{program} broker --config {conf} --log warn", """
[[listeners]]
name = "websocket"
address = "127.0.0.1:{port}"
anonymous = true
transport = "websocket"
"""),
    "mosquitto": ("{program} -c {conf}", "\nprotocol websockets\n"),
}

# Keys that `openssl req -newkey` makes.
TLS_KEYS = {"ecdsa": "ec -pkeyopt ec_paramgen_curve:P-256", "rsa": "rsa:2048"}


class Failed(Exception):
    """A run without figures; the text is one line."""


class Given:
    """A broker that runs already."""

    def __init__(self, name, host, port, pid):
        self.name, self.host, self.port, self.pid = name, host, port, pid
        self.how = f"{host}:{port}"
        self.load_options = ""

    def keeping(self):
        """Returns itself: its operator decides whether it stores data."""
        return self

    def over_tls(self, _):
        """Returns None: its operator decides over TLS."""

    def over_websocket(self):
        """Returns None: its operator decides over WebSocket."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Started:
    """A broker that is started for each run, so that no data of an earlier run is left."""

    # Parent of the data directories; None: the directory of temporary files.
    data = None

    def __init__(self, name, command, conf, keeping_conf=None, program=None):
        self.name, self.command, self.conf, self.keeping_conf = name, command, conf, keeping_conf
        # Its file name, if it is one of PROGRAMS.
        self.program = program
        self.host, self.how = "127.0.0.1", command
        self.certificates, self.conf_end, self.load_options = None, "", ""

    def keeping(self):
        """The same broker with sessions and messages on disk; None if it cannot store them."""
        if self.keeping_conf:
            return self.changed(conf=self.keeping_conf)
        keeps = "{data}" in self.command or (self.conf and "{data}" in self.conf.read_text())
        return self if keeps else None

    def over_tls(self, certificates):
        """The same broker with TLS, as NAME+tls; None if it is not in TLS_PROGRAMS."""
        return self.over("tls", TLS_PROGRAMS, f"--tls --ca {certificates}/authority.pem", certificates)

    def over_websocket(self):
        """The same broker with WebSocket, as NAME+ws; None if it is not in WEBSOCKET_PROGRAMS."""
        return self.over("ws", WEBSOCKET_PROGRAMS, "--websocket")

    def over(self, transport, programs, load_options, certificates=None):
        if self.program not in programs:
            return None
        command, conf_end = programs[self.program]
        command = command.replace("{program}", shlex.quote(shlex.split(self.command)[0]))
        return self.changed(
            name=f"{self.name}+{transport}", command=command, how=command, conf_end=conf_end, certificates=certificates,
            load_options=load_options)

    def changed(self, **attributes):
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="broker-", dir=self.data)
        self.port = free_port()
        data = Path(self.directory.name) / "data"
        data.mkdir()
        values = {"{port}": self.port, "{data}": data, "{certificates}": self.certificates}
        fill = lambda text: functools.reduce(lambda text, key: text.replace(key, str(values[key])), values, text)
        command = fill(self.command)
        if self.conf:
            path = Path(self.directory.name) / self.conf.name
            path.write_text(fill(self.conf.read_text() + self.conf_end))
            command = command.replace("{conf}", shlex.quote(str(path)))
        self.arguments = shlex.split(command)
        self.said = tempfile.TemporaryFile()
        try:
            self.launch()
        except Failed:
            self.directory.cleanup()
            raise
        self.wait_until_it_listens()
        return self

    def launch(self):
        """Starts the process, for the first time or again with its stored data."""
        try:
            self.process = subprocess.Popen(
                self.arguments, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said, cwd=self.directory.name)
        except OSError as error:
            raise Failed(f"cannot start {self.name}: {error}") from None
        self.pid = self.process.pid

    def end(self, how):
        """Sends the signal `how` and waits until the process ends."""
        self.process.send_signal(how)
        self.process.wait(120)

    def data_bytes(self):
        files = (Path(self.directory.name) / "data").rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())

    def wait_until_it_listens(self):
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        said = self.last_words()
        self.__exit__()
        raise Failed(f"{self.name} does not listen: {said}")

    def last_words(self):
        self.said.seek(0)
        lines = [line for line in self.said.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.said.close()
        self.directory.cleanup()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def broker(text):
    """Parses the value of one --broker."""
    name, is_named, rest = text.partition("=")
    if not is_named:
        program = find_program(text)
        if not program:
            raise argparse.ArgumentTypeError(f"{text!r}: want tenbin, relay, mosquitto, flashmq, or NAME=…")
        return of_program(name, program)
    if "{port}" in rest or "{conf:" in rest:
        conf = None
        if "{conf:" in rest:
            before, _, after = rest.partition("{conf:")
            path, _, after = after.partition("}")
            rest, conf = before + "{conf}" + after, Path(path).resolve()
            if not conf.is_file():
                raise argparse.ArgumentTypeError(f"{path!r} is no file")
        return Started(name, rest, conf)
    if Path(rest).name in PROGRAMS:
        program = shutil.which(rest)
        if not program:
            raise argparse.ArgumentTypeError(f"{rest!r} is no program")
        return of_program(name, str(Path(program).resolve()))
    place, _, pid = rest.partition(",pid=")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or not (pid == "" or pid.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: want NAME=HOST:PORT[,pid=PID], NAME=COMMAND with {{port}}, or NAME=PROGRAM")
    return Given(name, host, int(port), int(pid) if pid else None)


def of_program(name, program):
    command, *confs = PROGRAMS[Path(program).name]
    confs = [conf and HERE / "brokers" / conf for conf in confs]
    return Started(name, command.replace("{program}", shlex.quote(program)), *confs, program=Path(program).name)


def make_certificates(directory, kind):
    """Writes authority.pem, and broker.pem and broker.key of 127.0.0.1; all keys are of this kind of TLS_KEYS."""

    def openssl(arguments):
        done = subprocess.run(["openssl", *arguments.split()], cwd=directory, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"openssl {arguments.split()[0]}: {done.stderr.strip()}")

    (Path(directory) / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    key = f"-newkey {TLS_KEYS[kind]} -nodes"
    openssl(f"req -x509 {key} -keyout authority.key -out authority.pem -days 30 -subj /CN=authority")
    openssl(f"req {key} -keyout broker.key -out request.pem -subj /CN=broker")
    by = "-CA authority.pem -CAkey authority.key -CAcreateserial"
    openssl(f"x509 -req -in request.pem {by} -days 30 -extfile names -out broker.pem")


def find_program(name):
    """Finds this project's programs in the build of profile dist, others in PATH."""
    name = {"relay": "tenbin-relay"}.get(name, name)
    if name not in PROGRAMS:
        return None
    own = DIST / name
    if own.is_file():
        return str(own)
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def resident_kib(pid, what="VmRSS"):
    """Resident memory; with VmHWM its highest value so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1])
    raise Failed(f"process {pid} has ended")


def cpu_seconds(pid):
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_memory(directory):
    done = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True)
    return done.stdout.strip() in ("tmpfs", "ramfs")


def load(tenbin, target, options, seconds):
    """One run of the load generator: its summary.json."""
    place = f"{target.name}={target.host}:{target.port}" + (f",pid={target.pid}" if target.pid else "")
    with tempfile.TemporaryDirectory(prefix="compare-") as out:
        command = [tenbin, "loadgen", "run", "--broker", place, *target.load_options.split(), *options.split()]
        command += ["--time", f"{seconds}s", "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 240)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise Failed(lines[-1].strip())
        return json.loads((Path(out) / "summary.json").read_text())
