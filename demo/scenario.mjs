/**
 * The story, act by act, and what must have held when it is over.
 *
 * Seconds are those of the story; a fast one passes sooner. What a line says happened was counted just before.
 */

import { haveMet, until } from './daemons.mjs';

/** Calls a second, in the story's seconds. */
const ABUSE = 60;
const GOOD = [2, 3, 4];

/**
 * What mallory may have got in the end, as a part of what one bucket would have allowed. Words are on their way for
 * some milliseconds, so it may be a few calls more. It may be more calls less: those that lay in west's
 * socket while it was frozen are counted when it goes on, and nobody waits for them any more.
 */
const MAX_MORE = 1.05;
const MAX_LESS = 0.8;

/** Plays it; resolves with what mallory had left at north and at south when north was just back. */
export async function play(stage) {
  const { daemons, mallory, good, limit, pace, tell, pass } = stage;
  const [north, south, west] = daemons;

  await Promise.all(daemons.map((daemon) => daemon.start()));
  for (const { name, pid, http } of daemons) {
    tell(`${name} is process ${pid}: curl '${http}/inspect?key=mallory'`);
  }
  await haveMet(daemons);
  tell('the three have met, over UDP, every datagram sealed with a key');

  const rates = GOOD.map((perSecond) => perSecond * pace);
  good.forEach((caller, n) => {
    caller.begin(rates[n]);
  });
  tell(`alice, bob and carol begin: ${rates.join(', ')} calls a second, each at all three`);
  await pass(3);

  mallory.begin(ABUSE * pace);
  tell(`mallory begins: ${ABUSE * pace} calls a second, spread over all three`);
  await pass(2);
  tell(`mallory has had ${mallory.allowed} calls: a burst of ${limit.burst}, and its rate since`);
  const gets = rateOf(stage);
  await pass(5);
  tell(`mallory gets ${gets()} a second from all three together; the limit is ${limit.rate}`);

  await north.kill();
  tell('north is killed (kill -9); whoever called it asks the next daemon');
  const getsFromTwo = rateOf(stage);
  await pass(6);
  tell(`south and west go on: mallory gets ${getsFromTwo()} a second`);

  mallory.pause();
  tell('mallory is quiet, until it may have a full burst again');
  await pass(5);
  const burst = await burstInABlink(stage);
  mallory.begin(ABUSE * pace);
  tell(`west halts for a blink: mallory bursts there and at south, ${burst} allowed`);
  const inDebt = mallory.allowed;
  const known = await comeBack(stage);
  await pass(1);
  stage.picture();

  await until(async () => (await south.left(mallory.name)) >= 0, 'the debt to be paid');
  tell(`the debt is slept off: ${mallory.allowed - inDebt} calls of mallory allowed meanwhile`);
  await pass(4);

  west.freeze();
  tell('west is frozen (kill -STOP): it hears nothing and answers nobody');
  const getsNow = rateOf(stage);
  await pass(4);
  west.thaw();
  tell('west goes on, notices that it slept, and asks the others how keys stand');
  await pass(6);
  tell(`mallory got ${getsNow()} a second since west was frozen`);

  for (const caller of [mallory, ...good]) caller.pause();
  await until(() => [mallory, ...good].every(({ open }) => open === 0), 'the last answers');
  return known;
}

/**
 * The worst moment there is: west stands still, as in a long garbage collection, and hears only afterwards what
 * south allows meanwhile. By then it has allowed as much itself.
 */
async function burstInABlink({ daemons: [, south, west], mallory, limit }) {
  west.freeze();
  const atWest = mallory.burst(limit.burst, west);
  const atSouth = await mallory.burst(limit.burst, south);
  west.thaw();
  return atSouth + (await atWest);
}

/** Starts north again; the first thing anybody asks it is how mallory stands. */
async function comeBack({ daemons: [north, south], mallory, limit, tell }) {
  const started = north.start();
  tell(
    `north starts again, process ${north.pid}: alone, it would give mallory ${limit.burst} more`,
  );
  await started;
  const known = { atNorth: undefined, atSouth: undefined };
  await until(async () => {
    const left = [north, south].map((daemon) => daemon.left(mallory.name));
    [known.atNorth, known.atSouth] = await Promise.all(left);
    return known.atNorth !== undefined && known.atSouth !== undefined;
  }, 'north to answer');
  tell(`north asked the others first: its first answer is that mallory ${standing(known.atNorth)}`);
  return known;
}

const standing = (left) => (left < 0 ? `owes ${-left}` : `has ${left} left`);

/** What mallory is allowed a second, from now until it is asked for. */
function rateOf({ mallory, seconds }) {
  const from = { allowed: mallory.allowed, at: seconds() };
  return () => ((mallory.allowed - from.allowed) / (seconds() - from.at)).toFixed(1);
}

/** What came out: lines of text, and whether each is as promised. */
export function judge({ daemons, mallory, good, limit }, { atNorth, atSouth }) {
  const { asked, allowed, oneBucket } = mallory;
  const most = Math.floor(MAX_MORE * oneBucket);
  const refused = sum(good, 'denied');
  const unanswered = sum([mallory, ...good], 'unanswered');
  const down = daemons.filter(({ state }) => state !== 'up').map(({ name }) => name);
  return [
    {
      text: `mallory asked ${asked} times, got ${allowed}; one bucket gives ${oneBucket}, the bound is ${most}`,
      holds: allowed <= most && allowed >= MAX_LESS * oneBucket,
    },
    {
      text: `alice, bob and carol asked ${sum(good, 'asked')} times; ${refused} denied`,
      holds: refused === 0,
    },
    {
      text: `when north was back, mallory ${standing(atNorth)} there, and ${standing(atSouth)} at south`,
      holds: Math.abs(atNorth - atSouth) <= limit.burst / 4,
    },
    { text: `calls that nobody answered: ${unanswered}`, holds: unanswered === 0 },
    {
      text: `daemons that ended by themselves: ${down.join(', ') || 'none'}`,
      holds: down.length === 0,
    },
  ];
}

const sum = (callers, field) => callers.reduce((total, caller) => total + caller[field], 0);
