import { type ClientResolver, readTrustProxy } from '../../adapters/http/proxy.ts';
import { isString } from '../../core/config-helpers.ts';
import { isRecord, OptionReader } from '../../core/options.ts';

export interface HttpConfig {
  /** A header in lower case; undefined: the client's address. */
  readonly header: string | undefined;
  /** The header that names the plan of the key, in lower case. */
  readonly planHeader: string | undefined;
  readonly prefix: string;
  readonly clientOf: ClientResolver | undefined;
  /** False: Node's HTTP server handles every request. */
  readonly fastPath: boolean;
  /** True: web pages of other sites may check. */
  readonly allowCrossSite: boolean;
}

export function readHttpSection(section: unknown, path: string): HttpConfig {
  const fields = OptionReader.collecting(path, section);
  const http = {
    header: fields.tryRead(() => readHeader(fields)),
    planHeader: fields.optional('planHeader', isHeaderName, 'a header name')?.toLowerCase(),
    prefix: fields.optional('prefix', isString, 'a string') ?? '',
    clientOf: fields.tryRead(() => readTrustProxy(fields)),
    fastPath: fields.boolean('fastPath', true),
    allowCrossSite: fields.boolean('allowCrossSite', false),
  };
  fields.finish();
  return http;
}

function readHeader(fields: OptionReader): string | undefined {
  const key = fields.get('key') ?? 'ip';
  if (key === 'ip') return undefined;
  if (!isRecord(key)) return fields.throwFor('key', 'ip, or an object with `header`');
  const inner = new OptionReader(fields.pathOf('key'), key);
  const header = inner.required('header', isHeaderName, 'a header name');
  inner.finish();
  return header.toLowerCase();
}

const isHeaderName = (name: unknown): name is string => isString(name) && /^[\w-]+$/.test(name);
