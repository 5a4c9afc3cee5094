"""Certificates and keys: what is made is accepted, and each way in which it can be wrong is one sentence."""

import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from graft import keys
from graft.errors import GraftWarning, InputError

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    keys.make_ca(folder / "ca", "Some CA")
    keys.make_party_keys("bank_a", folder / "ca", folder / "a", addresses=["bank.example", "10.1.2.3", "::1"])
    keys.make_party_keys("bank-b.2", folder / "ca", folder / "b")
    return folder


def copy(made, tmp_path, source="a"):
    for path in (made / source).iterdir():
        target = tmp_path / path.name
        target.touch(mode=0o600)
        target.write_bytes(path.read_bytes())
    return tmp_path


def test_what_is_made_is_accepted(made):
    files = keys.load_keys(made / "a", "bank_a", listens=True, connects=True)
    assert files == keys.KeyFiles(made / "a" / "ca.crt", made / "a" / "bank_a.crt", made / "a" / "bank_a.key")
    assert keys.load_keys(made / "b", "bank-b.2").ca.read_bytes() == (made / "ca" / "ca.crt").read_bytes()


def test_keys_can_be_read_by_their_owner_alone(made):
    for path in (made / "ca" / "ca.key", made / "a" / "bank_a.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (made / "a" / "ca.key").exists()


def test_a_certificate_says_who_where_and_for_what(made):
    certificate = keys.read_certificates(made / "a" / "bank_a.crt")[0]
    assert [entry.value for entry in certificate.subject] == ["bank_a"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["bank_a", "bank.example", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "::1", "127.0.0.1"]
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(minutes=1)  # clocks differ
    assert now + timedelta(days=364) < certificate.not_valid_after_utc < now + timedelta(days=366)


def test_a_certificate_does_not_outlive_its_ca(tmp_path):
    keys.make_ca(tmp_path / "ca", days=10)
    keys.make_party_keys("bank_a", tmp_path / "ca", tmp_path / "a", days=1000)
    ca = keys.read_certificates(tmp_path / "ca" / "ca.crt")[0]
    assert keys.read_certificates(tmp_path / "a" / "bank_a.crt")[0].not_valid_after_utc == ca.not_valid_after_utc


def test_nothing_is_ever_replaced(made):
    before = {path: path.read_bytes() for path in made.rglob("*.*") if path.is_file()}
    with pytest.raises(InputError, match=r"ca\.crt exists already"):
        keys.make_ca(made / "ca")
    with pytest.raises(InputError, match=r"bank_a\.crt exists already"):
        keys.make_party_keys("bank_a", made / "ca", made / "a")
    assert before == {path: path.read_bytes() for path in before}


def test_several_of_one_ca_may_share_a_folder_but_not_with_another_ca(made, tmp_path):
    folder = copy(made, tmp_path)
    keys.make_party_keys("bank_c", made / "ca", folder)
    keys.load_keys(folder, "bank_c")
    keys.make_ca(tmp_path / "other")
    with pytest.raises(InputError, match="another CA"):
        keys.make_party_keys("bank_d", tmp_path / "other", folder)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "*", "-a", ".", "..", "ä", "x" * 65, "a\n", "@a", "ca"])
def test_a_bad_name_is_refused(made, tmp_path, name):
    with pytest.raises(InputError, match="cannot be the name"):
        keys.make_party_keys(name, made / "ca", tmp_path / "new")
    with pytest.raises(InputError, match="cannot be the name"):
        keys.load_keys(made / "a", name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["a", "Bank_A-2.eu", "7", "x" * 64])
def test_a_good_name_is_not(name):
    assert keys.check_name(name) == name


@pytest.mark.parametrize("days", [0, -1, 10**9])
def test_a_validity_that_makes_no_sense_is_refused(made, tmp_path, days):
    with pytest.raises(InputError, match="1 to 36500 days"):
        keys.make_ca(tmp_path / "ca", days=days)
    with pytest.raises(InputError, match="1 to 36500 days"):
        keys.make_party_keys("x", made / "ca", tmp_path / "x", days)


@pytest.mark.parametrize("address", ["host:443", "a b", "", "tls/host", "*"])
def test_what_is_no_address_is_refused(made, tmp_path, address):
    with pytest.raises(InputError, match="is not an address"):
        keys.make_party_keys("x", made / "ca", tmp_path / "x", addresses=[address])


def test_a_missing_or_wrong_ca_is_refused(made, tmp_path):
    with pytest.raises(InputError, match="There is no CA in"):
        keys.make_party_keys("x", tmp_path / "nowhere", tmp_path / "x")
    keys.make_ca(tmp_path / "ca")
    (tmp_path / "ca" / "ca.key").write_bytes((made / "ca" / "ca.key").read_bytes())
    with pytest.raises(InputError, match="is not the key of the certificate"):
        keys.make_party_keys("x", tmp_path / "ca", tmp_path / "x")


