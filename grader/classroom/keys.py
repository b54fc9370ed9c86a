"""The certificates of a pool, under two authorities that do not vouch for each other's holders.

pool   the pool's own machines: scheduler, workers, instructors. Whoever has `pool-node.pem` can run any code on the pool:
       Dask unpickles what its clients send.
door   those who may hand in a submission, one certificate each, and the front door itself. It opens nothing else.

FOLDER/pool-ca.pem, pool-node.pem, door-ca.pem, door-ca-key.pem, door.pem, users.txt (who may come in), users/NAME.pem (for
NAME: key, certificate and the door's authority in one file)"""

import hashlib
import os
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from grader.errors import UserError
from grader.safe_text import tell

DAYS = 400  # a course year
ANEW = (
    "Whoever runs the pool makes new ones. Move the folder with the keys away, run `grader pool keys` again, and give out the "
    "users' new files."
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


def make_keys(folder: Path, users: list[str]) -> list[Path]:
    """Make what is missing: the pool's and the door's certificates, and one for each new user; who has one keeps it, and
    is named on standard error. Returns the users' new files. Raises UserError for a name that cannot be one."""
    users = list(dict.fromkeys(users))  # each once
    for name in users:
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r} can't be a user's name. A name has up to 64 letters, digits and . _ @ -")
    have_one = set(read_users(folder).values())
    if known := [name for name in users if name in have_one]:
        tell(
            f"No new key for {', '.join(known)}, who already have one. To replace a key, first delete the "
            f"line with the name in {folder / 'users.txt'}. The old key then opens nothing."
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / "pool-node.pem").exists():
        ca = _authority("grader pool")
        _write(folder / "pool-ca.pem", _pem(ca[1]))  # its key is not kept: a new machine gets a copy of the node's file
        _write(folder / "pool-node.pem", _leaf("node", *ca, server=True, client=True))
    if not (folder / "door.pem").exists():
        ca = _authority("grader door")
        _write(folder / "door-ca-key.pem", _key_pem(ca[0]))
        _write(folder / "door-ca.pem", _pem(ca[1]))
        _write(folder / "door.pem", _leaf("door", *ca, server=True))
    made = []
    for name in users:
        if name in have_one:
            continue
        text = _leaf(name, *_read_authority(folder), client=True)
        made.append(folder / "users" / f"{name}.pem")
        made[-1].parent.mkdir(exist_ok=True)
        _write(made[-1], text + (folder / "door-ca.pem").read_bytes())
        with open(folder / "users.txt", "a", encoding="ascii") as file:
            certificate = ssl.PEM_cert_to_DER_cert(text[text.index(b"-----BEGIN CERTIFICATE") :].decode("ascii"))
            # an editor may have left the last line without its end
            file.write(f"\n{name} {fingerprint(certificate)}\n")
    return made


def read_users(folder: Path) -> dict[str, str]:
    """Who may come in: names by fingerprints of certificates. Read at each connection; a line that begins "#ann" is no user's."""
    try:
        lines = (folder / "users.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    return {fields[1]: fields[0] for line in lines if len(fields := line.split()) == 2 and NAME.fullmatch(fields[0])}


def check_valid(path: Path) -> None:
    """Raises UserError for what is no certificate, and for one that has ended: without this, connections just fail."""
    ends = _read_certificate(path).not_valid_after_utc
    if ends < datetime.now(UTC):
        raise UserError(f"The certificate in {path} ended on {ends:%Y-%m-%d}. Certificates last {DAYS} days. {ANEW}")


def fingerprint(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def gateway_context(folder: Path) -> ssl.SSLContext:
    """The gateway's side of a connection: nobody comes in without a certificate of its authority."""
    for name in ("door.pem", "door-ca.pem"):
        if not (folder / name).exists():
            raise UserError(f"{folder / name} is missing. `grader pool keys {folder}` makes a pool's certificates.")
        check_valid(folder / name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "door.pem")
    context.load_verify_locations(folder / "door-ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def user_context(key: Path) -> ssl.SSLContext:
    """A user's side of a connection, from the one file that was given out. Raises UserError for a file that is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the authority is the door's own and has made one server's certificate
    try:
        context.load_cert_chain(key)
        context.load_verify_locations(key)
    except OSError as error:  # ssl.SSLError is one
        why = (
            error.strerror if not isinstance(error, ssl.SSLError) else ("it is not a key that `grader pool keys` made")
        )
        raise UserError(
            f"{key} cannot be used as your key to the pool: {why}. Ask whoever runs the pool for it."
        ) from None
    check_valid(key)
    return context


# ---------------------------------------------------------------- certificates


Key = ec.EllipticCurvePrivateKey


def _authority(name: str) -> tuple[Key, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _certificate(name, key.public_key(), key, None)


def _leaf(name: str, ca_key: Key, ca: x509.Certificate, server: bool = False, client: bool = False) -> bytes:
    """Key and certificate in one PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _key_pem(key) + _pem(_certificate(name, key.public_key(), ca_key, ca, server, client))


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    ca_key: Key,
    ca: x509.Certificate | None,
    server: bool = False,
    client: bool = False,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=0 if ca is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(ca is None), critical=True)
    )
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=True)
    return builder.sign(ca_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_authority(folder: Path) -> tuple[Key, x509.Certificate]:
    path = folder / "door-ca-key.pem"
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except ValueError:
        raise _damaged(path) from None
    assert isinstance(key, Key)  # as `_authority` made it
    return key, _read_certificate(folder / "door-ca.pem")


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is damaged, or was not made by `grader pool keys`. Copy it again from where the keys were "
        f"made. If there is no other copy, you need new keys. {ANEW}"
    )


def _write(path: Path, data: bytes) -> None:
    """For its owner's eyes only, from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.replace(temporary, path)
