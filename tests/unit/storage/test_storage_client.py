"""Addresses, endpoints and credentials, without a connection."""

import sys
from pathlib import Path

import pytest

from flatout.errors import ConfigError, DataError
from flatout.storage.client import Address, parse_address, place_of
from flatout.storage.credentials import profile_provider, s3_endpoint, shared_file_settings


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://bucket", Address("s3", "bucket", "")),
        ("s3://bucket/", Address("s3", "bucket", "")),
        ("s3://my.bucket-1/a/b c/", Address("s3", "my.bucket-1", "a/b c")),
        ("s3://bucket/100%25", Address("s3", "bucket", "100%25")),
        ("gs://bucket/x", Address("gs", "bucket", "x")),
        ("az://container/x", Address("az", "container", "x")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bad bucket/x", "s3://a?b/x", "ftp://host/x"])
def test_bad_addresses_are_the_users_mistake(url: str) -> None:
    with pytest.raises(DataError, match="s3://bucket/prefix"):
        parse_address(url)


def test_keys_in_an_address_are_not_shown() -> None:
    with pytest.raises(DataError) as error:
        parse_address("s3://AK:canary@bucket/x")
    assert "canary" not in str(error.value)


def test_the_closest_endpoint_wins() -> None:
    environment = {"AWS_ENDPOINT": "http://c", "AWS_ENDPOINT_URL": "http://b", "AWS_ENDPOINT_URL_S3": "http://a"}
    assert s3_endpoint({"endpoint": "http://o"}, environment) == "http://o"
    assert s3_endpoint({}, environment) == "http://a"
    assert s3_endpoint({}, {"AWS_ENDPOINT_URL": ""}) is None


@pytest.mark.parametrize("endpoint", ["localhost:9000", "http://a b", "ftp://host"])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        place_of("s3://bucket", {"endpoint": endpoint})


def test_a_password_in_the_endpoint_is_not_shown() -> None:
    assert place_of("s3://bucket", {"endpoint": "http://user:canary@host:1/x?y=canary"}).endpoint == "http://host:1"


@pytest.fixture
def aws_files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\n[profile lab]\nregion = eu-north-1\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AK\naws_secret_access_key = SK%with$signs\n"
        "[lab]\naws_access_key_id = LAB\naws_secret_access_key = S\naws_session_token = T\n"
    )
    return {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }


def test_the_default_profile(aws_files: dict[str, str]) -> None:
    expected = {"access_key_id": "AK", "secret_access_key": "SK%with$signs", "region": "eu-west-1"}
    assert shared_file_settings({}, aws_files) == expected


def test_a_profile_that_needs_boto3_says_so(aws_files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_provider({}, aws_files) is None
    Path(aws_files["AWS_CONFIG_FILE"]).write_text("[profile team]\nsso_session = us\n[default]\nrole_arn = arn:x\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"'team' gets its keys by sso_session, .* pip install 'flatout\[aws\]'"):
        profile_provider({}, {**aws_files, "AWS_PROFILE": "team"})
    with pytest.raises(ConfigError, match="by role_arn"):  # whatever keys it has are for asking
        profile_provider({}, aws_files)
    assert profile_provider({"access_key_id": "mine"}, aws_files) is None
    assert profile_provider({}, {**aws_files, "AWS_WEB_IDENTITY_TOKEN_FILE": "f"}) is None


def test_a_named_profile(aws_files: dict[str, str]) -> None:
    expected = {"access_key_id": "LAB", "secret_access_key": "S", "session_token": "T", "region": "eu-north-1"}
    assert shared_file_settings({}, {**aws_files, "AWS_PROFILE": "lab"}) == expected


def test_keys_closer_to_the_user_win(aws_files: dict[str, str]) -> None:
    region_only = {"region": "eu-west-1"}
    assert shared_file_settings({"access_key_id": "mine"}, aws_files) == region_only
    assert shared_file_settings({"skip_signature": "true"}, aws_files) == region_only
    assert shared_file_settings({}, {**aws_files, "AWS_ACCESS_KEY_ID": "mine"}) == region_only
    assert shared_file_settings({}, {**aws_files, "AWS_WEB_IDENTITY_TOKEN_FILE": "f"}) == region_only
    assert "region" not in shared_file_settings({"region": "x"}, aws_files)
    assert "region" not in shared_file_settings({}, {**aws_files, "AWS_DEFAULT_REGION": "x"})


def test_files_that_are_absent_or_broken_are_no_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\xff\xfe[not ini")
    environment = {"AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(broken)}
    assert shared_file_settings({}, environment) == {}
