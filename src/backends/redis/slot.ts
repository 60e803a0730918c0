/** A script may only access keys of one cluster hash slot, so commands are sent in one call per slot. */

export const SLOT_COUNT = 16_384;

/** CRC-16/XMODEM, one entry for each byte value. */
const CRC16_TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc & 0xffff;
});

const utf8 = new TextEncoder();

export function slotOf(key: string): number {
  let crc = 0;
  for (const byte of utf8.encode(hashTagOf(key))) {
    crc = ((crc << 8) & 0xffff) ^ CRC16_TABLE[((crc >> 8) ^ byte) & 0xff];
  }
  return crc % SLOT_COUNT;
}

/** The text in the first braces, unless it is empty; otherwise the whole key. */
function hashTagOf(key: string): string {
  const open = key.indexOf('{');
  const close = open < 0 ? -1 : key.indexOf('}', open + 1);
  return close > open + 1 ? key.slice(open + 1, close) : key;
}
