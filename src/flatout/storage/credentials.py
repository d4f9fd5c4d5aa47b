"""Where an S3 client's settings come from. The environment and ~/.aws are read here and nowhere else.

obstore itself knows options, AWS_* variables, web identity, container and instance roles. The shared files under ~/.aws
it leaves to boto3, so static keys and the region are read from them here.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


def s3_endpoint(options: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """The custom endpoint in force, or None for AWS itself. obstore reads the same variables."""
    for key in ("endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url"):
        if key in options:
            return options[key]
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if environment.get(variable):
            return environment[variable]
    return None


def shared_file_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Keys and region of the profile in force, as far as nothing closer to the user sets them."""
    profile = environment.get("AWS_PROFILE", "default")
    found = _read_profile(_path(environment, "AWS_CONFIG_FILE", "config"), profile)
    found |= _read_profile(_path(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile)
    settings = {ours: found[theirs] for theirs, ours in _KEYS.items() if theirs in found}
    own_keys = {"access_key_id", "aws_access_key_id", "skip_signature", "aws_skip_signature"} & options.keys()
    if own_keys or any(environment.get(name) for name in _OTHER_SOURCES) or "access_key_id" not in settings:
        settings = {key: value for key, value in settings.items() if key == "region"}
    own_region = {"region", "aws_region"} & options.keys()
    if own_region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings.pop("region", None)
    return settings


def _path(environment: Mapping[str, str], variable: str, name: str) -> Path:
    return Path(environment.get(variable) or Path(os.path.expanduser("~")) / ".aws" / name)


def _read_profile(path: Path, profile: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # absent or unreadable: the store's own answer will say that credentials are missing
    for section in (profile, f"profile {profile}"):
        if parser.has_section(section):
            return dict(parser.items(section))
    return {}
