/** A test suite for Jest in a CommonJS project: it requires the package. */

const { limiter, throttle, DeniedError } = require('sluice');
const { smallLimiter, bucket } = require('sluice/small');
const { VirtualClock } = require('sluice/testing');

test('limits on a virtual clock', async () => {
  const clock = new VirtualClock();
  const api = limiter({ limit: { bucket: { rate: '1/s', burst: 1 } }, clock });
  expect([api.check('a').verdict, api.check('a').verdict]).toEqual(['allow', 'deny']);
  await clock.advanceAsync(1000);
  expect(api.check('a').verdict).toBe('allow');
});

test('errors keep their class', () => {
  const call = throttle(() => 1, { limit: { bucket: { rate: '1/h' } } });
  call();
  expect(call).toThrow(DeniedError);
});

test('another entry', () => {
  expect(smallLimiter(bucket({ rate: '10/s' })).check('x').verdict).toBe('allow');
});
