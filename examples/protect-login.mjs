/** Login protection: per user and per address in one check; failures lock, for longer each time. */

import assert from 'node:assert';
import { all, limiter } from 'sluice';
import { VirtualClock } from 'sluice/testing';

const clock = new VirtualClock(); // leave it out in your program: the clock is then the system's
const perUser = limiter({
  name: 'user',
  limit: { lockout: { after: 5, within: '15m', lock: ['1m', '5m', '1h'], forget: '1d' } },
  clock,
});
const perAddress = limiter({
  name: 'address',
  // A success returns its own attempt only: an attacker with a valid account gains nothing.
  limit: { lockout: { after: 20, within: '15m', lock: ['5m', '1h'], onSuccess: 'return' } },
  clock,
});
const logins = all([
  { limiter: perUser, key: (key) => JSON.parse(key).user },
  { limiter: perAddress, key: (key) => JSON.parse(key).address },
]);

const passwords = new Map([['alice', 'correct horse']]);
let guesses = 0;

async function verify(user, password) {
  guesses++;
  await Promise.resolve(); // the database
  return passwords.get(user) === password;
}

async function login(user, password, address) {
  const entry = logins.tryAcquire(JSON.stringify({ user, address }));
  if (entry.verdict === 'deny') return `locked for ${Math.ceil(entry.retryAfterMs / 1000)} s`;
  let attempt = 'failure';
  try {
    if (await verify(user, password)) attempt = 'success';
    return attempt === 'success' ? 'welcome' : 'wrong name or password';
  } finally {
    entry.settle({ attempt }); // an error counts as a failure: a guess is never free
  }
}

console.log('alice mistypes, then logs in:', await login('alice', 'correct hoarse', '10.0.0.1'));
assert.equal(await login('alice', 'correct horse', '10.0.0.1'), 'welcome');

guesses = 0;
const attack = Array.from({ length: 100 }, (_, n) => login('alice', `guess ${n}`, '192.0.2.7'));
const replies = await Promise.all(attack);
console.log(`100 guesses at once: ${guesses} were verified; the last reply: ${replies.at(-1)}`);
assert.equal(guesses, 5);

clock.advance(60_000);
for (let n = 0; n < 6; n++) replies.push(await login('alice', `guess ${n}`, '192.0.2.7'));
console.log('a minute later, five more:', replies.at(-1));
assert.equal(replies.at(-1), 'locked for 300 s');

const { lockedMs, locks } = perUser.inspect('alice');
console.log('alice:', { lockedMs, locks });
perUser.report('alice', 'success'); // a new password was set by mail
console.log('after a password reset:', await login('alice', 'correct horse', '10.0.0.1'));
assert.equal(perUser.inspect('alice').lockedMs, undefined);

for (let n = 0; n < 20; n++) await login(`user ${n}`, 'password1', '192.0.2.7');
console.log('one password, many names:', await login('bob', 'password1', '192.0.2.7'));
assert.equal(await login('bob', 'password1', '192.0.2.7'), 'locked for 300 s');
assert.equal(await login('alice', 'correct horse', '10.0.0.1'), 'welcome');
