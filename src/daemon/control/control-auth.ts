/**
 * Proves to peers that a message about controls comes from a daemon with the operator's secret, the admin token:
 *
 *     MAC of the text (22 characters) │ text
 *
 * The fleet key alone gives no rights of an operator. A record keeps which token it was set under (`by`), and is sent only
 * while that is the token: a change of it ends the sharing of what was set before.
 */

import { createHmac, timingSafeEqual } from 'node:crypto';

const MAC_CHARS = 22;
const ID_CHARS = 8;

export interface OperatorKey {
  /** Names the token without revealing it. */
  readonly id: string;
  sign(text: string): string;
  /** The text; undefined if it was not signed with this token. */
  verify(signed: string): string | undefined;
}

/** Decides which controls are shared with peers. */
export interface SharingRules {
  /** Undefined without an admin token: no controls are shared. */
  readonly operator: () => OperatorKey | undefined;
  /** Names of the limits that peers share. */
  readonly sharedLimits: () => ReadonlySet<string>;
}

export function operatorKeyOf(token: string): OperatorKey {
  const macKey = macOf(token, 'sluice controls');
  const sign = (text: string): Buffer => macOf(macKey, text).subarray(0, 16);
  return {
    id: macOf(macKey, 'id').toString('base64url').slice(0, ID_CHARS),
    sign: (text) => sign(text).toString('base64url') + text,
    verify(signed) {
      const text = signed.slice(MAC_CHARS);
      const mac = Buffer.from(signed.slice(0, MAC_CHARS), 'base64url');
      return mac.length === 16 && timingSafeEqual(mac, sign(text)) ? text : undefined;
    },
  };
}

const macOf = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();