def test_files_that_are_missing_or_damaged_are_named(made, tmp_path):
    folder = copy(made, tmp_path)
    with pytest.raises(InputError, match="There is no folder"):
        keys.load_keys(tmp_path / "nowhere", "bank_a")
    with pytest.raises(InputError, match=r"There is no file .*bank_b\.crt"):
        keys.load_keys(folder, "bank_b")
    (folder / "bank_a.key").write_text("no key")
    with pytest.raises(InputError, match=r"bank_a\.key is not a private key"):
        keys.load_keys(folder, "bank_a")
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(InputError, match=r"ca\.crt is not a certificate"):
        keys.load_keys(folder, "bank_a")


def test_a_certificate_of_somebody_else_is_refused(made, tmp_path):
    folder = copy(made, tmp_path, "b")
    (folder / "bank_a.crt").write_bytes((folder / "bank-b.2.crt").read_bytes())
    with pytest.raises(InputError, match=r"is the certificate of 'bank-b\.2'.* not of 'bank_a'"):
        keys.load_keys(folder, "bank_a")


def test_a_key_of_another_certificate_is_refused(made, tmp_path):
    folder = copy(made, tmp_path)
    (folder / "bank_a.key").write_bytes((made / "b" / "bank-b.2.key").read_bytes())
    with pytest.raises(InputError, match="is not the key of the certificate"):
        keys.load_keys(folder, "bank_a")


def test_another_ca_is_refused_even_with_the_same_name(made, tmp_path):
    folder = copy(made, tmp_path)
    keys.make_ca(tmp_path / "twin", "Some CA")
    (folder / "ca.crt").write_bytes((tmp_path / "twin" / "ca.crt").read_bytes())
    with pytest.raises(InputError, match="was not signed by the CA"):
        keys.load_keys(folder, "bank_a")
    with (folder / "ca.crt").open("ab") as bundle:  # one of several is enough
        bundle.write((made / "ca" / "ca.crt").read_bytes())
    keys.load_keys(folder, "bank_a")


def test_a_key_that_others_may_read_is_warned_of(made, tmp_path):
    folder = copy(made, tmp_path)
    (folder / "bank_a.key").chmod(0o644)
    with pytest.warns(GraftWarning, match="chmod 600"):
        keys.load_keys(folder, "bank_a")


class OtherCA:
    """Certificates as somebody else may make them: RSA keys, more in the subject, no extensions or other ones."""

    def __init__(self):
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.name = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Trust"), x509.NameAttribute(NameOID.COMMON_NAME, "Root")]
        )
        authority = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self.sign(self.name, self.key, -1, 100, [authority])

    def sign(self, subject, key, start, end, extensions=()):
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now + timedelta(days=start)).not_valid_after(now + timedelta(days=end))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, folder, *names, start=-1, end=1, extensions=(), password=None):
        """Write certificate and key for bank_a, with common names that may be others."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = [x509.NameAttribute(NameOID.COUNTRY_NAME, "DE")]
        subject += [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]
        certificate = self.sign(x509.Name(subject), key, start, end, extensions)
        locked = serialization.NoEncryption()
        if password:
            locked = serialization.BestAvailableEncryption(password)
        files = keys.key_files(folder, "bank_a")
        files.key.touch(mode=0o600)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
        files.certificate.write_bytes(keys.pem(certificate))
        files.ca.write_bytes(keys.pem(self.certificate))
        return folder


@pytest.fixture(scope="module")
def other_ca():
    return OtherCA()


def test_certificates_that_somebody_else_made_are_accepted(other_ca, tmp_path):
    keys.load_keys(other_ca.issue(tmp_path, "bank_a"), "bank_a", listens=True, connects=True)


def test_a_certificate_is_used_for_what_it_was_issued_for(other_ca, tmp_path):
    only_client = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    folder = other_ca.issue(tmp_path, "bank_a", extensions=[only_client])
    keys.load_keys(folder, "bank_a", connects=True)
    with pytest.raises(InputError, match="not issued for TLS server authentication"):
        keys.load_keys(folder, "bank_a", listens=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"names": ["bank_a"], "start": -3, "end": -1}, "expired on"),
        ({"names": ["bank_a"], "start": 2, "end": 3}, "is valid from .* this machine's clock says"),
        ({"names": []}, "the certificate of nobody"),
        ({"names": ["bank_a", "server"]}, "the certificate of 'bank_a' and 'server'"),
        ({"names": ["bank_a"], "password": b"secret"}, "locked by a password"),
    ],
    ids=["expired", "not yet valid", "no name", "two names", "locked"],
)
def test_what_is_wrong_with_a_certificate_is_said(other_ca, tmp_path, settings, problem):
    folder = other_ca.issue(tmp_path, *settings.pop("names"), **settings)
    with pytest.raises(InputError, match=problem):
        keys.load_keys(folder, "bank_a")


def test_without_cryptography_it_is_said_what_to_install():
    script = (
        "import sys\nsys.modules['cryptography'] = None\nfrom pathlib import Path\nfrom graft import keys\n"
        "try:\n    keys.make_ca(Path('nowhere'))\nexcept keys.InputError as error:\n    print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)
    assert "pip install 'graft-fgl[federation]'" in output.stdout
