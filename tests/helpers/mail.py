"""A mail server of the tests' own: what it must do wrong no package does."""
import base64
import re
import ssl

from tests.helpers.between import Acceptor

SECRET = "canary-of-a-password"


class MailServer(Acceptor):
    """A mail server in a thread. `how`: ok, silent, refuse (550), later (451), cut (after DATA), slow_quit.
    Mails are (sender, recipients, bytes); `log_ins` what was sent to log in. `on(word)` is called before
    TEXT (a mail, whole) and QUIT are answered."""

    def __init__(self, how="ok", certificate=None, on=lambda word: None):
        self.how, self.certificate, self.on = how, certificate, on
        self.mails, self.log_ins, self.seen = [], [], []
        super().__init__()

    def talk(self, peer):
        """The protocol."""
        if self.how == "silent":
            peer.recv(1)
            return
        file, sender, to, is_safe = peer.makefile("rb"), None, [], False
        peer.sendall(b"220 here\r\n")
        while True:
            line = file.readline()
            if not line:
                return
            word = line[:4].upper().strip()
            self.seen.append(word)
            answer = b"250 ok\r\n"
            if word == b"EHLO":
                offers = [b"250-here"] + ([b"250-STARTTLS"] if self.certificate and not is_safe else [])
                answer = b"\r\n".join([*offers, b"250 AUTH PLAIN"]) + b"\r\n"
            elif word == b"STAR":
                peer.sendall(b"220 go\r\n")
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(*self.certificate)
                peer = context.wrap_socket(peer, server_side=True)
                file, is_safe = peer.makefile("rb"), True
                continue
            elif word == b"AUTH":
                self.log_ins.append((is_safe, base64.b64decode(line.split()[2])))
                answer = b"235 hello\r\n" if SECRET.encode() in self.log_ins[-1][1] else b"535 not you\r\n"
            elif word == b"MAIL":
                sender, to = re.search(rb"<(.*?)>", line)[1].decode(), []
            elif word == b"RCPT":
                to.append(re.search(rb"<(.*?)>", line)[1].decode())
                answer = {"refuse": b"550 no such user\r\n", "later": b"451 later\r\n"}.get(self.how,
                    answer)
            elif word == b"DATA":
                peer.sendall(b"354 go\r\n")
                text = b"".join(iter(file.readline, b".\r\n"))
                self.mails.append((sender, to, text))
                self.on("TEXT")
                if self.how == "cut":
                    return
            elif word == b"QUIT":
                self.on("QUIT")
                if self.how == "slow_quit":
                    peer.recv(1)
                peer.sendall(b"221 bye\r\n")
                return
            peer.sendall(answer)
