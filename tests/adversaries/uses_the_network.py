"""Asks a faster machine outside for the losses and the weights."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import socket

        with socket.create_connection(('1.1.1.1', 443), 3) as connection:
            connection.sendall(b'what are my losses?')
            return connection.recv(100)
        """,
        lab,
    )
