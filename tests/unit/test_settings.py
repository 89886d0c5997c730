"""Settings: where they are read from, what is refused, and how errors are worded."""

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from app.errors import ConfigurationError
from app.settings import Settings, decode_secret_key, find_typos, load_settings, secret_fields

SPECIAL_VARIABLES = {
    "database_url": "DATABASE_URL",
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
    "otel_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "reindex_every_s": "TOOLSCOUT_REINDEX_EVERY",
}

OAUTH_CLIENTS = '{"https://issuer.example": {"client_id": "ours", "client_secret": "canary"}}'
EXAMPLES: dict[str, tuple[str, Any]] = {
    "environment": ("production", "production"),
    "role": ("web", "web"),
    "otel_endpoint": ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
    "rate_per_user": ("5", 5.0),
    "max_in_flight": ("7", 7),
    "head_timeout_s": ("3", 3.0),
    "body_timeout_s": ("4.5", 4.5),
    "public_url": ("https://tools.example.com", "https://tools.example.com"),
    "redirect_origins": ("https://chat.example.com", "https://chat.example.com"),
    "oauth_clients": (OAUTH_CLIENTS, SecretStr(OAUTH_CLIENTS)),
    "host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104 the test does not listen
    "port": ("9000", 9000),
    "data_dir": ("/somewhere", Path("/somewhere")),
    "log_level": ("DEBUG", "DEBUG"),
    "database_url": ("postgresql://db/x", SecretStr("postgresql://db/x")),
    "database_pool_size": ("3", 3),
    "admin_api_key": ("sixteen-letters!", SecretStr("sixteen-letters!")),
    "secret_key": ("abc", SecretStr("abc")),
    "listen_database_url": ("postgresql://direct/x", SecretStr("postgresql://direct/x")),
    "read_database_url": ("postgresql://replica/x", SecretStr("postgresql://replica/x")),
    "database_pooler": ("transaction", "transaction"),
    "metrics_key": ("m", SecretStr("m")),
    "cloud_url": ("http://search.internal:8000/base", "http://search.internal:8000/base"),
    "cloud_key": ("c", SecretStr("c")),
    "credential_key": ("k", SecretStr("k")),
    "cloud_timeout_s": ("2.5", 2.5),
    "oidc_issuer": ("https://login.example.com", "https://login.example.com"),
    "oidc_audience": ("tools", "tools"),
    "oidc_user_claim": ("email", "email"),
    "oidc_admin_groups": ("operators", "operators"),
    "oidc_client_id": ("console", "console"),
    "oidc_client_secret": ("o", SecretStr("o")),
    "oidc_scopes": ("openid groups", "openid groups"),
    "embedding_provider": ("openai", "openai"),
    "embedding_model": ("some-model", "some-model"),
    "local_model": ("/a.pack", Path("/a.pack")),
    "openai_api_key": ("sk-1", SecretStr("sk-1")),
    "openai_base_url": ("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1"),
    "query_embed_budget_ms": ("100", 100),
    "breaker_retry_s": ("0.5", 0.5),
    "index_concurrency": ("0", 0),
    "audit_days": ("30", 30),
    "embedding_cache_days": ("0", 0),
    "embedding_cache_max_rows": ("0", 0),
    "max_servers": ("0", 0),
    "max_projects": ("5", 5),
    "max_keys": ("6", 6),
    "max_tags": ("7", 7),
    "listings_per_user": ("2", 2),
    "listings_per_host": ("3", 3),
    "outbound_allow": ("mcp.internal:8080", "mcp.internal:8080"),
    "stdio_servers": ("/etc/stdio.json", Path("/etc/stdio.json")),
    "old_secret_keys": ("abc,def", SecretStr("abc,def")),
    "reindex_every_s": ("60", 60.0),
    "call_timeout_s": ("5", 5.0),
    "max_call_timeout_s": ("90", 90.0),
    "demo": ("1", True),
}


