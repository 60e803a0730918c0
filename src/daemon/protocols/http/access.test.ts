/** Who may look behind the counter. */

import { describe, expect, test } from 'vitest';
import { createAdminGuard, isCrossSite } from './access.ts';
import type { RequestHead } from './key.ts';

const asking = (headers: RequestHead['headers']): RequestHead => ({ headers, socket: {} });
const [HERE, ELSEWHERE] = [true, false];

describe('behind the counter', () => {
  test('is open on loopback, unless a token is set', () => {
    expect(createAdminGuard({})(asking({ host: 'localhost:7330' }), HERE)).toBeUndefined();
    expect(createAdminGuard({ token: 'secret' })(asking({ host: 'localhost' }), HERE)?.status).toBe(
      401,
    );
  });

  test('is closed to other hosts, unless they have the token', () => {
    const closed = createAdminGuard({})(asking({ authorization: 'Bearer ' }), ELSEWHERE);
    expect(closed?.status).toBe(403);
    expect(closed?.body).toContain('set admin.token');
    const may = createAdminGuard({ token: 'secret' });
    expect(may(asking({ authorization: 'Bearer secret' }), ELSEWHERE)).toBeUndefined();
    expect(may(asking({ authorization: 'bearer  secret ' }), ELSEWHERE)).toBeUndefined();
    for (const authorization of ['secret', 'Bearer secre', 'Bearer secrets', 'Basic secret', '']) {
      const reply = may(asking({ authorization }), ELSEWHERE);
      expect(reply?.status).toBe(401);
      expect(reply?.headers).toContain('Bearer realm="sluice"');
    }
  });

  test('takes a token that is not ASCII as the bytes that come', () => {
    const authorization = `Bearer ${Buffer.from('grün').toString('latin1')}`;
    expect(
      createAdminGuard({ token: 'grün' })(asking({ authorization }), ELSEWHERE),
    ).toBeUndefined();
  });

  test('is closed to a page that made a name of its own point here', () => {
    const host = (name: string) => createAdminGuard({})(asking({ host: name }), HERE)?.status;
    for (const own of ['localhost', '127.0.0.1:80', '[::1]:7330', 'LOCALHOST:1', '']) {
      expect(host(own)).toBeUndefined();
    }
    for (const strange of ['evil.example', 'localhost.evil.example', '127.0.0.1.evil.example']) {
      expect(host(strange)).toBe(403);
    }
  });

  test('tells a page of another site by its origin', () => {
    const comes = (origin: string, host = 'localhost:7330') =>
      isCrossSite(asking({ origin, host }));
    expect(isCrossSite(asking({ host: 'localhost:7330' }))).toBe(false); // no browser
    expect(comes('http://localhost:7330')).toBe(false);
    expect(comes('https://Localhost:7330')).toBe(false);
    for (const strange of ['http://evil.example', 'null', '', 'http://localhost', 'file://']) {
      expect(comes(strange)).toBe(true);
    }
  });
});
