import { describe, expect, test } from 'vitest';
import { ReportBudget } from './report-budget.ts';

describe('a budget of 100 datagrams a second', () => {
  test('lets ten out at once, then one every ten milliseconds', () => {
    const budget = new ReportBudget(100, 0);
    for (let n = 0; n < 10; n++) {
      expect(budget.dueAt(0)).toBe(0);
      budget.spend(1, 0);
    }
    expect(budget.dueAt(0)).toBe(10);
    expect(budget.dueAt(10)).toBe(10);
    budget.spend(1, 10);
    expect(budget.dueAt(10)).toBe(20);
  });

  test('counts datagrams, not reports: after one of five it is half spent', () => {
    const budget = new ReportBudget(100, 0);
    budget.spend(5, 0);
    budget.spend(5, 0);
    expect(budget.dueAt(0)).toBe(10);
  });

  test('a flood that has to go out is not held against it for long', () => {
    const budget = new ReportBudget(100, 0);
    budget.spend(1_000_000, 0);
    expect(budget.dueAt(0)).toBe(110);
  });
});
