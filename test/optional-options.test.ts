/** Every optional option of a public options type accepts undefined: projects with exactOptionalPropertyTypes need it. */

import { expect, test } from 'vitest';
import { publicOptions } from './support/optional-names.ts';

test('options: every optional one accepts undefined', () => {
  expect(publicOptions.length).toBeGreaterThan(150);
  const refusing = publicOptions.filter(({ type }) => !/\b(?:undefined|unknown)\b/.test(type));
  expect(refusing.map(({ of, name }) => `${of}.${name}`)).toEqual([]);
});
