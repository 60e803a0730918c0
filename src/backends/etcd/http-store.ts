/** Registers in etcd: one transaction to swap one, whichever server of the cluster is asked. */

import { UnavailableError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';
import type { Found, RegisterServer } from './store.ts';
import { base64, type EtcdHttp, textIn } from './transport.ts';

export const etcdRegisters = (http: EtcdHttp): RegisterServer => ({
  /**
   * Compared and put in one step, by a quorum. What is not the same is read in that step, too; nothing here says
   * `serializable`, so a server that has lost touch with the others cannot answer even what only looks.
   */
  async swap(name, revision, put) {
    const key = base64(name);
    const request_put = put && { key, value: base64(put.text), lease: put.lease };
    let isDoubtful = false;
    const swap = {
      compare: [{ key, target: 'MOD', result: 'EQUAL', mod_revision: revision }],
      success: request_put ? [{ request_put }] : [],
      failure: [{ request_range: { key } }],
    };
    const answer = await http.post('/v3/kv/txn', swap, () => {
      isDoubtful = true;
    });
    if (answer.succeeded !== true) return { isSame: false, found: foundIn(answer), isDoubtful };
    return { isSame: true, revision: put ? revisionIn(answer) : revision };
  },
  async lease(seconds) {
    const { ID } = await http.post('/v3/lease/grant', { TTL: seconds });
    return String(ID);
  },
  close: () => http.close(),
});

type Json = Readonly<Record<string, unknown>>;

function foundIn({ responses }: Json): Found | undefined {
  const [response] = Array.isArray(responses) ? responses : [];
  const [found] = response?.response_range?.kvs ?? [];
  return found && { text: textIn(found.value), revision: String(found.mod_revision) };
}

/** What was put has the revision of the transaction. */
function revisionIn({ header }: Json): string {
  if (isRecord(header) && typeof header.revision === 'string') return header.revision;
  throw new UnavailableError('etcd', 'an answer without a revision');
}