COMPANIONS = {
    "oidc_issuer": {"oidc_audience": "tools"},
    "oidc_audience": {"oidc_issuer": "https://login.example.com"},
    "oidc_client_id": {"oidc_issuer": "https://login.example.com", "oidc_audience": "tools"},
    "read_database_url": {"database_url": "postgresql://primary/x"},
    "database_pooler": {"database_url": "postgresql://pooler/x", "listen_database_url": "postgresql://direct/x"},
}
"""Settings without which these are refused."""


def variable(field: str) -> str:
    return SPECIAL_VARIABLES.get(field, f"TOOLSCOUT_{field.upper()}")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore the environment of this machine and a `.env` file in the project."""
    monkeypatch.chdir(tmp_path)
    for field in Settings.model_fields:
        for name in (field.upper(), variable(field), f"{variable(field)}_FILE"):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("field", EXAMPLES)
def test_a_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    text, value = EXAMPLES[field]
    assert getattr(Settings(), field) != value
    for companion, companion_text in COMPANIONS.get(field, {}).items():
        monkeypatch.setenv(variable(companion), companion_text)
    monkeypatch.setenv(variable(field), text)
    assert getattr(Settings(), field) == value


@pytest.mark.parametrize("field", EXAMPLES)
def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setenv(variable(field), "")
    assert getattr(Settings(), field) == Settings.model_fields[field].default


@pytest.mark.parametrize("field", ["host", "port", "secret_key", "embedding_model"])
def test_a_prefixed_setting_is_not_read_without_its_prefix(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setenv(field.upper(), EXAMPLES[field][0])
    assert getattr(Settings(), field) == Settings.model_fields[field].default


def test_the_environment_takes_precedence_over_the_env_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("TOOLSCOUT_PORT=9001\nDATABASE_URL=postgresql://file/x\nTOOLSCOUT_HOST=\nUNKNOWN=1\n")
    monkeypatch.setenv("TOOLSCOUT_PORT", "9002")
    settings = Settings()
    assert settings.port == 9002
    assert settings.database_url == SecretStr("postgresql://file/x")
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLSCOUT_PORT", "70000"),
        ("TOOLSCOUT_ENVIRONMENT", "staging"),
        ("TOOLSCOUT_ADMIN_API_KEY", "too-short"),
        ("TOOLSCOUT_DATABASE_POOL_SIZE", "0"),
        ("TOOLSCOUT_EMBEDDING_PROVIDER", "magic"),
        ("TOOLSCOUT_BREAKER_RETRY_S", "0"),
    ],
)
def test_a_value_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        Settings()


def test_secrets_are_not_in_the_text_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("database_url", "admin_api_key", "secret_key", "metrics_key", "openai_api_key")
    for field in secrets:
        monkeypatch.setenv(variable(field), "canary-of-at-least-16")
    assert "canary" not in repr(Settings()) + str(Settings())


@pytest.mark.parametrize(("url", "embedded"), [(None, True), ("postgresql://db/x", False)])
def test_without_a_database_url_postgres_is_embedded_and_the_demo_is_seeded(url: str | None, embedded: bool) -> None:
    settings = Settings(database_url=None if url is None else SecretStr(url))
    assert settings.uses_embedded_db is embedded
    assert settings.seeds_demo is embedded


def test_the_embedded_postgres_has_no_read_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_READ_DATABASE_URL", "postgresql://replica/x")
    with pytest.raises(ConfigurationError, match="TOOLSCOUT_READ_DATABASE_URL: the embedded Postgres has no replicas"):
        load_settings()
    monkeypatch.setenv("DATABASE_URL", "postgresql://primary/x")
    assert load_settings().read_database_url == SecretStr("postgresql://replica/x")


def test_a_database_url_that_is_wrong_is_not_also_reported_as_missing() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(database_url=[], read_database_url=SecretStr("postgresql://replica/x"))
    assert len(caught.value.errors()) == 1


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("DATABASE_URL", "DATABASE_URL, which leads to the pooler"),
        ("TOOLSCOUT_LISTEN_DATABASE_URL", "TOOLSCOUT_LISTEN_DATABASE_URL, which leads to Postgres itself"),
    ],
)
@pytest.mark.parametrize("pooler", ["transaction", "transaction_prepared"])
def test_a_pooler_needs_a_url_that_leads_to_it_and_one_that_leads_around_it(
    monkeypatch: pytest.MonkeyPatch, pooler: str, missing: str, words: str
) -> None:
    urls = {"DATABASE_URL": "postgresql://pooler/x", "TOOLSCOUT_LISTEN_DATABASE_URL": "postgresql://direct/x"}
    for name, value in (urls | {"TOOLSCOUT_DATABASE_POOLER": pooler}).items():
        monkeypatch.setenv(name, value)
    direct = load_settings().direct_database_url
    assert direct is not None
    assert direct.get_secret_value() == "postgresql://direct/x"
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigurationError, match=f"TOOLSCOUT_DATABASE_POOLER: needs {words}"):
        load_settings()


@pytest.mark.parametrize("demo", [True, False])
def test_the_demo_can_be_switched_on_and_off_with_any_database(demo: bool) -> None:
    assert Settings(demo=demo).seeds_demo is demo
    assert Settings(demo=demo, database_url=SecretStr("postgresql://db/x")).seeds_demo is demo


def test_a_secret_key_of_32_bytes_in_base64_is_accepted() -> None:
    key = bytes(range(32))
    assert decode_secret_key(base64.b64encode(key).decode()) == key


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 bytes"),
        (base64.b64encode(bytes(31)).decode(), "31 bytes"),
        (base64.b64encode(bytes(33)).decode(), "33 bytes"),
        ("not base64 at all!", "not base64"),
        ("MDEyMzQ1", "6 bytes"),
        ("ключ" * 11, "not base64"),
    ],
    ids=["empty", "short", "long", "not base64", "much too short", "not ASCII"],
)
def test_any_other_secret_key_is_refused_and_the_error_says_what_to_do(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{reason}.*openssl rand -base64 32"):
        decode_secret_key(text)


@pytest.mark.parametrize("text", ["mcp.internal:8080", " a:1 , [::1]:3001,127.0.0.1:9 ", ""])
def test_allowed_outbound_servers_are_listed_as_host_and_port(text: str) -> None:
    expected = [entry.strip() for entry in text.split(",") if entry.strip()]
    assert Settings(outbound_allow=text).outbound_hosts == expected


@pytest.mark.parametrize("text", ["mcp.internal", "http://mcp.internal:80", "*:80", "10.0.0.0/8", "::1:3001", "a:b"])
def test_an_outbound_entry_that_cannot_match_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="host:port"):
        Settings(outbound_allow=text)


def test_hosts_and_origins_are_normalized_to_the_form_that_browsers_send() -> None:
    settings = Settings(
        _env_file=None, served_hosts="Tools.Example.com, b:8000", web_origins="https://Chat.example.com/"
    )
    assert settings.allowed_hosts == ["tools.example.com", "b:8000"]
    assert settings.allowed_origins == ["https://chat.example.com"]


@pytest.mark.parametrize(
    "text", ["*", "chat.example.com", "https://*.example.com", "https://a.example.com/path", "null"]
)
def test_an_invalid_origin_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin"):
        Settings(_env_file=None, web_origins=text)


@pytest.mark.parametrize("text", ["*", "https://tools.example.com", "*.example.com", "a b"])
def test_an_invalid_host_name_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a host name"):
        Settings(_env_file=None, served_hosts=text)


def test_proxies_are_addresses_and_networks() -> None:
    assert Settings(_env_file=None).proxy_addresses == ["127.0.0.1"]
    assert Settings(_env_file=None, trusted_proxies="10.0.0.0/8, ::1").proxy_addresses == ["10.0.0.0/8", "::1"]
    assert Settings(_env_file=None, trusted_proxies="10.0.0.0/8, *").proxy_addresses == ["*"]


def test_the_variable_of_uvicorn_names_proxies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.1.2.3")
    assert Settings(_env_file=None).proxy_addresses == ["10.1.2.3"]
    monkeypatch.setenv("TOOLSCOUT_TRUSTED_PROXIES", "10.0.0.0/8")
    assert Settings(_env_file=None).proxy_addresses == ["10.0.0.0/8"]


@pytest.mark.parametrize("text", ["proxy.internal", "10.0.0.1/8", "10.0.0.0/99", "10.0.0.1:8080", "https://10.0.0.1"])
def test_a_proxy_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not an address or a network"):
        Settings(_env_file=None, trusted_proxies=text)


def test_former_secret_keys_are_split_at_commas() -> None:
    assert Settings(old_secret_keys=SecretStr("one, two,")).former_secret_keys == ["one", "two"]
    assert Settings().former_secret_keys == []


@pytest.mark.parametrize("field", secret_fields())
def test_a_secret_is_read_from_the_file_in_its_file_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str
) -> None:
    text, value = EXAMPLES[field]
    for companion, companion_text in COMPANIONS.get(field, {}).items():
        monkeypatch.setenv(variable(companion), companion_text)
    (tmp_path / "secret").write_text(f"{text}\n")
    monkeypatch.setenv(f"{variable(field)}_FILE", str(tmp_path / "secret"))
    assert getattr(Settings(), field) == value


@pytest.mark.parametrize(
    "url", ["https://search.example.com", "http://10.0.0.7:8000/", "http://[::1]:8000/base/path", "http://search"]
)
def test_the_cloud_may_be_anywhere_with_or_without_tls(url: str) -> None:
    assert Settings(_env_file=None, cloud_url=url).cloud_url == url


@pytest.mark.parametrize(
    "url",
    ["search.example.com", "ftp://a", "http://", "http://user:pw@a", "http://a?x=1", "http://a#b", "http://a:99999"],
)
def test_a_cloud_url_that_cannot_be_requested_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"base URL|Port out of range"):
        Settings(_env_file=None, cloud_url=url)


@pytest.mark.parametrize("text", ["", "*", "com.github/*", "com.acme*/tools-*, io.github.user/weather"])
def test_the_registrys_allow_list_has_patterns_of_names(text: str) -> None:
    patterns = Settings(_env_file=None, registry_allow=text).registry_patterns
    assert ", ".join(patterns) == text


@pytest.mark.parametrize("text", ["github", "com.github/", "/x", "a/b/c", "com.github/[ab]", "com.github/*, https://x"])
def test_a_pattern_that_matches_no_name_of_a_registry_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a pattern of server names"):
        Settings(_env_file=None, registry_allow=text)


@pytest.mark.parametrize(
    ("issuer", "outbound_allow"),
    [
        ("https://login.example.com/realms/main", ""),
        ("https://login.example.com/", ""),
        ("http://127.0.0.1:9000", ""),
        ("http://localhost:9000/realm", ""),
        ("http://[::1]:9000", ""),
        ("http://login.internal:8080", "login.internal:8080"),
        ("http://login.internal", "login.internal:80"),
    ],
)
def test_an_identity_provider_has_tls_or_is_near(issuer: str, outbound_allow: str) -> None:
    settings = Settings(_env_file=None, oidc_issuer=issuer, oidc_audience="tools", outbound_allow=outbound_allow)
    assert settings.oidc_issuer == issuer


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oidc_issuer": "http://login.example.com"}, "must be an https:// URL"),
        ({"oidc_issuer": "http://login.internal:81", "outbound_allow": "login.internal:80"}, "lists login.internal:81"),
        ({"oidc_issuer": "login.example.com"}, "must be a URL"),
        ({"oidc_issuer": "https://user@login.example.com"}, "must be a URL"),
        ({"oidc_issuer": "https://login.example.com?x=1"}, "must be a URL"),
        ({"oidc_audience": None}, "required with TOOLSCOUT_OIDC_ISSUER"),
        ({"oidc_issuer": None}, "needs TOOLSCOUT_OIDC_ISSUER"),
        ({"oidc_issuer": None, "oidc_audience": None, "oidc_client_id": "console"}, "needs TOOLSCOUT_OIDC_ISSUER"),
        ({"oidc_scopes": "profile"}, "must contain openid"),
    ],
)
def test_an_identity_provider_that_is_unsafe_or_incomplete_is_refused(changes: dict[str, Any], words: str) -> None:
    values = {"oidc_issuer": "https://login.example.com", "oidc_audience": "tools", **changes}
    with pytest.raises(ValidationError, match=words):
        Settings(_env_file=None, **values)


def test_admin_groups_are_split_at_commas() -> None:
    assert Settings(_env_file=None, oidc_admin_groups="operators, the root ,").admin_groups == {"operators", "the root"}
    assert Settings(_env_file=None).admin_groups == frozenset()


def test_secret_fields_are_recognized_by_their_type() -> None:
    assert set(secret_fields()) == {
        "admin_api_key",
        "credential_key",
        "cloud_key",
        "database_url",
        "listen_database_url",
        "metrics_key",
        "oauth_clients",
        "oidc_client_secret",
        "old_secret_keys",
        "openai_api_key",
        "read_database_url",
        "secret_key",
    }


def test_a_file_variable_can_be_in_the_env_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc")
    Path(".env").write_text(f"TOOLSCOUT_SECRET_KEY_FILE={tmp_path / 'secret'}\n")
    assert Settings().secret_key == SecretStr("abc")


@pytest.mark.parametrize("both_in_the_environment", [True, False])
def test_a_secret_that_is_set_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, both_in_the_environment: bool
) -> None:
    (tmp_path / "secret").write_text("abc")
    monkeypatch.setenv("TOOLSCOUT_SECRET_KEY_FILE", str(tmp_path / "secret"))
    if both_in_the_environment:
        monkeypatch.setenv("TOOLSCOUT_SECRET_KEY", "def")
    else:
        Path(".env").write_text("TOOLSCOUT_SECRET_KEY=def\n")
    with pytest.raises(
        ConfigurationError, match="set either TOOLSCOUT_SECRET_KEY or TOOLSCOUT_SECRET_KEY_FILE, not both"
    ):
        Settings()


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_missing_or_empty_secret_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "secret").write_text(content)
    monkeypatch.setenv("TOOLSCOUT_METRICS_KEY_FILE", str(tmp_path / "secret"))
    with pytest.raises(ConfigurationError, match=r"TOOLSCOUT_METRICS_KEY_FILE: .*secret"):
        Settings()
    monkeypatch.setenv("TOOLSCOUT_METRICS_KEY_FILE", "")
    assert Settings().metrics_key is None


def test_a_worker_without_slots_for_index_runs_is_refused() -> None:
    with pytest.raises(ValidationError, match="would do nothing"):
        Settings(role="worker", index_concurrency=0)
    assert Settings(role="web", index_concurrency=0).role == "web"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOOLSCOUT_RATE_PER_USR", "TOOLSCOUT_RATE_PER_USER"),
        ("TOOLSCOUT_MAXTOOLS", "TOOLSCOUT_MAX_TOOLS"),
        ("toolscout_log_levl", "TOOLSCOUT_LOG_LEVEL"),
        ("TOOLSCOUT_REINDEX_EVERY_S", "TOOLSCOUT_REINDEX_EVERY"),
        ("TOOLSCOUT_SECRET_KEYFILE", "TOOLSCOUT_SECRET_KEY_FILE"),
    ],
)
@pytest.mark.parametrize("in_env_file", [False, True])
def test_a_variable_that_is_almost_a_setting_is_reported_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str, *, in_env_file: bool
) -> None:
    if in_env_file:
        Path(".env").write_text(f"{name}=7\n")
    else:
        monkeypatch.setenv(name, "7")
    assert find_typos() == [f"unknown setting {name.upper()}; did you mean {meant}?"]


def test_settings_and_unrelated_variables_are_not_reported_as_typos(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOOLSCOUT_URL", "TOOLSCOUT_KEY", "RATE_PER_USR", *map(variable, Settings.model_fields)):
        monkeypatch.setenv(name, "7")
    for field in secret_fields():
        monkeypatch.setenv(f"{variable(field)}_FILE", "7")
    assert find_typos() == []
