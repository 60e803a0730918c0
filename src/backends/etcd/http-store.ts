import { UnavailableError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import type { EntrySet, EntryStore, RegisterStore, StoredEntry, StoredValue } from './store.ts';
import { type EtcdHttp, fromBase64, toBase64 } from './transport.ts';

export const etcdRegisterStore = (http: EtcdHttp): RegisterStore => ({
  /**
   * One transaction compares, and then puts or reads, by a quorum. No request is `serializable`, so a server that is
   * cut off from its peers cannot serve reads either.
   */
  async compareAndSwap(name, revision, replacement) {
    const key = toBase64(name);
    const request_put = replacement && {
      key,
      value: toBase64(replacement.text),
      lease: replacement.leaseId,
    };
    let isAmbiguous = false;
    const swap = {
      compare: [isAt(key, revision)],
      success: request_put ? [{ request_put }] : [],
      failure: [{ request_range: { key } }],
    };
    const reply = await http.post('/v3/kv/txn', swap, () => {
      isAmbiguous = true;
    });
    if (reply.succeeded !== true)
      return { isMatch: false, current: storedValueIn(reply), isAmbiguous };
    return { isMatch: true, revision: replacement ? revisionOf(reply) : revision };
  },
  async list(prefix, after, max) {
    const range = {
      key: toBase64(after === '' ? prefix : `${after}\0`),
      range_end: toBase64(endOfPrefix(prefix)),
      limit: max,
      keys_only: true,
    };
    const { kvs = [] } = await http.post('/v3/kv/range', range);
    return (kvs as readonly { key: string }[]).map(({ key }) => fromBase64(key));
  },
  grantLease: (seconds) => grantLease(http, seconds),
  close: () => http.close(),
});

/** Every reply contains all entries under the prefix: one request both writes and reads. */
export const etcdEntryStore = (http: EtcdHttp): EntryStore => ({
  async readEntries(prefix) {
    const reply = await http.post('/v3/kv/range', rangeOf(prefix));
    return { revision: revisionOf(reply), entries: entriesIn(reply) };
  },
  async swapEntry({ prefix, key: name, revision, replacement, unchangedSince }) {
    const key = toBase64(name);
    const range = rangeOf(prefix);
    const isUnchanged = isAt(key, revision);
    const isNoneWritten = unchangedSince !== undefined && {
      ...range,
      target: 'MOD',
      result: 'LESS',
      mod_revision: String(BigInt(unchangedSince) + 1n),
    };
    const write = replacement
      ? { request_put: { key, value: toBase64(replacement.text), lease: replacement.leaseId } }
      : { request_delete_range: { key } };
    const reply = await http.post('/v3/kv/txn', {
      compare: isNoneWritten ? [isUnchanged, isNoneWritten] : [isUnchanged],
      success: [write, { request_range: range }],
      failure: [{ request_range: range }],
    });
    return { isMatch: reply.succeeded === true, ...entrySetIn(reply) };
  },
  async renewEntries(entries, leaseId) {
    const reply = await http.post('/v3/kv/txn', {
      compare: entries.map(({ key, revision }) => isAt(toBase64(key), revision)),
      success: entries.map(({ key, text }) => ({
        request_put: { key: toBase64(key), value: toBase64(text), lease: leaseId },
      })),
    });
    return reply.succeeded === true ? revisionOf(reply) : undefined;
  },
  grantLease: (seconds) => grantLease(http, seconds),
  close: () => http.close(),
});

async function grantLease(http: EtcdHttp, seconds: number): Promise<string> {
  const { ID } = await http.post('/v3/lease/grant', { TTL: seconds });
  return String(ID);
}

/** The condition that a key still has this revision. */
const isAt = (key: string, revision: string) => ({
  key,
  target: 'MOD',
  result: 'EQUAL',
  mod_revision: revision,
});

const rangeOf = (prefix: string) => ({
  key: toBase64(prefix),
  range_end: toBase64(endOfPrefix(prefix)),
});

/** The first name after all names that begin with `prefix`, which ends in a slash. */
const endOfPrefix = (prefix: string): string => `${prefix.slice(0, -1)}0`;

type Json = Readonly<Record<string, unknown>>;

function storedValueIn({ responses }: Json): StoredValue | undefined {
  const [response] = Array.isArray(responses) ? responses : [];
  const [stored] = response?.response_range?.kvs ?? [];
  return stored && { text: fromBase64(stored.value), revision: String(stored.mod_revision) };
}

/** Reads the entries of a transaction's last response. */
function entrySetIn(reply: Json): EntrySet {
  const last = Array.isArray(reply.responses) ? reply.responses.at(-1) : undefined;
  return { revision: revisionOf(reply), entries: entriesIn(last?.response_range ?? {}) };
}

const entriesIn = ({ kvs }: Json): StoredEntry[] =>
  (Array.isArray(kvs) ? kvs : []).map((kv) => ({
    key: fromBase64(kv.key),
    text: fromBase64(kv.value),
    revision: String(kv.mod_revision),
  }));

/** A put has the revision of its transaction. */
function revisionOf({ header }: Json): string {
  if (isRecord(header) && typeof header.revision === 'string') return header.revision;
  throw new UnavailableError('etcd', 'its reply has no revision');
}
