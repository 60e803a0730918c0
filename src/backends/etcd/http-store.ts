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
  async grantLease(seconds) {
    const { ID } = await http.post('/v3/lease/grant', { TTL: seconds });
    return String(ID);
  },
  close: () => http.close(),
});

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
