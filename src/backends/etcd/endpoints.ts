import { described, isString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import type { EtcdHttpOptions, EtcdTls } from './transport.ts';

/** Address of etcd, and credentials. */
export interface EtcdConnectionOptions {
  /** Servers of one cluster, such as `https://etcd-0:2379`: the first is used until it fails, then the next. */
  readonly endpoints: string | readonly string[];
  readonly auth?: { readonly name: string; readonly password: string } | undefined;
  readonly tls?: EtcdTls | undefined;
}

const MAX_ENDPOINTS = 20;

/** @throws {ConfigError} on invalid options. */
export function readConnectionOptions(
  fields: OptionReader,
): Pick<EtcdHttpOptions, 'endpoints' | 'auth' | 'tls'> {
  const auth = fields.tryRead(() => readAuth(fields));
  const tls = fields.tryRead(() => readTls(fields));
  const endpoints = fields.tryRead(() => readEndpoints(fields));
  return { endpoints: endpoints as readonly URL[], auth, tls };
}

/** Rejects unknown names: a misspelt certificate would be ignored. Errors omit values, which may be private keys. */
function readTls(fields: OptionReader): EtcdTls | undefined {
  const given = fields.optional('tls', isRecord, '{ ca, cert, key }');
  if (!given) return undefined;
  const tls = new OptionReader(fields.pathOf('tls'), given);
  for (const name of ['ca', 'cert', 'key']) {
    const pem = tls.get(name);
    if (pem !== undefined && !isString(pem) && !Buffer.isBuffer(pem))
      throw new ConfigError(tls.pathOf(name), 'a string or a Buffer', described('another value'));
  }
  tls.finish();
  return given;
}

/** Reads credentials. Errors omit the value, which may contain a password. */
function readAuth(fields: OptionReader): EtcdConnectionOptions['auth'] {
  const auth = fields.get('auth');
  if (auth === undefined || isCredentials(auth)) return auth;
  throw new ConfigError(fields.pathOf('auth'), '{ name, password }', described('another value'));
}

function readEndpoints(fields: OptionReader): readonly URL[] {
  const value = fields.get('endpoints');
  const given = typeof value === 'string' ? [value] : value;
  const isList = Array.isArray(given) && given.length > 0 && given.length <= MAX_ENDPOINTS;
  if (!isList) {
    throw new ConfigError(
      fields.pathOf('endpoints'),
      `a list of 1 to ${MAX_ENDPOINTS} addresses`,
      given,
    );
  }
  return readEach(given, (text: unknown, n) => {
    const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined;
    if (url && isServerUrl(url)) return url;
    const shown = typeof text === 'string' ? text.replace(/^(\w+:\/\/)?.*@/s, '$1') : text;
    const expected = 'an address such as http://etcd:2379';
    throw new ConfigError(`${fields.pathOf('endpoints')}[${n}]`, expected, shown);
  });
}

/** Accepts host and port only: credentials belong in `auth`, and a path would be ignored. */
const isServerUrl = ({ protocol, username, password, pathname, search }: URL): boolean =>
  /^https?:$/.test(protocol) && username + password + search === '' && pathname === '/';

const isCredentials = (value: unknown): value is { name: string; password: string } =>
  isRecord(value) && isString(value.name) && isString(value.password);
