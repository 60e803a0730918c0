/** TLS material is in files that are read when the backend is created, not when the configuration is validated. */

import { readFileSync } from 'node:fs';
import { isNonEmptyString, secretSection } from '../../core/config-helpers.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { redactIfUrl } from '../connections/server-url.ts';
import type { BackendModule, LimitBackend } from '../daemon-backend.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { type EtcdConnectionOptions, type EtcdOptions, type EtcdTls, etcd } from './index.ts';

const NAME = 'etcd';

const LIMIT_OPTIONS = ['prefix', 'deadline', 'auth', 'startTolerance', 'onUnavailable'];

export const etcdModule: BackendModule = { name: NAME, readLimit };

function readLimit(value: unknown, path: string): LimitBackend {
  const create = (options: object): RemoteBackendFactory => etcd(options as EtcdOptions, path);
  const { options, loadTls, dryRun } = readEtcdSection(value, path, LIMIT_OPTIONS, create);
  return {
    name: NAME,
    identity: JSON.stringify(value),
    view: options.endpoints.map((endpoint) => String(redactIfUrl(endpoint))),
    note: 'shared through etcd',
    dryRun: () => dryRun,
    create: () => create({ ...options, tls: loadTls() }),
  };
}

export interface EtcdSection<Created> {
  /** The configured options, without the TLS files. */
  readonly options: { readonly endpoints: readonly string[] };
  /** A backend without the TLS files, which validates the options. */
  readonly dryRun: Created;
  /** Reads the TLS files. @throws {ConfigError} if one cannot be read. */
  loadTls(): EtcdTls;
}

/** Reads an endpoint, a list of them, or an object with `endpoints` and any of the `known` options. */
export function readEtcdSection<Created>(
  value: unknown,
  path: string,
  known: readonly string[],
  create: (options: EtcdConnectionOptions) => Created,
): EtcdSection<Created> {
  const isPlain = typeof value === 'string' || Array.isArray(value);
  const fields = secretSection(path, isPlain ? { endpoints: value } : value, 'an object');
  const endpoints = [fields.get('endpoints')].flat() as string[];
  const tls = fields.tryRead(() =>
    fields.has('tls')
      ? readTlsPaths(OptionReader.collecting(fields.pathOf('tls'), fields.get('tls')))
      : {},
  );
  const names = known.filter((name) => fields.has(name));
  const given = Object.fromEntries(names.map((name) => [name, fields.get(name)]));
  const options = { ...given, endpoints };
  const dryRun = fields.tryRead(() => create(options)) as Created;
  fields.finish();
  return { options, dryRun, loadTls: () => loadTlsFiles(tls as TlsFiles, path) };
}

type TlsFiles = { readonly [Name in 'ca' | 'cert' | 'key']?: string };

function readTlsPaths(fields: OptionReader): TlsFiles {
  const names = (['ca', 'cert', 'key'] as const).filter((name) => fields.has(name));
  const files = names.map((name) => [name, fields.optional(name, isNonEmptyString, 'a file name')]);
  fields.finish();
  return Object.fromEntries(files);
}

function loadTlsFiles(files: TlsFiles, path: string): EtcdTls {
  const read = ([name, file]: [string, string]): [string, Buffer] => {
    try {
      return [name, readFileSync(file)];
    } catch (error) {
      const expected = `a file that can be read (${errorMessageOf(error)})`;
      throw new ConfigError(`${path}.tls.${name}`, expected, file);
    }
  };
  return Object.fromEntries(Object.entries(files).map(read));
}
