import { expect, test } from 'vitest';
import { repeatedMember } from './json.ts';

test.each([
  ['{"a":1,"b":2,"a":3}', 'a'],
  ['{"a":1,"\\u0061":3}', 'a'],
  ['[{"key":"x"},{"key":"y","cost":1,"key" : "z"}]', 'key'],
  ['{"a":{"b":{},"c":[{"d":1}],"b":2}}', 'b'],
  ['{"":1,"":2}', ''],
  ['{"__proto__":1,"__proto__":2}', '__proto__'],
  ['{"say \\"x\\"":1,"say \\"x\\"":2}', 'say "x"'],
  ['{"a":{"z":"}"},"a":1}', 'a'],
])('repeated member: %s has one', (json, name) => {
  expect(repeatedMember(json)).toBe(name);
});

test.each([
  '7',
  '"a"',
  '{}',
  '{"a":{"a":{"a":"a"}}}',
  '[{"a":1},{"a":2}]',
  '{"a":"b","b":"a"}',
  '{"a":"{","b":"\\"a\\":"}',
  '["a","a",":",{"a":["a"]}]',
  '{"a\\\\":1,"a":2}',
])('repeated member: %s has none', (json) => {
  expect(JSON.parse(json)).toBeDefined();
  expect(repeatedMember(json)).toBeUndefined();
});
