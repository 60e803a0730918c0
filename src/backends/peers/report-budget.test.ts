import { describe, expect, test } from 'vitest';
import { ReportBudget } from './report-budget.ts';

describe('report budget of 100 datagrams per second', () => {
  test('allows a burst of ten, then one every 10 ms', () => {
    const budget = new ReportBudget(100);
    for (let n = 0; n < 10; n++) {
      expect(budget.dueAt(0)).toBe(0);
      budget.spend(1, 0);
    }
    expect(budget.dueAt(0)).toBe(10);
    expect(budget.dueAt(10)).toBe(10);
    budget.spend(1, 10);
    expect(budget.dueAt(10)).toBe(20);
  });

  test('counts datagrams, not reports', () => {
    const budget = new ReportBudget(100);
    budget.spend(5, 0);
    budget.spend(5, 0);
    expect(budget.dueAt(0)).toBe(10);
  });

  test('unavoidable reports overdraw it by one burst at most', () => {
    const budget = new ReportBudget(100);
    budget.spend(1_000_000, 0);
    expect(budget.dueAt(0)).toBe(110);
  });
});
