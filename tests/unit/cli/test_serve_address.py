from pathlib import Path

import pytest

from service.cli.serve import is_loopback, refuse_open_door
from service.cli.sockets import address
from service.errors import SettingsError
from service.settings import load_settings
from service.store import keys, migrate
from service.store.database import Database


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_told_by_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_the_shown_address_can_be_opened(host: str, url: str) -> None:
    assert address(host, 80) == url


def test_an_open_address_needs_a_key_or_the_setting(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    database = Database(settings.database_url)
    migrate.upgrade(database)
    refuse_open_door(settings, "127.0.0.1", database)
    with pytest.raises(SettingsError, match="longread keys create"):
        refuse_open_door(settings, "0.0.0.0", database)
    refuse_open_door(load_settings(data_dir=tmp_path, http={"allow_open": True}), "0.0.0.0", database)
    with database.write() as session:
        keys.create(session, database.now(session), tenant_id="a", name="b")
    refuse_open_door(settings, "0.0.0.0", database)
    database.close()
