"""What stands between a remote worker and its site: it passes calls on, or does them harm.

    between = Between(site.address)         # a server of its own; .address, ending in no slash
    between = Between(cgi=site)             # each call is a process of the site, as under CGI
    between.harm["turn claim"] = ["after"]  # what happens to the next calls of that kind
    between.calls                           # the kinds of all calls so far, with what happened
    between.close()

Kinds are "hello", "tasks", and of turns what they hold: "turn start hold end claim leave". Other requests
have their method and the first part of their path: "get tasks", "post files". A harm in
`harm` is done to the next call whose kind has that word (or those words); when the list is used up calls
pass again. `always` is done to all.

    before      502, and the site never hears of it        html    the site does it, a page is answered
    after       the site does it, the answer is dropped    half    ... and so is half of the answer
    twice       the site gets it twice                     late    ... the second time with the next call
    busy        503 and Retry-After: 1, not passed on

With `certificate` (a file with certificate and key) it speaks HTTPS. Cutter harms bytes, not calls;
Acceptor is what it and other servers of a single protocol begin with.
"""
import contextlib
import http.client
import http.server
import json
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit


def kind_of(method, path, body):
    """What a call is, in words."""
    if "/api/worker/" not in path:
        return "%s %s" % (method.lower(), path.split("?")[0].split("/")[2])
    name = path.split("/api/worker/")[-1].split("/")[0]
    if name != "turn":
        return name
    given = json.loads(body)
    parts = ("start", "hold", "end", "claim", "leave")
    return " ".join(["turn", *(part for part in parts if given.get(part))])


