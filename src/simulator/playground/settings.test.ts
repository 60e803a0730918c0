import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { createPolicy, LIMIT_KINDS } from '../../policies/limit.ts';
import { EXAMPLES } from './examples.ts';
import { LIMIT_KIND, limitOf } from './limits.ts';
import { changeSetting, fieldGroups, linkOf, readLink } from './settings.ts';
import { TRAFFIC } from './traffic.ts';

const KINDS = Object.keys(LIMIT_KIND.options);

describe('playground settings', () => {
  test('a link carries every setting, for every kind of traffic and limit', () => {
    for (const kind of KINDS)
      for (const traffic of Object.keys(TRAFFIC.options)) {
        const { settings, problems } = readLink(`traffic=${traffic}&a=${kind}&b=${kind}&seed=7`);
        expect(problems).toEqual([]);
        const groups = Object.values(fieldGroups(settings));
        const names = groups.flatMap((fields) => Object.keys(fields));
        expect(Object.keys(settings).sort()).toEqual(names.sort());
        expect(readLink(linkOf(settings))).toEqual({ settings, problems: [] });
      }
  });

  test('every kind of limit of the library is offered, and accepted with its defaults', () => {
    const used = new Set<string>();
    for (const kind of KINDS) {
      const limit = limitOf(readLink(`a=${kind}`).settings, 'a');
      if (limit) createPolicy(limit, seededRandom(1));
      for (const name of JSON.stringify(limit ?? {}).match(/[a-z]+/g) ?? []) used.add(name);
    }
    expect(LIMIT_KINDS.filter((name) => !used.has(name))).toEqual([]);
  });

  test.each([
    ['rate=-1', 'rate: expected a number from 1 to 1000, got "-1"; used 100 instead'],
    ['rate=1e9', 'rate: expected a number from 1 to 1000, got "1e9"; used 100 instead'],
    ['rate=', 'rate: expected a number from 1 to 1000, got ""; used 100 instead'],
    ['rate=NaN', 'rate: expected a number from 1 to 1000, got "NaN"; used 100 instead'],
    ['a=constructor', /^a: expected one of none, bucket, .*, got "constructor"; used "bucket"/],
    ['traffic=__proto__', /^traffic: expected one of steady, .*, got "__proto__"/],
    ['__proto__=1', '"__proto__": no such setting'],
    ['a.brust=5', '"a.brust": no such setting; did you mean `a.burst`?'],
    [`a=written&a.json=${'x'.repeat(601)}`, /^a.json: expected at most 600 characters/],
    ['%ff%00=%F0', /no such setting$/],
  ])('an invalid link is reported and replaced by defaults: %s', (link, problem) => {
    const { settings, problems } = readLink(link);
    expect(problems).toEqual([
      typeof problem === 'string' ? problem : expect.stringMatching(problem),
    ]);
    expect(settings.rate).toBe(100);
    expect(linkOf(settings)).not.toContain('proto');
  });

  test('a link of any length is bounded: at most 4,000 characters are read, and 5 problems reported', () => {
    const many = Array.from({ length: 200 }, (_, n) => `x${n}=1`).join('&');
    expect(readLink(many).problems).toHaveLength(5);
    const { problems } = readLink('y'.repeat(4001));
    expect(problems).toEqual(['the link: expected at most 4000 characters, got 4001']);
  });

  test('names of the page itself are no settings', () => {
    expect(readLink('view=playground&rate=5', ['view']).problems).toEqual([]);
  });

  test('another kind of limit keeps what fits, and has defaults for the rest', () => {
    const { settings } = readLink('a=bucket&a.rate=33&a.wait=500');
    const changed = changeSetting(settings, 'a', 'both');
    expect(changed).toMatchObject({ a: 'both', 'a.rate': 33, 'a.wait': 500, 'a.inFlight': 10 });
    expect(changeSetting(changed, 'a', 'none')).not.toHaveProperty('a.rate');
  });
});

test('playground examples: every setting of every link is used', () => {
  for (const { link } of EXAMPLES) {
    const { settings, problems } = readLink(link);
    expect([link, ...problems]).toEqual([link]);
    for (const [name, value] of new URLSearchParams(link)) expect(`${settings[name]}`).toBe(value);
  }
});
