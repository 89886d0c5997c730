"""Tokens, codes, verifiers and client secrets are sealed, and reach no log, answer, audit row or dump."""

import base64
import logging
from collections.abc import AsyncIterator

import pytest
from starlette.responses import JSONResponse, Response

from app.connections.repository import count_undecryptable_accounts, reseal_connections
from app.container import Container
from app.crypto import Sealer
from app.db.tables import metadata
from app.management.servers import reseal_credentials
from tests.support.authorization_server import AuthorizationServer
from tests.support.factories import SECRET_KEY, OpenService
from tests.support.protected_server import ProtectedServer
from tests.support.sign_in import SignIn

OLD_KEY, NEW_KEY = base64.b64decode(SECRET_KEY), b"n" * 32


@pytest.fixture
async def service(
    open_service: OpenService, authorization: AuthorizationServer, protected: ProtectedServer
) -> AsyncIterator[Container]:
    """A service whose database holds no accounts of other tests: all of its rows are dumped, counted or resealed."""
    allowed = f"{authorization.address},{protected.address}"
    async with open_service(outbound_allow=allowed, redirect_origins="https://chat.example.com") as opened:
        yield opened


async def dump_database(sign_in: SignIn) -> str:
    async with sign_in.service.database.system_transaction() as session:
        rows = [await session.rows(f"SELECT row_to_json(t)::text FROM {table} t") for table in metadata.tables]
    return str(rows)


async def test_secrets_reach_no_log_no_answer_and_no_dump(sign_in: SignIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("toolscout").setLevel(logging.DEBUG)
    authorization, answers = sign_in.authorization, []
    server_id = await sign_in.add_server()
    # the code is quoted in the description of the error
    authorization.on_token = lambda answer: {**answer, "expires_in": "soon", "access_token": 7, "x": str(answer)}
    answers.append(await sign_in.come_back(authorization.approve(await sign_in.start(server_id))))
    authorization.on_token = lambda answer: answer
    url = authorization.approve(await sign_in.start(server_id), code="canary-code-that-is-wrong")
    authorization.secrets.add("canary-code-that-is-wrong")
    answers.append(await sign_in.come_back(url))
    await sign_in.connect(server_id)
    await sign_in.age_token(3_601)
    quoting = JSONResponse({"error_description": sorted(authorization.secrets)}, 500)
    for fault in (quoting, Response("".join(sorted(authorization.secrets)), media_type="application/json")):
        authorization.faults["/token"] = fault
        answers.append(await sign_in.user.execute("list_notes"))
    authorization.faults.clear()
    answers.append(await sign_in.user.execute("list_notes"))
    assert answers[-1].status_code == 200
    await sign_in.start(server_id, redirect_url="https://chat.example.com/")
    answers.append(await sign_in.user.http.get(f"/servers/{server_id}"))
    answers.append(await sign_in.user.http.get("/audit"))
    # the other threads are servers of the test, and `httpx` and `httpcore` are its own client
    ours = [
        record
        for record in caplog.records
        if record.threadName != "protected-server" and record.name.partition(".")[0] not in ("httpx", "httpcore")
    ]
    assert any(record.getMessage() == "token refresh failed" for record in ours)
    texts = [
        await dump_database(sign_in),
        *(answer.text + str(answer.headers) for answer in answers),
        *(str(record.__dict__) + (record.exc_text or "") for record in ours),
    ]
    secrets = authorization.secrets
    assert len(secrets) > 8
    assert [secret for secret in secrets for text in texts if secret in text] == []


async def test_the_tokens_are_in_the_row_sealed_for_one_user_and_server(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    other_id = await sign_in.connect(await sign_in.add_server("other"))
    statement = (
        "UPDATE server_connections c SET sealed_tokens = o.sealed_tokens FROM server_connections o "
        "WHERE c.server_id = %(to)s AND o.server_id = %(from)s"
    )
    async with sign_in.service.database.transaction(sign_in.user.id) as session:
        await session.rows(statement, {"to": other_id, "from": server_id})
        sealer = sign_in.service.sealer
    async with sign_in.service.database.system_transaction() as session:
        assert await count_undecryptable_accounts(session, sealer) == (1, 4)


async def test_rotating_the_key_reseals_accounts_and_sign_ins(sign_in: SignIn) -> None:
    server_id = await sign_in.connect()
    await sign_in.start(server_id)
    database = sign_in.service.database
    assert await reseal_credentials(database, Sealer(NEW_KEY, [OLD_KEY]), actor="test") == (3, 3)
    async with database.system_transaction() as session:
        assert await count_undecryptable_accounts(session, Sealer(NEW_KEY)) == (0, 3)
        assert await count_undecryptable_accounts(session, Sealer(OLD_KEY)) == (3, 3)
        assert await reseal_connections(session, Sealer(NEW_KEY)) == (0, 3)
