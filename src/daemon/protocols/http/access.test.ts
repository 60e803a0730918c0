import { describe, expect, test } from 'vitest';
import { createAdminGuard, isCrossSite } from './access.ts';
import type { RequestHead } from './key.ts';

const requestWith = (headers: RequestHead['headers']): RequestHead => ({ headers, socket: {} });
const [LOOPBACK, EXTERNAL] = [true, false];

describe('admin access', () => {
  test('loopback: open without a token, closed with one', () => {
    expect(createAdminGuard({})(requestWith({ host: 'localhost:7330' }), LOOPBACK)).toBeUndefined();
    expect(
      createAdminGuard({ token: 'secret' })(requestWith({ host: 'localhost' }), LOOPBACK)?.status,
    ).toBe(401);
  });

  test('other hosts: closed without the token', () => {
    const closed = createAdminGuard({})(requestWith({ authorization: 'Bearer ' }), EXTERNAL);
    expect(closed?.status).toBe(403);
    expect(closed?.body).toContain('set admin.token');
    const guard = createAdminGuard({ token: 'secret' });
    expect(guard(requestWith({ authorization: 'Bearer secret' }), EXTERNAL)).toBeUndefined();
    expect(guard(requestWith({ authorization: 'bearer  secret ' }), EXTERNAL)).toBeUndefined();
    for (const authorization of ['secret', 'Bearer secre', 'Bearer secrets', 'Basic secret', '']) {
      const response = guard(requestWith({ authorization }), EXTERNAL);
      expect(response?.status).toBe(401);
      expect(response?.headers).toContain('Bearer realm="sluice"');
    }
  });

  test('non-ASCII token: is compared as bytes', () => {
    const authorization = `Bearer ${Buffer.from('grün').toString('latin1')}`;
    expect(
      createAdminGuard({ token: 'grün' })(requestWith({ authorization }), EXTERNAL),
    ).toBeUndefined();
  });

  test('DNS rebinding: refuses a Host that is neither localhost nor an address', () => {
    const host = (name: string) =>
      createAdminGuard({})(requestWith({ host: name }), LOOPBACK)?.status;
    for (const local of ['localhost', '127.0.0.1:80', '[::1]:7330', 'LOCALHOST:1', '']) {
      expect(host(local)).toBeUndefined();
    }
    for (const foreign of ['evil.example', 'localhost.evil.example', '127.0.0.1.evil.example']) {
      expect(host(foreign)).toBe(403);
    }
  });

  test('cross-site request: is recognised by its Origin', () => {
    const isForeign = (origin: string, host = 'localhost:7330') =>
      isCrossSite(requestWith({ origin, host }));
    expect(isCrossSite(requestWith({ host: 'localhost:7330' }))).toBe(false); // not a browser
    expect(isForeign('http://localhost:7330')).toBe(false);
    expect(isForeign('https://Localhost:7330')).toBe(false);
    for (const foreign of ['http://evil.example', 'null', '', 'http://localhost', 'file://']) {
      expect(isForeign(foreign)).toBe(true);
    }
  });
});
