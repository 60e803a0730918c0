/**
 * An etcd as a configuration spells it: where it is, and files instead of what they hold. Pools meet in one, and limits
 * are decided by one.
 */

import { readFileSync } from 'node:fs';
import type { EtcdPlace, EtcdTls } from '../../backends/etcd/index.ts';
import { type EtcdOptions, etcd } from '../../backends/etcd/options.ts';
import type { RemoteShareMaker } from '../../backends/remote-backend.ts';
import { ConfigError, reasonOf } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { safe } from './redis.ts';

/** A limit that etcd decides. */
export interface EtcdConfig {
  /** Without passwords. */
  readonly endpoints: readonly string[];
  /** What was written: another text, another limit. */
  readonly text: string;
  /** A share that is made to see whether it can be, and never asked. */
  readonly trial: RemoteShareMaker;
  /** @throws {ConfigError} if files cannot be read. */
  make(): RemoteShareMaker;
}

const OPTIONS = ['prefix', 'deadline', 'auth', 'slack', 'onUnavailable'];

export function readEtcd(value: unknown, path: string): EtcdConfig {
  const make = (options: object): RemoteShareMaker => etcd(options as EtcdOptions, path);
  const { options, tls, made } = readEtcdPlace(value, path, OPTIONS, make);
  return {
    endpoints: options.endpoints.map((text) => String(safe(text))),
    text: JSON.stringify(value),
    trial: made,
    make: () => make({ ...options, tls: tls() }),
  };
}

export interface EtcdWritten<Made> {
  /** What was written, as it was; but for the files. */
  readonly options: Pick<EtcdPlace, 'endpoints'>;
  /** What was made of it without the files, to see whether that can be done. */
  readonly made: Made;
  /** What the files hold. @throws {ConfigError} if they cannot be read. */
  tls(): EtcdTls;
}

/** An address, several, or an object with `endpoints` and any of these options. */
export function readEtcdPlace<Made>(
  value: unknown,
  path: string,
  known: readonly string[],
  make: (options: Pick<EtcdPlace, 'endpoints'>) => Made,
): EtcdWritten<Made> {
  const isPlain = typeof value === 'string' || Array.isArray(value);
  const fields = Fields.patient(path, isPlain ? { endpoints: value } : hidden(value));
  const endpoints = [fields.raw('endpoints')].flat() as string[];
  const tls = fields.attempt(() =>
    fields.has('tls') ? readFiles(Fields.patient(fields.at('tls'), fields.raw('tls'))) : {},
  );
  const names = known.filter((name) => fields.has(name));
  const options = {
    ...Object.fromEntries(names.map((name) => [name, fields.raw(name)])),
    endpoints,
  };
  const made = fields.attempt(() => make(options));
  fields.done();
  return { options, made: made as Made, tls: () => contents(tls as TlsFiles, path) };
}

type TlsFiles = { readonly [Name in 'ca' | 'cert' | 'key']?: string };

function readFiles(fields: Fields): TlsFiles {
  const names = (['ca', 'cert', 'key'] as const).filter((name) => fields.has(name));
  const files = names.map((name) => [name, fields.optional(name, isText, "a file's name")]);
  fields.done();
  return Object.fromEntries(files);
}

function contents(files: TlsFiles, path: string): EtcdTls {
  const read = ([name, file]: [string, string]): [string, Buffer] => {
    try {
      return [name, readFileSync(file)];
    } catch (error) {
      const expected = `a file that can be read (${reasonOf(error)})`;
      throw new ConfigError(`${path}.tls.${name}`, expected, file);
    }
  };
  return Object.fromEntries(Object.entries(files).map(read));
}

/** What is not even an object may be a password. */
const hidden = (value: unknown): unknown => (isRecord(value) ? value : '…');

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';
