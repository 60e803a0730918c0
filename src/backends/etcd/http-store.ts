/** Registers in etcd: one transaction for each compare-and-swap. */

import { UnavailableError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import type { RegisterStore, StoredValue } from './store.ts';
import { type EtcdHttp, fromBase64, toBase64 } from './transport.ts';

export const etcdRegisterStore = (http: EtcdHttp): RegisterStore => ({
  /**
   * One transaction compares, and then puts or reads, by a quorum. No request is `serializable`, so a server that is cut
   * off from its peers cannot answer reads either.
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
      compare: [{ key, target: 'MOD', result: 'EQUAL', mod_revision: revision }],
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
  async grantLease(seconds) {
    const { ID } = await http.post('/v3/lease/grant', { TTL: seconds });
    return String(ID);
  },
  close: () => http.close(),
});

/** The first name after all that begin with `prefix`, which ends in a slash. */
const endOfPrefix = (prefix: string): string => `${prefix.slice(0, -1)}0`;

type Json = Readonly<Record<string, unknown>>;

function storedValueIn({ responses }: Json): StoredValue | undefined {
  const [response] = Array.isArray(responses) ? responses : [];
  const [stored] = response?.response_range?.kvs ?? [];
  return stored && { text: fromBase64(stored.value), revision: String(stored.mod_revision) };
}

/** A put has the revision of its transaction. */
function revisionOf({ header }: Json): string {
  if (isRecord(header) && typeof header.revision === 'string') return header.revision;
  throw new UnavailableError('etcd', 'its reply has no revision');
}
