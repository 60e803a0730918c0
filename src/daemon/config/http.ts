/**
 * Where an HTTP check takes its key from if it does not say one: for proxies that pass on a request's
 * headers (nginx auth_request, Traefik ForwardAuth, Caddy forward_auth).
 *
 *     http:
 *       key: { header: x-real-ip }     # or: ip
 *       prefix: 'ip:'                  # what is put before it
 *       trustProxy: 1                  # whom to believe about X-Forwarded-For, as in sluice/http
 */

import { type ClientResolver, readTrustProxy } from '../../adapters/http/proxy.ts';
import { isRecord, OptionReader } from '../../core/options.ts';

export interface HttpConfig {
  /** A header in small letters; undefined: the client's address. */
  readonly header: string | undefined;
  readonly prefix: string;
  readonly clientOf: ClientResolver | undefined;
  /** False: Node's HTTP server handles every request. */
  readonly fastPath: boolean;
}

export function readHttpSection(value: unknown, path: string): HttpConfig {
  const fields = OptionReader.collecting(path, value);
  const isText = (own: unknown): own is string => typeof own === 'string';
  const http = {
    header: fields.tryRead(() => readHeader(fields)),
    prefix: fields.optional('prefix', isText, 'a text') ?? '',
    clientOf: fields.tryRead(() => readTrustProxy(fields)),
    fastPath: fields.boolean('fastPath', true),
  };
  fields.finish();
  return http;
}

function readHeader(fields: OptionReader): string | undefined {
  const key = fields.get('key') ?? 'ip';
  if (key === 'ip') return undefined;
  if (!isRecord(key)) return fields.throwFor('key', 'ip, or an object with `header`');
  const own = new OptionReader(fields.pathOf('key'), key);
  const isHeader = (name: unknown): name is string =>
    typeof name === 'string' && /^[\w-]+$/.test(name);
  const header = own.required('header', isHeader, "a header's name");
  own.finish();
  return header.toLowerCase();
}