class Between:
    """See the module's docstring."""

    def __init__(self, address=None, cgi=None, certificate=None):
        self.target, self._cgi = address, cgi
        self.harm, self.always, self.calls, self._late = {}, None, [], []
        self._lock = threading.Lock()
        between = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                between.pass_on(self)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        name = "https://localhost" if certificate else "http://127.0.0.1"
        self.address = "%s:%d" % (name, self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def _harm_for(self, kind):
        with self._lock:
            for words, harms in self.harm.items():
                if harms and set(words.split()) <= set(kind.split()):
                    return harms.pop(0)
        return self.always

    def pass_on(self, handler):
        """One call."""
        is_read = handler.command == "GET"
        length = int(handler.headers["Content-Length"] or (0 if is_read else -1))
        body = handler.rfile.read(max(0, length))
        if len(body) != length or not is_read and "Content-Type" not in handler.headers:
            handler.close_connection = True     # the client died meanwhile
            return None
        kind = kind_of(handler.command, handler.path, body)
        harm = self._harm_for(kind)
        self.calls.append((kind, harm))
        if harm == "before":
            return self._answer(handler, 502, "text/html", b"<h1>Bad Gateway</h1>")
        if harm == "busy":
            return self._answer(handler, 503, "text/html", b"<h1>Busy</h1>", more={"Retry-After": "1"})
        asked = handler.path, dict(handler.headers), body, handler.command
        for late in self._late[:]:
            self._late.remove(late)
            self._ask(*late)
        try:
            if harm == "twice":
                self._ask(*asked)
            status, media, answer = self._ask(*asked)
        except OSError:
            return self._answer(handler, 502, "text/html", b"<h1>Bad Gateway</h1>")
        if harm == "late":
            self._late.append(asked)
        if harm == "after":
            handler.close_connection = True
            with contextlib.suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
        elif harm == "html":
            self._answer(handler, 200, "text/html", b"<h1>Please log in to the network</h1>")
        else:
            self._answer(handler, status, media, answer, len(answer) // 2 if harm == "half" else None)

    def _answer(self, handler, status, media, body, cut=None, more=()):
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Type", media)
            handler.send_header("Content-Length", str(len(body)))
            for name in more:
                handler.send_header(name, more[name])
            handler.end_headers()
            handler.wfile.write(body[:cut])
            if cut is not None:
                handler.close_connection = True
                handler.connection.shutdown(socket.SHUT_RDWR)

    def _ask(self, path, headers, body, method="POST"):
        """(status, media type, body) of the site."""
        if self._cgi:
            return self._run_cgi(path, headers, body)
        parts = urlsplit(self.target)
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        with contextlib.closing(link):
            keep = {name: headers[name] for name in headers if name.lower() in (
                "x-api-key", "content-type", "idempotency-key", "user-agent")}
            try:
                link.request(method, path, body, keep)
                answer = link.getresponse()
                return answer.status, answer.headers["Content-Type"], answer.read()
            except http.client.HTTPException as error:
                raise OSError(str(error)) from None

    def _run_cgi(self, path, headers, body):
        environment = {
            **self._cgi.environment, "GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "POST",
            "PATH_INFO": path, "REQUEST_URI": path, "SCRIPT_NAME": "", "QUERY_STRING": "",
            "CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": headers["Content-Type"],
            "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1",
            **{"HTTP_" + name.upper().replace("-", "_"): headers[name] for name in headers}}
        done = subprocess.run([sys.executable, "-m", "jobqueue"], cwd=self._cgi.home, env=environment,
                              input=body, stdout=subprocess.PIPE, timeout=60)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        if not answer:
            raise OSError("no answer")
        lines = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n"))
        return int(lines["Status"].split()[0]), lines["Content-Type"], answer


class Acceptor:
    """Takes connections on a port, each talk() in a thread of its own; what breaks one is no error."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.address = "http://127.0.0.1:%d" % self.port
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        """Take no more connections."""
        self._socket.close()

    def talk(self, peer):
        """What is said on a connection; it is closed afterwards."""

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                peer = self._socket.accept()[0]
                threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer):
        with peer, contextlib.suppress(OSError):
            self.talk(peer)


class Cutter(Acceptor):
    """Passes bytes on to wherever `target()` says, cuts some connections at any byte, may be silent."""

    def __init__(self, target, chance, share=0.2, mean=1500):
        self._target, self._chance, self._share, self._mean = target, chance, share, mean
        self.silent, self.cuts = False, 0
        super().__init__()

    def close(self):
        """Be silent no more, and take no more connections."""
        self.silent = False
        super().close()

    def talk(self, client):
        """Pass on what comes from both sides, up to the byte where chance cuts it."""
        left = [math.inf]
        if self._chance.random() < self._share:
            left = [self._chance.expovariate(1 / self._mean)]
        parts = urlsplit(self._target())
        with socket.create_connection((parts.hostname, parts.port), 10) as site:
            site.settimeout(None)
            back = threading.Thread(target=self._copy, args=(site, client, left), daemon=True)
            back.start()
            self._copy(client, site, left)
            back.join()

    def _copy(self, source, target, left):
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(1 << 16), b""):
                while self.silent:
                    time.sleep(0.1)
                target.sendall(data[:int(min(left[0], len(data)))])
                left[0] -= len(data)
                if left[0] <= 0:
                    self.cuts += 1
                    source.shutdown(socket.SHUT_RDWR)
            target.shutdown(socket.SHUT_RDWR)


class Tunnel(Acceptor):
    """An HTTP proxy that connects to whatever is asked for; `asked` are those places, `known` is what
    those who asked proved themselves with."""

    def __init__(self):
        self.asked, self.known = [], set()
        super().__init__()

    def talk(self, client):
        """Connect, say so, and pass on what comes from both sides."""
        with client.makefile("rb") as lines:
            place = lines.readline().split()[1].decode()
            for line in iter(lambda: lines.readline().decode().strip(), ""):
                name, _, value = line.partition(": ")
                if name == "Proxy-Authorization":
                    self.known.add(value)
            self.asked.append(place)
            host, _, port = place.rpartition(":")
            with socket.create_connection((host, int(port))) as site:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=self._copy, args=(site, client), daemon=True)
                back.start()
                self._copy(client, site)
                back.join()

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(1 << 16), b""):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def make_certificate(folder):
    """The file with a certificate of its own, for localhost, and its key."""
    key, certificate, both = (os.path.join(folder, name) for name in ("key.pem", "cert.pem", "both.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                    certificate, "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(both, "w", encoding="ascii") as file:
        for path in (certificate, key):
            with open(path, encoding="ascii") as part:
                file.write(part.read())
    return both
