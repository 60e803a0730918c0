/** Where an etcd is, and how one gets in: what everything that is kept there is told first. */

import { ConfigError } from '../../core/errors.ts';
import { Fields, isRecord, readEach } from '../../core/options.ts';
import type { EtcdHttpOptions, EtcdTls } from './transport.ts';

/** Where etcd is, and who we are there. */
export interface EtcdPlace {
  /** Servers of one cluster, such as `https://etcd-0:2379`: the first is asked until it fails, then the next. */
  readonly endpoints: readonly string[];
  readonly auth?: { readonly name: string; readonly password: string };
  readonly tls?: EtcdTls;
}

const ENDPOINTS_MAX = 20;

/** @throws {ConfigError} if it makes no sense. */
export function readPlace(fields: Fields): Pick<EtcdHttpOptions, 'endpoints' | 'auth' | 'tls'> {
  const auth = fields.attempt(() => readAuth(fields));
  const tls = fields.attempt(() => readTls(fields));
  const endpoints = fields.attempt(() => readEndpoints(fields));
  return { endpoints: endpoints as readonly URL[], auth, tls };
}

/** A certificate under a misspelt name would be none. What is wrong with one is not shown: it may be a key. */
function readTls(fields: Fields): EtcdTls | undefined {
  const given = fields.optional('tls', isRecord, '{ ca, cert, key }');
  if (!given) return undefined;
  const tls = new Fields(fields.at('tls'), given);
  for (const name of ['ca', 'cert', 'key']) {
    const pem = tls.raw(name);
    if (pem !== undefined && !isText(pem) && !Buffer.isBuffer(pem))
      throw new ConfigError(tls.at(name), 'a text or a Buffer', 'something else');
  }
  tls.done();
  return given;
}

/** What is wrong with it is not shown: it may be a password. */
function readAuth(fields: Fields): EtcdPlace['auth'] {
  const auth = fields.raw('auth');
  if (auth === undefined || isAuth(auth)) return auth;
  throw new ConfigError(fields.at('auth'), '{ name, password }', 'something else');
}

function readEndpoints(fields: Fields): readonly URL[] {
  const given = fields.raw('endpoints');
  const isList = Array.isArray(given) && given.length > 0 && given.length <= ENDPOINTS_MAX;
  if (!isList) {
    throw new ConfigError(fields.at('endpoints'), `1 to ${ENDPOINTS_MAX} addresses`, given);
  }
  return readEach(given, (text: unknown, n) => {
    const url = typeof text === 'string' && URL.canParse(text) ? new URL(text) : undefined;
    if (url && isAddress(url)) return url;
    const shown = typeof text === 'string' ? text.replace(/^(\w+:\/\/)?.*@/s, '$1') : text;
    const expected = 'an address such as http://etcd:2379';
    throw new ConfigError(`${fields.at('endpoints')}[${n}]`, expected, shown);
  });
}

/** Of a server alone: a name and a password stand elsewhere, and a path would be passed over. */
const isAddress = ({ protocol, username, password, pathname, search }: URL): boolean =>
  /^https?:$/.test(protocol) && username + password + search === '' && pathname === '/';

const isText = (value: unknown): value is string => typeof value === 'string';

const isAuth = (value: unknown): value is { name: string; password: string } =>
  isRecord(value) && isText(value.name) && isText(value.password);
