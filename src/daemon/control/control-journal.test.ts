import { execFileSync } from 'node:child_process';
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';
import { seededRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/index.ts';
import { readControlFile } from './control-file.ts';
import { ControlJournal } from './control-journal.ts';
import type { ControlRecord } from './control-record.ts';

const NOW = 1_700_000_000_000;
const HOUR = 3_600_000;

const daemons = virtualDaemons();
const { start, place } = daemons;
afterEach(daemons.end);

const ban = (key: string, note = ''): ControlRecord => ({
  kind: 'ban',
  key,
  until: NOW + HOUR,
  setAt: NOW,
  note,
});

/** A journal of a list that the test fills. */
function journalOf(path = place('state.controls')) {
  const clock = new VirtualClock(NOW);
  const records: ControlRecord[] = [];
  const logged: string[] = [];
  const log = (_: string, message: string): void => void logged.push(message);
  const journal = new ControlJournal({ clock, log, records: () => records });
  journal.configure(path);
  const set = (...added: ControlRecord[]) => {
    records.push(...added);
    journal.add(added);
    return journal.saved();
  };
  const keys = async (): Promise<string> => {
    const read = await readControlFile(path);
    return 'reason' in read ? read.reason : read.records.map(({ key }) => key).join();
  };
  return { clock, logged, journal, path, records, set, keys };
}

/** How many writes the file consists of. */
const writesIn = (path: string): number =>
  new Set(readFileSync(path, 'utf8').match(/"at":[\d.]+/g)).size;

describe('journal', () => {
  test('a change is on disk when saved resolves, for its owner only', async () => {
    const { set, keys, path } = journalOf();
    expect(await set(ban('eve'))).toEqual({ isSaved: true });
    expect(await keys()).toBe('eve');
    expect(await set(ban('mallory'))).toEqual({ isSaved: true });
    expect(await keys()).toBe('eve,mallory');
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  test('changes of one turn are one write, and all of them are saved with it', async () => {
    const { set, path, journal } = journalOf();
    await journal.saved();
    const results = await Promise.all(Array.from({ length: 5000 }, (_, n) => set(ban(`k${n}`))));
    expect(new Set(results)).toEqual(new Set([{ isSaved: true }]));
    expect(writesIn(path)).toBe(2);
    const read = await readControlFile(path);
    expect('records' in read && read.records.length).toBe(5000);
  });

  test('more changes than may wait are one write of the whole file', async () => {
    const { set, path, journal } = journalOf();
    await journal.saved();
    await Promise.all(Array.from({ length: 10_001 }, (_, n) => set(ban(`k${n}`))));
    expect(writesIn(path)).toBe(1);
    const read = await readControlFile(path);
    expect('records' in read && read.records.length).toBe(10_001);
  });

  test('a file that has grown by controls that ended is written anew', async () => {
    const { journal, path, records } = journalOf();
    await journal.saved();
    const note = 'x'.repeat(200);
    let largest = 0;
    for (let n = 0; n < 12; n++) {
      journal.add(Array.from({ length: 200 }, (_, at) => ban(`${n}-${at}`, note)));
      records.splice(0, Infinity, ban('the only one left'));
      expect(await journal.saved()).toEqual({ isSaved: true });
      largest = Math.max(largest, statSync(path).size);
    }
    expect(largest).toBeGreaterThan(262_144);
    expect(largest).toBeLessThan(400_000);
    expect(statSync(path).size).toBeLessThan(400_000);
    expect(writesIn(path)).toBeLessThan(12);
  });

  test('a file that was removed, truncated or changed is written anew with all controls', async () => {
    const { set, keys, path } = journalOf();
    await set(ban('a'));
    rmSync(path);
    expect(await set(ban('b'))).toEqual({ isSaved: true });
    expect(await keys()).toBe('a,b');
    writeFileSync(path, '');
    await set(ban('c'));
    expect(await keys()).toBe('a,b,c');
    appendFileSync(path, 'of another process\n');
    await set(ban('d'));
    expect(await keys()).toBe('a,b,c,d');
  });

  test('a link or a pipe in place of the file is replaced, and the target of the link stays as it is', async () => {
    const { set, keys, path } = journalOf();
    await set(ban('a'));
    renameSync(path, place('victim'));
    symlinkSync(place('victim'), path);
    const before = readFileSync(place('victim'));
    expect(await set(ban('b'))).toEqual({ isSaved: true });
    expect(await keys()).toBe('a,b');
    expect(readFileSync(place('victim'))).toEqual(before);
    rmSync(path);
    execFileSync('mkfifo', [path]);
    expect(await set(ban('c'))).toEqual({ isSaved: true });
    expect(await keys()).toBe('a,b,c');
  });

  test('a failed write is reported, counted, logged once and repeated', async () => {
    const { set, keys, journal, logged, clock } = journalOf(place('later/state.controls'));
    for (const key of ['a', 'b']) {
      const result = await set(ban(key));
      expect(result).toMatchObject({ isSaved: false, hasFile: true });
      expect(!result.isSaved && result.reason).toContain('ENOENT');
    }
    expect(journal.failures).toBeGreaterThanOrEqual(2);
    expect(logged).toEqual(['controls not written: a crash loses them']);
    mkdirSync(place('later'));
    clock.advance(5000);
    await vi.waitFor(() => expect(logged).toContain('controls written again'));
    expect(await keys()).toBe('a,b');
    expect(await journal.saved()).toEqual({ isSaved: true });
  });

  test('after a failure, a question whether all is saved tries again at once', async () => {
    const { set, keys, journal } = journalOf(place('later/state.controls'));
    expect(await set(ban('a'))).toMatchObject({ isSaved: false });
    mkdirSync(place('later'));
    expect(await journal.saved()).toEqual({ isSaved: true });
    expect(await keys()).toBe('a');
  });

  test('a disk that does not confirm: the operator waits for 5 s, and is told', async () => {
    const { journal, records, clock } = journalOf();
    await journal.saved();
    const result = (() => {
      records.push(ban('a'));
      journal.add(records);
      return journal.saved();
    })();
    clock.advance(5000); // before the event loop has turned: nothing is written yet
    expect(await result).toMatchObject({ isSaved: false, reason: /within 5000 ms/ });
    expect(await journal.saved()).toEqual({ isSaved: true });
  });

  test('without a file nothing is written, and saved says that there is none', async () => {
    const { journal, set } = journalOf();
    journal.configure(undefined);
    expect(await set(ban('a'))).toMatchObject({ isSaved: false, hasFile: false });
  });

  test('another file begins with all controls', async () => {
    const { journal, set, records } = journalOf();
    await set(ban('a'));
    journal.configure(place('other.controls'));
    await set(ban('b'));
    const read = await readControlFile(place('other.controls'));
    expect('records' in read && read.records).toEqual(records);
    expect(readFileSync(place('state.controls'), 'utf8')).not.toContain('"b"');
  });

  test('a reset stays in the file until a later snapshot is written', async () => {
    const { journal, set, clock, path } = journalOf();
    const reset = { kind: 'reset', key: 'r', until: NOW + 1, setAt: NOW - HOUR } as const;
    await set(reset); // of a peer whose clock is behind
    const resets = async () => {
      const read = await readControlFile(path);
      return 'resets' in read ? read.resets.map(({ setAt }) => setAt) : read;
    };
    expect(await resets()).toEqual([NOW]);
    journal.onSnapshot(NOW - 1);
    rmSync(path);
    await set(ban('a'));
    expect(await resets()).toEqual([NOW]);
    clock.advance(10);
    journal.onSnapshot(NOW + 10);
    rmSync(path);
    await set(ban('b'));
    expect(await resets()).toEqual([]);
  });
});

describe('journal file', () => {
  async function written(): Promise<string> {
    const { set, path, journal, records } = journalOf();
    records.push(...Array.from({ length: 50 }, (_, n) => ban(`old ${n}`)));
    await journal.saved();
    await set(ban('é'));
    await set({ ...ban('old 3'), isRemoved: true });
    return path;
  }

  test('a line without an end is ignored: its write was never confirmed', async () => {
    const path = await written();
    const whole = await readControlFile(path);
    appendFileSync(path, '77b1c0de {"at":1,"rec');
    expect(await readControlFile(path)).toEqual(whole);
    expect(whole).toMatchObject({ damagedLines: 0 });
  });

  test('truncated at any position: a prefix of the changes, and damage inside the first write is found', async () => {
    const path = await written();
    const whole = readFileSync(path);
    const known = await readControlFile(path);
    if ('reason' in known) return expect.unreachable(known.reason);
    const firstWrite = whole.indexOf('é') - 200;
    for (let length = 0; length < whole.length; length += 29) {
      writeFileSync(path, whole.subarray(0, length));
      const read = await readControlFile(path);
      if ('reason' in read) continue;
      expect(read.at).toBeLessThanOrEqual(known.at);
      if (length < firstWrite) expect(read.damagedLines).toBeGreaterThan(0);
    }
  });

  test('a changed byte at any position costs 20 records at most, and is found', async () => {
    const path = await written();
    const whole = readFileSync(path);
    const afterMagic = whole.indexOf('\n') + 1;
    for (let at = afterMagic; at < whole.length - 1; at += 7) {
      const bent = Buffer.from(whole);
      bent[at] ^= 0x41;
      writeFileSync(path, bent);
      const read = await readControlFile(path);
      if ('reason' in read) return expect.unreachable(read.reason);
      expect(read.damagedLines).toBeGreaterThan(0);
      expect(read.records.length).toBeGreaterThanOrEqual(51 - 2 * 20);
    }
  });

  test('refuses other files and other versions, and says so', async () => {
    const path = place('state.controls');
    expect(await readControlFile(path)).toMatchObject({ isMissing: true });
    writeFileSync(path, 'hello');
    expect(await readControlFile(path)).toEqual({ reason: 'it is not a journal of controls' });
    writeFileSync(path, 'sluice controls 2\n');
    expect(await readControlFile(path)).toEqual({
      reason: 'it is of version 2, and this daemon reads version 1',
    });
    mkdirSync(`${path}2`);
    expect(await readControlFile(`${path}2`)).toEqual({ reason: 'it is not a regular file' });
  });
});

describe('crash', () => {
  const ONE = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';
  const MINUTE = 60_000;

  test('bans, overrides and their removals hold without a snapshot', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'eve', for: '1h', note: 'scraper' });
    first.controls.ban({ key: 'bob', for: '1h' });
    first.controls.unban({ key: 'bob' });
    first.controls.override({ key: 'alice', rate: '100/h', for: '1h' });
    expect(await first.controls.saved()).toEqual({ isSaved: true });
    expect(existsSync(place('state'))).toBe(false);
    const second = await start(ONE, first.clock);
    expect(second.controls.list()).toEqual(first.controls.list());
    expect(second.isAllowed('eve')).toBe(false);
    expect(second.isAllowed('bob')).toBe(true);
    expect(second.count('alice')).toBe(100);
  });

  test('a lifted ban that an old snapshot has stays lifted', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'eve', for: '10d' });
    await first.stop();
    const second = await start(ONE, first.clock);
    expect(second.isAllowed('eve')).toBe(false);
    second.controls.unban({ key: 'eve' });
    await second.controls.saved();
    second.clock.advance(20 * MINUTE);
    expect(second.controls.records).toMatchObject([{ key: 'eve', isRemoved: true }]);
    const third = await start(ONE, first.clock);
    expect(third.isAllowed('eve')).toBe(true);
    await third.controls.saved();
    const fourth = await start(ONE, first.clock);
    expect(fourth.isAllowed('eve')).toBe(true);
  });

  test('an override that is later than the snapshot keeps what the key has consumed, and so does its removal', async () => {
    const first = await start(ONE);
    expect(first.count('alice', 15)).toBe(15);
    first.controls.override({ key: 'bob', rate: '100/h', for: '1h' });
    expect(first.count('bob', 90)).toBe(90);
    await first.stop();
    const second = await start(ONE, first.clock);
    second.controls.override({ key: 'alice', rate: '100/h', for: '1h' });
    second.controls.removeOverride({ key: 'bob' });
    await second.controls.saved();
    const third = await start(ONE, first.clock);
    expect(third.count('alice')).toBe(85);
    expect(third.count('bob')).toBe(0);
  });

  test('a reset that is later than the snapshot is repeated, one that is earlier is not', async () => {
    const first = await start(ONE);
    expect(first.count('alice')).toBe(20);
    await first.stop();
    const second = await start(ONE, first.clock);
    await second.controls.reset({ key: 'alice' });
    await second.controls.saved();
    second.clock.advance(MINUTE);
    for (const crashed of [second, await start(ONE, first.clock)]) {
      await crashed.controls.saved();
      const next = await start(ONE, first.clock);
      expect(next.isAllowed('alice')).toBe(true);
    }
    const last = await start(ONE, first.clock);
    expect(last.count('alice', 5)).toBe(5);
    await last.stop();
    const afterSnapshot = await start(ONE, first.clock);
    expect(afterSnapshot.count('alice')).toBe(15);
  });

  test('a snapshot that is later than the journal counts: the journal could not be written', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'eve', for: '1h' });
    await first.controls.saved();
    copyFileSync(place('state.controls'), place('old'));
    await first.stop();
    rmSync(place('state.controls'));
    mkdirSync(place('state.controls'));
    const second = await start(ONE, first.clock);
    expect(second.logged).toContain('controls not used');
    expect(second.isAllowed('eve')).toBe(false);
    second.controls.unban({ key: 'eve' });
    second.controls.ban({ key: 'mallory', for: '1h' });
    expect(await second.controls.saved()).toMatchObject({ isSaved: false, hasFile: true });
    await second.stop();
    rmdirSync(place('state.controls'));
    copyFileSync(place('old'), place('state.controls'));
    const third = await start(ONE, first.clock);
    expect(third.controls.list().map(({ key }) => key)).toEqual(['mallory']);
  });

  test('a damaged journal: the rest of it is used, and what the snapshot has', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'in the snapshot', for: '1h' });
    await first.stop();
    const second = await start(ONE, first.clock);
    for (const key of ['damaged', 'eve']) {
      second.controls.ban({ key, for: '1h' });
      await second.controls.saved();
    }
    const path = place('state.controls');
    const text = readFileSync(path, 'utf8');
    const afterHead = text.split('\n').slice(2).join('\n');
    const bent = afterHead.replace('in the', 'IN THE').replace('damaged', 'DAMAGED');
    writeFileSync(path, text.replace(afterHead, bent));
    const third = await start(ONE, first.clock);
    expect(third.logged).toContain('controls are damaged: the rest is used');
    expect(third.controls.list().map(({ key }) => key)).toEqual(['in the snapshot', 'eve']);
    await third.controls.saved();
    const fourth = await start(ONE, first.clock);
    expect(fourth.logged).not.toContain('controls are damaged: the rest is used');
    expect(fourth.controls.list()).toHaveLength(2);
  });

  test('a clock that was set back: later changes still count, and a snapshot from the future brings its bans', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'eve', for: '2h' });
    first.controls.ban({ key: 'mallory', for: '2h' });
    await first.stop();
    rmSync(place('state.controls'));
    const back = new VirtualClock(NOW - HOUR);
    const second = await start(ONE, back);
    expect(second.isAllowed('mallory')).toBe(false);
    second.controls.unban({ key: 'eve' });
    await second.controls.saved();
    const third = await start(ONE, new VirtualClock(NOW + 10 * MINUTE));
    expect(third.controls.list().map(({ key }) => key)).toEqual(['mallory']);
  });

  test('a reload to another file: controls hold there, and without a file saved says so', async () => {
    const first = await start(ONE);
    first.controls.ban({ key: 'eve', for: '1h' });
    expect(await first.reload(ONE, 'other')).toMatchObject({ ok: true });
    expect(await first.controls.saved()).toEqual({ isSaved: true });
    const second = await start(ONE, first.clock, 'other');
    expect(second.isAllowed('eve')).toBe(false);
    expect(await second.reload(ONE, '')).toMatchObject({ ok: true });
    expect(await second.controls.saved()).toMatchObject({ isSaved: false, hasFile: false });
    expect(second.isAllowed('eve')).toBe(false);
    expect(await second.reload(ONE, 'other')).toMatchObject({ ok: true });
    expect(await second.controls.saved()).toEqual({ isSaved: true });
  });

  test('a ban and a reset by a peer hold', async () => {
    const first = await start(ONE);
    expect(first.count('alice')).toBe(20);
    await first.stop();
    const second = await start(ONE, first.clock);
    const setAt = second.clock.now();
    const until = setAt + HOUR;
    second.controls.merge([
      { kind: 'ban', key: 'eve', until, setAt },
      { kind: 'reset', key: 'alice', until: setAt + 30_000, setAt },
    ]);
    await second.controls.saved();
    const third = await start(ONE, first.clock);
    expect(third.isAllowed('eve')).toBe(false);
    expect(third.count('alice')).toBe(20);
  });

  test.each([1, 2])(
    'random changes, crashes and stops: what was saved is what the next daemon has (seed %i)',
    async (seed) => {
      const random = seededRandom(seed);
      const pick = (count: number): number => Math.floor(random() * count);
      let daemon = await start(ONE);
      const view = (): readonly string[] => {
        const now = daemon.clock.now();
        const inEffect = daemon.controls.list().filter(({ until }) => until > now);
        return inEffect.map((record) => JSON.stringify(record)).sort();
      };
      for (let step = 0; step < 80; step++) {
        const { controls, clock } = daemon;
        const key = `k${pick(8)}`;
        const isBanned = controls.list().some((each) => each.kind === 'ban' && each.key === key);
        const life = `${1 + pick(40)}m`;
        const actions = [
          () => controls.ban({ key, for: life }),
          () => controls.unban({ key }),
          () => isBanned || controls.override({ key, rate: `${1 + pick(5)}/h`, for: life }),
          () => controls.removeOverride({ key }),
          () => clock.advance(pick(15 * MINUTE)),
          () => rmSync(place('state.controls'), { force: true }),
        ];
        actions[pick(actions.length)]();
        if (random() > 0.25) continue;
        expect(await controls.reset({ key: 'other' })).toEqual({ reset: ['a'], failed: [] }); // writes a removed file anew
        expect(await controls.saved()).toEqual({ isSaved: true });
        if (random() < 0.3) await daemon.stop();
        const before = view();
        daemon = await start(ONE, clock);
        expect(view(), `step ${step}`).toEqual(before);
      }
    },
  );

  test('10,000 bans hold', async () => {
    const first = await start(ONE);
    for (let n = 0; n < 10_000; n++) first.controls.ban({ key: `k${n}`, for: '1h' });
    expect(await first.controls.saved()).toEqual({ isSaved: true });
    const second = await start(ONE, first.clock);
    expect(second.controls.list()).toHaveLength(10_000);
    expect(second.isAllowed('k9999')).toBe(false);
  });
});
