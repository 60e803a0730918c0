/**
 * An etcd as a configuration spells it: where it is, and files instead of what they hold. Pools meet in one, and limits
 * are decided by one.
 */

import { readFileSync } from 'node:fs';
import type { EtcdConnectionOptions, EtcdTls } from '../../backends/etcd/index.ts';
import { type EtcdOptions, etcd } from '../../backends/etcd/options.ts';
import type { RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { redactIfUrl } from './redis.ts';

/** A limit that etcd decides. */
export interface EtcdConfig {
  /** Without passwords. */
  readonly endpoints: readonly string[];
  /** What was written: another text, another limit. */
  readonly source: string;
  /** A share that is made to see whether it can be, and never asked. */
  readonly dryRunFactory: RemoteBackendFactory;
  /** @throws {ConfigError} if files cannot be read. */
  createFactory(): RemoteBackendFactory;
}

const ETCD_OPTIONS = ['prefix', 'deadline', 'auth', 'startTolerance', 'onUnavailable'];

export function readEtcd(value: unknown, path: string): EtcdConfig {
  const make = (options: object): RemoteBackendFactory => etcd(options as EtcdOptions, path);
  const { options, loadTls, dryRun } = readEtcdSection(value, path, ETCD_OPTIONS, make);
  return {
    endpoints: options.endpoints.map((text) => String(redactIfUrl(text))),
    source: JSON.stringify(value),
    dryRunFactory: dryRun,
    createFactory: () => make({ ...options, tls: loadTls() }),
  };
}

export interface EtcdSection<Made> {
  /** What was written, as it was; but for the files. */
  readonly options: Pick<EtcdConnectionOptions, 'endpoints'>;
  /** What was made of it without the files, to see whether that can be done. */
  readonly dryRun: Made;
  /** What the files hold. @throws {ConfigError} if they cannot be read. */
  loadTls(): EtcdTls;
}

/** An address, several, or an object with `endpoints` and any of these options. */
export function readEtcdSection<Made>(
  value: unknown,
  path: string,
  known: readonly string[],
  make: (options: Pick<EtcdConnectionOptions, 'endpoints'>) => Made,
): EtcdSection<Made> {
  const isPlain = typeof value === 'string' || Array.isArray(value);
  const fields = OptionReader.collecting(
    path,
    isPlain ? { endpoints: value } : redactNonObject(value),
  );
  const endpoints = [fields.get('endpoints')].flat() as string[];
  const tls = fields.tryRead(() =>
    fields.has('tls')
      ? readTlsPaths(OptionReader.collecting(fields.pathOf('tls'), fields.get('tls')))
      : {},
  );
  const names = known.filter((name) => fields.has(name));
  const options = {
    ...Object.fromEntries(names.map((name) => [name, fields.get(name)])),
    endpoints,
  };
  const made = fields.tryRead(() => make(options));
  fields.finish();
  return { options, dryRun: made as Made, loadTls: () => loadTlsFiles(tls as TlsFiles, path) };
}

type TlsFiles = { readonly [Name in 'ca' | 'cert' | 'key']?: string };

function readTlsPaths(fields: OptionReader): TlsFiles {
  const names = (['ca', 'cert', 'key'] as const).filter((name) => fields.has(name));
  const files = names.map((name) => [
    name,
    fields.optional(name, isNonEmptyString, "a file's name"),
  ]);
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

/** What is not even an object may be a password. */
const redactNonObject = (value: unknown): unknown => (isRecord(value) ? value : '…');

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';
