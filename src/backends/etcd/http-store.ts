/** Registers in etcd: one transaction to swap one, whichever server of the cluster is asked. */

import { UnavailableError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import type { RegisterStore, StoredValue } from './store.ts';
import { type EtcdHttp, fromBase64, toBase64 } from './transport.ts';

export const etcdRegisterStore = (http: EtcdHttp): RegisterStore => ({
  /**
   * Compared and put in one step, by a quorum. What is not the same is read in that step, too; nothing here says
   * `serializable`, so a server that has lost touch with the others cannot answer even what only looks.
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
    const answer = await http.post('/v3/kv/txn', swap, () => {
      isAmbiguous = true;
    });
    if (answer.succeeded !== true)
      return { isMatch: false, current: storedValueIn(answer), isAmbiguous };
    return { isMatch: true, revision: replacement ? revisionOf(answer) : revision };
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

/** What was put has the revision of the transaction. */
function revisionOf({ header }: Json): string {
  if (isRecord(header) && typeof header.revision === 'string') return header.revision;
  throw new UnavailableError('etcd', 'an answer without a revision');
}
