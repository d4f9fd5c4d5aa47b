"""Where an S3 client's settings come from. The environment and ~/.aws are read here and nowhere else.

obstore itself knows options, AWS_* variables, web identity, container and instance roles. The shared files under ~/.aws
it leaves to boto3, which is 24 MB and which most people do not need: static keys and the region are read from them
here. A profile that says how to get keys (SSO, a role, a program) is given to obstore's provider for boto3.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.errors import AccessDenied, ConfigError

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_BY_BOTO3 = ("sso_session", "sso_start_url", "role_arn", "credential_process")


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
    _, found = _profile(environment)
    settings = {ours: found[theirs] for theirs, ours in _KEYS.items() if theirs in found}
    if _have_keys(options, environment) or "access_key_id" not in settings:
        settings = {key: value for key, value in settings.items() if key == "region"}
    own_region = {"region", "aws_region"} & options.keys()
    if own_region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings.pop("region", None)
    return settings


def profile_provider(options: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    """obstore's provider for a profile that has no keys but a way to get them; None where that is not needed."""
    name, found = _profile(environment)
    ways = [way for way in _BY_BOTO3 if way in found]
    if not ways or ("aws_access_key_id" in found and "role_arn" not in ways) or _have_keys(options, environment):
        return None
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise ConfigError(
            f"AWS profile {name!r} gets its keys by {ways[0]}, which needs boto3; pip install 'flatout[aws]'"
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except Exception as error:  # botocore has dozens of kinds; their texts may hold what a program printed
        raise AccessDenied(
            f"AWS profile {name!r} gives no keys by {ways[0]} ({type(error).__name__}); log in again "
            f"(aws sso login --profile {name}), or repair the profile"
        ) from None


def _have_keys(options: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether something closer to the user than a profile says which keys to use, or to use none."""
    own = {"access_key_id", "aws_access_key_id", "skip_signature", "aws_skip_signature"} & options.keys()
    return bool(own) or any(environment.get(name) for name in _OTHER_SOURCES)


def _profile(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Name and settings of the profile in force."""
    name = environment.get("AWS_PROFILE", "default")
    found = _read_profile(_path(environment, "AWS_CONFIG_FILE", "config"), name)
    return name, found | _read_profile(_path(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name)


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
