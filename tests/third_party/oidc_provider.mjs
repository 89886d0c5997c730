// Runs oidc-provider, a certified authorization server, on the loopback interface for the tests:
//
//     node oidc_provider.mjs '{"accessTokenTtl": 60}'
//
// It prints its address. The answers are its own; in front of it stands a layer for the tests, below /control, which
// changes the options, replaces the signing keys, revokes what was granted, breaks an endpoint or changes a member of
// the metadata, and tells what was requested.
import { generateKeyPair, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { promisify } from 'node:util';

import { Provider } from 'oidc-provider';
import { createMemoryAdapter } from 'oidc-provider/lib/adapters/memory_adapter.js';

const DEFAULTS = {
  accessTokenTtl: 3600,
  refreshTokenTtl: 86400,
  codeTtl: 60,
  accessTokenFormat: 'jwt', // or opaque: for servers that ask the introspection endpoint
  algorithm: 'RS256', // of access tokens: or ES256, EdDSA
  refreshTokens: 'always', // or offline_access: only where this scope was granted
  resourceScopes: 'tools:read tools:write',
  registration: true,
  clientIdMetadataDocuments: false,
  rewrite: {}, // origins that it fetches from another address, as a reverse proxy with TLS would: {from: to}
  accounts: {}, // claims by account: {ada: {groups: ['staff'], email: 'ada@example.com'}}
  clients: [],
  metadata: {}, // replaces members of the discovery document
};
const DISCOVERY = /^\/\.well-known\/(openid-configuration|oauth-authorization-server)/;

const initial = { ...DEFAULTS, ...JSON.parse(process.argv[2] ?? '{}') };
const options = { ...initial };
const adapter = createMemoryAdapter();
const grants = new Set();
const requests = [];
let faults = [];
let issuer;
let keys;
let handle;

async function createKeys() {
  const generate = promisify(generateKeyPair);
  const pairs = [
    ['RS256', await generate('rsa', { modulusLength: 2048 })],
    ['ES256', await generate('ec', { namedCurve: 'P-256' })],
    ['EdDSA', await generate('ed25519')],
  ];
  return pairs.map(([alg, pair]) => ({ ...pair.privateKey.export({ format: 'jwk' }), kid: randomUUID(), alg, use: 'sig' }));
}

function createProvider() {
  const provider = new Provider(issuer, {
    adapter,
    clients: options.clients,
    clockTolerance: 0,
    conformIdTokenClaims: false,
    cookies: { keys: ['a-key-of-the-tests'] },
    jwks: { keys },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    scopes: ['openid', 'offline_access', ...options.resourceScopes.split(' ')],
    pkce: { required: () => true },
    clientDefaults: { grant_types: ['authorization_code', 'refresh_token'] },
    rotateRefreshToken: true,
    async issueRefreshToken(ctx, client, code) {
      const wanted = options.refreshTokens === 'always' || code.scopes.has('offline_access');
      return wanted && client.grantTypeAllowed('refresh_token');
    },
    async extraTokenClaims(ctx, token) {
      return options.accounts[token.accountId];
    },
    async findAccount(ctx, sub) {
      return { accountId: sub, claims: async () => ({ sub, ...options.accounts[sub] }) };
    },
    ttl: {
      AccessToken: () => options.accessTokenTtl,
      AuthorizationCode: () => options.codeTtl,
      RefreshToken: () => options.refreshTokenTtl,
      IdToken: 3600,
      Interaction: 3600,
      Session: 86400,
      Grant: 86400,
    },
    fetch(url, init) {
      const asked = new URL(url);
      const origin = options.rewrite[asked.origin] ?? asked.origin;
      return globalThis.fetch(new URL(asked.pathname + asked.search, origin), { ...init, dispatcher: undefined });
    },
    features: {
      clientIdMetadataDocument: { enabled: options.clientIdMetadataDocuments, ack: 'draft-02' },
      introspection: { enabled: true },
      registration: { enabled: options.registration },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        getResourceServerInfo: (ctx, resource) => ({
          audience: resource,
          scope: options.resourceScopes,
          accessTokenTTL: options.accessTokenTtl,
          accessTokenFormat: options.accessTokenFormat,
          jwt: { sign: { alg: options.algorithm } },
        }),
      },
    },
  });
  provider.on('grant.success', (ctx) => grants.add(ctx.oidc.entities.Grant.jti));
  provider.use(record);
  handle = provider.callback();
}

async function record(ctx, next) {
  await next();
  if (DISCOVERY.test(ctx.path) && ctx.status === 200) ctx.body = { ...ctx.body, ...options.metadata };
  const { method, path, status } = ctx;
  const location = ctx.response.get('location') || null;
  const body = typeof ctx.body === 'object' ? ctx.body : null;
  requests.push({ method, path, status, params: ctx.oidc?.params ?? null, authorization: ctx.get('authorization') || null, location, body });
}

const controls = {
  async options(changes) {
    Object.assign(options, changes);
    createProvider();
  },
  async reset() {
    await controls.options(initial);
  },
  async keys() {
    keys = await createKeys();
    createProvider();
  },
  async revocations() {
    for (const id of grants) {
      await adapter('RefreshToken').revokeByGrantId(id);
      await adapter('Grant').destroy(id);
    }
    grants.clear();
  },
  // [{path, status, body, times}]: a fault without a status never answers
  async faults(list) {
    faults = list;
  },
};

async function control(request, response) {
  const name = request.url.split('/')[2];
  if (request.method === 'GET') return response.end(JSON.stringify(requests));
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  await controls[name](JSON.parse(Buffer.concat(chunks).toString() || 'null'));
  return response.end('{}');
}

function fail(fault, request, response) {
  if (fault.times) fault.times -= 1;
  requests.push({ method: request.method, path: fault.path, status: fault.status ?? null, fault: true });
  if (fault.status) response.writeHead(fault.status, { 'content-type': 'application/json', ...fault.headers }).end(fault.body);
}

const server = createServer((request, response) => {
  const path = request.url.split('?')[0];
  const fault = faults.find((each) => each.path === path && each.times !== 0);
  if (path.startsWith('/control/')) control(request, response);
  else if (fault) fail(fault, request, response);
  else handle(request, response);
});

keys = await createKeys();
server.listen(options.port ?? 0, '127.0.0.1', () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  createProvider();
  console.log(issuer);
});
process.stdin.on('end', () => process.exit()).resume(); // ends with the tests that started it
