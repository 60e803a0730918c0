/**
 * Encrypts and authenticates datagrams with the fleet's key (AEAD in the construction of SIV, RFC 5297).
 *
 *     ┌──────────────────────────────────┬────────────────────────────────┐
 *     │ message, AES-256-CTR, IV = MAC   │ first 16 bytes of its MAC      │      HMAC-SHA-256 of the message
 *     └──────────────────────────────────┴────────────────────────────────┘
 *
 * The MAC is also the initialisation vector, so no nonce must be kept unique. Messages differ, because each has its
 * sender and sequence number. An observer sees addresses, sizes and times, but no contents.
 *
 * The MAC does not prevent replays. The protocol does: by the handshake (`handshake.ts`), the replay window
 * (`replay-window.ts`), and by counting each report once.
 */

import { createCipheriv, createHmac, timingSafeEqual } from 'node:crypto';
import type { HashSeed } from '../../core/hash.ts';
import { MAX_MESSAGE_BYTES } from './bytes.ts';

const MAC_BYTES = 16;

/** Longer datagrams do not come from a peer: their MAC, whose time grows with the length, is not computed. */
const MAX_ENCRYPTED_BYTES = MAX_MESSAGE_BYTES + MAC_BYTES;

export interface DatagramAuth {
  /** Encrypts with the first key. */
  encrypt(message: Uint8Array): Uint8Array;
  /** Decrypts a message; undefined if its MAC matches with no key. */
  decrypt(bytes: Uint8Array): Uint8Array | undefined;
  /** Whether the datagram has wire version 2: authenticated with one of the keys, not encrypted. */
  isVersion2(bytes: Uint8Array): boolean;
  /** Number of datagrams that were decrypted with a key other than the first. */
  readonly otherKey: number;
}

/** The keys of a fleet: the first one encrypts, each of them decrypts. */
export type FleetKey = string | readonly string[];

export interface FleetSecrets {
  readonly key: FleetKey | undefined;
  /** Secret of the key hash. Default: the key. */
  readonly seed?: string | undefined;
}

/** Without a key, every datagram is readable and accepted: for loopback only. */
const NO_AUTH: DatagramAuth = {
  encrypt: (message) => message,
  decrypt: (bytes) => bytes,
  isVersion2: () => false,
  otherKey: 0,
};

/** Nodes with another `seed` (default: the key) hash keys differently, so their datagrams do not match. */
export function createDatagramAuth(
  key: FleetSecrets['key'],
  seed?: FleetSecrets['seed'],
): DatagramAuth {
  if (key === undefined) return NO_AUTH;
  const keys = [key].flat();
  const [own, ...others] = keys.map((each) => createCipher(each, seed ?? each));
  const macKeysOfVersion2 = keys.map((each) => deriveKey(each, 'seal'));
  let otherKey = 0;
  const decryptWithOther = (bytes: Uint8Array): Uint8Array | undefined => {
    for (const { decrypt } of others) {
      const message = decrypt(bytes);
      if (message === undefined) continue;
      otherKey++;
      return message;
    }
    return undefined;
  };
  return {
    encrypt: own.encrypt,
    decrypt(bytes) {
      if (bytes.length <= MAC_BYTES || bytes.length > MAX_ENCRYPTED_BYTES) return undefined;
      return own.decrypt(bytes) ?? decryptWithOther(bytes);
    },
    isVersion2(bytes) {
      if (bytes[0] !== 2 || bytes.length <= MAC_BYTES || bytes.length > MAX_ENCRYPTED_BYTES)
        return false;
      const [message, mac] = splitMac(bytes);
      return macKeysOfVersion2.some((macKey) => timingSafeEqual(macOf(macKey, message), mac));
    },
    get otherKey() {
      return otherKey;
    },
  };
}

function createCipher(key: string, seed: string): Pick<DatagramAuth, 'encrypt' | 'decrypt'> {
  const secret = seed === key ? key : deriveKey(key, `seed ${seed}`);
  const macKey = deriveKey(secret, 'mac');
  const cipherKey = deriveKey(secret, 'cipher');
  /** Encrypts or decrypts: both are equal in counter mode. */
  const applyCipher = (mac: Uint8Array, bytes: Uint8Array): Buffer =>
    createCipheriv('aes-256-ctr', cipherKey, mac).update(bytes);
  return {
    encrypt(message) {
      const mac = macOf(macKey, message);
      return Buffer.concat([applyCipher(mac, message), mac]);
    },
    decrypt(bytes) {
      const [encrypted, mac] = splitMac(bytes);
      const message = applyCipher(mac, encrypted);
      return timingSafeEqual(macOf(macKey, message), mac) ? message : undefined;
    },
  };
}

const macOf = (macKey: Buffer, message: Uint8Array): Buffer =>
  createHmac('sha256', macKey).update(message).digest().subarray(0, MAC_BYTES);

const splitMac = (bytes: Uint8Array): [message: Uint8Array, mac: Uint8Array] => {
  const end = bytes.length - MAC_BYTES;
  return [bytes.subarray(0, end), bytes.subarray(end)];
};

/** The hash seed of a fleet, equal on all nodes and derived from the secret; without a secret it is public. */
export function fleetHashSeed(secret: string | undefined): HashSeed {
  const bytes = deriveKey(secret ?? '', 'hash');
  return [0, 4, 8, 12].map((at) => bytes.readInt32LE(at));
}

/** Derives a separate key per use, so that one does not reveal another. The labels are part of the wire format. */
const deriveKey = (key: string | Buffer, use: string): Buffer =>
  createHmac('sha256', key).update(`sluice peers ${use}`).digest();
